"""Reading and measuring in parts: layer by layer, portion by portion, over files that change meanwhile."""

import math
import os
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from msgspec.structs import replace
from small_studies import (
    ALL_PROBES,
    CONTROLS,
    NEURAL_PERSISTENCE,
    RIPS,
    WEIGHT_PROBES,
    assert_same_study,
    checkpoint_file,
    family_study,
    frame,
    series_study,
    some_weights,
    write_series,
    write_weights,
)

from toposcope.analysis.trajectory import trajectories
from toposcope.engine.pool import Workers
from toposcope.probes.rips import RipsProbe
from toposcope.report import study_data, write_report
from toposcope.study import Declaration, Study, run_study, runner, study, survey, tasks, work
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.survey import LONG_TASK_MS
from toposcope.study.tasks import MeasureTask, ReadTask, measure_task, measure_tasks, read_tasks
from toposcope.study.work import (
    WORK,
    WorkProgress,
    batches,
    cut,
    longest_task,
    milliseconds,
    seconds,
)


def test_layers_measured_apart_give_what_they_give_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = family_study(tmp_path, ["trained"], ALL_PROBES, [found])
    assert run_study(declaration, tmp_path / "together", workers=1) == {}
    monkeypatch.setattr(work, "BATCH_SECONDS", 0)
    assert run_study(declaration, tmp_path / "apart", workers=1) == {}
    assert_same_study(tmp_path / "together", tmp_path / "apart")


def test_a_layer_that_fails_fails_the_network_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    weights = some_weights(5)
    weights["layers.0.mlp.fc1.weight"][0, 0] = float("nan")
    write_weights(checkpoint_file(found, 5), weights)
    declaration = series_study(found, [NEURAL_PERSISTENCE, RIPS, CONTROLS])
    together = run_study(declaration, tmp_path / "together", workers=1)
    monkeypatch.setattr(work, "BATCH_SECONDS", 0)
    assert run_study(declaration, tmp_path / "apart", workers=1) == together
    assert {(unit.step, unit.layer) for unit in together} == {(5, "layers.0.mlp.fc1.weight"), (5, "network")}
    assert_same_study(tmp_path / "together", tmp_path / "apart")
    # Mended, only what is missing is measured.
    write_weights(checkpoint_file(found, 5), some_weights(5))
    assert run_study(declaration, tmp_path / "apart", workers=1) == {}
    assert set(frame(tmp_path / "apart").filter(step=5)["layer"]) >= {"layers.0.mlp.fc1.weight", "network"}


def test_a_checkpoint_that_changes_while_it_is_measured_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = write_series(tmp_path / "found", [0, 5])

    def measure_while_written(task: MeasureTask) -> object:
        if task.checkpoint.step == 5:
            path = checkpoint_file(found, 5)
            os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
        return measure_task(task)

    monkeypatch.setattr(survey, "measure_tasks", lambda tasks: list(map(measure_while_written, tasks)))
    declaration = series_study(found, [NEURAL_PERSISTENCE])
    errors = run_study(declaration, tmp_path / "study", workers=1)
    assert {unit.step for unit in errors} == {5}
    assert all("changed while" in message for message in errors.values())
    monkeypatch.setattr(survey, "measure_tasks", measure_tasks)
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    assert set(frame(tmp_path / "study")["step"]) == {0, 5}


def test_another_role_is_heeded_by_what_was_measured_before(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, [NEURAL_PERSISTENCE])
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    roles = {r"fc1\.weight$": "attn.q", r"token_emb\.weight$": "other"}
    (declared,) = declaration.series
    other = replace(declaration, series=[replace(declared, roles=roles)])
    for directory in (tmp_path / "study", tmp_path / "fresh"):
        assert run_study(other, directory, workers=1) == {}
    assert_same_study(tmp_path / "study", tmp_path / "fresh")
    known = frame(tmp_path / "study").select("layer", "role").unique().rows()
    assert ("layers.0.mlp.fc1.weight", "attn.q") in known
    assert ("token_emb.weight", "other") in known


def test_a_series_that_cannot_be_opened_was_not_examined(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 100])
    (tmp_path / "empty").mkdir()
    series = [DeclaredSeries(path=str(found)), DeclaredSeries(path=str(tmp_path / "empty"))]
    run_study(Declaration(name="two", series=series, probes=[CONTROLS]), tmp_path / "study", workers=1)
    study = Study.load(tmp_path / "study")
    assert study.examined() == ["found"]
    assert study.runs().filter(run="found")["n_parameters"].to_list() == [20 * 6 + 2 * 14 * 6 + 6]


def test_a_checkpoint_replaced_before_it_is_hashed_is_measured_as_it_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was listed before it was replaced, here, names other layers than what a worker hashes."""
    found = write_series(tmp_path / "found", [0, 5])

    def elsewhere(task: Any) -> Any:
        return pickle.loads(pickle.dumps(task))  # noqa: S301 - our own bytes

    def replace_and_read(task: ReadTask) -> object:
        if task.checkpoint.step == 5:
            write_weights(checkpoint_file(found, 5), some_weights(5) | {"layers.1.mlp.fc1.weight": torch.ones(3, 4)})
        return read_tasks([elsewhere(task)])[0]

    monkeypatch.setattr(survey, "read_tasks", lambda tasks: list(map(replace_and_read, tasks)))
    monkeypatch.setattr(survey, "measure_tasks", lambda tasks: measure_tasks(elsewhere(tasks)))
    declaration = series_study(found, [NEURAL_PERSISTENCE])
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    assert "layers.1.mlp.fc1.weight" in set(frame(tmp_path / "study").filter(step=5)["layer"])


@pytest.mark.slow
@pytest.mark.parametrize(("start_seconds", "starts"), [(1e9, False), (0.0, True)])
def test_processes_start_where_that_saves_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_seconds: float, starts: bool
) -> None:
    started = []
    start = Workers._start_process

    def counted(self: Workers, *arguments: Any) -> Any:
        started.append(arguments)
        return start(self, *arguments)

    monkeypatch.setattr(Workers, "_start_process", counted)
    monkeypatch.setattr(survey, "START_SECONDS", start_seconds)
    found = write_series(tmp_path / "found", [0, 5])
    assert run_study(series_study(found, [NEURAL_PERSISTENCE]), tmp_path / "study", workers=2) == {}
    assert bool(started) is starts


def test_a_first_checkpoint_that_changed_since_is_not_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = write_series(tmp_path / "found", [0, 5])

    def replace_and_measure(task: MeasureTask) -> object:
        if task.checkpoint.step == 5:
            write_weights(checkpoint_file(found, 0), some_weights(77))
        return measure_task(pickle.loads(pickle.dumps(task)))  # noqa: S301 - our own bytes

    monkeypatch.setattr(survey, "measure_tasks", lambda tasks: list(map(replace_and_measure, tasks)))
    errors = run_study(series_study(found, [CONTROLS]), tmp_path / "study", workers=1)
    assert {unit.step for unit in errors} == {5}
    assert all("step_000000.safetensors: changed while" in message for message in errors.values())


def test_batches_hold_every_layer_once() -> None:
    probe, shapes = RipsProbe(max_points=1000), {str(n): (n, 64) for n in (1, 30_000, 2, 700, 900, 3)}
    found = list(batches(probe, shapes))
    assert [name for batch in found for name in batch] == list(shapes)
    assert all(
        len(batch) == 1 or seconds(probe, {n: shapes[n] for n in batch}) <= work.BATCH_SECONDS for batch in found
    )
    assert len(found) > 1
    many = {str(k): (1, 64) for k in range(200_000)}
    assert len(list(batches(probe, many))) < 15  # each rewrites what was before


def test_the_longest_task_is_begun_first_and_is_what_takes_as_long_at_least() -> None:
    shapes = {"wide": (30_000, 768), "narrow": (768, 768)}
    probe = RipsProbe(max_points=1000)
    assert longest_task(probe, shapes) == milliseconds(probe, {"wide": shapes["wide"]}) > LONG_TASK_MS
    pooled = RipsProbe(pooled=True, max_points=1000)
    assert longest_task(pooled, shapes) == milliseconds(pooled, shapes)
    assert longest_task(probe, {}) == 0


def test_progress_of_work_that_two_share() -> None:
    told: list[tuple[int, int]] = []
    work = WorkProgress("measure", 900, lambda stage, done, total: told.append((done, total)), 1.5)
    work.add(300)
    work.add_running(WORK, 300, 0)
    work.add(600)
    assert told == [(200, 600), (400, 600), (600, 600)]


def test_portions_hold_what_may_lie_on_the_disk() -> None:
    fetched = dict(enumerate([0, 30, 30, 30, 200, 10]))
    found = list(cut(list(fetched), lambda place: fetched[place], 70))
    assert [place for portion in found for place in portion] == list(fetched)
    assert all(len(portion) == 1 or sum(fetched[place] for place in portion) <= 70 for portion in found)
    assert list(cut(list(fetched), lambda _: 9, math.inf)) == [list(fetched)]
    assert max(map(len, cut(list(fetched), lambda _: 0, 70, size=4))) == 4


def test_what_the_doctor_found_stands_in_the_study(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 100, 200, 300, 400])
    write_weights(checkpoint_file(found, 100), some_weights(400))
    assert run_study(series_study(found, WEIGHT_PROBES), tmp_path / "study", workers=1) == {}
    faults = Study.load(tmp_path / "study").findings().filter(severity="fault")
    assert faults.select("run", "check", "steps").rows() == [("found", "final weights", [100])]
    # Mended, it is found no more.
    write_weights(checkpoint_file(found, 100), some_weights(100))
    run_study(series_study(found, WEIGHT_PROBES), tmp_path / "study", workers=1)
    assert "final weights" not in set(Study.load(tmp_path / "study").findings()["check"])


def test_without_anything_new_nothing_is_read_and_no_series_is_examined_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = write_series(tmp_path / "found", [0, 100, 200, 300, 400])
    write_weights(checkpoint_file(found, 100), some_weights(400))
    (tmp_path / "found" / "log.csv").write_text(
        "step,loss\n" + "".join(f"{s},{9 - s / 100}\n" for s in range(0, 401, 50))
    )
    calls: list[str] = []
    for name in ("summarise_batch", "diagnose"):
        original = getattr(tasks, name)

        def called(*arguments: Any, _original: Any = original, _name: str = name) -> Any:
            calls.append(_name)
            return _original(*arguments)

        monkeypatch.setattr(tasks, name, called)

    def run() -> tuple[list[str], list[Any]]:
        calls.clear()
        assert run_study(series_study(found, WEIGHT_PROBES), tmp_path / "study", workers=1) == {}
        study = Study.load(tmp_path / "study")
        return sorted(set(calls)), [study.findings().rows(), study.notes(), study.runs().rows()]

    first, facts = run()
    assert first == ["diagnose", "summarise_batch"]
    assert run() == ([], facts)
    # Another log, another checkpoint, or findings that are gone: examined again.
    with (tmp_path / "found" / "log.csv").open("a") as log:
        log.write("450,4\n")
    assert run() == (["diagnose"], facts)
    write_weights(checkpoint_file(found, 100), some_weights(100))
    assert run()[0] == ["diagnose", "summarise_batch"]
    assert run()[0] == []
    with closing(sqlite3.connect(tmp_path / "study" / "study.db")) as connection, connection:
        connection.execute("DELETE FROM findings")
    monkeypatch.setattr(tasks, "_doctors_code", lambda: b"another version")
    assert run()[0] == ["diagnose"]


def test_many_checkpoints_show_the_progress_of_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", list(range(0, 900, 100)))
    (tmp_path / "found" / "log.csv").write_text(
        "step,loss\n" + "".join(f"{s},{9 - s / 100}\n" for s in range(0, 900, 50))
    )
    monkeypatch.setattr(runner, "MANY_CHECKPOINTS", 2)
    monkeypatch.setattr(study_data, "MANY_CHECKPOINTS", 2)
    stages: dict[str, list[tuple[int, int]]] = {}

    def progress(what: str, done: int, total: int) -> None:
        stages.setdefault(what, []).append((done, total))

    run_study(series_study(found, WEIGHT_PROBES), tmp_path / "study", workers=1, progress=progress)
    write_report(Study.load(tmp_path / "study"), progress)
    for stage in ("doctor", "load", "association", "change points"):
        assert len(stages[stage]) > 1, stage
        assert stages[stage] == sorted(stages[stage])
        assert stages[stage][-1][0] == stages[stage][-1][1]


def test_a_frame_in_parts_has_the_rows_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", [0, 100, 200])
    run_study(series_study(found, WEIGHT_PROBES), tmp_path / "study", workers=1)
    opened = Study.load(tmp_path / "study")
    whole = opened.frame()
    monkeypatch.setattr(study, "MAX_MEASUREMENTS", 5)
    monkeypatch.setattr(study, "ROWS_READ", 7)
    parts = list(opened.frames())
    assert len(parts) > 5
    assert pl.concat(parts).equals(whole)
    for a, b in zip(*(trajectories(of, opened.labels(), opened.log()) for of in (whole, parts)), strict=True):
        assert [*a.features] == [*b.features]
        for of in ("features", "twins", "layers", "groups"):
            assert str(getattr(a, of)) == str(getattr(b, of))


MANY_MEASUREMENTS = """
import sys
from toposcope.analysis.trajectory import trajectories
from toposcope.probes import Measurement, make_probes
from toposcope.study import Declaration, Study
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.tables import Unit
from toposcope.study.store import Store
from pathlib import Path

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1000

folder, layers = Path(sys.argv[1]), [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(20)]
(probe,) = make_probes([{"name": "controls"}])
declaration = Declaration(name="many", series=[DeclaredSeries(name="many", live=True)], probes=[{"name": "controls"}])
(folder / "study.toml").write_text(declaration.to_toml())
store = Store(folder / "study.db")
store.put_run("many", 0, "live", 1, "")
for start in range(0, 5000, 250):
    with store.one_transaction():
        store.put_measurements(
            (Unit("many", step, layer, "controls", probe.options()), "", Measurement(layer, "attention", values), "")
            for step in range(start, start + 250)
            for layer in [*layers, "network"]
            for values in [{f"a_statistic_{k}": step + k / 10 for k in range(16)}]
        )
store.close()
before, study = peak(), Study.load(folder)
found = trajectories(study.frames(), study.labels(), study.log())
assert len(found[0].steps) == 5000
print(peak() - before)
"""


@pytest.mark.slow
def test_a_study_of_five_thousand_checkpoints_is_read_in_little_memory(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is read on Linux")
    done = subprocess.run(
        [sys.executable, "-c", MANY_MEASUREMENTS, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # 1.7 million rows: in one frame, with the tuples that it is made of, 790 MB; 295 in parts.
    assert float(done.stdout) < 400
