"""Logs that nobody monitors, as the live page reads them: growth, rewriting, faults, and what is one run."""

import json
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from toposcope.analysis.health import health
from toposcope.errors import ToposcopeError
from toposcope.forecasting import forecast
from toposcope.logs import read_log, read_logs
from toposcope.logs.finding import find_sources
from toposcope.report.live.logs import FoundRuns, LoggedRun, LogReader, run_names

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


class Followed:
    """The logs of a path, read whenever a test says so."""

    def __init__(self, target: Path) -> None:
        self.reader = LogReader(target)

    def look(self) -> FoundRuns:
        for read in self.reader._known.values():
            read.next_time = 0.0
        self.reader._next_search = 0.0
        self.reader.look()
        assert self.reader.found is not None
        return self.reader.found

    def run(self, name: str = "") -> LoggedRun:
        found = self.reader.found
        assert found is not None
        (run,) = found.logs[name or next(iter(found.logs))].runs.values()
        return run

    def rows(self, name: str = "", known: list[int] | None = None) -> dict[str, dict[int, float]]:
        """The rows that a page does not have, by column."""
        found = self.reader.found
        assert found is not None
        read = found.logs[name or next(iter(found.logs))]
        lines = read.new(known or [], {name: name for name in read.runs}).lines
        return {line.key: dict(zip(line.steps, line.values, strict=True)) for line in lines}

    def position(self) -> list[int]:
        found = self.reader.found
        assert found is not None
        return next(iter(found.logs.values())).new([], {}).position


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs, in which nothing else may be written."""
    folder = tmp_path / "runs"
    folder.mkdir()
    yield folder
    assert not [path for path in folder.rglob("*") if path.suffix in (".db", ".tmp") or path.name.startswith("study")]


def test_a_log_that_grows_is_followed_as_if_read_at_once(runs: Path) -> None:
    values = losses()
    log = runs / "train.csv"
    whole, grown = Followed(runs), Followed(runs)
    shown: dict[str, dict[int, float]] = {}
    known: list[int] = []
    forecasts = []
    for n in (3, 60, 61, 148, 152, 200):
        log.write_text(HEADER + csv(values[:n]))
        grown.look()
        for key, rows in grown.rows(known=known).items():
            shown.setdefault(key, {}).update(rows)
        known = grown.position()
        forecasts.append((grown.run().forecast or {}).get("step"))
        assert list(grown.rows(known=known)) == []
    whole.look()
    assert shown == whole.rows()
    # not at 3, before 5% of the plan, nor at 61, less than 1% of it after 60
    assert forecasts == [None, 60, 60, 148, 152, 200]
    made = whole.run().forecast
    report = forecast(read_log(log))
    assert made is not None
    assert (made["last_step"], made["loss"], made["low"], made["high"]) == (PLANNED, report.loss, *report.interval)
    status = grown.run().status("train", 0.0)
    assert (status.kind, status.status, status.step) == ("log", "running", 200)
    assert (grown.run().step_seconds() or 0) > 0


def test_a_row_that_is_written_late_is_sent_again(runs: Path) -> None:
    log, followed = runs / "train.csv", Followed(runs)
    rows = [f"{k},{loss:.4f},3e-4,400," for k, loss in enumerate(losses()[:20], 1)]
    log.write_text("step,loss,lr,max_steps,val_loss\n" + "\n".join(rows) + "\n")
    followed.look()
    known = followed.position()
    rows[6] += "3.5"
    log.write_text("step,loss,lr,max_steps,val_loss\n" + "\n".join(rows) + "\n")
    followed.look()
    new = followed.rows(known=known)
    assert new["log validation_loss"] == {7: 3.5}
    assert list(new["log loss"]) == [7]
    assert followed.position()[0] == known[0], "what was sent before counts"


def test_a_line_that_was_read_half_written_leaves_no_row(runs: Path) -> None:
    log, followed = runs / "train.csv", Followed(runs)
    whole = HEADER + csv(losses()[:120])
    log.write_text(whole[: whole.rindex("20,")] + "")  # "1" of step 120
    followed.look()
    known = followed.position()
    log.write_text(whole)
    followed.look()
    assert followed.position()[0] == known[0]
    for end, last in (("121,2.1,1e-4,400\n12", 121), ("121,2.1,1e-4,400\n123,2.0,1e-4,400\n", 123)):
        log.write_text(whole + end)
        followed.look()
        assert max(followed.rows()["log loss"]) == last
    log.write_text(whole + "121,2.1,1e-4,400\n1234,2.0,1e-4,400\n")
    known = followed.position()
    followed.look()
    assert followed.position()[0] != known[0], "the row of step 123 is gone"
    assert list(followed.rows(known=known)["log loss"]) == [*range(1, 122), 1234]


def test_a_server_that_was_started_again_sends_all_anew(runs: Path) -> None:
    (runs / "train.csv").write_text(HEADER + csv(losses()))
    first, second = Followed(runs), Followed(runs)
    first.look()
    time.sleep(0.01)
    second.look()
    assert second.rows(known=first.position()) == second.rows()


def test_a_rewritten_log_is_another_run_and_an_empty_one_waits(runs: Path) -> None:
    log, followed = runs / "train.csv", Followed(runs / "train.csv")
    assert followed.look().logs == {}
    log.write_text("")
    assert followed.look().refused == ""
    log.write_text(HEADER + csv(losses()))
    assert list(followed.look().logs) == ["train"]
    known = followed.position()
    other = losses(seed=1)[:100]
    log.write_text(HEADER + csv(other))
    followed.look()
    new = followed.rows(known=known)["log loss"]
    assert list(new.values()) == [pytest.approx(loss, rel=1e-5) for loss in other]
    assert followed.position()[0] != known[0]
    assert (followed.run().forecast or {})["step"] == 100
    log.write_text("")
    assert followed.look().faults == [f"Shown as it was: {log}: empty so far"]
    log.unlink()
    assert followed.look().logs == {}


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
    followed = Followed(runs)
    found = followed.look()
    assert list(found.logs) == ["a", "b"]
    assert found.not_shown.startswith("3 of 5 files are not shown: ")
    assert "lost.log: no loss" in found.not_shown
    assert "broken: " in found.not_shown
    assert found.not_shown.endswith("; and 1 more.")
    (outside,) = found.faults
    assert "a link out of its folder" in outside
    (runs / "a.csv").write_text("step,loss\nnot a number\n")
    found = followed.look()
    assert list(found.logs) == ["a", "b"]  # as it was, and why it does not go on
    assert [fault for fault in found.faults if "a.csv" in fault and fault.startswith("Shown as it was")]


def test_a_log_that_breaks_the_reader_does_not_break_the_page(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "a.csv").write_text(HEADER + csv(losses()))
    monkeypatch.setattr("toposcope.report.live.logs.read_logs", lambda path: 1 / 0)
    found = Followed(runs).look()
    assert found.logs == {}
    assert found.not_shown == "1 of 1 file is not shown: a.csv: reading it failed."


def test_a_trainers_checkpoints_its_state_and_its_text_are_one_run(runs: Path) -> None:
    values = losses()
    out = runs / "out"
    followed = Followed(runs)
    for n in (50, 100):
        folder = out / f"checkpoint-{n}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(state(values[:n]))
    assert list(followed.look().logs) == ["runs"]
    assert max(followed.rows()["log loss"]) == 100
    printed = "".join(f"step {k}: loss {loss:.4f}\n" for k, loss in enumerate(values[:150], 1))
    (out / "train.log").write_text(printed)
    assert list(followed.look().logs) == ["runs"]
    assert max(followed.rows()["log loss"]) == 150
    assert followed.run().last_step == PLANNED
    other = "".join(f"step {k}: loss {loss:.4f}\n" for k, loss in enumerate(losses(seed=5)[:150], 1))
    (runs / "other.log").write_text(other)
    assert list(followed.look().logs) == ["other", "out"]
    (out / "trainer_state.json").write_text(state(values, planned=200))
    followed.look()
    status = followed.run("out").status("out", 0.0)
    assert (status.status, status.last_step, status.forecast) == ("complete", 200, None)


def test_health_divergence_and_age_are_those_of_the_log(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "lost.csv").write_text(HEADER + csv([*losses()[:100], *[float("nan")] * 50]))
    old = runs / "old.csv"
    followed = Followed(runs)
    for n, written in ((100, 1.7e9), (200, 1.7e9 + 100)):
        old.write_text(HEADER + csv(losses()[:n]))
        os.utime(old, (written, written))
        monkeypatch.setattr(time, "time", lambda now=written + 10: now)
        followed.look()
    lost = followed.run("lost")
    assert (lost.health.word, lost.forecast) == ("Diverged", None)
    assert lost.health.reason.startswith("At step 101: ")
    assert math.isnan(lost.status("lost", 0.0).loss or 0.0)
    assert str(followed.run("old").health) == str(health(read_log(old))), "as every command says"
    assert followed.run("old").health.word == "Healthy"
    monkeypatch.setattr(time, "time", lambda: 1.7e9 + 1000)
    followed.look()
    assert followed.run("old").health.reason == "Nothing was written for 15 minutes, where a row came every 1 second."
    assert followed.run("old").status("old", 0.0).status == "running"


def test_hyperparameters_next_to_a_log_say_what_is_planned(runs: Path) -> None:
    version = runs / "lightning_logs" / "version_0"
    version.mkdir(parents=True)
    rows = "".join(f"{k},{loss:.4f},\n" for k, loss in enumerate(losses(), 1))
    (version / "metrics.csv").write_text(f"step,train_loss,val_loss\n{rows}")
    (version / "hparams.yaml").write_text("lr: 0.003\nmax_steps: 900\nlayers: !!python/tuple [1]\nname: 'max'\n")
    followed = Followed(runs)
    assert list(followed.look().logs) == ["runs"]
    assert followed.run().last_step == 900
    assert (followed.run().forecast or {})["last_step"] == 900


def test_without_a_plan_the_sentence_says_what_to_do(runs: Path) -> None:
    log = runs / "train.log"
    log.write_text("".join(f"iter {k}: loss {loss:.4f}\n" for k, loss in enumerate(losses()[:50], 1)))
    followed = Followed(log)
    followed.look()
    assert f"`toposcope forecast {log} --steps N`" in followed.run().no_forecast


def test_a_folder_before_its_first_save_names_the_console_log_next_to_it(runs: Path) -> None:
    (runs / "out").mkdir()
    for name in ("train.log", "notes.txt"):
        (runs / name).write_text("step 1: loss 4.2\n")
    (fault,) = Followed(runs / "out").look().faults
    assert re.fullmatch(r"no training log yet; .*read too: pass that of this run: [^,]*/train\.log\.", fault)
    with pytest.raises(ToposcopeError, match=r"pass that of this run: [^,]*/train\.log$"):
        read_logs(runs / "out")


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
