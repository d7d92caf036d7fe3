"""The page of a cool-down: the answer, the chart, the table by length, what was read and assumed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from toposcope.charts.chart import Chart
from toposcope.forecasting.cooldown_report import CoolDownReport
from toposcope.report.document import Block, Picture, Terms, linked, paragraph
from toposcope.report.section import ReportData, ReportSection, remarks_section
from toposcope.report.tables import Column, table, text_of
from toposcope.report.writing import write_sections
from toposcope.wording import COVERAGE, sentence


def write_cool_down(folder: Path, report: CoolDownReport) -> Path:
    """Write the page of a cool-down: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    return write_sections(folder, f"Cool-down of {report.series.name}", SECTIONS, report)


Data = ReportData[CoolDownReport]


def _chart(data: Data) -> Chart | None:
    """Draw what was read and predicted; the first sentence stands at the top of the page."""
    if data.tables["losses"].is_empty():
        return None
    seen = "read and to come" if data.report.answers else "as it was read"
    return replace(data.report.plot(), title=f"The loss of {data.report.series.name}, {seen}")


def _blocks(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    columns, rows = data.report.table()
    numbers = [(Column(title), text_of(title, title)[1]) for title in columns[2:]]  # as they are written elsewhere
    by_length = table(
        "cool-downs",
        f"The loss after a cool-down that starts now, by its steps, in nats per token, with {COVERAGE:.0%} intervals",
        (text_of("steps", "steps", names_row=True), text_of("decay", "decay"), *numbers),
        [dict(zip(columns, row, strict=True)) for row in rows],
    )
    if data.tables["losses"].is_empty():
        return (paragraph("Nothing was read that could be drawn."),)
    return (*pictures, by_length, linked("All losses: losses.csv.", note=True))


SECTIONS = (
    ReportSection[Data](
        anchor="cool-down",
        title="The loss after a cool-down",
        tables={"losses": lambda data: data.report.losses()},
        charts=(_chart,),
        blocks=_blocks,
        summary=lambda data: [data.report.headline()],
    ),
    ReportSection[Data](
        anchor="refused",
        title="Lengths without an answer",
        blocks=lambda data, _: [paragraph(sentence(each)) for each in data.report.other_refusals()],
    ),
    ReportSection[Data](
        anchor="inputs", title="What was read", blocks=lambda data, _: (Terms(tuple(data.report.inputs().items())),)
    ),
    remarks_section(lambda data: data.report.all_remarks()),
)
