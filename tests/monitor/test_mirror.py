"""Logs that nobody monitors, as the live page reads them: growth, rewriting, faults, and what is one run."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toposcope.analysis.health import Health, health
from toposcope.forecasting import forecast
from toposcope.logs import read_log
from toposcope.logs.finding import find_sources
from toposcope.monitor.mirror import Mirror, run_names

PLANNED = 400


def losses(n: int = 200, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(2 + 3 * (10 * k) ** -0.4 + rng.normal(0, 0.02)) for k in range(1, n + 1)]


def csv(values: list[float], first: int = 1) -> str:
    rows = (f"{k},{loss:.5f},{3e-4 * (1 - k / PLANNED):.3g},{PLANNED}" for k, loss in enumerate(values, first))
    return "".join(f"{row}\n" for row in rows)


HEADER = "step,loss,lr,max_steps\n"


def state(values: list[float], planned: int = PLANNED) -> str:
    rows = [{"step": k, "loss": round(loss, 4), "epoch": k / 50} for k, loss in enumerate(values, 1)]
    return json.dumps({"log_history": rows, "max_steps": planned, "global_step": len(values)})


class Mirrored:
    """A mirror of a path, and what it stored."""

    def __init__(self, target: Path, scratch: Path) -> None:
        self.scratch = scratch
        scratch.mkdir()
        self.mirror = Mirror(target, scratch)

    def look(self) -> dict[str, Any]:
        for read in self.mirror._known.values():
            read.next_time = 0.0
        self.mirror._next_search = 0.0
        self.mirror.look()
        found: dict[str, Any] = json.loads((self.scratch / "index.json").read_text())
        return found

    def rows(self, query: str, name: str = "") -> list[Any]:
        studies = json.loads((self.scratch / "index.json").read_text())["studies"]
        folder = studies[name] if name else next(iter(studies.values()))
        c = sqlite3.connect(f"file:{folder}/study.db?mode=ro", uri=True)
        try:
            return c.execute(query).fetchall()
        finally:
            c.close()

    def facts(self, name: str = "", what: str = "monitor") -> dict[str, Any]:
        ((text,),) = self.rows(f"SELECT value FROM meta WHERE key LIKE '{what} %'", name)
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs, in which nothing else may be written."""
    folder = tmp_path / "runs"
    folder.mkdir()
    yield folder
    assert not [path for path in folder.rglob("*") if path.suffix in (".db", ".tmp") or path.name.startswith("study")]


def test_a_log_that_grows_is_stored_as_if_read_at_once(runs: Path, tmp_path: Path) -> None:
    values = losses()
    log = runs / "train.csv"
    whole, grown = Mirrored(runs, tmp_path / "whole"), Mirrored(runs, tmp_path / "grown")
    for n in (3, 60, 61, 148, 152, 200):
        log.write_text(HEADER + csv(values[:n]))
        grown.look()
    whole.look()
    for table in ("log", "log_targets"):
        assert grown.rows(f"SELECT * FROM {table}") == whole.rows(f"SELECT * FROM {table}")
    # not at 3, before 5% of the plan, nor at 61, less than 1% of it after 60
    assert [step for (step,) in grown.rows("SELECT step FROM forecasts")] == [60, 148, 152, 200]
    ((last_step, *made),) = whole.rows("SELECT last_step, loss, low, high FROM forecasts")
    report = forecast(read_log(log))
    assert (last_step, *made) == (PLANNED, report.loss, *report.interval)
    assert whole.rows("SELECT kind, status FROM runs") == [("log", "running")]
    assert grown.facts()["step_seconds"] > 0


def test_a_rewritten_log_is_another_run_and_an_empty_one_waits(runs: Path, tmp_path: Path) -> None:
    log, mirrored = runs / "train.csv", Mirrored(runs / "train.csv", tmp_path / "made")
    assert mirrored.look()["studies"] == {}
    log.write_text("")
    assert mirrored.look()["refused"] == ""
    log.write_text(HEADER + csv(losses()))
    assert list(mirrored.look()["studies"]) == ["train"]
    other = losses(seed=1)[:100]
    log.write_text(HEADER + csv(other))
    mirrored.look()
    assert [loss for (loss,) in mirrored.rows("SELECT loss FROM log")] == [round(loss, 5) for loss in other]
    assert mirrored.rows("SELECT MAX(step) FROM forecasts") == [(100,)]
    log.write_text("")
    assert mirrored.look()["faults"] == [f"Shown as it was: {log}: empty so far"]
    log.unlink()
    assert mirrored.look()["studies"] == {}


def test_a_fault_is_one_line_and_the_others_go_on(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (runs / f"{name}.csv").write_text(HEADER + csv(losses()))
    (runs / "config.json").write_text('{"lr": 0.1}')  # no log, and no fault
    (runs / "notes.txt").write_text("remember the milk\n" * 10)  # nor this
    (runs / "lost.log").write_text("remember the loss\n" * 10)
    (runs / "broken").mkdir()
    (runs / "broken" / "trainer_state.json").write_text(state(losses())[:-20])
    (runs / "outside.csv").symlink_to(tmp_path / "secret.csv")
    (tmp_path / "secret.csv").write_text(HEADER + csv(losses()))
    mirrored = Mirrored(runs, tmp_path / "made")
    found = mirrored.look()
    assert list(found["studies"]) == ["a", "b"]
    assert found["not_shown"].startswith("3 of 5 files are not shown: ")
    assert "lost.log: no loss" in found["not_shown"]
    assert "broken: " in found["not_shown"]
    assert found["not_shown"].endswith("; and 1 more.")
    (outside,) = found["faults"]
    assert "a link out of its folder" in outside
    (runs / "a.csv").write_text("step,loss\nnot a number\n")
    found = mirrored.look()
    assert list(found["studies"]) == ["a", "b"]  # as it was, and why it does not go on
    assert [fault for fault in found["faults"] if "a.csv" in fault and fault.startswith("Shown as it was")]


def test_a_trainers_checkpoints_its_state_and_its_text_are_one_run(runs: Path, tmp_path: Path) -> None:
    values = losses()
    out = runs / "out"
    mirrored = Mirrored(runs, tmp_path / "made")
    for n in (50, 100):
        folder = out / f"checkpoint-{n}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(state(values[:n]))
    assert list(mirrored.look()["studies"]) == ["runs"]
    assert mirrored.rows("SELECT MAX(step) FROM log") == [(100,)]
    printed = "".join(f"step {k}: loss {loss:.4f}\n" for k, loss in enumerate(values[:150], 1))
    (out / "train.log").write_text(printed)
    assert list(mirrored.look()["studies"]) == ["runs"]
    assert mirrored.rows("SELECT MAX(step) FROM log") == [(150,)]
    assert mirrored.facts()["last_step"] == PLANNED
    other = "".join(f"step {k}: loss {loss:.4f}\n" for k, loss in enumerate(losses(seed=5)[:150], 1))
    (runs / "other.log").write_text(other)
    assert list(mirrored.look()["studies"]) == ["other", "out"]
    (out / "trainer_state.json").write_text(state(values, planned=200))
    mirrored.look()
    assert mirrored.rows("SELECT status, last_step FROM runs", "out") == [("complete", 200)]


def test_health_divergence_and_age_are_those_of_the_log(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs / "lost.csv").write_text(HEADER + csv([*losses()[:100], *[float("nan")] * 50]))
    old = runs / "old.csv"
    mirrored = Mirrored(runs, tmp_path / "made")
    for n, written in ((100, 1.7e9), (200, 1.7e9 + 100)):
        old.write_text(HEADER + csv(losses()[:n]))
        os.utime(old, (written, written))
        monkeypatch.setattr(time, "time", lambda now=written + 10: now)
        mirrored.look()
    assert mirrored.facts("lost", "health")["word"] == "Diverged"
    assert mirrored.facts("lost", "health")["reason"].startswith("At step 101: ")
    assert mirrored.rows("SELECT * FROM forecasts", "lost") == []
    judged = Health.from_dict(mirrored.facts("old", "health"))
    assert str(judged) == str(health(read_log(old))), "as every command says"
    assert judged.word == "Healthy"
    monkeypatch.setattr(time, "time", lambda: 1.7e9 + 1000)
    mirrored.look()
    assert mirrored.facts("old", "health")["reason"] == (
        "Nothing was written for 15 minutes, where a row came every 1 second."
    )
    assert mirrored.rows("SELECT status FROM runs", "old") == [("running",)]


def test_hyperparameters_next_to_a_log_say_what_is_planned(runs: Path, tmp_path: Path) -> None:
    version = runs / "lightning_logs" / "version_0"
    version.mkdir(parents=True)
    rows = "".join(f"{k},{loss:.4f},\n" for k, loss in enumerate(losses(), 1))
    (version / "metrics.csv").write_text(f"step,train_loss,val_loss\n{rows}")
    (version / "hparams.yaml").write_text("lr: 0.003\nmax_steps: 900\nlayers: !!python/tuple [1]\nname: 'max'\n")
    mirrored = Mirrored(runs, tmp_path / "made")
    assert list(mirrored.look()["studies"]) == ["runs"]
    assert mirrored.facts()["last_step"] == 900
    assert mirrored.rows("SELECT last_step FROM forecasts") == [(900,)]


def test_without_a_plan_the_sentence_says_what_to_do(runs: Path, tmp_path: Path) -> None:
    log = runs / "train.log"
    log.write_text("".join(f"iter {k}: loss {loss:.4f}\n" for k, loss in enumerate(losses()[:50], 1)))
    mirrored = Mirrored(log, tmp_path / "made")
    mirrored.look()
    assert f"`toposcope forecast {log} --steps N`" in mirrored.facts()["no_forecast"]


def test_a_folder_before_its_first_save_names_the_console_log_next_to_it(runs: Path, tmp_path: Path) -> None:
    (runs / "out").mkdir()
    (runs / "train.log").write_text("step 1: loss 4.2\n")
    (fault,) = Mirrored(runs / "out", tmp_path / "scratch").look()["faults"]
    assert "no training log yet" in fault
    assert fault.endswith("train.log.")


def test_a_large_folder_is_searched_in_part_and_studies_are_left_out(runs: Path) -> None:
    for k in range(30):
        (runs / f"{k:02}").mkdir()
        (runs / f"{k:02}" / "metrics.csv").write_text(HEADER)
    (runs / "00" / "study.db").write_text("")
    assert len(find_sources(runs).sources) == 29
    assert find_sources(runs).cut == ""
    found = find_sources(runs, max_entries=40)
    assert 0 < len(found.sources) < 29
    assert "searched only as far as" in found.cut
    (runs / "00" / "study.db").unlink()


def test_the_name_of_a_run_is_that_of_the_folder_it_is_alone_in() -> None:
    root = Path("/runs")
    deep = [root / "a" / "lightning_logs" / "version_0" / "metrics.csv", root / "b" / "runs" / "Nov26_host"]
    assert run_names(root, deep) == ["a", "b"]
    two = [root / "lightning_logs" / f"version_{k}" / "metrics.csv" for k in range(2)]
    assert run_names(root, two) == ["lightning_logs/version_0", "lightning_logs/version_1"]
    assert run_names(root, [root / "train.log"]) == ["runs"]
    assert run_names(root, [root / "a.csv", root / "a.json"]) == ["a.csv", "a.json"]
