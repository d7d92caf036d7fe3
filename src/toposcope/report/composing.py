"""Composing a page: the charts of its sections are drawn and rendered, their tables computed, their sentences put first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import matplotlib as mpl
import polars as pl

from toposcope.report.document import Picture, Section, section
from toposcope.report.figures.drawn import STYLE, Drawn
from toposcope.report.rendering import Renderer
from toposcope.report.section import ReportSection

Material = TypeVar("Material")


@dataclass(frozen=True, eq=False)
class Composed:
    """What the sections of a page make of its material.

    Attributes
    ----------
    summary : list of str
        Sentences for the top of the page, the most important one first.
    sections : list of Section
        Those with anything to show, in the order of the page.
    tables : dict of polars.DataFrame
        By name.
    """

    summary: list[str]
    sections: list[Section]
    tables: dict[str, pl.DataFrame]


def compose(sections: Iterable[ReportSection[Any]], material: Any, renderer: Renderer) -> Composed:
    """Compose a page; its figures are handed to the renderer one by one, so that they are rendered meanwhile."""
    sections = sorted(sections, key=lambda part: part.position)
    pictures = {part.anchor: _pictures(part, material, renderer) for part in sections}
    shown = [
        section(part.anchor, part.title_of(material), *part.blocks(material, pictures[part.anchor]))
        for part in sections
    ]
    return Composed(
        summary=summary_of(sections, material),
        sections=[part for part in shown if part is not None],
        tables={name: material.tables[name] for part in sections for name in part.tables},
    )


def summary_of(sections: Iterable[ReportSection[Any]], material: Any) -> list[str]:
    """Return the sentences that sections say first."""
    return [s for part in sorted(sections, key=lambda part: part.summary_position) for s in part.summary(material)]


def draw(part: ReportSection[Any], material: Any, names: Sequence[str] = ()) -> list[Drawn]:
    """Draw the charts of a section that there are data for; only those of some names, if names are given."""
    with mpl.rc_context(STYLE):
        charts = [drawn for chart in part.charts if (drawn := chart(material)) is not None]
    return [drawn for drawn in charts if not names or drawn.name in names]


def _pictures(part: ReportSection[Any], material: Any, renderer: Renderer) -> list[Picture]:
    pictures = []
    for chart in part.charts:
        with mpl.rc_context(STYLE):
            drawn = chart(material)
        if drawn is not None:
            renderer.add(drawn.name, drawn.figure)
            pictures.append(Picture(drawn.name, drawn.caption, drawn.alt))
    return pictures


def tables_of(makers: Mapping[str, Any], material: Any) -> dict[str, pl.DataFrame]:
    """Compute every table."""
    return {name: make(material) for name, make in makers.items()}
