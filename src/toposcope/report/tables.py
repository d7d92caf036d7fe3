"""The tables of the page: their columns, and how numbers are written."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, ClassVar

import polars as pl

from toposcope.report.headline import headline_features, named

UNDEFINED = "–"  # written where a number is not defined


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    text: bool = False  # words, set to the left; else numbers
    group: str = ""  # heading over this column and its neighbours of the same group
    names_row: bool = False  # a row is known by it
    prose: bool = False  # sentences: lines may break


@dataclass(frozen=True)
class Table:
    """A table as it is read."""

    name: str  # unique on the page
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]  # a cell for each column
    sortable: bool = False  # large enough to be sorted and filtered
    features: tuple[tuple[str, str], ...] = ()  # feature and group of each row that leads to the explorer; else empty
    kind: ClassVar[str] = "table"

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Headings over several columns, with how many; empty where there are none."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and column.group and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1)
            else:
                found.append((column.group, 1))
        return found if any(group for group, _ in found) else []


Row = Mapping[str, Any]
Spec = tuple[Column, Callable[[Row], str]]


def table(
    name: str, caption: str, specs: Sequence[Spec], rows: Iterable[Row], *, sortable: bool = False
) -> Table | None:
    """Make a table from rows; none without rows; columns that are defined in no row are left away.

    Rows with a ``feature`` and a ``group`` lead to the explorer.
    """
    rows = list(rows)
    lines = [[write(row) for row in rows] for _, write in specs]
    told = [column.names_row or any(cell != UNDEFINED for cell in line)
            for (column, _), line in zip(specs, lines, strict=True)]  # fmt: skip
    cells = tuple(zip(*compress(lines, told), strict=True))
    columns = tuple(compress((column for column, _ in specs), told))
    features = tuple((row["feature"], row["group"]) for row in rows if "feature" in row and "group" in row)
    return Table(name, caption, columns, cells, sortable, features) if cells else None


def missing(value: object) -> bool:
    """Return whether a value is absent or not a number."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


NOISE = 1e-12  # share of the numbers next to it below which a number is a rounding error


def settled(value: float | None, *next_to: float | None) -> float | None:
    """Return a number, or 0 for a rounding error next to numbers of the same unit."""
    largest = max((abs(other) for other in next_to if other is not None and math.isfinite(other)), default=0.0)
    return 0.0 if value is not None and abs(value) <= NOISE * largest else value


def _minus(text: str) -> str:
    return text.replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """Write a number with its sign; what rounds to zero has none."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    text = f"{value:+.{digits}f}"
    return _minus(text) if float(text) else f"{0:.{digits}f}"


def fixed(value: float | None, digits: int = 3) -> str:
    """Write a number to so many decimals."""
    return UNDEFINED if value is None or not math.isfinite(value) else _minus(f"{value:.{digits}f}")


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Write an interval."""
    return UNDEFINED if missing(low) or missing(high) else f"{signed(low, digits)} to {signed(high, digits)}"


def p_value(value: float | None) -> str:
    """Write a p-value to three decimals."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    return "< .001" if value < 0.0005 else f"{value:.3f}".lstrip("0") if value < 0.9995 else "1"


def plain(value: float | None, digits: int = 4) -> str:
    """Write a number to so many significant digits; whole numbers whole."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    if float(value).is_integer() and abs(value) < 1e15:
        return _minus(f"{value:,.0f}")
    return _minus(f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}")


def tenths(value: float | None) -> str:
    """Write a positive number to one decimal."""
    return UNDEFINED if missing(value) else f"{value:,.1f}"


def share(value: float | None) -> str:
    """Write a share in percent."""
    return UNDEFINED if value is None or missing(value) else f"{100 * value:.0f}%"


def percent(value: float | None) -> str:
    """Write a relative change in percent, with its sign."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    return signed(100 * value, 0) + "%" if abs(value) >= 0.1 else signed(100 * value, 1) + "%"


def whole(value: float | None) -> str:
    """Write a count or a step."""
    return UNDEFINED if value is None or not math.isfinite(value) else _minus(f"{round(value):,}")


def word(value: object) -> str:
    """Write a word."""
    return UNDEFINED if value is None or value == "" else str(value)


def text_of(title: str, column: str, *, names_row: bool = False, prose: bool = False, group: str = "") -> Spec:
    """Return a column of words."""
    return Column(title, True, group, names_row, prose), lambda row: word(row[column])


def number_of(
    title: str, column: str, write: Callable[[Any], str] = signed, *, group: str = "", next_to: Sequence[str] = ()
) -> Spec:
    """Return a column of numbers; 0 for rounding errors next to the columns of the same unit."""
    return Column(title, group=group), lambda row: write(settled(row[column], *(row[name] for name in next_to)))


def interval_of(title: str, low: str, high: str, digits: int = 2, *, group: str = "") -> Spec:
    """Return a column of intervals."""
    return Column(title, group=group), lambda row: interval(row[low], row[high], digits)


def percent_of(title: str, key: str) -> Spec:
    """Return a column of shares, written in percent."""
    return number_of(title, key, lambda share: plain(None if share is None else 100 * share))


def feature_of(title: str = "feature", column: str = "feature", *, names_row: bool = True) -> Spec:
    """Return the column that says which feature or target."""
    return Column(title, True, names_row=names_row), lambda row: named(row[column])


def headline_rows(frame: pl.DataFrame, column: str = "feature", others: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of the features that the report names, in the order of the headlines."""
    order = {name: place for place, name in enumerate(headline_features([*frame.get_column(column), *others]))}
    rows = frame.filter(pl.col(column).is_in(list(order))).to_dicts()
    return sorted(rows, key=lambda row: order[row[column]])
