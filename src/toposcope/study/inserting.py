"""Many rows into a table of SQLite."""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

MAX_VALUES = 900
"""Values of one statement; SQLite may be built to take no more than 999."""


def insert(c: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows, many in a statement: half the time of one in each."""
    together = MAX_VALUES // len(columns)
    size, whole = together * len(columns), len(rows) // together * together
    row = f"({', '.join('?' * len(columns))})"
    begin = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "
    values = list(chain.from_iterable(rows[:whole]))
    groups = (values[start : start + size] for start in range(0, len(values), size))
    c.executemany(begin + ", ".join([row] * together), groups)
    c.executemany(begin + row, rows[whole:])
