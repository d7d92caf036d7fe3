"""A section of a page: one value, in a file of its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.errors import ToposcopeError
from toposcope.plugins import collect
from toposcope.report.document import Block, Picture, paragraph
from toposcope.wording import sentence

Report = TypeVar("Report")
Result = TypeVar("Result")
DataType = TypeVar("DataType")


class Tables(Mapping[str, pl.DataFrame], Generic[DataType]):
    """Tables by name, each computed when it is first read."""

    def __init__(self, data: DataType, makers: Mapping[str, Callable[[DataType], pl.DataFrame]]) -> None:
        self._data, self._makers = data, dict(makers)
        self._computed: dict[str, pl.DataFrame] = {}

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._computed:
            self._computed[name] = self._makers[name](self._data)
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class ComputedOnce:
    """Data that keep what several functions of a section need."""

    _computed: dict[str, Any]

    def once(self, name: str, compute: Callable[[], Result]) -> Result:
        """Compute something that several functions of a section need, once."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]  # type: ignore[no-any-return]


class ReportData(ComputedOnce, Generic[Report]):
    """What a page is about, and what its sections compute of it: tables by name, and the rest with `once`."""

    def __init__(self, report: Report, sections: "Sequence[ReportSection[Any]]" = ()) -> None:
        self.report = report
        self.tables: Mapping[str, pl.DataFrame] = Tables(self, makers_of(sections))
        self._computed = {}


class _HasTables(Protocol):
    @property
    def tables(self) -> Mapping[str, pl.DataFrame]: ...


MaterialType = TypeVar("MaterialType", bound=_HasTables)
Charts = Chart | Sequence[Chart] | None
"""What a function that draws returns: a chart, several, or None where there are no data."""


def nothing(_: Any) -> tuple[()]:
    """Return nothing of any data."""
    return ()


@dataclass(frozen=True, kw_only=True)
class ReportSection(Generic[MaterialType]):
    """A section of a page: the tables, charts and sentences it makes from the page's data.

    A section without blocks is left out of the page.

    Attributes
    ----------
    anchor : str
        Identifier of the section on the page; unique.
    title : str or callable
        A callable computes the title from the data.
    position : int
        Sections appear on the page in this order. 900 and more is for sections that end every report.
    position_on : callable, optional
        Returns the position given the data, where it depends on them.
    tables : mapping of str to callable
        By name, a function that computes a table from the data; it may read other tables as
        ``data.tables[name]``. Each table is written to ``tables/NAME.csv``.
    charts : sequence of callable
        Each draws one chart or several; None or an empty list if there are no data.
    blocks : callable
        Returns the paragraphs, tables and figures in their order, given the data and the drawn figures.
    finding : callable
        Returns one plain sentence of at most about 90 characters, without a full stop, that stands next to the title of
        the folded section; empty if there is nothing to say.
    summary : callable
        Returns sentences for the top of the page, given the data.
    summary_position : int
        The sentences of the section with the lowest number come first.
    notes : callable
        Returns what was left out or assumed, one line each, given the data; commands print them after the summary.
    methods : callable
        Returns what the section adds to the page's methods, given the data.
    needs : mapping of str to sequence of callable
        By the name of a table, or of something else that may not be made: what it lacks, given the data, each an empty
        text if it is there (see `toposcope.report.not_made`).
    """

    anchor: str
    title: str | Callable[[MaterialType], str]
    position: int = 500
    position_on: Callable[[MaterialType], int] | None = None
    tables: Mapping[str, Callable[[MaterialType], pl.DataFrame]] = field(default_factory=dict)
    charts: Sequence[Callable[[MaterialType], Charts]] = ()
    blocks: Callable[[MaterialType, Sequence[Picture]], Iterable[Block | None]] = lambda _, pictures: pictures
    finding: Callable[[MaterialType], str] = lambda _: ""
    summary: Callable[[MaterialType], Sequence[str]] = nothing
    summary_position: int = 500
    notes: Callable[[MaterialType], Sequence[str]] = nothing
    methods: Callable[[MaterialType], Iterable[Block | None]] = nothing
    needs: Mapping[str, Sequence[Callable[[MaterialType], str]]] = field(default_factory=dict)

    def title_of(self, data: MaterialType) -> str:
        """Return the title on a page of this data."""
        return self.title if isinstance(self.title, str) else self.title(data)


def remarks_section(
    remarks: Callable[[Any], Iterable[str]], title: str = "Assumptions and doubts", position: int = 500
) -> ReportSection[Any]:
    """Return the section that lists what was assumed, given the function that returns it."""
    return ReportSection(
        anchor="remarks",
        title=title,
        position=position,
        blocks=lambda data, _: [paragraph(sentence(remark)) for remark in remarks(data)],
    )


def collect_sections(package: str, group: str) -> tuple[ReportSection[Any], ...]:
    """Return the `SECTION` of every module of a package and of its entry points, in the order of the page."""

    def section_of(module: ModuleType) -> dict[str, ReportSection[Any]]:
        section = getattr(module, "SECTION", None)
        return {section.anchor: section} if isinstance(section, ReportSection) else {}

    return tuple(sorted(collect(package, group, section_of).values(), key=lambda section: section.position))


def makers_of(sections: Iterable[ReportSection[MaterialType]]) -> dict[str, Callable[[MaterialType], pl.DataFrame]]:
    """Return the functions that compute the tables of some sections, by the table's name.

    Raises
    ------
    ToposcopeError
        If two sections make a table of the same name.
    """
    makers: dict[str, Callable[[MaterialType], pl.DataFrame]] = {}
    for part in sections:
        for name, maker in part.tables.items():
            if name in makers:
                raise ToposcopeError(f"section {part.anchor}: another section already makes the table {name!r}")
            makers[name] = maker
    return makers
