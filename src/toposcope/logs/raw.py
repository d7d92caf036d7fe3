"""A run as a tool wrote it: a table with the tool's own names, before anything is guessed of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

NOT_LOGGED = ("", "none", "null", "n/a", "na", "-")
"""Texts in the place of a number that say there is none."""
LONGEST = 200
"""Characters of a name that comes from outside; what is longer is cut in messages."""
LONGEST_REMARK = 1000
"""The same of a sentence with several such names."""


@dataclass(frozen=True, eq=False)
class Raw:
    """A table of one run, or of several that it tells apart itself.

    Attributes
    ----------
    source : Path
        The file or folder it was read from, for messages.
    name : str
        Of the run; empty if only the place tells it.
    table : polars.DataFrame
        Rows in the order they were written; null where nothing was logged.
    facts : mapping
        What the tool knows of the run beside its table, by the tool's names.
    remarks : tuple of str
    """

    source: Path
    name: str
    table: pl.DataFrame
    facts: Mapping[str, object] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class Numbers(NamedTuple):
    """A column as numbers.

    Attributes
    ----------
    logged : ndarray, shape (n,), bool
        Where there is a number, be it NaN.
    values : ndarray, shape (n,), float64
        NaN where there is none.
    unreadable : int
        Rows that hold something else than a number.
    """

    logged: NDArray[np.bool_]
    values: NDArray[np.float64]
    unreadable: int


def numbers(column: pl.Series) -> Numbers:
    """Return a column as numbers; text is read as such where it is one."""
    unreadable = 0
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        column = text.cast(pl.Float64, strict=False)
        left = text.filter(column.is_null() & text.is_not_null())
        unreadable = int((~left.str.to_lowercase().is_in(NOT_LOGGED)).sum())
    elif not column.dtype.is_numeric():
        unreadable = len(column) - column.null_count()
        column = pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    logged = column.is_not_null().to_numpy() if column.null_count() else np.ones(len(column), dtype=bool)
    # null is NaN in an array
    return Numbers(logged, column.to_numpy().astype(np.float64), unreadable)


def one_line(text: object, longest: int = LONGEST) -> str:
    """Return a text that comes from outside as it may stand in a message: one line, printable, not too long."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def counted(n: int, one: str, several: str) -> str:
    """Return ``1 row has`` or ``3 rows have``."""
    return f"{n} {one if n == 1 else several}"


def listed(names: list[str], most: int = 12) -> str:
    """Return names for a message: the first few, and how many there are beside."""
    shown = ", ".join(one_line(name) or "''" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"
