"""The rows of a study's database: of checkpoints and layers, training logs, and what was measured."""

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.logs import COLUMNS, LogTable
from toposcope.logs.columns import target_of
from toposcope.probes import Measurement
from toposcope.study.kinds import kind_of

MAX_VALUES = 900  # values of one statement; SQLite may be built to take no more than 999
Row = tuple[Any, ...]
_LOG_COLUMNS: dict[str, tuple[str, ...]] = {
    "log": ("step", *COLUMNS),
    "log_targets": ("step", "target", "unit", "value"),
    "log_nan": ("step", "name"),
}
_LOG_KEY = ("step", "target", "name")  # first of these columns; with the run, they are in one row only
MAX_VERSION = (1 << 31) - 1


class LayerRow(NamedTuple):
    """One analysed layer in the store."""

    layer: str
    role: str
    n_rows: int
    n_columns: int
    dtype: str
    content_hash: str

    @classmethod
    def of(cls, layer: Layer, content_hash: str) -> "LayerRow":
        """Return the row of a layer whose content has this hash."""
        return cls(layer.name, layer.role, layer.shape[0], layer.shape[1], layer.dtype, content_hash)

    @property
    def n_bytes(self) -> int:
        """Size of the stored data."""
        return self.n_rows * self.n_columns * itemsize(self.dtype)


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint in the store."""

    run: str
    step: int
    path: str
    fingerprint: str
    weights_hash: str
    layers: tuple[LayerRow, ...]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of the analysed layers by name."""
        return {layer.layer: (layer.n_rows, layer.n_columns) for layer in self.layers}

    def content(self) -> str:
        """Return a digest of the names and contents of the analysed layers."""
        named = "\x1f".join(f"{layer.layer}\x1f{layer.content_hash}" for layer in self.layers)
        return hashlib.sha256(named.encode()).hexdigest()


class Unit(NamedTuple):
    """One thing to measure: a layer or pseudo-layer of a checkpoint, by one probe."""

    run: str
    step: int
    layer: str
    probe: str
    options: str


def insert(
    c: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, replace: bool = False
) -> None:
    """Insert rows, many in a statement: half the time of one in each; `replace` those of the same key."""
    together = MAX_VALUES // len(columns)
    whole = len(rows) // together * together
    row = f"({', '.join('?' * len(columns))})"
    begin = f"INSERT {'OR REPLACE ' if replace else ''}INTO {table} ({', '.join(columns)}) VALUES "
    groups = (list(chain.from_iterable(rows[start : start + together])) for start in range(0, whole, together))
    c.executemany(begin + ", ".join([row] * together), groups)
    c.executemany(begin + row, rows[whole:])


def replace_log(c: sqlite3.Connection, run: str, log: LogTable) -> None:
    """Make the log of a run that of a table; rows before the first change stay as they are."""
    # SQLite does not keep the sign of a zero, which adding one removes.
    columns = [_or_null(log.values[name] + 0.0) for name in COLUMNS]
    rows = list(zip(log.steps.tolist(), *columns, strict=True))
    further = [
        (step, name, target_of(name).unit, value)
        for name in log.further_targets
        for step, value in zip(log.steps.tolist(), (log.values[name] + 0.0).tolist(), strict=True)
        if not math.isnan(value)
    ]
    nan = sorted((step, name) for name, steps in log.nan_steps.items() for step in steps.tolist())
    for table, of_table in (("log", rows), ("log_targets", further), ("log_nan", nan)):
        _write_changed(c, table, run, of_table, _stored_from(c, table, run, 0))


def append_log(c: sqlite3.Connection, run: str, rows: Mapping[int, Mapping[str, float]]) -> None:
    """Add rows to the log of a run, or columns to stored rows (see `Store.append_log`)."""
    first = min(rows, default=0)
    stored = {table: _stored_from(c, table, run, first) for table in _LOG_COLUMNS}
    log = {step: dict(zip(COLUMNS, row, strict=True)) for step, *row in stored["log"]}
    targets = {row[:2]: row for row in stored["log_targets"]}
    nan = set(stored["log_nan"])
    for step, values in rows.items():
        of_step = log.setdefault(step, dict.fromkeys(COLUMNS))
        for name, value in values.items():
            is_nan, place = math.isnan(value), (step, name)
            (nan.add if is_nan else nan.discard)(place)
            if name in of_step:
                of_step[name] = None if is_nan else float(value) + 0.0
            elif is_nan:
                targets.pop(place, None)
            else:
                targets[place] = (*place, target_of(name).unit, float(value) + 0.0)
    _write_changed(c, "log", run, [(step, *row.values()) for step, row in log.items()], stored["log"])
    _write_changed(c, "log_targets", run, list(targets.values()), stored["log_targets"])
    _write_changed(c, "log_nan", run, list(nan), stored["log_nan"])


def _stored_from(c: sqlite3.Connection, table: str, run: str, first: int) -> list[Row]:
    query = f"SELECT {', '.join(_LOG_COLUMNS[table])} FROM {table} WHERE run = ? AND step >= ?"
    return c.execute(query, (run, first)).fetchall()


def _write_changed(c: sqlite3.Connection, table: str, run: str, rows: Sequence[Row], stored: Sequence[Row]) -> None:
    """Put rows in place of stored ones; those that are the same stay."""
    columns = _LOG_COLUMNS[table]
    names = [name for name in columns if name in _LOG_KEY]
    old, new = ({row[: len(names)]: row for row in some} for some in (stored, rows))
    gone = sorted(old.keys() - new.keys())
    where = " AND ".join(f"{name} = ?" for name in names)
    c.executemany(f"DELETE FROM {table} WHERE run = ? AND {where}", [(run, *place) for place in gone])
    changed = [(run, *new[place]) for place in sorted(new) if old.get(place) != new[place]]
    again = (zip(old[place], new[place], strict=True) for place in old.keys() & new.keys() if old[place] != new[place])
    if gone or any(before is not None and now is None for pairs in again for before, now in pairs):
        has_lost_rows(c)
    # The step and one more at least; what was not logged stands empty anyway.
    logged = [0, *(k for k in range(1, len(columns) + 1) if k <= 2 or any(row[k] is not None for row in changed))]
    of_columns = ("run", *columns)
    insert(c, table, [of_columns[k] for k in logged], list(map(itemgetter(*logged), changed)), replace=True)


def has_lost_rows(c: sqlite3.Connection) -> None:
    """Note that rows were deleted: what readers had read of the store before does not count."""
    (version,) = c.execute("PRAGMA user_version").fetchone()
    c.execute(f"PRAGMA user_version = {version % MAX_VERSION + 1}")


def _or_null(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers, None in place of NaN."""
    empty = np.isnan(values)
    if empty.all():
        return [None] * len(values)
    return [None if missing else value for value, missing in zip(values.tolist(), empty.tolist(), strict=True)]


MeasurementRow = tuple[Unit, str, Measurement, str]  # unit, key, measurement, diagram file


def forget(c: sqlite3.Connection, run: str, step: int) -> None:
    """Delete what is known of a checkpoint, but for its measurements."""
    for table in ("checkpoints", "layers", "evidence"):
        c.execute(f"DELETE FROM {table} WHERE run = ? AND step = ?", (run, step))


def delete_units(c: sqlite3.Connection, units: Sequence[Unit]) -> None:
    """Delete measurements."""
    query = "DELETE FROM measurements WHERE run = ? AND step = ? AND layer = ? AND probe = ? AND options = ?"
    if c.executemany(query, units).rowcount:
        has_lost_rows(c)


def update_measurements(c: sqlite3.Connection, row: CheckpointRow) -> None:
    """Delete the measurements of layers that a checkpoint no longer has, and correct the roles of the others."""
    gone = c.execute(
        "DELETE FROM measurements WHERE run = ? AND step = ? "
        "AND role NOT IN ('network', 'pooled', 'hidden', 'embedding') "
        "AND layer NOT IN (SELECT value FROM json_each(?))",
        (row.run, row.step, json.dumps([r.layer for r in row.layers])),
    )
    if gone.rowcount:
        has_lost_rows(c)
    c.executemany(
        "UPDATE measurements SET role = ? WHERE run = ? AND step = ? AND layer = ? AND role <> ?",
        [(r.role, row.run, row.step, r.layer, r.role) for r in row.layers],
    )


def insert_measurements(c: sqlite3.Connection, rows: Iterable[MeasurementRow]) -> None:
    """Insert measurements with their statistics in place of older ones; of a unit, the last counts."""
    measurements: list[Row] = []
    features: list[tuple[int, str, float]] = []
    last = c.execute("SELECT seq FROM sqlite_sequence WHERE name = 'measurements'").fetchone()
    of_units = {row[0]: row for row in rows}
    for number, (unit, key, measurement, diagrams) in enumerate(of_units.values(), 1 + (last[0] if last else 0)):
        # SQLite does not keep the sign of a zero.
        features += [(number, name, float(value) + 0.0) for name, value in measurement.statistics.items()]
        measurements.append((number, *unit, measurement.role, key, measurement.flag, diagrams))
    columns = ("id", *Unit._fields, "role", "key", "flag", "diagrams")
    insert(c, "measurements", columns, measurements, replace=True)
    insert(c, "features", ("measurement", "statistic", "value"), features)


def put_kinds(c: sqlite3.Connection, statistics: Iterable[tuple[str, str]]) -> None:
    """Store the kind of statistics, by probe and name."""
    rows = [(probe, name, kind_of(probe, name)) for probe, name in sorted(statistics)]
    c.executemany("INSERT OR REPLACE INTO kinds VALUES (?, ?, ?)", rows)


def stored_statistics(c: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the probes and names of all statistics that are stored."""
    return c.execute(
        "SELECT DISTINCT probe, statistic FROM features f JOIN measurements ON id = measurement"
    ).fetchall()
