"""Checksums of groups of rows in a store, which reveal changes that the store did not write.

A group has the rows that are measured, read or logged together: those of one probe on one checkpoint, one checkpoint
with its layers and evidence, the log of one run, and so on. Its checksum is the sum of the CRC-32 of its rows in
MessagePack, whatever their order. Diagrams have checksums of their own.
"""

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple


class Group(NamedTuple):
    """Rows with one checksum: those of a kind and, if the kind distinguishes them, of a run, a step and a probe."""

    kind: str
    run: str = ""
    step: int = -1
    probe: str = ""
    options: str = ""

    def __str__(self) -> str:
        place = f" of {self.run}" if self.run else ""
        return f"{self.kind}{place}" + (f" step {self.step}" if self.step >= 0 else "") + f" {self.probe}".rstrip()


_QUERIES = {
    "measurements": ("SELECT run, step, probe, options, id, layer, role, key, flag, diagrams FROM measurements",),
    "checkpoints": (
        "SELECT run, step, '', '', path, fingerprint, weights_hash FROM checkpoints",
        "SELECT run, step, '', '', layer, position, role, n_rows, n_columns, dtype, content_hash FROM layers",
        "SELECT run, step, '', '', content FROM evidence",
    ),
    "log": (
        "SELECT run, -1, '', '', step, loss, learning_rate, grad_norm, tokens, flops, validation_loss, weight_norm "
        "FROM log",
        "SELECT run, -1, '', '', step, target, unit, value FROM log_targets",
    ),
    "log_nan": ("SELECT run, -1, '', '', step, name FROM log_nan",),
    "findings": ("SELECT run, -1, '', '', position, check_name, severity, steps, layer, message FROM findings",),
    "live": (
        "SELECT run, -1, '', '', position, check_name, step, since, place, message, evidence FROM alerts",
        "SELECT run, -1, '', '', step, last_step, loss, low, high, advice FROM forecasts",
        "SELECT run, -1, '', '', step, target FROM forecast_targets",
    ),
    "runs": ("SELECT '', -1, '', '', run, position, kind, n_parameters, status, last_step, source FROM runs",),
    "errors": ("SELECT '', -1, '', '', run, step, layer, probe, options, message FROM errors",),
    "kinds": ("SELECT '', -1, '', '', probe, statistic, kind FROM kinds",),
    "meta": ("SELECT '', -1, '', '', key, value FROM meta",),
}
"""By kind, queries of its rows: run, step, probe and options of the group, then the content."""
KINDS = tuple(_QUERIES)
ORPHANS = Group("features without a measurement")


def computed(c: sqlite3.Connection, kind: str, only: Mapping[str, str | int] | None = None) -> dict[Group, int]:
    """Return the checksums of the stored rows of a kind, or only of the groups of a run, step, probe or options."""
    only = only or {}
    where = " WHERE " + " AND ".join(f"{name} = ?" for name in only) if only else ""
    values = tuple(only.values())
    sums: dict[Group, int] = {}
    group_of: dict[int, Group] = {}
    for query in _QUERIES[kind]:
        for run, step, probe, options, *content in c.execute(query + where, values):
            group = Group(kind, run, step, probe, options)
            sums[group] = sums.get(group, 0) + _checksum([tuple(content)])
            if kind == "measurements":
                group_of[content[0]] = group
    if kind == "measurements":
        inside = f" WHERE measurement IN (SELECT id FROM measurements{where})" if only else ""
        features = c.execute(f"SELECT measurement, statistic, value FROM features{inside}", values)
        for measurement, rows in groupby(features, itemgetter(0)):  # they lie together, and need not
            group = group_of.get(measurement, ORPHANS)
            sums[group] = sums.get(group, 0) + _checksum(rows)
    return sums


def stored(c: sqlite3.Connection, kind: str, **only: str | int) -> dict[Group, int]:
    """Return the checksums in the store, as `computed` does."""
    where = "".join(f" AND {name} = ?" for name in only)
    rows = c.execute(
        f"SELECT kind, run, step, probe, options, checksum FROM checksums WHERE kind = ?{where}",
        (kind, *only.values()),
    )
    return {Group(*group): checksum for *group, checksum in rows}


def seal(c: sqlite3.Connection, kind: str, **only: str | int) -> None:
    """Store the checksums of rows that were written."""
    now, before = computed(c, kind, only), stored(c, kind, **only)
    gone = [group for group in before if group not in now]
    c.executemany("DELETE FROM checksums WHERE kind = ? AND run = ? AND step = ? AND probe = ? AND options = ?", gone)
    changed = [(*group, checksum) for group, checksum in now.items() if before.get(group) != checksum]
    c.executemany("INSERT OR REPLACE INTO checksums VALUES (?, ?, ?, ?, ?, ?)", changed)


def among(c: sqlite3.Connection, kind: str, run: str, steps: Iterable[int] = (-1,)) -> set[int]:
    """Return those of some steps of a run of which there are rows of a kind; -1 stands for rows of no step."""
    query = (
        "SELECT DISTINCT step FROM checksums WHERE kind = ? AND run = ? AND step IN (SELECT value FROM json_each(?))"
    )
    return {step for (step,) in c.execute(query, (kind, run, json.dumps(list(steps))))}


def put_new(c: sqlite3.Connection, rows: Mapping[Group, Iterable[tuple[Any, ...]]]) -> None:
    """Store the checksums of groups that had no rows by the content of these, as the queries return it."""
    c.executemany(
        "INSERT INTO checksums VALUES (?, ?, ?, ?, ?, ?)",
        [(*group, _checksum(content)) for group, content in rows.items()],
    )


def add(
    c: sqlite3.Connection,
    kind: str,
    run: str,
    rows: Iterable[tuple[Any, ...]],
    instead_of: Iterable[tuple[Any, ...]] = (),
) -> None:
    """Add rows to the checksum of a run's group by their content, as its query returns it; the others are not read."""
    total = _checksum(rows) - _checksum(instead_of)
    c.execute(
        "INSERT INTO checksums VALUES (?, ?, -1, '', '', ?) "
        "ON CONFLICT DO UPDATE SET checksum = checksum + excluded.checksum",
        (kind, run, total),
    )


def log_after(c: sqlite3.Connection, run: str, step: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], int]:
    """Return what was logged of a run after a step, and the checksum of everything before.

    While that checksum stays, a reader that has the rows before need not read them again.
    """
    (rows, targets) = (
        [tuple(row) for _, _, _, _, *row in c.execute(f"{query} WHERE run = ? AND step > ? ORDER BY step", (run, step))]
        for query in _QUERIES["log"]
    )
    whole = stored(c, "log", run=run).get(Group("log", run), 0)
    return rows, targets, whole - _checksum(rows) - _checksum(targets)


def damaged(c: sqlite3.Connection) -> Iterator[Group]:
    """Yield the groups whose rows are not those that were written."""
    for kind in KINDS:
        now, before = computed(c, kind), stored(c, kind)
        wrong = {group for group in now.keys() | before.keys() if now.get(group) != before.get(group)}
        yield from sorted(wrong, key=repr)


def is_whole(c: sqlite3.Connection) -> bool:
    """Return whether pages, tables and indexes of the file agree with each other."""
    try:
        return bool(c.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)])
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return False


def drop(c: sqlite3.Connection, group: Group) -> None:
    """Delete the rows of a damaged group; what belongs to a study is stored again when it is run."""
    if group == ORPHANS:
        c.execute("DELETE FROM features WHERE measurement NOT IN (SELECT id FROM measurements)")
        return
    for kind in ("log", "log_nan") if group.kind in ("log", "log_nan") else (group.kind,):
        for query in _QUERIES[kind]:
            selected, _, table = query.removeprefix("SELECT ").rpartition(" FROM ")
            names = [name for name, text in zip(Group._fields[1:], selected.split(", "), strict=False) if name == text]
            where = " AND ".join(f"{name} IS ?" for name in names) or "TRUE"
            c.execute(f"DELETE FROM {table} WHERE {where}", [getattr(group, name) for name in names])


def _checksum(rows: Iterable[tuple[Any, ...]]) -> int:
    """Return the sum of the CRC-32 of rows; chained, since there are many and each is short."""
    return sum(map(zlib.crc32, map(_encoder(), rows)))


@cache
def _encoder() -> Callable[[Any], bytes]:
    import msgspec  # which a server of a page need not have in memory before there is a page

    return msgspec.msgpack.Encoder().encode
