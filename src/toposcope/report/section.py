"""What a section of a page is: one value, in a file of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import polars as pl

from toposcope.report.document import Block, Picture
from toposcope.report.figures.drawn import Drawn


class HasTables(Protocol):
    """What a page is made from: at least its tables, by name."""

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Tables by name."""


MaterialType = TypeVar("MaterialType", bound=HasTables)


def _pictures_alone(_: Any, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    return pictures


def _nothing(_: Any) -> tuple[()]:
    return ()


@dataclass(frozen=True, kw_only=True)
class ReportSection(Generic[MaterialType]):
    """A section of a page: what it computes, draws and says of the page's material.

    A section without a block to show is left out of the page.

    Attributes
    ----------
    anchor : str
        Of the section on the page; unique.
    title : str or callable
        Of the material, where the title depends on it.
    position : int
        Sections stand on the page in this order. 900 and more is for what every report ends with.
    tables : mapping of str to callable
        By name, what computes a table from the material; it may read other tables as ``material.tables[name]``. Each is
        written to ``tables/NAME.csv``.
    charts : sequence of callable
        Each draws one figure, or returns None where there is nothing to draw.
    compared_charts : sequence of callable
        Those of the charts that are set side by side when two studies are compared.
    blocks : callable
        Of the material and the drawn figures, the paragraphs, tables and figures in their order.
    summary : callable
        Of the material, sentences for the top of the page.
    summary_position : int
        The sentences of the section with the lowest number come first.
    notes : callable
        Of the material, what was left out or assumed, a line each; commands print them after the summary.
    methods : callable
        Of the material, what the section adds to the page's methods.
    """

    anchor: str
    title: str | Callable[[MaterialType], str]
    position: int = 500
    tables: Mapping[str, Callable[[MaterialType], pl.DataFrame]] = field(default_factory=dict)
    charts: Sequence[Callable[[MaterialType], Drawn | None]] = ()
    compared_charts: Sequence[Callable[[MaterialType], Drawn | None]] = ()
    blocks: Callable[[MaterialType, Sequence[Picture]], Iterable[Block | None]] = _pictures_alone
    summary: Callable[[MaterialType], Sequence[str]] = _nothing
    summary_position: int = 500
    notes: Callable[[MaterialType], Sequence[str]] = _nothing
    methods: Callable[[MaterialType], Iterable[Block | None]] = _nothing

    def title_of(self, material: MaterialType) -> str:
        """Return the title on a page of some material."""
        return self.title if isinstance(self.title, str) else self.title(material)
