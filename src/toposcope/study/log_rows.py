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
    is_new = not checksums.among(c, "log", run)
    _write_changed(c, "log", run, ("step", *COLUMNS), rows)
    _write_changed(c, "log_targets", run, ("step", "target", "unit", "value"), sorted(further))
    if not is_new:
        checksums.seal(c, "log", run=run)
    elif rows:
        checksums.put_new(c, {checksums.Group("log", run): [*rows, *further]})


def append(c: sqlite3.Connection, run: str, rows: Mapping[int, Mapping[str, float]]) -> None:
    """Add rows to the log of a run, or columns to stored rows (see `Store.append_log`)."""
    logged = {step: _without_nan(values) for step, values in rows.items()}
    (last,) = c.execute("SELECT MAX(step) FROM log WHERE run = ?", (run,)).fetchone()
    new = {step: values for step, values in logged.items() if last is None or step > last}
    _insert(c, run, new)
    for step in logged.keys() - new.keys():
        _change_row(c, run, step, logged[step])
    for step, values in logged.items():
        for name in sorted(values.keys() - _COLUMNS):
            _append_target(c, run, (step, name, target_of(name).unit, values[name]))


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


def _insert(c: sqlite3.Connection, run: str, logged: Mapping[int, Mapping[str, float]]) -> None:
    """Add rows of steps that the log does not hold."""
    rows = [(step, *map(values.get, COLUMNS)) for step, values in logged.items()]
    insert(c, "log", ("run", "step", *COLUMNS), [(run, *row) for row in rows])
    if rows:
        checksums.add(c, "log", run, rows)


def _change_row(c: sqlite3.Connection, run: str, step: int, logged: Mapping[str, float]) -> None:
    names = ", ".join(COLUMNS)
    stored = c.execute(f"SELECT {names} FROM log WHERE run = ? AND step = ?", (run, step)).fetchone()
    row = [logged.get(name, old) for name, old in zip(COLUMNS, stored or (None,) * len(COLUMNS), strict=True)]
    c.execute(f"INSERT OR REPLACE INTO log (run, step, {names}) VALUES (?, ?, {_marks(row)})", (run, step, *row))
    checksums.add(c, "log", run, [(step, *row)], [(step, *stored)] if stored else [])


def _append_target(c: sqlite3.Connection, run: str, row: tuple[int, str, str, float]) -> None:
    query = "SELECT step, target, unit, value FROM log_targets WHERE run = ? AND step = ? AND target = ?"
    stored = c.execute(query, (run, *row[:2])).fetchall()
    c.execute("INSERT OR REPLACE INTO log_targets VALUES (?, ?, ?, ?, ?)", (run, *row))
    checksums.add(c, "log", run, [row], stored)


def _without_nan(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) + 0.0 for name, value in values.items() if not math.isnan(value)}


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _or_null(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers, None in place of NaN."""
    empty = np.isnan(values)
    if empty.all():
        return [None] * len(values)
    return [None if missing else value for value, missing in zip(values.tolist(), empty.tolist(), strict=True)]
