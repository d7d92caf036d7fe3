"""Composing a page from its sections: charts are drawn, tables computed, sentences put first."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic

import polars as pl
from altair.utils.schemapi import debug_mode

from toposcope.charts.chart import Chart
from toposcope.charts.vega import Kind, Task, load, make
from toposcope.engine.pool import TaskFailure, Workers
from toposcope.errors import ToposcopeError
from toposcope.report.document import Picture, Section, section
from toposcope.report.section import MaterialType, ReportSection, nothing

MAX_QUEUE = 1000  # charts that wait for a process: all of a page, which holds them anyway, so that drawing never waits


@dataclass
class Rendered:
    """What a page needs next to its text."""

    files: dict[str, dict[Kind, bytes]] = field(default_factory=dict)  # name of a chart -> kind of file -> bytes
    vega: str = ""  # vega as a script


def rendering_engine(workers: int = 1, n_kinds: int = 1) -> Workers:
    """Return an engine for `render_all`; its processes get ready at once, while the first chart is drawn.

    One other process renders charts as fast as this one draws them; for further kinds of files there are further ones.
    """
    workers = min(workers, os.cpu_count() or 1)
    engine = Workers(min(workers, n_kinds), queue=MAX_QUEUE, apart=workers > 1)
    engine.start(load)
    return engine


def render_all(charts: Iterable[Chart], kinds: Sequence[Kind], engine: Workers, *, vega: bool = True) -> Rendered:
    """Render charts, and bundle Vega."""
    rendered, names = Rendered(), list[str]()

    def tasks() -> Iterator[Task]:
        if vega:
            yield "", None, {}  # first: it takes as long as a dozen charts, and needs none of the tables
        for chart in charts:
            names.append(chart.name)
            yield from ((chart.name, kind, chart.spec()) for kind in kinds)

    for (name, kind, _), result in engine.run(make, tasks()):
        if isinstance(result, TaskFailure):
            raise ToposcopeError(f"figure {name}: {result.message}")
        if kind is None:
            rendered.vega = result.decode()
        else:
            rendered.files.setdefault(name, {})[kind] = result
    rendered.files = {name: rendered.files[name] for name in names if name in rendered.files}
    return rendered


@dataclass(frozen=True, eq=False)
class Composed:
    """A page's content, made by its sections from its data."""

    summary: list[str]  # sentences for the top of the page
    sections: list[Section]  # the sections with content, in the order of the page
    tables: dict[str, pl.DataFrame]  # by name
    rendered: Rendered  # the charts as files, and Vega
    first: dict[str, Picture]  # the charts at the top, by name


class Page(Generic[MaterialType]):
    """The sections of one page and the data they use.

    Parameters
    ----------
    sections : sequence of ReportSection
    data
        The argument of the sections' functions; its ``tables`` hold the tables of all sections.
    """

    def __init__(self, sections: Sequence[ReportSection[MaterialType]], data: MaterialType) -> None:
        self._sections = sorted(sections, key=lambda s: s.position if s.position_on is None else s.position_on(data))
        self.data = data

    def notes(self) -> list[str]:
        """Return what was left out or assumed, one line each."""
        return [note for part in self._sections for note in part.notes(self.data)]

    def tables(self) -> dict[str, pl.DataFrame]:
        """Compute every table; one without columns does not apply and is left out."""
        tables = {name: self.data.tables[name] for part in self._sections for name in part.tables}
        return {name: frame for name, frame in tables.items() if frame.width}

    def summary(self) -> list[str]:
        """Return the sentences of all sections, the most important ones first."""
        ordered = sorted(self._sections, key=lambda part: part.summary_position)
        return [sentence for part in ordered for sentence in part.summary(self.data)]

    def charts(self) -> Iterator[tuple[str, Chart]]:
        """Draw the charts that have data, one by one; yield each with the anchor of its section."""
        for part in self._sections:
            for draw in part.charts:
                with debug_mode(False):  # Altair would validate every part of every chart as it is made
                    drawn = draw(self.data)
                for chart in [drawn] if isinstance(drawn, Chart) else drawn or []:
                    yield part.anchor, chart

    def compose(
        self,
        kinds: Sequence[Kind] = (),
        engine: Workers | None = None,
        first: Callable[[MaterialType], Iterable[Chart]] = nothing,
        *,
        meanwhile: Callable[[MaterialType], object] = nothing,
        vega: bool = True,
    ) -> Composed:
        """Compute, draw and render everything.

        Parameters
        ----------
        kinds : sequence of "svg", "png", "pdf"
            As what the charts are rendered.
        engine : Workers, optional
            What renders, from `toposcope.report.composing.rendering_engine`; default: this process.
        first : callable
            Draws the charts at the top of the page, which belong to no section.
        meanwhile : callable
            Called once all charts are drawn, while other processes render the last of them.
        vega : bool
            Whether the page needs Vega itself.
        """
        pictures: dict[str, list[Picture]] = {part.anchor: [] for part in self._sections}
        first_pictures: dict[str, Picture] = {}
        sections: list[Section | None] = []

        def draw_charts_then_write_sections() -> Iterator[Chart]:
            # As one generator, so that other processes render a chart while this one draws the next or writes.
            for anchor, chart in self.charts():
                pictures[anchor].append(Picture(chart))
                yield chart
            with debug_mode(False):
                first_pictures.update((chart.name, Picture(chart)) for chart in first(self.data))
            yield from (picture.chart for picture in first_pictures.values())
            for part in self._sections:
                blocks = part.blocks(self.data, pictures[part.anchor])
                title, finding = part.title_of(self.data), part.finding(self.data)
                sections.append(section(part.anchor, title, *blocks, finding=finding))
            meanwhile(self.data)

        rendered = render_all(draw_charts_then_write_sections(), kinds, engine or rendering_engine(), vega=vega)
        shown = [part for part in sections if part is not None]
        return Composed(self.summary(), shown, self.tables(), rendered, first_pictures)
