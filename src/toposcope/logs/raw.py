"""A run as a tool wrote it: a table with the tool's own names, before any column is identified."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.logs.columns import Columns, identify_columns
from toposcope.logs.watched import Watched
from toposcope.typing import Vector
from toposcope.wording import examples

NOT_LOGGED = ("", "none", "null", "n/a", "na", "-")  # texts that stand for a missing number
_SPACES = "[\u0020\u00a0\u2009\u202f]"
_GROUPED = rf"^[+-]?\d{{1,3}}(?:(?:,\d{{3}})+|(?:['’_]\d{{3}})+|(?:{_SPACES}\d{{3}})+)(?:\.\d+)?$"
"""1,000 or 1'000.5; the other way round, 1.000,5, it is `_GROUPED_BY_POINTS`."""
_GROUPED_BY_POINTS = r"^[+-]?\d{1,3}(?:\.\d{3})+(?:,\d+)?$"
_SURELY_GROUPED_BY_POINTS = r"^[+-]?\d{1,3}(?:(?:\.\d{3}){2,}(?:,\d+)?|\.\d{3},\d+)$"
"""Points that stand before thousands, whatever the other rows hold."""
_IN_A_CALL = r"^(?:tensor|array|[\w.]*float\d*)?[(\[]+([-+.\deE]+)\]?(?:, ?\w+=.*)?\)?$"
"""tensor(2.34, device='cuda:0'), [2.34]."""
_NOT_A_NUMBER, _INFINITE = r"^[-+]?(?:1\.#(?:QNAN|IND).*|nan\(.*\))$", r"^[-+]?1\.#INF$"  # as C on Windows prints them
_DECIMAL_COMMA = r"^[+-]?\d+,\d+(?:[eE][+-]?\d+)?$"
_NO_GROUP = r"^[+-]?(?:\d+,(?:\d{1,2}|\d{4,})|0\d*,\d+|\d{4,},\d+|\d+,\d+[eE][+-]?\d+)$"
"""A comma that can only stand before decimals."""
MULTIPLES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_WITH_MULTIPLE = r"^([+-]?\d+(?:\.\d+)?)\s?([kKMBT])$"
_GROUPS = re.compile(r"(?<=\d)[,_'’](?=\d{3}(?!\d))")
_SIZE = re.compile(r"([\d.]+)\s*([KMBT]?)", re.IGNORECASE)
_OF_ALL = r"^(\d+)\s?/\s?\d+$"  # step 100 of 20,000: 100/20000
MAX_NAME_LENGTH = 200  # characters of a name from outside in a message; the rest is cut off
MAX_REMARK_LENGTH = 1000  # characters of a sentence with several such names


class Numbers(NamedTuple):
    """A column as numbers."""

    logged: NDArray[np.bool_]  # shape (n,); where there is a number, be it NaN
    values: Vector  # shape (n,); NaN where there is none
    unreadable: int  # rows that hold something other than a number


class _EachOnce(dict[str, Numbers]):
    """The columns of a table as numbers, each parsed once."""

    def __init__(self, table: pl.DataFrame) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, name: str) -> Numbers:
        self[name] = parsed = parse_numbers(self._table[name])
        return parsed


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
        What the tool knows of the run next to its table, by the tool's names.
    remarks : tuple of str
    one_run : bool
        Whether it is known to be of one run, and null only where nothing was logged.
    watched : Watched or None
        What a monitor stored of the run.
    axis : str
        What its steps count, one of `toposcope.logs.run.AXES`, where the reader knows that.
    evidence : mapping
        Where facts come from, as in `toposcope.logs.Run`.
    """

    source: Path
    name: str
    table: pl.DataFrame
    facts: Mapping[str, object] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    one_run: bool = False
    watched: Watched | None = None
    axis: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def columns(self) -> Columns:
        """What the columns are, by their names."""
        return identify_columns(self.table.columns)

    @cached_property
    def numbers(self) -> Mapping[str, Numbers]:
        """The columns as numbers."""
        return _EachOnce(self.table)


def parse_numbers(column: pl.Series) -> Numbers:
    """Return a column as numbers; text that is a number counts as one."""
    unreadable = 0
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        column = _as_numbers(text)
        rest = text.filter(column.is_null() & text.is_not_null())
        if len(rest) and not rest.str.to_lowercase().is_in(NOT_LOGGED).all():
            text = _plain(text)
            column = text.cast(pl.Float64, strict=False)
            rest = text.filter(column.is_null() & text.is_not_null())
        unreadable = int((~rest.str.to_lowercase().is_in(NOT_LOGGED)).sum())
    elif not column.dtype.is_numeric():
        unreadable = len(column) - column.null_count()
        column = pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    logged = column.is_not_null().to_numpy() if column.null_count() else np.ones(len(column), dtype=bool)
    # null is NaN in an array
    return Numbers(logged, column.to_numpy().astype(np.float64), unreadable)


def _as_numbers(text: pl.Series) -> pl.Series:
    """Return texts as numbers, null where they are none; 1.000 after 950 is a thousand."""
    values = text.cast(pl.Float64, strict=False)
    first = text.drop_nulls().head(1)
    if not first.str.contains(rf"{_GROUPED_BY_POINTS}|^\d{{1,3}}$").any():
        return values
    pointed = text.str.contains(_GROUPED_BY_POINTS)
    if not pointed.any() or not (pointed | text.str.contains(r"^\d{1,3}$")).fill_null(True).all():
        return values
    grouped = text.str.replace_all(".", "", literal=True).cast(pl.Float64, strict=False)
    ascends = [bool((series.drop_nulls().diff().drop_nulls() > 0).all()) for series in (values, grouped)]
    return grouped if ascends == [False, True] else values


def _plain(text: pl.Series) -> pl.Series:
    """Return texts as plain numbers: without signs between thousands, with a point before decimals, 3200 for 3.2k."""
    comma = text.str.contains(_DECIMAL_COMMA)
    text = text.str.replace(_IN_A_CALL, "$1").str.replace(_NOT_A_NUMBER, "nan").str.replace(_INFINITE, "inf")
    pointed = text.str.contains(_SURELY_GROUPED_BY_POINTS)
    if text.str.contains(_NO_GROUP).any() or pointed.any() or (comma.any() and not _are_thousands(text, comma)):
        whole = text.str.replace_all(".", "", literal=True)
        text = whole.zip_with(text.str.contains(_GROUPED_BY_POINTS), text).str.replace(",", ".", literal=True)
    number = text.str.extract(_WITH_MULTIPLE, 1).cast(pl.Float64, strict=False)
    multiple = text.str.extract(_WITH_MULTIPLE, 2).replace_strict(MULTIPLES, default=None, return_dtype=pl.Float64)
    plain = (number * multiple).round(6).cast(pl.String).fill_null(text.str.replace(_OF_ALL, "$1"))
    return text.str.replace_all(rf"[,'’_]|{_SPACES}", "").zip_with(text.str.contains(_GROUPED), plain)


def _are_thousands(text: pl.Series, comma: pl.Series) -> bool:
    """Return whether commas stand between thousands: whole numbers below 1,000 have none, or all end in 0."""
    with_comma, without = text.filter(comma), text.filter(~comma & text.is_not_null())
    below = without.str.contains(r"^[+-]?\d{1,3}$")
    several = without.str.contains(_GROUPED)
    if len(without) and (below | several).all():
        return True
    return len(with_comma) > 1 and with_comma.str.ends_with("0").all()


def one_line(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a text from outside as it may stand in a message: one line, printable, not too long."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


MAX_COLUMNS = 20_000  # of a log; a column for each layer of a large model is a tenth of that


def plural(n: int, one: str, several: str) -> str:
    """Return ``1 row has`` or ``3 rows have``."""
    return f"{n} {one if n == 1 else several}"


def join_names(names: list[str], max_names: int = 12) -> str:
    """Return names for a message: the first few, and how many more there are."""
    return examples([one_line(name) or "''" for name in names], max_names) if names else "none"


def size_of(fact: object) -> float:
    """Return a positive number, also one written as ``160M``; NaN for anything else."""
    match = _SIZE.fullmatch(_GROUPS.sub("", fact.strip())) if isinstance(fact, str) else None
    try:
        if match:
            return float(match.group(1)) * MULTIPLES.get(match.group(2).upper(), 1)
        size = float(fact) if isinstance(fact, str | int | float) and not isinstance(fact, bool) else np.nan
    except (ValueError, OverflowError):
        return np.nan
    return size if np.isfinite(size) and size > 0 else np.nan
