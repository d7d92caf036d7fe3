"""The page of a new recipe: its predicted losses and scores, its runs, and runs left out."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.forecasting.downstream.figure import link_figure
from toposcope.forecasting.downstream.translations import TranslationReport
from toposcope.report.charts.held_out import translated_losses_chart, translation_left_out_chart
from toposcope.report.composing import ReportData
from toposcope.report.document import Block, Picture, csv, say, sentence
from toposcope.report.section import ReportSection, remarks_section
from toposcope.report.tables import number_of, percent_of, plain, share, table, text_of
from toposcope.report.writing import write_report_page

Data = ReportData[TranslationReport]


def write_translations(folder: Path, report: TranslationReport) -> Path:
    """Write the page of a new recipe; return it."""
    return write_report_page(folder, f"Predictions for {report.recipe}", report, SECTIONS)


def _predictions(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    frame = data.tables["predictions"]
    names = (text_of("of", "of", names_row=True), text_of("", "what"), text_of("model", "model"))
    columns = (
        *names,
        *(number_of(name, name, plain) for name in ("predicted", "low", "high")),
        text_of("method", "method"),
        percent_of("left-out error, %", "error"),
        number_of("intervals held", "held", share),
    )
    refused = (*names, text_of("because", "refused", prose=True))
    note = say(
        "Left-out errors: of a loss the median relative error, of a score the mean difference. All: ",
        csv("predictions"), ".", note=True,
    )  # fmt: skip
    return (
        table(
            "predictions", "Predictions with 90% intervals", columns, frame.filter(pl.col("refused") == "").to_dicts()
        ),
        note,
        table("refused", "What cannot be told", refused, frame.filter(pl.col("refused") != "").to_dicts()),
        *pictures,
    )


def _left_out(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    rows = [
        {"of": each.loss, "method": name, "error": 100 * error, "chosen": "yes" if name == each.method else ""}
        for each in data.report.losses
        for name, error in each.errors.items()
    ]
    specs = (
        text_of("of", "of", names_row=True),
        text_of("method", "method"),
        number_of("median error, %", "error", plain),
        text_of("chosen", "chosen"),
    )
    note = say("All: ", csv("left_out"), ".", note=True)
    return (*pictures, table("methods", "Every method on runs left out", specs, rows), note) if pictures else ()


def _link_chart(data: Data) -> Chart | None:
    predictions = tuple(each for task in data.report.scores for each in task.predictions)
    return link_figure(predictions) if predictions else None


SECTIONS = (
    ReportSection[Data](
        anchor="predictions",
        title="Predictions",
        position=10,
        tables={"predictions": lambda data: data.report.table},
        charts=(lambda data: translated_losses_chart(data.report.recipe, data.report.losses), _link_chart),
        blocks=_predictions,
        summary=lambda data: [*data.report.headline, *map(sentence, data.report.basis)],
    ),
    ReportSection[Data](
        anchor="left-out",
        title="Runs left out",
        position=20,
        tables={"left_out": lambda data: data.report.left_out},
        charts=(lambda data: translation_left_out_chart(data.report.losses),),
        blocks=_left_out,
    ),
    remarks_section(30),
)
