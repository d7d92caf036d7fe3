"""Training gives the same numbers, to the last bit, with a monitor and without."""

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch._dynamo.utils import counters
from watched_training import EVERY, STEPS, WAYS, train

import toposcope as ts
from toposcope.errors import ToposcopeError
from toposcope.monitor.measuring import marker, warm_up
from toposcope.monitor.monitor import DEFAULT_PROBES
from toposcope.monitor.parameters import layout
from toposcope.monitor.quantities import Quantities
from toposcope.study.runner import locked
from toposcope.study.store import Store


@pytest.fixture(scope="module")
def _compiled_for_bfloat16() -> None:
    if not marker("bfloat16").exists():
        warm_up(DEFAULT_PROBES, "bfloat16")


pytestmark = pytest.mark.usefixtures("compiled_probes")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def measured_steps(directory: Path) -> pl.DataFrame:
    rows: pl.DataFrame = ts.Study.load(directory).frame()
    return rows


@pytest.fixture
def _same_numbers_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def measured_by_probe(way: str, directory: Path, device: str = "cpu") -> dict[str, set[int]]:
    """Train with a monitor and without, and compare; return the measured steps of two probes."""
    losses, weights = train(way, None, device=device)
    watched_losses, watched_weights = train(way, directory, device=device)
    assert watched_losses == losses
    assert all(torch.equal(*pair) for pair in zip(watched_weights, weights, strict=True))
    rows = measured_steps(directory)
    return {
        probe: set(rows.filter(pl.col("probe") == probe)["step"])
        for probe in ("training", "neural_persistence", "activations")
    }


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled_for_bfloat16")
@pytest.mark.parametrize("way", WAYS)
def test_every_loss_and_weight_is_the_same(way: str, tmp_path: Path) -> None:
    for steps in measured_by_probe(way, tmp_path / "run").values():
        assert steps == set(range(0, STEPS + 1, EVERY))


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled_for_bfloat16", "_same_numbers_on_a_gpu")
@pytest.mark.parametrize("way", WAYS)
def test_on_a_gpu_every_loss_and_weight_is_the_same(way: str, tmp_path: Path) -> None:
    assert all(len(steps) > 1 for steps in measured_by_probe(way, tmp_path / "run", "cuda").values())


@pytest.mark.slow
def test_no_random_number_is_drawn(tmp_path: Path) -> None:
    def states() -> list[object]:
        return [random.getstate(), repr(np.random.get_state())]  # noqa: NPY002

    before = states()
    train("plain", tmp_path / "run", steps=10)
    assert states() == before


@pytest.mark.slow
def test_a_compiled_model_is_compiled_as_without(tmp_path: Path) -> None:
    found = []
    for directory in (None, tmp_path / "run"):
        torch._dynamo.reset()
        counters.clear()
        train("compiled", directory, steps=12, every=2)
        found.append({kind: dict(values) for kind, values in counters.items()})
    assert found[0]["stats"]["unique_graphs"] == found[1]["stats"]["unique_graphs"] == 1
    assert found[0].get("graph_break") == found[1].get("graph_break")
    assert found[0].get("frames") == found[1].get("frames")


def test_what_is_no_number_or_no_step_is_not_logged_and_the_rest_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = [None, "abc", {"a": 1}, 10**400, 1j, np.ones(2), torch.ones(2), torch.tensor(1j)]
    numbers.append(torch.ones(2, device="meta"))
    steps: list[object] = ["7", 1.5, -3, 2**70, float("nan"), torch.ones(2)]
    model, optimizer = _small()
    with ts.Monitor(model, tmp_path / "run", quiet=True) as monitor:
        monitor.attach(optimizer, step=np.int64(7))  # type: ignore[arg-type]
        for value in numbers:
            optimizer.step()
            monitor.log(loss=0.5, grad_norm=value)
        for step in steps:
            monitor.log(step=step, loss=0.25)  # type: ignore[arg-type]
        for step in (np.int64(20), torch.tensor(21), 22.0):
            monitor.log(step=step, loss=0.75)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.count("give the number of optimizer steps so far; rows like this one are ignored") == 1
    log = ts.Study.load(tmp_path / "run").log()
    assert log["step"].to_list() == [*range(8, 8 + len(numbers)), 20, 21, 22]
    assert log["loss"].to_list() == [0.5] * len(numbers) + [0.75] * 3
    assert log["grad_norm"].null_count() == len(log)


@pytest.mark.slow
def test_a_terminal_that_is_gone_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_step: int) -> bool:
        raise RuntimeError("the schedule's fault")

    closed = (tmp_path / "terminal").open("w")
    closed.close()
    model, optimizer = _small()
    monitor = ts.Monitor(model, tmp_path / "run", every=fail)
    monkeypatch.setattr("sys.stderr", closed)
    monitor.attach(optimizer)
    for _ in range(3):
        optimizer.step()
    monitor.close()


@pytest.mark.slow
def test_the_loop_may_go_to_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model, optimizer = _small()
    monitor = ts.Monitor(model, "run", quiet=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    monitor.attach(optimizer)
    optimizer.step()
    monitor.log(loss=0.5)
    monitor.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(ts.Study.load(tmp_path / "run").log()) == 1


@pytest.mark.parametrize("name", ["a/b", "../../x", "a\nb", ".", " ", "x" * 300])
def test_a_name_that_no_study_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="cannot name a folder"):
        ts.Monitor(_small()[0], tmp_path / "run", name=name)


def test_counts_are_exact_whatever_the_default_dtype(tmp_path: Path) -> None:
    dead = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.set_default_dtype(dtype)
        try:
            quantities = Quantities(dict(model.named_parameters()), layout(model))
            model(torch.ones(4, 8, dtype=torch.float32)).sum().backward()
            optimizer.step()
            dead.append(quantities.after().rows()["0.weight"]["dead_units"])
        finally:
            torch.set_default_dtype(torch.float32)
    assert 0 < dead[0] == dead[1]


@pytest.mark.slow
@pytest.mark.parametrize(("end", "status"), [("", "complete"), ("raise ValueError('a fault')", "failed")])
def test_a_script_that_fails_has_not_completed_its_run(end: str, status: str, tmp_path: Path) -> None:
    script = f"""
import torch
import toposcope as ts
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = ts.Monitor(model, {str(tmp_path / "run")!r}, quiet=True)
monitor.attach(optimizer)
optimizer.step()
monitor.log(loss=0.5)
{end}
"""
    subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert Store(tmp_path / "run" / "study.db").status("run") == status


def test_a_monitor_that_is_forgotten_gives_its_study_free(tmp_path: Path) -> None:
    def cell() -> None:
        model, optimizer = _small()
        monitor = ts.Monitor(model, tmp_path / "run", quiet=True)
        monitor.attach(optimizer)
        optimizer.step()
        monitor.log(loss=0.5)

    before = set(threading.enumerate())
    cell()
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "toposcope-monitor":
            thread.join(60)
            assert not thread.is_alive()
    store = Store(tmp_path / "run" / "study.db")
    assert (store.status("run"), store.last_step("run")) == ("failed", 1)
    store.close()
    with locked(tmp_path / "run"):
        pass


def _small() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
