"""A run as a tool wrote it: a table with the tool's own names, before any column is identified."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.typing import Vector

NOT_LOGGED = ("", "none", "null", "n/a", "na", "-")
"""Texts that stand for a missing number."""
MAX_NAME_LENGTH = 200
"""Characters of a name from outside in a message; the rest is cut off."""
MAX_REMARK_LENGTH = 1000
"""Characters of a sentence with several such names."""


@dataclass(frozen=True, eq=False)
class RawLog:
    """A table of one run, or of several under a column of runs.

    Attributes
    ----------
    source : Path
        The file or folder it was read from, for messages.
    name : str
        Of the run; empty if only the place names it.
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
        Rows that hold something other than a number.
    """

    logged: NDArray[np.bool_]
    values: Vector
    unreadable: int


def numbers(column: pl.Series) -> Numbers:
    """Return a column as numbers; text that is a number counts as one."""
    unreadable = 0
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        column = text.cast(pl.Float64, strict=False)
        rest = text.filter(column.is_null() & text.is_not_null())
        unreadable = int((~rest.str.to_lowercase().is_in(NOT_LOGGED)).sum())
    elif not column.dtype.is_numeric():
        unreadable = len(column) - column.null_count()
        column = pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    logged = column.is_not_null().to_numpy() if column.null_count() else np.ones(len(column), dtype=bool)
    # null is NaN in an array
    return Numbers(logged, column.to_numpy().astype(np.float64), unreadable)


def one_line(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a text from outside as it may stand in a message: one line, printable, not too long."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def plural(n: int, one: str, several: str) -> str:
    """Return ``1 row has`` or ``3 rows have``."""
    return f"{n} {one if n == 1 else several}"


def join_names(names: list[str], max_names: int = 12) -> str:
    """Return names for a message: the first few, and how many more there are."""
    shown = ", ".join(one_line(name) or "''" for name in names[:max_names])
    return shown + (f" and {len(names) - max_names} more" if len(names) > max_names else "") if names else "none"
