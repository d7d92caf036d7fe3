"""What changed in a store without being written, by checksums of groups of rows.

A group has rows that belong together: the log of a run, a checkpoint with its layers, a measurement with its
statistics. Its checksum is the sum of the CRC-32 of its rows in MessagePack, which triggers of the writer's connection
keep up to date. Diagrams have checksums of their own.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import msgspec

_PLACES = {
    **{"measurements": ("measurements", "{row}id"), "features": ("measurements", "{row}measurement")},
    **dict.fromkeys(("checkpoints", "layers", "evidence"), ("checkpoints", "{row}run || ' step ' || {row}step")),
    **dict.fromkeys(("log", "log_targets", "log_nan"), ("log", "{row}run")),
    **{table: (table, "{row}run") for table in ("findings", "alerts", "forecasts")},
    **{table: (table, "''") for table in ("runs", "errors", "kinds", "meta")},
}
"""By table, the kind of its groups, and the expression by which a row is of one."""
_encode = msgspec.msgpack.Encoder().encode


class Group(NamedTuple):
    """Rows with one checksum."""

    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind} {self.place}".rstrip()


def _checksum(*values: object) -> int:
    return crc32(_encode(values))


def keep_checksums(c: sqlite3.Connection) -> None:
    """Keep the checksums of all rows that this connection writes."""
    c.create_function("checksum_of", -1, _checksum, deterministic=True)
    c.execute("PRAGMA recursive_triggers = ON")  # a row that is replaced is deleted first
    for table, (kind, place) in _PLACES.items():
        columns = [name for _, name, *_ in c.execute(f"PRAGMA table_info({table})")]

        def change(row: str, sign: str, kind: str = kind, place: str = place, columns: list[str] = columns) -> str:
            values = ", ".join(row + name for name in columns)
            return (
                f"INSERT INTO checksums VALUES ('{kind}', {place.format(row=row)}, {sign}checksum_of({values})) "
                "ON CONFLICT DO UPDATE SET checksum = checksum + excluded.checksum;"
            )

        added, removed = change("NEW.", "+"), change("OLD.", "-")
        for event, changes in {"INSERT": added, "DELETE": removed, "UPDATE": removed + added}.items():
            c.execute(f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN {changes} END")


def damaged(c: sqlite3.Connection) -> Iterator[Group]:
    """Yield the groups whose rows are not those that were written."""
    now: dict[str, dict[object, int]] = {kind: defaultdict(int) for kind, _ in _PLACES.values()}
    for table, (kind, place) in _PLACES.items():
        sums = now[kind]
        for of, *row in c.execute(f"SELECT {place.format(row='')}, * FROM {table}"):
            sums[of] += crc32(_encode(row))
    found = {Group(kind, str(of)): value for kind, sums in now.items() for of, value in sums.items()}
    stored = {Group(kind, place): value for kind, place, value in c.execute("SELECT * FROM checksums")}
    yield from sorted(group for group in found.keys() | stored.keys() if found.get(group, 0) != stored.get(group, 0))


def drop(c: sqlite3.Connection, group: Group) -> None:
    """Delete the rows of a damaged group; what belongs to a study is stored again when it is run."""
    for table, (kind, place) in _PLACES.items():
        if kind == group.kind:
            c.execute(f"DELETE FROM {table} WHERE {place.format(row='')} IS ?", (group.place,))
    c.execute("DELETE FROM checksums WHERE kind = ? AND place = ?", group)


def is_whole(c: sqlite3.Connection) -> bool:
    """Return whether pages, tables and indexes of the file agree with each other."""
    try:
        return bool(c.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)])
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return False
