"""The content of a report: sections of paragraphs, tables and figures; rendered as a page and as Markdown."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toposcope.charts.chart import Chart
from toposcope.report.formats import UNDEFINED
from toposcope.report.tables import Shown, Table
from toposcope.wording import examples


@dataclass(frozen=True)
class Link(Shown):
    """A link to a place on the page (``#anchor``) or a file next to it."""

    text: str
    href: str


@dataclass(frozen=True)
class Code(Shown):
    """Text in a fixed-width font, such as a command or a hash."""

    text: str


Inline = str | Link | Code


@dataclass(frozen=True)
class Paragraph(Shown):
    """A paragraph; a note is set smaller."""

    parts: tuple[Inline, ...]
    note: bool = False


@dataclass(frozen=True)
class Heading(Shown):
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Terms(Shown):
    """Terms and their definitions."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Preformatted(Shown):
    """Lines kept as they are; the label says what they are."""

    text: str
    label: str


@dataclass(frozen=True, eq=False)
class Picture(Shown):
    """A chart on the page; its files are ``figures/NAME.*``."""

    chart: Chart

    @property
    def name(self) -> str:
        """Name of the chart and stem of its files."""
        return self.chart.name


@dataclass(frozen=True)
class Details(Shown):
    """What is long and folded away until it is asked for; print shows it."""

    summary: str
    blocks: "tuple[Block, ...]"


Block = Paragraph | Heading | Terms | Preformatted | Picture | Details | Table


@dataclass(frozen=True)
class Section:
    """A part of the report that the table of contents names."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    finding: str = ""
    """What the section found, in one short sentence."""


@dataclass(frozen=True, eq=False)
class Explorer:
    """The interactive part of a study's page."""

    data: Mapping[str, Any]  # from `toposcope.report.explorer.explorer_data`
    # specifications of charts by name, from `toposcope.report.charts.explorer.explorer_charts`
    charts: Mapping[str, Any]


Tone = Literal["plain", "good", "warn", "bad"]


@dataclass(frozen=True)
class Chip:
    """A number that the verdict rests on."""

    number: str  # a number, or a sign
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class FirstScreen:
    """What was learnt of a study, then the rest; and what it rests on."""

    first: str
    second: str
    chips: tuple[Chip, ...]
    command: str = ""  # that would tell what cannot be told


@dataclass(frozen=True)
class Cell:
    """A quantity in a run, or over many runs: numbers as they are written, "–" where not defined."""

    rho: str  # correlation with the loss; over many runs the median
    range: str  # its block bootstrap interval; over many runs the lowest and the highest rho
    partial: str  # partial correlation given all known covariates; over many runs the median


@dataclass(frozen=True)
class HeadlineRow:
    """A quantity in the table."""

    name: str
    cells: tuple[Cell, ...]  # one for each column of the table
    verdict: str  # the strongest of its runs
    mark: str  # a sign that says the same without colour
    where: str  # in how many runs, such as "in 2 of 3 runs", where not in all; and why it cannot be told
    verdicts: str  # the verdicts of all runs, in a line

    @property
    def partials(self) -> str:
        """The partial correlations, run by run, and in how many runs they are defined where not in all."""
        defined = [cell.partial for cell in self.cells if cell.partial != UNDEFINED]
        if not defined:
            return "not defined" if self.verdict else ""
        where = "" if len(defined) == len(self.cells) else f" ({len(defined)} of {len(self.cells)} runs)"
        return " / ".join(defined) + where


@dataclass(frozen=True)
class HeadlineTable:
    """The table."""

    columns: tuple[str, ...]  # the runs, or with more than 5 of them the one column that summarises them
    rows: tuple[HeadlineRow, ...]  # the last one is the training step itself

    @property
    def has_partials(self) -> bool:
        """Whether any partial correlation is defined."""
        return any(cell.partial != UNDEFINED for row in self.rows for cell in row.cells)


@dataclass(frozen=True, eq=False)
class Opening:
    """What a study's page shows before anything else: an answer, a chart, and next to it a table or facts."""

    answer: FirstScreen
    picture: Picture | None = None
    table: HeadlineTable | None = None
    facts: Terms | None = None
    then: "Opening | None" = None  # of one run: what topology adds, one section down

    def pictures(self) -> list[Picture]:
        """Return the charts in their order."""
        return [*([self.picture] if self.picture else []), *(self.then.pictures() if self.then else [])]


@dataclass(frozen=True)
class Document:
    """A report."""

    title: str
    lead: list[str]  # the sentences at the top
    sections: list[Section] = field(default_factory=list)
    opening: Opening | None = None  # takes the place of the sentences at the top of the page, which are then folded
    explorer: Explorer | None = None  # what the page of a study lets a reader ask

    def charts(self) -> list[Chart]:
        """Return the charts in their order: the number of a figure is its place."""
        first = [picture.chart for picture in self.opening.pictures()] if self.opening else []
        return [*first, *(chart for part in self.sections for chart in _charts(part.blocks))]


def _charts(blocks: "tuple[Block, ...]") -> Iterator[Chart]:
    for block in blocks:
        match block:
            case Picture():
                yield block.chart
            case Details():
                yield from _charts(block.blocks)


def paragraph(*parts: Inline, note: bool = False) -> Paragraph:
    """Return a paragraph."""
    return Paragraph(parts, note)


def section(anchor: str, title: str, *blocks: Block | None, finding: str = "") -> Section | None:
    """Return a section of the blocks that are not None; None without any."""
    present = tuple(block for block in blocks if block is not None)
    return Section(anchor, title, present, finding) if present else None


def details(summary: str, *blocks: Block | None) -> Details | None:
    """Return a folded part of the blocks that are not None; None without any."""
    present = tuple(block for block in blocks if block is not None)
    return Details(summary, present) if present else None


def folded(content: Table | None, title: str = "", max_rows: int = 12) -> Table | Details | None:
    """Fold a table of more than `max_rows` rows under a title, by default its caption."""
    if content is None or len(content.rows) <= max_rows:
        return content
    return details(f"{title or content.caption} ({len(content.rows):,} rows)", content)


def excluded(runs: Mapping[str, str]) -> Paragraph | None:
    """Return the note that names the runs left out, with the reason of each; None without any."""
    listed = examples([f"{run} ({why})" for run, why in runs.items()])
    return paragraph(f"Excluded: {listed}.", note=True) if runs else None


def csv_link(name: str) -> Link:
    """Return the link to a table's file."""
    return Link(f"{name}.csv", f"tables/{name}.csv")


def linked(text: str, *, note: bool = False) -> Paragraph:
    """Return a paragraph in which the names of tables' files, such as ``moved.csv``, are links to them."""
    parts = re.split(r"\b(\w+)\.csv\b", text)
    return Paragraph(tuple(csv_link(part) if i % 2 else part for i, part in enumerate(parts)), note)
