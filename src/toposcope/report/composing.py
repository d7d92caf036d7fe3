"""Composing a page from its sections: charts are drawn and rendered, tables computed, sentences put first."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import matplotlib as mpl
import polars as pl
from matplotlib.figure import Figure

from toposcope.errors import ToposcopeError
from toposcope.report.document import Picture, Section, section
from toposcope.report.figures.drawn import NAMELESS, STYLE, Drawn
from toposcope.report.page import Rendered
from toposcope.report.rendering import render_all
from toposcope.report.section import MaterialType, ReportSection


@dataclass(frozen=True, eq=False)
class Composed:
    """What the sections of a page make of its material.

    Attributes
    ----------
    summary : list of str
        Sentences for the top of the page.
    sections : list of Section
        Those that have anything to show, in the order of the page.
    tables : dict of polars.DataFrame
        By name.
    figures : mapping
        Name -> kind of file -> bytes.
    """

    summary: list[str]
    sections: list[Section]
    tables: dict[str, pl.DataFrame]
    figures: Rendered


class Page(Generic[MaterialType]):
    """The sections of one page and what they are made from.

    Parameters
    ----------
    sections : sequence of ReportSection
    material
        What their functions take; its ``tables`` hold what each section computes.
    """

    def __init__(self, sections: Sequence[ReportSection[MaterialType]], material: MaterialType) -> None:
        self._sections = sorted(sections, key=lambda part: part.position)
        self.material = material

    def notes(self) -> list[str]:
        """Return what was left out or assumed, a line each."""
        return [note for part in self._sections for note in part.notes(self.material)]

    def tables(self) -> dict[str, pl.DataFrame]:
        """Compute every table; one without columns does not apply and is left out."""
        tables = {name: self.material.tables[name] for part in self._sections for name in part.tables}
        return {name: frame for name, frame in tables.items() if frame.width}

    def summary(self) -> list[str]:
        """Return the sentences of all sections, the most important ones first."""
        ordered = sorted(self._sections, key=lambda part: part.summary_position)
        return [sentence for part in ordered for sentence in part.summary(self.material)]

    def drawn(self, *, compared: bool = False) -> Iterator[tuple[str, Drawn]]:
        """Draw the charts that there are data for, one by one; yield each with the anchor of its section.

        Parameters
        ----------
        compared : bool
            Only those that are set side by side when two studies are compared.
        """
        for part in self._sections:
            for chart in part.compared_charts if compared else part.charts:
                with mpl.rc_context(STYLE):
                    drawn = chart(self.material)
                if drawn is not None:
                    yield part.anchor, drawn

    def compose(self, workers: int | None = None) -> Composed:
        """Compute, draw and render everything."""
        pictures: dict[str, list[Picture]] = {part.anchor: [] for part in self._sections}

        def figures() -> Iterator[tuple[str, Figure]]:
            for anchor, drawn in self.drawn():
                pictures[anchor].append(Picture(drawn.name, drawn.caption, drawn.alt))
                yield drawn.name, drawn.figure

        rendered = render_all(figures(), STYLE, NAMELESS, workers)
        composed = [
            section(part.anchor, part.title_of(self.material), *part.blocks(self.material, pictures[part.anchor]))
            for part in self._sections
        ]
        shown = [part for part in composed if part is not None]
        return Composed(self.summary(), shown, self.tables(), rendered)


def makers_of(sections: Iterable[ReportSection[MaterialType]]) -> dict[str, Callable[[MaterialType], pl.DataFrame]]:
    """Return what computes each table of some sections, by the table's name.

    Raises
    ------
    ToposcopeError
        If two sections make a table of one name.
    """
    makers: dict[str, Callable[[MaterialType], pl.DataFrame]] = {}
    for part in sections:
        for name, make in part.tables.items():
            if name in makers:
                raise ToposcopeError(f"section {part.anchor}: another section already makes the table {name!r}")
            makers[name] = make
    return makers
