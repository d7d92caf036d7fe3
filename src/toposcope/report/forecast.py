"""The page of a forecast: the chart, every forecaster's final loss, what was read and assumed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.forecasting.downstream.score_figure import scores_figure
from toposcope.forecasting.downstream.score_wording import score_sentences, scores_frame
from toposcope.forecasting.forecast_report import ForecastReport, forecast_figure
from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.forecasting.intervals import band
from toposcope.report.composing import Page, makers_of
from toposcope.report.document import Block, Picture, Terms, csv, say, sentence
from toposcope.report.material import Tables
from toposcope.report.section import ReportSection
from toposcope.report.tables import NOTHING, Column, Spec, missing, table, text_of
from toposcope.report.writing import PAGE, write_page


def write_forecast(folder: Path, report: ForecastReport) -> Path:
    """Write the page of a forecast: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    write_page(folder, f"Forecast of {report.log.name}", Page(SECTIONS, ForecastMaterial(report)))
    return folder / PAGE


@dataclass(frozen=True, eq=False)
class ForecastMaterial:
    """The data of a forecast's page."""

    report: ForecastReport

    @cached_property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """What the sections compute, by name."""
        return Tables(self, makers_of(SECTIONS))


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


def _curve(material: ForecastMaterial) -> pl.DataFrame:
    """Return ``step, loss, low, high`` of the default forecast; no columns if the run is complete."""
    default = material.report.default
    if default is None:
        return pl.DataFrame()
    low, high = band(default)
    return pl.DataFrame({"step": default.steps, "loss": default.curve, "low": low, "high": high})


def _seen(material: ForecastMaterial) -> pl.DataFrame:
    log = material.report.log
    return pl.DataFrame({"step": log.steps, "loss": log.loss})


def _chart(material: ForecastMaterial) -> Chart:
    return forecast_figure(material.report)


def _blocks(material: ForecastMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    report, frame = material.report, material.tables["forecasts"]

    def loss_of(title: str, column: str) -> Spec:
        return Column(title), lambda row: NOTHING if missing(row[column]) else f"{row[column]:.{report.digits}f}"

    specs: list[Spec] = [
        text_of("forecaster", "forecaster", names_row=True),
        *(loss_of(title, column) for title, column in (("final loss", "loss"), ("low", "low"), ("high", "high"))),
    ]
    if (frame.get_column("refused") != "").any():
        specs.append(text_of("no forecast because", "refused", prose=True))
    rows = frame.to_dicts()
    note = say("All: ", csv("forecasts"), ", the curve: ", csv("curve"), ", the losses: ", csv("seen"), ".", note=True)
    caption = f"Final loss by each forecaster in {report.log.unit}, with 90% intervals; default: {report.chosen}"
    return (*pictures, *([table("forecasts", caption, specs, rows), note] if rows else []))


def _scores_chart(material: ForecastMaterial) -> Chart | None:
    return scores_figure(material.report.scores)


def _scores(material: ForecastMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    if not material.report.scores:
        return ()
    note = say(
        "The final loss, drawn from its interval, goes through links fitted to resampled runs of the ladder. All: ",
        csv("scores"), ".", note=True,
    )  # fmt: skip
    return (*pictures, *map(say, score_sentences(material.report.scores)), note)


def _inputs(material: ForecastMaterial, _: Sequence[Picture]) -> Iterable[Block | None]:
    return (Terms(tuple(material.report.inputs().items())),)


def _remarks(material: ForecastMaterial, _: Sequence[Picture]) -> Iterable[Block | None]:
    return [say(sentence(remark)) for remark in material.report.remarks]


SECTIONS = (
    ReportSection[ForecastMaterial](
        anchor="forecast",
        title="The forecast",
        position=10,
        tables={"forecasts": lambda material: forecasts_frame(material.report), "curve": _curve, "seen": _seen},
        charts=(_chart,),
        blocks=_blocks,
        summary=lambda material: [sentence(material.report.headline())],
    ),
    ReportSection[ForecastMaterial](
        anchor="scores",
        title="In scores of tasks",
        position=15,
        tables={"scores": lambda material: scores_frame(material.report.scores)},
        charts=(_scores_chart,),
        blocks=_scores,
        summary=lambda material: score_sentences(material.report.scores),
    ),
    ReportSection[ForecastMaterial](anchor="inputs", title="What was read and planned", position=20, blocks=_inputs),
    ReportSection[ForecastMaterial](anchor="remarks", title="Assumptions and doubts", position=30, blocks=_remarks),
)
