"""The rows of training logs in the database of a study: written anew where they changed, or appended."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.logs import COLUMNS, LogTable
from toposcope.logs.columns import target_of
from toposcope.logs.formats.study import lost_losses
from toposcope.study import checksums
from toposcope.study.inserting import insert

_COLUMNS = frozenset(COLUMNS)


def replace(c: sqlite3.Connection, run: str, log: LogTable) -> None:
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
    is_new = not checksums.among(c, "log", run)
    _write_changed(c, "log", run, ("step", *COLUMNS), rows)
    _write_changed(c, "log_targets", run, ("step", "target", "unit", "value"), sorted(further))
    _write_changed(c, "log_nan", run, ("step", "name"), nan)
    checksums.seal(c, "log_nan", run=run)
    if not is_new:
        checksums.seal(c, "log", run=run)
    elif rows:
        checksums.put_new(c, {checksums.Group("log", run): [*rows, *further]})


def append(c: sqlite3.Connection, run: str, rows: Mapping[int, Mapping[str, float]]) -> None:
    """Add rows to the log of a run, or columns to stored rows (see `Store.append_log`)."""
    logged = {step: _nan_as_none(values) for step, values in rows.items()}
    (last,) = c.execute("SELECT MAX(step) FROM log WHERE run = ?", (run,)).fetchone()
    new = {step: values for step, values in logged.items() if last is None or step > last}
    _insert(c, run, new)
    for step in logged.keys() - new.keys():
        _change_row(c, run, step, logged[step])
    for step, values in logged.items():
        for name in sorted(values.keys() - _COLUMNS):
            _append_target(c, run, (step, name, target_of(name).unit, values[name]))
    _append_nan(c, run, {(step, name): value is None for step, row in logged.items() for name, value in row.items()})


def mark_lost(c: sqlite3.Connection) -> None:
    """Mark the losses that an older version stored as NULL and that must have been NaN."""
    for (run,) in c.execute("SELECT run FROM runs").fetchall():
        _append_nan(c, run, dict.fromkeys(((step, "loss") for step in lost_losses(c, run)), True))


def _write_changed(
    c: sqlite3.Connection, table: str, run: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> None:
    """Make the sorted rows, the first column their step, those of a run; equal rows before any change stay."""
    names = ", ".join(columns)
    stored = c.execute(f"SELECT {names} FROM {table} WHERE run = ? ORDER BY {names}", (run,)).fetchall()
    pairs = zip(stored, rows, strict=False)
    same = next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(stored), len(rows)))
    changed = [*stored[same : same + 1], *rows[same : same + 1]]
    if changed:
        first = min(step for step, *_ in changed)
        c.execute(f"DELETE FROM {table} WHERE run = ? AND step >= ?", (run, first))
        new = [row for row in rows if row[0] >= first]
        # The step and one more at least; what was not logged stands empty anyway.
        logged = [k for k in range(len(columns)) if k < 2 or any(row[k] is not None for row in new)]
        values = map(itemgetter(*logged), new)
        insert(c, table, ("run", *(columns[k] for k in logged)), [(run, *row) for row in values])


def _insert(c: sqlite3.Connection, run: str, logged: Mapping[int, Mapping[str, float | None]]) -> None:
    """Add rows of steps that the log does not hold."""
    rows = [(step, *map(values.get, COLUMNS)) for step, values in logged.items()]
    insert(c, "log", ("run", "step", *COLUMNS), [(run, *row) for row in rows])
    if rows:
        checksums.add(c, "log", run, rows)


def _change_row(c: sqlite3.Connection, run: str, step: int, logged: Mapping[str, float | None]) -> None:
    names = ", ".join(COLUMNS)
    stored = c.execute(f"SELECT {names} FROM log WHERE run = ? AND step = ?", (run, step)).fetchone()
    row = [logged.get(name, old) for name, old in zip(COLUMNS, stored or (None,) * len(COLUMNS), strict=True)]
    if stored == tuple(row):
        return
    c.execute(f"INSERT OR REPLACE INTO log (run, step, {names}) VALUES (?, ?, {_marks(row)})", (run, step, *row))
    checksums.add(c, "log", run, [(step, *row)], [(step, *stored)] if stored else [])


def _append_target(c: sqlite3.Connection, run: str, row: tuple[int, str, str, float | None]) -> None:
    """Store a further target of a step, or, where it is None, that it has no value any more."""
    query = "SELECT step, target, unit, value FROM log_targets WHERE run = ? AND step = ? AND target = ?"
    stored, new = c.execute(query, (run, *row[:2])).fetchall(), [row] if row[-1] is not None else []
    if stored == new:
        return
    c.execute("DELETE FROM log_targets WHERE run = ? AND step = ? AND target = ?", (run, *row[:2]))
    insert(c, "log_targets", ("run", "step", "target", "unit", "value"), [(run, *each) for each in new])
    checksums.add(c, "log", run, new, stored)


def _append_nan(c: sqlite3.Connection, run: str, is_nan: Mapping[tuple[int, str], bool]) -> None:
    """Store which of the values written, by step and name, are NaN."""
    first = min((step for step, _ in is_nan), default=0)
    stored = set(c.execute("SELECT step, name FROM log_nan WHERE run = ? AND step >= ?", (run, first)))
    new = [place for place, nan in is_nan.items() if nan and place not in stored]
    gone = [place for place in stored if not is_nan.get(place, True)]
    insert(c, "log_nan", ("run", "step", "name"), [(run, *place) for place in new])
    c.executemany("DELETE FROM log_nan WHERE run = ? AND step = ? AND name = ?", [(run, *place) for place in gone])
    if gone:
        checksums.seal(c, "log_nan", run=run)
    elif new:
        checksums.add(c, "log_nan", run, new)


def _nan_as_none(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else float(value) + 0.0 for name, value in values.items()}


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _or_null(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers, None in place of NaN."""
    empty = np.isnan(values)
    if empty.all():
        return [None] * len(values)
    return [None if missing else value for value, missing in zip(values.tolist(), empty.tolist(), strict=True)]
