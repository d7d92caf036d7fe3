"""The page of a forecast: the chart, every forecaster's final loss, what was read and assumed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.forecasting.forecast_report import ForecastReport
from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.report.document import Block, Picture, Terms, details, linked
from toposcope.report.formats import UNDEFINED, missing
from toposcope.report.section import ReportData, ReportSection, remarks_section
from toposcope.report.tables import Column, Spec, table, text_of
from toposcope.report.writing import write_sections
from toposcope.wording import COVERAGE, counted


def write_forecast(folder: Path, report: ForecastReport) -> Path:
    """Write the page of a forecast: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    return write_sections(folder, f"Forecast of {report.log.name}", SECTIONS, report)


Data = ReportData[ForecastReport]


def forecasts_frame(report: ForecastReport) -> pl.DataFrame:
    """Return ``forecaster, loss, low, high, refused`` of every forecaster, those that refuse last."""
    results = report.results
    floats = dict.fromkeys(("loss", "low", "high"), pl.Float64)
    schema = {"forecaster": pl.String, **floats, "refused": pl.String}
    rows = [] if results is None else [
        *((name, f.loss, f.low, f.high, "") for name, f in results.forecasts.items() if name != DEFAULT),
        *((name, None, None, None, reason) for name, reason in results.refused.items()),
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _blocks(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    report, frame = data.report, data.tables["forecasts"]

    def loss_of(title: str, column: str) -> Spec:
        return Column(title), lambda row: UNDEFINED if missing(row[column]) else f"{row[column]:.{report.digits}f}"

    specs: list[Spec] = [
        text_of("forecaster", "forecaster", names_row=True),
        *(loss_of(title, column) for title, column in (("final loss", "loss"), ("low", "low"), ("high", "high"))),
    ]
    rows, refused = (frame.filter((pl.col("refused") != "") == refuses).to_dicts() for refuses in (False, True))
    why = (specs[0], text_of("no forecast because", "refused", prose=True))
    reasons = table("refused", "Forecasters that refuse, and why", why, refused)
    note = linked("All: forecasts.csv, the curve: curve.csv, the losses: seen.csv.", note=True)
    caption = (
        f"Final loss by each forecaster in {report.log.unit}, with {COVERAGE:.0%} intervals; default: {report.chosen}"
    )
    if not rows:
        return pictures
    folded = details(counted(len(refused), "forecaster refuses", "forecasters refuse"), reasons)
    return (*pictures, table("forecasts", caption, specs, rows), folded, note)


def _chart(data: Data) -> Chart:
    """Draw the forecast; its first line stands at the top of the page."""
    return replace(data.report.plot(), title=f"The loss of {data.report.log.name}, seen and to come")


SECTIONS = (
    ReportSection[Data](
        anchor="forecast",
        title="The forecast",
        tables={
            "forecasts": lambda data: forecasts_frame(data.report),
            "curve": lambda data: data.report.curve if data.report.curve is not None else pl.DataFrame(),
            "seen": lambda data: pl.DataFrame({"step": data.report.log.steps, "loss": data.report.log.loss}),
        },
        charts=(_chart,),
        blocks=_blocks,
        summary=lambda data: [data.report.headline()],
    ),
    ReportSection[Data](
        anchor="inputs",
        title="What was read and planned",
        blocks=lambda data, _: (Terms(tuple(data.report.inputs().items())),),
    ),
    remarks_section(lambda data: data.report.remarks),
)
