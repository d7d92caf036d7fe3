"""The database of a study: its documented schema, and that a row never outlives what it was measured on."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toposcope.errors import ToposcopeError
from toposcope.logs import COLUMNS, LogTable
from toposcope.probes import Measurement
from toposcope.study.diagrams import StoredContent
from toposcope.study.store import Store
from toposcope.study.tables import CheckpointRow, LayerRow, Unit, insert

# People query the database with tools of their own: a change here is a change of `SCHEMA_VERSION`.
SCHEMA = {
    "meta": ["key", "value"],
    "runs": ["run", "position", "kind", "n_parameters", "status", "last_step", "source"],
    "log": [
        *("seq", "run", "step", "loss", "learning_rate", "grad_norm", "tokens", "flops", "validation_loss"),
        "weight_norm",
    ],
    "log_targets": ["seq", "run", "step", "target", "unit", "value"],
    "log_nan": ["run", "step", "name"],
    "times": ["seq", "run", "step", "seconds"],
    "checkpoints": ["run", "step", "path", "fingerprint", "weights_hash"],
    "layers": ["run", "step", "layer", "position", "role", "n_rows", "n_columns", "dtype", "content_hash"],
    "evidence": ["run", "step", "content"],
    "findings": ["run", "position", "check_name", "severity", "steps", "layer", "message"],
    "measurements": ["id", "run", "step", "layer", "role", "probe", "options", "key", "flag", "diagrams"],
    "features": ["measurement", "statistic", "value"],
    "diagrams": ["file", "content"],
    "kinds": ["probe", "statistic", "kind"],
    "alerts": ["seq", "run", "check_name", "step", "since", "place", "message", "evidence"],
    "forecasts": ["seq", "run", "step", "last_step", "loss", "low", "high", "advice", "target"],
    "errors": ["run", "step", "layer", "probe", "options", "message"],
    "checksums": ["kind", "place", "checksum"],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "study.db")
    yield opened
    opened.close()


def query(store: Store, text: str) -> list[tuple[Any, ...]]:
    """Ask as any other program would: over a connection of one's own."""
    connection = sqlite3.connect(store.path)
    try:
        return connection.execute(text).fetchall()
    finally:
        connection.close()


def layer(name: str, content: str = "a") -> LayerRow:
    return LayerRow(name, "mlp.in", 3, 4, "float32", content)


def checkpoint(*layers: LayerRow, step: int = 10, fingerprint: str = "then") -> CheckpointRow:
    return CheckpointRow("run", step, "/somewhere", fingerprint, "", layers)


def unit(name: str, *, step: int = 10, probe: str = "rips", options: str = "{}") -> Unit:
    return Unit("run", step, name, probe, options)


def row(
    unit: Unit, statistics: dict[str, float] | None = None, *, key: str = "key"
) -> tuple[Unit, str, Measurement, str]:
    role = unit.layer if unit.layer in ("network", "pooled") else "mlp.in"
    return unit, key, Measurement(unit.layer, role, statistics or {"H0.total": 1.5}), "diagrams/file"


def test_the_schema_is_the_documented_one(store: Store) -> None:
    tables = [name for (name,) in query(store, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = [name for name in tables if not name.startswith("sqlite_")]  # its own
    found = {t: [r[0] for r in query(store, f"SELECT name FROM pragma_table_info('{t}')")] for t in tables}
    assert found == SCHEMA
    assert store.meta("schema_version") == "8"


def test_readers_and_the_writer_do_not_wait_for_each_other(store: Store) -> None:
    assert query(store, "PRAGMA journal_mode") == [("wal",)]


def test_a_store_opens_again_with_what_it_held(tmp_path: Path, store: Store) -> None:
    store.put_measurements([row(unit("a"))])
    store.close()
    again = Store(tmp_path / "study.db")
    assert again.measured("run", range(100)) == {unit("a"): ("key", "diagrams/file")}
    again.close()


@pytest.mark.parametrize("version", ["1", "6", "7", "99"])
def test_another_schema_version_is_refused(tmp_path: Path, store: Store, version: str) -> None:
    store.set_meta("toposcope", "0.0.1")
    store.set_meta("schema_version", version)
    store.close()
    before = (tmp_path / "study.db").read_bytes()
    with pytest.raises(ToposcopeError) as caught:
        Store(tmp_path / "study.db")
    assert str(caught.value) == (
        f"{tmp_path / 'study.db'}: written by toposcope 0.0.1 with schema version {version}; this one reads 8; "
        "read it with that version, or delete it and run again, which measures anew: checkpoints are kept"
    )
    assert (tmp_path / "study.db").read_bytes() == before


def test_published_features_stand_whatever_becomes_of_checkpoints(store: Store) -> None:
    store.put_checkpoints([(checkpoint(layer("a")), None)])
    store.put_measurements([row(unit("a"))])
    store.put_published("run", "first", {10: {"x": 1.5}, 20: {"x": 2.5}})
    store.drop_checkpoints("run", [10, 20])
    ids = query(store, "SELECT step, probe, id FROM measurements ORDER BY step")
    assert [found[:2] for found in ids] == [(10, "published"), (20, "published")]
    assert store.statistics("run", 20, "published", "{}") == {"network": {"x": 2.5}}
    # Under the same key nothing is written; under another all of them are replaced.
    store.put_published("run", "first", {10: {"x": 1.5}, 20: {"x": 2.5}})
    assert query(store, "SELECT step, probe, id FROM measurements ORDER BY step") == ids
    store.put_published("run", "second", {30: {"y": 1.0}})
    assert query(store, "SELECT step, statistic, value FROM measurements JOIN features ON measurement = id") == [
        (30, "y", 1.0)
    ]
    store.put_published("run", "", {})
    assert query(store, "SELECT COUNT(*) FROM measurements") == [(0,)]


def test_a_file_that_is_no_database_is_told_with_its_mend(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(ToposcopeError) as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert "delete it" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_meta_and_status(store: Store) -> None:
    assert store.meta("absent") is None
    store.set_meta("a", "1")
    store.set_meta("a", "2")
    assert store.meta("a") == "2"
    store.put_run("run", 0, "family", 2936, "/runs/run")
    assert query(store, "SELECT * FROM runs") == [("run", 0, "family", 2936, "running", None, "/runs/run")]
    store.set_status("run", "complete", 40)
    # Declared again at another place in the order, it is still complete.
    store.put_run("run", 3, "family", 2936, "/runs/run")
    assert query(store, "SELECT position, status, last_step FROM runs") == [(3, "complete", 40)]


def test_checkpoints_come_back_as_they_were_put(store: Store) -> None:
    first, second = checkpoint(layer("b"), layer("a")), checkpoint(layer("c"), step=2)
    store.put_checkpoints([(first, None)])
    store.put_checkpoints([(second, None)])
    assert list(store.checkpoints("run").items()) == [(2, second), (10, first)]
    assert store.checkpoints("other") == {}


def test_measurements_come_back_as_they_were_put(store: Store) -> None:
    store.put_measurements(
        [row(unit("a"), {"H0.total": 1 / 3, "H0.count": 4}), row(unit("network"), {"mean": math.pi})]
    )
    assert store.measured("run", range(100)) == dict.fromkeys((unit("a"), unit("network")), ("key", "diagrams/file"))
    # Not a digit is lost.
    assert store.statistics("run", 10, "rips", "{}") == {
        "a": {"H0.total": 1 / 3, "H0.count": 4},
        "network": {"mean": math.pi},
    }


def test_a_negative_zero_is_no_damage(tmp_path: Path, store: Store) -> None:
    """SQLite does not keep the sign of a zero, and a checksum is of what is read back."""
    store.put_measurements([row(unit("a"), {"H0.total": -0.0})])
    store.put_log("run", LogTable.from_rows({0: {"loss": -0.0, "learning_rate": 0.0}, 1: {"loss": 1.0}}))
    store.append_log("run", {2: {"loss": -0.0, "accuracy": -0.0}})
    store.close()
    again = Store(tmp_path / "study.db")
    assert again.dropped == []
    again.close()


def test_a_measurement_replaces_the_older_one_whole(store: Store) -> None:
    store.put_measurements([row(unit("a"), {"total": 1.0, "gone": 2.0}, key="old")])
    store.put_measurements([row(unit("a"), {"total": 3.0}, key="new")])
    assert store.measured("run", range(100)) == {unit("a"): ("new", "diagrams/file")}
    assert query(store, "SELECT statistic, value FROM features") == [("total", 3.0)]


def test_other_options_and_probes_are_other_rows(store: Store) -> None:
    units = [unit("a"), unit("a", options='{"p":1}'), unit("a", probe="controls"), unit("a", step=20)]
    store.put_measurements([row(u, {"total": float(i)}) for i, u in enumerate(units)])
    assert set(store.measured("run", range(100))) == set(units)
    assert store.statistics("run", 10, "rips", '{"p":1}') == {"a": {"total": 1.0}}


def test_new_and_known_checkpoints_can_be_put_together(store: Store) -> None:
    store.put_checkpoints([(checkpoint(layer("a"), layer("b")), None)])
    store.put_measurements([row(unit("a")), row(unit("b")), row(unit("a", step=30))])  # 30 is measured, not yet read
    many = [checkpoint(layer("a"), step=step, fingerprint="now") for step in range(10, 2000, 10)]
    store.put_checkpoints([(each, None) for each in many])
    assert list(store.checkpoints("run").values()) == many
    assert {(u.step, u.layer) for u in store.measured("run", range(100))} == {(10, "a"), (30, "a")}
    path = store.path
    store.close()
    opened = Store(path)
    assert opened.dropped == []
    opened.close()


def test_a_file_goes_only_once_the_row_that_replaces_it_is_committed(store: Store) -> None:
    file = store.path.parent / "diagrams/run/step_000010/rips-1.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"large")
    name = file.relative_to(store.path.parent).as_posix()

    def interrupted() -> None:
        with store.one_transaction():
            store.put_diagrams({name: b"small"})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.diagrams(name) == file
    store.put_diagrams({name: b"small"})
    assert not file.exists()
    found = store.diagrams(name)
    assert isinstance(found, StoredContent)
    assert found.content == b"small"


def test_diagrams_that_nothing_points_to_are_deleted(store: Store) -> None:
    store.put_diagrams({"diagrams/used": b"1", "diagrams/unused": b"2"})
    store.put_measurements([(*row(unit("a"))[:3], "diagrams/used")])
    store.drop_unused_diagrams()
    assert query(store, "SELECT file FROM diagrams") == [("diagrams/used",)]


@pytest.mark.parametrize("n_rows", [0, 1, 299, 300, 301, 901])
def test_rows_inserted_together_are_all_there(n_rows: int) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE three (a, b, c)")
        rows = [(i, str(i), None) for i in range(n_rows)]
        insert(connection, "three", ("a", "b", "c"), rows)
        assert connection.execute("SELECT * FROM three ORDER BY a").fetchall() == rows


def test_a_changed_checkpoint_forgets_what_it_no_longer_has(store: Store) -> None:
    store.put_checkpoints([(checkpoint(layer("a"), layer("b")), None)])
    store.put_measurements([row(unit(name)) for name in ("a", "b", "network", "pooled")])
    store.put_checkpoints([(checkpoint(layer("a"), layer("c"), fingerprint="now"), None)])
    # Rows of the whole checkpoint go by their key, which the plan compares.
    assert {u.layer for u in store.measured("run", range(100))} == {"a", "network", "pooled"}
    assert [r.layer for r in store.checkpoints("run")[10].layers] == ["a", "c"]


def test_a_dropped_checkpoint_takes_everything_with_it(store: Store) -> None:
    for step in (10, 20):
        store.put_checkpoints([(checkpoint(layer("a"), step=step), None)])
        store.put_measurements([row(unit(name, step=step)) for name in ("a", "network")])
    store.drop_checkpoints("run", [10])
    assert {u.step for u in store.measured("run", range(100))} == {20}
    assert list(store.checkpoints("run")) == [20]
    # No feature is left behind without its measurement.
    assert query(store, "SELECT COUNT(*) FROM features") == [(2,)]
    assert query(store, "SELECT DISTINCT step FROM layers") == [(20,)]


def test_dropped_measurements_take_their_features_with_them(store: Store) -> None:
    store.put_measurements([row(unit("a")), row(unit("b"))])
    store.drop_measurements([unit("a"), unit("never measured")])
    assert set(store.measured("run", range(100))) == {unit("b")}
    assert query(store, "SELECT COUNT(*) FROM features") == [(1,)]


def test_a_transaction_that_fails_changes_nothing(store: Store) -> None:
    store.put_measurements([row(unit("a"), {"total": 1.0}, key="old")])

    def rows() -> Iterator[tuple[Unit, str, Measurement, str]]:
        yield row(unit("a"), {"total": 2.0}, key="new")
        yield row(unit("b"), {"total": 2.0}, key="new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put_measurements(rows())
    assert store.measured("run", range(100)) == {unit("a"): ("old", "diagrams/file")}
    assert store.statistics("run", 10, "rips", "{}") == {"a": {"total": 1.0}}
    # The store is fit for use afterwards.
    store.put_measurements([row(unit("b"))])
    assert set(store.measured("run", range(100))) == {unit("a"), unit("b")}


def test_a_reader_sees_a_transaction_whole_or_not_at_all(store: Store) -> None:
    store.put_measurements([row(unit("a"), {"total": 1.0})])
    seen: list[list[tuple[Any, ...]]] = []

    def rows() -> Iterator[tuple[Unit, str, Measurement, str]]:
        yield row(unit("a"), {"total": 2.0})
        seen.append(query(store, "SELECT value FROM features"))
        yield row(unit("b"), {"total": 3.0})

    store.put_measurements(rows())
    assert seen == [[(1.0,)]]
    assert query(store, "SELECT value FROM features ORDER BY value") == [(2.0,), (3.0,)]


def test_no_row_holds_a_value_that_is_none(store: Store) -> None:
    store.put_measurements([row(unit("a"), {"total": 1.0})])
    with pytest.raises(ToposcopeError, match=r"study\.db"):
        store.put_measurements([row(unit("a"), {"total": 2.0}), row(unit("b"), {"total": math.nan})])
    assert store.statistics("run", 10, "rips", "{}") == {"a": {"total": 1.0}}


def log(steps: list[int], **columns: list[float]) -> LogTable:
    empty = [math.nan] * len(steps)
    names = dict.fromkeys((*COLUMNS, *columns))
    return LogTable(np.array(steps), {c: np.array(columns.get(c, empty), dtype=np.float64) for c in names})


def test_a_log_keeps_infinities_and_leaves_out_what_was_not_logged(store: Store) -> None:
    store.put_log("run", log([0, 1, 2], loss=[math.nan, 2.5, math.inf], tokens=[0, 64, 128]))
    found = query(store, "SELECT step, loss, tokens, grad_norm FROM log")
    assert found == [(0, None, 0, None), (1, 2.5, 64, None), (2, math.inf, 128, None)]


def written(store: Store, put: LogTable | None) -> tuple[list[int], list[int]]:
    """Store the log of a run; return the steps of the rows deleted, and of those inserted."""
    with closing(sqlite3.connect(store.path)) as other:
        other.executescript(
            """
            CREATE TABLE IF NOT EXISTS writes (kind TEXT, step INTEGER); DELETE FROM writes;
            CREATE TRIGGER IF NOT EXISTS deleted AFTER DELETE ON log
                BEGIN INSERT INTO writes VALUES ('deleted', old.step); END;
            CREATE TRIGGER IF NOT EXISTS inserted AFTER INSERT ON log
                BEGIN INSERT INTO writes VALUES ('inserted', new.step); END;
            """
        )
    store.put_log("run", put)
    rows = query(store, "SELECT kind, step FROM writes ORDER BY step")
    return [s for kind, s in rows if kind == "deleted"], [s for kind, s in rows if kind == "inserted"]


LOSSES = [4.0, 3.5, 3.0, 2.75, 2.5]
CHANGES = {
    "the same": ([0, 1, 2, 3], LOSSES[:4], [], []),
    "longer": ([0, 1, 2, 3, 4], LOSSES, [], [4]),
    "truncated": ([0, 1], LOSSES[:2], [2, 3], []),
    "resumed at step 2": ([0, 1, 2, 3, 4], [4.0, 3.5, 3.25, 3.0, 2.5], [2, 3], [2, 3, 4]),
    "evaluated since": ([0, 1, 2, 3], [4.0, 3.5, 3.0, 2.7], [3], [3]),
    "a row between": ([0, 1, 2, 3], [4.0, math.nan, 3.0, 2.75], [1], [1]),
    "rewritten": ([0, 5], [9.0, 8.0], [0, 1, 2, 3], [0, 5]),
    "gone": ([], [], [0, 1, 2, 3], []),
}


@pytest.mark.parametrize(("steps", "losses", "deleted", "inserted"), CHANGES.values(), ids=CHANGES)
def test_only_the_rows_of_a_log_that_changed_are_written(
    store: Store, steps: list[int], losses: list[float], deleted: list[int], inserted: list[int]
) -> None:
    store.put_log("run", log([0, 1, 2, 3], loss=LOSSES[:4]))
    store.put_log("other", log([0, 9], loss=[1.0, 1.0]))
    assert written(store, log(steps, loss=losses) if steps else None) == (deleted, inserted)
    expected = [(step, None if math.isnan(loss) else loss) for step, loss in zip(steps, losses, strict=True)]
    assert query(store, "SELECT step, loss FROM log WHERE run = 'run'") == expected
    assert query(store, "SELECT step FROM log WHERE run = 'other'") == [(0,), (9,)]


def test_a_log_is_stored_whole_or_not_at_all(store: Store) -> None:
    store.put_log("run", log([0, 1, 2], loss=LOSSES[:3]))
    with closing(sqlite3.connect(store.path)) as other:
        other.executescript("CREATE TRIGGER fails BEFORE INSERT ON log_targets BEGIN SELECT RAISE(ABORT, 'no'); END;")
    longer = log([0, 1, 5, 6], loss=[4.0, 3.5, 1.0, 1.0], accuracy=[math.nan, 0.5, 0.5, 0.5])
    with pytest.raises(ToposcopeError, match=r"study\.db"):
        store.put_log("run", longer)
    assert query(store, "SELECT step, loss FROM log") == [(0, 4.0), (1, 3.5), (2, 3.0)]
    assert query(store, "SELECT * FROM log_targets") == []


def test_further_losses_and_accuracies(store: Store) -> None:
    targets = {"train/bpb": [-0.5, 1.0], "eval/accuracy": [math.nan, 0.25]}
    store.put_log("run", log([0, 1], loss=[-3.0, -4.0], **targets))
    expected = [(0, "train/bpb", "bits per byte", -0.5), (1, "eval/accuracy", "accuracy", 0.25)]
    found = query(store, "SELECT step, target, unit, value FROM log_targets")
    assert found == [*expected, (1, "train/bpb", "bits per byte", 1.0)]
    assert query(store, "SELECT step, loss FROM log") == [(0, -3.0), (1, -4.0)]
    store.put_log("run", log([0, 1], loss=[-3.0, -4.0], **{"train/bpb": [-0.5, math.nan]}))
    assert query(store, "SELECT step, target, unit, value FROM log_targets") == expected[:1]


def test_errors_are_rows_until_they_are_cleared(store: Store) -> None:
    store.put_errors({unit("a"): "first"})
    store.put_errors({unit("a"): "again", unit("b"): "other"})
    assert query(store, "SELECT layer, message FROM errors") == [("a", "again"), ("b", "other")]
    store.clear_errors()
    assert query(store, "SELECT * FROM errors") == []


def test_a_failing_database_is_told_in_one_line(store: Store) -> None:
    store.close()
    with pytest.raises(ToposcopeError, match=r"study\.db") as caught:
        store.set_meta("a", "b")
    assert "\n" not in str(caught.value)
