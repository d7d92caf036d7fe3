"""What a section of a study's report is: one value, in a file of its own under ``sections/``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from toposcope.report.document import Block, Picture
from toposcope.report.figures.drawn import Drawn
from toposcope.report.material import Material


def _pictures_alone(_: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    return pictures


def _nothing(_: Material) -> Iterable[Block | None]:
    return ()


def _no_sentences(_: Material) -> Sequence[str]:
    return ()


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """A section of a study's report: what it computes, draws and says.

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
    compared_charts : sequence of str
        Names of the figures that are set side by side when two studies are compared.
    blocks : callable
        Of the material and the drawn figures, the paragraphs, tables and figures in their order.
    summary : callable
        Of the material, sentences for the top of the page.
    summary_position : int
        The sentences of the section with the lowest number come first.
    methods : callable
        Of the material, what the section adds to the page's methods.
    """

    anchor: str
    title: str | Callable[[Material], str]
    position: int = 500
    tables: Mapping[str, Callable[[Material], pl.DataFrame]] = field(default_factory=dict)
    charts: Sequence[Callable[[Material], Drawn | None]] = ()
    compared_charts: Sequence[str] = ()
    blocks: Callable[[Material, Sequence[Picture]], Iterable[Block | None]] = _pictures_alone
    summary: Callable[[Material], Sequence[str]] = _no_sentences
    summary_position: int = 500
    methods: Callable[[Material], Iterable[Block | None]] = _nothing
