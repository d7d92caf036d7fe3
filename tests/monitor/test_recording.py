"""The doctor on checkpoints as they are saved, and what waits for a disk that cannot be written."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import model_folder

from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.integrity import doctor
from toposcope.monitor.budget import Budget, Meter
from toposcope.monitor.measuring import StepMeasurements
from toposcope.monitor.recording import MAX_DIAGRAM_STEPS, MAX_WAITING, RETRY_SECONDS, Recording, WriteQueue
from toposcope.monitor.saved_checkpoints import DOCTOR, MAX_KEPT, SavedCheckpoints
from toposcope.probes import Measurement, make_probes

BUDGET = Budget(0.5, [DOCTOR], Meter(lambda: 0.0))
NAME = "layers.0.mlp.up_proj.weight"


def write(folder: Path, step: int, tensors: dict[str, torch.Tensor]) -> None:
    """Write a model folder, or its weights again."""
    path = folder / f"step{step}"
    if path.exists():
        save_file(tensors, path / "model.safetensors")
    else:
        model_folder(".safetensors", name="step{}")(folder, step, tensors)


def weights(step: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    start, direction, other = (torch.randn(32, 16, generator=draw) for _ in range(3))
    moved = start + direction * step**0.5 / 50
    return {NAME: moved, "layers.1.mlp.up_proj.weight": other - moved}


def test_each_fault_is_found_when_it_is_saved_and_once(tmp_path: Path) -> None:
    saved = SavedCheckpoints(BUDGET)
    found = []
    for k in range(1, 11):
        tensors = weights(100 * k)
        if k == 5:
            tensors[NAME][0, 0] = torch.nan
        if k == 8:
            tensors = weights(700)
        write(tmp_path, 100 * k, tensors)
        found += [(100 * k, f.check, f.steps) for f in saved.saved(tmp_path / f"step{100 * k}", 100 * k)]
    assert found == [(500, "non-finite", (500,)), (800, "duplicate", (700, 800))]
    later = doctor(tmp_path, deep=True).findings
    assert {finding.check for finding in later} == {"non-finite", "duplicate"}


def test_a_checkpoint_may_be_saved_again(tmp_path: Path) -> None:
    saved = SavedCheckpoints(BUDGET)
    for value in (100, 101):
        write(tmp_path, 100, weights(value))
        assert saved.saved(tmp_path / "step100", 100) == []
    assert doctor(tmp_path, deep=True).findings == []


def test_an_unreadable_checkpoint_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "step_1.safetensors").write_bytes(b"nothing")
    (finding,) = SavedCheckpoints(BUDGET).saved(tmp_path / "step_1.safetensors", 1)
    assert finding.severity == "fault"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_the_number_of_summaries_is_bounded(tmp_path: Path) -> None:
    saved = SavedCheckpoints(BUDGET)
    for step in range(1, MAX_KEPT + 10):
        write(tmp_path, 1, weights(step))
        assert saved.saved(tmp_path / "step1", step) == []


def full_disk() -> Recording:
    raise ToposcopeError("study.db: database or disk is full; free some disk space")


def measured(step: int) -> StepMeasurements:
    (probe,) = make_probes([{"name": "rips", "max_dimension": 0}])
    done = StepMeasurements(step)
    diagrams = {"H0": Diagram(np.array([[0.0, 1.0]]), 0)}
    done.add(probe, Measurement("layer", "mlp", {"H0.total": 1.0}, diagrams))
    return done


def test_rows_wait_and_only_the_last_diagrams(capsys: pytest.CaptureFixture[str]) -> None:
    queue, waiting = WriteQueue(full_disk), [measured(step) for step in range(MAX_WAITING + 9)]
    for done in waiting:
        queue.add(lambda _: None, done)
        assert queue.write(dict) == RETRY_SECONDS
    assert capsys.readouterr().err.count("disk is full") == 1
    assert len(queue._waiting) == MAX_WAITING
    with_diagrams = [done.step for done in waiting if _measurement(done).diagrams]
    assert with_diagrams == list(range(MAX_WAITING + 9))[-MAX_DIAGRAM_STEPS:]
    assert all(_measurement(done).statistics == {"H0.total": 1.0} for done in waiting)


def _measurement(done: StepMeasurements) -> Measurement:
    ((_, rows),) = done.measurements.items()
    return rows["layer"]
