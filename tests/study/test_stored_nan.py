"""NaN in the log of a study is not what was not logged."""

import json
import math
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from live_studies import LiveStudy

from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError
from toposcope.logs import LogTable, find_log, read_log
from toposcope.logs.formats import study as study_format
from toposcope.report.live.assets import Assets
from toposcope.report.live.status import Status
from toposcope.report.live.stores import StoreSource, runs
from toposcope.report.sections.monitor import _divergences, final_losses
from toposcope.report.study_data import StudyData
from toposcope.study import Study
from toposcope.study.store import Store

NAMES = ("loss", "grad_norm", "validation_loss", "accuracy")
VALUES = st.floats() | st.just(math.nan)
ROWS = st.dictionaries(st.integers(0, 60), st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=12)


def places(rows: Mapping[int, Mapping[str, float]]) -> list[tuple[int, str]]:
    return sorted((step, name) for step, row in rows.items() for name, value in row.items() if math.isnan(value))


def same(a: Mapping[int, Mapping[str, float]], b: Mapping[int, Mapping[str, float]]) -> bool:
    """Compare rows; NaN equals NaN, and what was not logged nothing else."""
    return a.keys() == b.keys() and all(
        a[s].keys() == b[s].keys() and np.array_equal(list(a[s].values()), [b[s][n] for n in a[s]], equal_nan=True)
        for s in a
    )


def stored(store: Store) -> tuple[dict[int, dict[str, float]], list[tuple[int, str]]]:
    with closing(sqlite3.connect(store.path)) as other:
        marks = other.execute("SELECT step, name FROM log_nan WHERE run = 'run' ORDER BY step, name").fetchall()
        targets = other.execute("SELECT step, value FROM log_targets WHERE run = 'run'").fetchall()
    rows = store.log_rows("run")
    for step, value in (*targets, *((step, math.nan) for step, name in marks if name == "accuracy")):
        rows[step]["accuracy"] = value
    return rows, marks


@given(batches=st.lists(ROWS, max_size=4), is_whole=st.booleans())
def test_rows_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, batches: list[dict[int, dict[str, float]]], is_whole: bool
) -> None:
    """The last value of a step counts, and the checksums are those of what is stored."""
    path = tmp_path_factory.mktemp("store") / "study.db"
    store, logged = Store(path), dict[int, dict[str, float]]()
    for batch in batches:
        for step, row in batch.items():
            logged[step] = {**logged.get(step, {}), **row}
        if is_whole:
            store.put_log("run", LogTable.from_rows(logged))
        else:
            store.append_log("run", batch)
    rows, marks = stored(store)
    store.close()
    assert same(rows, logged)
    assert marks == places(logged)
    again = Store(path)
    assert again.dropped == []
    again.cut("run", 30)
    rows, marks = stored(again)
    again.close()
    assert same(rows, {step: row for step, row in logged.items() if step <= 30})
    assert marks == [place for place in places(logged) if place[0] <= 30]
    again = Store(path)
    assert again.dropped == []
    again.close()


@given(rows=ROWS, other=ROWS, step=st.integers(0, 60))
def test_tables_keep_both_apart(
    rows: dict[int, dict[str, float]], other: dict[int, dict[str, float]], step: int
) -> None:
    def cells(table: LogTable) -> dict[int, dict[str, float]]:
        return {
            int(row.pop("step")): {name: value for name, value in row.items() if value is not None}
            for row in table.frame().to_dicts()
        }

    table = LogTable.from_rows(rows)
    assert same(cells(table), rows)
    assert same(cells(table.until(step)), {s: row for s, row in rows.items() if s <= step})
    known = {s: {n: v for n, v in row.items() if not math.isnan(v)} for s, row in rows.items()}
    filled = {s: {**rows.get(s, {}), **other.get(s, {}), **known.get(s, {})} for s in rows | other}
    assert same(cells(table.filled_from(LogTable.from_rows(other))), filled)


def died(directory: Path, *, steps: int = 120, first_nan: int = 81, names: tuple[str, ...] = ()) -> LiveStudy:
    """A monitored run whose loss is NaN from some step on; some other names go on."""
    live = LiveStudy(directory)
    live.log(range(1, first_nan))
    beyond = dict.fromkeys(names, 1.0)
    live.store.append_log(live.run, {step: {"loss": math.nan, **beyond} for step in range(first_nan, steps + 1)})
    live.store.put_alert(live.run, "non-finite", first_nan, first_nan, "loss", "loss is nan.", json.dumps({}))
    live.store.set_status(live.run, "complete", steps)
    return live


def status(directory: Path) -> Status:
    store = StoreSource(directory, Assets({}, "", {}, {}, [], 0), "run")
    with store.reading() as c:
        (found,) = store.statuses(c, runs(c), {"run": "run"})
    store.close()
    return found


def test_a_monitored_run_that_died(tmp_path: Path) -> None:
    live = died(tmp_path / "run")
    live.forecast(70)
    live.store.close()
    log = read_log(tmp_path / "run")
    assert log.diverged is not None
    assert log.diverged.step == 81
    table = Study.load(tmp_path / "run").log()
    assert table.filter(pl.col("loss").is_nan())["step"].to_list() == list(range(81, 121))
    assert table["tokens"].null_count() == len(table)
    (raw,) = study_format.runs(tmp_path / "run")
    assert raw.table["loss"].is_nan().sum() == 40
    assert raw.table["learning_rate"].null_count() == 40
    found = status(tmp_path / "run")
    assert found.health.reason.startswith("At step 81: the training loss is NaN")
    assert found.loss != found.loss, "the last loss is NaN"
    assert found.forecast is None


def test_damage_to_the_marks_is_noticed(tmp_path: Path) -> None:
    live = died(tmp_path / "run")
    live.store.close()
    with closing(sqlite3.connect(live.store.path)) as c:
        c.execute("DELETE FROM log_nan WHERE step > 100")
        c.commit()
    again = Store(live.store.path)
    assert again.dropped == ["log run"]
    assert again.log_rows("run") == {}
    again.close()
    assert Store(live.store.path).dropped == []


def test_export(tmp_path: Path) -> None:
    live = died(tmp_path / "run", first_nan=3, steps=4)
    live.store.close()
    assert CliRunner().invoke(toposcope, ["export", str(tmp_path / "run"), "--format", "csv"]).exit_code == 0
    header, *lines = (tmp_path / "run" / "export" / "log.csv").read_text().splitlines()
    at = {name: [line.split(",")[header.split(",").index(name)] for line in lines] for name in ("loss", "tokens")}
    assert at["loss"][2:] == ["NaN", "NaN"]
    assert set(at["tokens"]) == {""}


def test_a_log_beside_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss,validation_loss\n1,3.0,\n2,nan,\n3,nan,2.5\n4,inf,nan\n")
    table = find_log(tmp_path)
    assert table is not None
    assert {name: at.tolist() for name, at in table.nan_steps.items()} == {"loss": [2, 3], "validation_loss": [4]}
    store = Store(tmp_path / "study.db")
    store.put_log("run", table)
    rows = store.log_rows("run")
    assert same(
        rows,
        {
            1: {"loss": 3.0},
            2: {"loss": math.nan},
            3: {"loss": math.nan, "validation_loss": 2.5},
            4: {"loss": math.inf, "validation_loss": math.nan},
        },
    )
    store.put_log("run", LogTable.from_rows({1: {"loss": 3.0}, 2: {"loss": 2.5}}))
    store.close()
    again = Store(tmp_path / "study.db")
    assert again.dropped == []
    assert stored(again) == ({1: {"loss": 3.0}, 2: {"loss": 2.5}}, [])
    again.close()


def test_the_report_names_the_run_that_has_no_final_loss(tmp_path: Path) -> None:
    live = died(tmp_path / "run")
    live.forecast(70)
    live.store.close()
    material = StudyData.of(Study.load(tmp_path / "run"), ())
    (sentence,) = _divergences(material)
    assert sentence.startswith("run has no final loss: the run diverged at step 81: the training loss is NaN in all 40")
    assert final_losses(material) == {}


def test_a_log_in_another_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    live = died(tmp_path / "run")
    live.store.set_meta("schema_version", "7")
    live.store.close()
    with pytest.raises(ToposcopeError, match=r"schema version 7; this one reads 8; read it with that version$"):
        read_log(tmp_path / "run")
