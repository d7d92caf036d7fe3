"""A section of a page: one value, in a file of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.plugins import collect
from toposcope.report.document import Block, Picture


class HasTables(Protocol):
    """The data of a page; it has at least tables, by name."""

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Tables by name."""


MaterialType = TypeVar("MaterialType", bound=HasTables)
Charts = Chart | Sequence[Chart] | None
"""What a function that draws returns: a chart, several, or None where there are no data."""


def _pictures_alone(_: Any, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    return pictures


def _nothing(_: Any) -> tuple[()]:
    return ()


def _no_finding(_: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class ReportSection(Generic[MaterialType]):
    """A section of a page: the tables, charts and sentences it makes from the page's material.

    A section without blocks is left out of the page.

    Attributes
    ----------
    anchor : str
        Identifier of the section on the page; unique.
    title : str or callable
        A callable computes the title from the material.
    position : int
        Sections appear on the page in this order. 900 and more is for sections that end every report.
    tables : mapping of str to callable
        By name, a function that computes a table from the material; it may read other tables as
        ``material.tables[name]``. Each table is written to ``tables/NAME.csv``.
    charts : sequence of callable
        Each draws one chart or several; None or an empty list if there are no data.
    compared_charts : sequence of callable
        The charts that are shown side by side when two studies are compared.
    blocks : callable
        Returns the paragraphs, tables and figures in their order, given the material and the drawn figures.
    finding : callable
        Returns one plain sentence of at most about 90 characters, without a full stop, that stands beside the title of
        the folded section; empty if there is nothing to say.
    summary : callable
        Returns sentences for the top of the page, given the material.
    summary_position : int
        The sentences of the section with the lowest number come first.
    notes : callable
        Returns what was left out or assumed, one line each, given the material; commands print them after the summary.
    methods : callable
        Returns what the section adds to the page's methods, given the material.
    """

    anchor: str
    title: str | Callable[[MaterialType], str]
    position: int = 500
    tables: Mapping[str, Callable[[MaterialType], pl.DataFrame]] = field(default_factory=dict)
    charts: Sequence[Callable[[MaterialType], Charts]] = ()
    compared_charts: Sequence[Callable[[MaterialType], Charts]] = ()
    blocks: Callable[[MaterialType, Sequence[Picture]], Iterable[Block | None]] = _pictures_alone
    finding: Callable[[MaterialType], str] = _no_finding
    summary: Callable[[MaterialType], Sequence[str]] = _nothing
    summary_position: int = 500
    notes: Callable[[MaterialType], Sequence[str]] = _nothing
    methods: Callable[[MaterialType], Iterable[Block | None]] = _nothing

    def title_of(self, material: MaterialType) -> str:
        """Return the title on a page of this material."""
        return self.title if isinstance(self.title, str) else self.title(material)


def collect_sections(package: str, group: str) -> tuple[ReportSection[Any], ...]:
    """Return the `SECTION` of every module of a package and of its entry points, in the order of the page."""

    def section_of(module: ModuleType) -> dict[str, ReportSection[Any]]:
        section = getattr(module, "SECTION", None)
        return {section.anchor: section} if isinstance(section, ReportSection) else {}

    return tuple(sorted(collect(package, group, section_of).values(), key=lambda section: section.position))
