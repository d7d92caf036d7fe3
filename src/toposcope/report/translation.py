"""The page of a new recipe: its predicted losses and scores, its runs, and runs left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.forecasting.downstream.figure import link_figure
from toposcope.forecasting.downstream.translations import TranslationReport
from toposcope.report.charts.translated_losses import translated_losses_chart, translation_left_out_chart
from toposcope.report.composing import Page, makers_of
from toposcope.report.document import Block, Picture, csv, say, sentence
from toposcope.report.material import Tables
from toposcope.report.section import ReportSection
from toposcope.report.tables import number_of, percent_of, plain, share, table, text_of
from toposcope.report.writing import PAGE, write_page


def write_translations(folder: Path, report: TranslationReport) -> Path:
    """Write the page of a new recipe: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    write_page(folder, f"Predictions for {report.recipe}", Page(SECTIONS, TranslationMaterial(report)))
    return folder / PAGE


@dataclass(frozen=True, eq=False)
class TranslationMaterial:
    """The data of the page."""

    report: TranslationReport

    @cached_property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """What the sections compute, by name."""
        return Tables(self, makers_of(SECTIONS))


def _predictions(material: TranslationMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    frame = material.tables["predictions"]
    names = (text_of("of", "of", names_row=True), text_of("", "what"), text_of("model", "model"))
    columns = (
        *names,
        *(
            number_of(title, name, plain)
            for title, name in (("predicted", "predicted"), ("low", "low"), ("high", "high"))
        ),
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


def _left_out(material: TranslationMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    rows = [
        {"of": each.loss, "method": name, "error": 100 * error, "chosen": "yes" if name == each.method else ""}
        for each in material.report.losses
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


def _losses_chart(material: TranslationMaterial) -> Chart | None:
    return translated_losses_chart(material.report.recipe, material.report.losses)


def _link_chart(material: TranslationMaterial) -> Chart | None:
    predictions = tuple(each for task in material.report.scores for each in task.predictions)
    return link_figure(predictions) if predictions else None


def _left_out_chart(material: TranslationMaterial) -> Chart | None:
    return translation_left_out_chart(material.report.losses)


SECTIONS = (
    ReportSection[TranslationMaterial](
        anchor="predictions",
        title="Predictions",
        position=10,
        tables={"predictions": lambda material: material.report.table},
        charts=(_losses_chart, _link_chart),
        blocks=_predictions,
        summary=lambda material: [
            *material.report.headline,
            *(sentence(each) for each in material.report.basis),
        ],
    ),
    ReportSection[TranslationMaterial](
        anchor="left-out",
        title="Runs left out",
        position=20,
        tables={"left_out": lambda material: material.report.left_out},
        charts=(_left_out_chart,),
        blocks=_left_out,
    ),
    ReportSection[TranslationMaterial](
        anchor="remarks",
        title="Assumptions and doubts",
        position=30,
        blocks=lambda material, _: [say(sentence(remark)) for remark in material.report.remarks],
    ),
)
