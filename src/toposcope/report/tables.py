"""The tables of the page and their columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import polars as pl

from toposcope.report import formats
from toposcope.report.headline import headline_features, named


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    text: bool = False  # words, set to the left; else numbers
    group: str = ""  # heading over this column and its neighbours of the same group
    names_row: bool = False  # a row is known by it
    prose: bool = False  # sentences: lines may break


class Shown:
    """What a page shows in a way of its own."""

    @property
    def kind(self) -> str:
        """The macro of the page's templates that shows it."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Table(Shown):
    """A table as it is read."""

    name: str  # unique on the page
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]  # a cell for each column
    sortable: bool = False  # large enough to be sorted and filtered
    features: tuple[tuple[str, str], ...] = ()  # feature and group of each row that leads to the explorer; else empty

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
    is_shown = [column.names_row or any(cell != formats.UNDEFINED for cell in line)
            for (column, _), line in zip(specs, lines, strict=True)]  # fmt: skip
    cells = tuple(zip(*compress(lines, is_shown), strict=True))
    columns = tuple(compress((column for column, _ in specs), is_shown))
    features = tuple((row["feature"], row["group"]) for row in rows if "feature" in row and "group" in row)
    return Table(name, caption, columns, cells, sortable, features) if cells else None


def text_of(title: str, column: str, *, names_row: bool = False, prose: bool = False, group: str = "") -> Spec:
    """Return a column of words."""
    return Column(title, True, group, names_row, prose), lambda row: formats.word(row[column])


def number_of(
    title: str,
    column: str,
    write: Callable[[Any], str] = formats.signed,
    *,
    group: str = "",
    next_to: Sequence[str] = (),
) -> Spec:
    """Return a column of numbers; 0 for rounding errors next to the columns of the same unit."""
    return Column(title, group=group), lambda row: write(formats.settled(row[column], *(row[name] for name in next_to)))


def numbers(group: str = "", **columns: Mapping[str, str]) -> list[Spec]:
    """Return columns of numbers under one heading: by how they are written (`formats`), the column of each title."""
    kinds = {kind: getattr(formats, kind) for kind in columns}
    return [number_of(t, c, kinds[kind], group=group) for kind, named in columns.items() for t, c in named.items()]


def interval_of(title: str, low: str, high: str, digits: int = 2, *, group: str = "") -> Spec:
    """Return a column of intervals."""
    return Column(title, group=group), lambda row: formats.interval(row[low], row[high], digits)


def percent_of(title: str, key: str) -> Spec:
    """Return a column of shares, written in percent."""
    return number_of(title, key, lambda share: formats.plain(None if share is None else 100 * share))


def feature_of(title: str = "feature", column: str = "feature", *, names_row: bool = True) -> Spec:
    """Return the column that says which feature or target."""
    return Column(title, True, names_row=names_row), lambda row: named(row[column])


def headline_rows(frame: pl.DataFrame, column: str = "feature", others: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of the features that the report names, in the order of the headlines."""
    order = {name: place for place, name in enumerate(headline_features([*frame.get_column(column), *others]))}
    rows = frame.filter(pl.col(column).is_in(list(order))).to_dicts()
    return sorted(rows, key=lambda row: order[row[column]])
