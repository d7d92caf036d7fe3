"""The page of predicted scores: the predictions, the ladder and the link they rest on, and rungs left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.forecasting.downstream.figure import ladder_figure, link_figure
from toposcope.forecasting.downstream.predicted import (
    basis,
    headline,
    is_share,
    left_out_table,
    methods_table,
    points,
    predictions_table,
    rungs_table,
    written,
)
from toposcope.forecasting.downstream.prediction import DownstreamReport
from toposcope.forecasting.wording import short
from toposcope.logs.columns import Target
from toposcope.report.charts.left_out_rungs import left_out_chart
from toposcope.report.composing import Page, makers_of
from toposcope.report.document import Block, Picture, csv, folded, say, sentence
from toposcope.report.material import Tables
from toposcope.report.section import ReportSection
from toposcope.report.tables import NOTHING, Column, Row, Spec, table, text_of
from toposcope.report.writing import PAGE, write_page


def write_downstream(folder: Path, report: DownstreamReport) -> Path:
    """Write the page of predicted scores: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    write_page(folder, "Predicted scores", Page(SECTIONS, DownstreamMaterial(report)))
    return folder / PAGE


@dataclass(frozen=True, eq=False)
class DownstreamMaterial:
    """The data of the page."""

    report: DownstreamReport

    @cached_property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """What the sections compute, by name."""
        return Tables(self, makers_of(SECTIONS))

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        """The target of each task."""
        return {each.task: each.target for each in self.report.predictions}

    def score_of(self, title: str, column: str) -> Spec:
        """Return a column of scores, each in the unit of its task."""
        return Column(title), lambda row: written(row[column], self.targets[row["task"]]) or NOTHING

    def difference_of(self, title: str, column: str) -> Spec:
        """Return a column of differences of scores."""
        return Column(title), lambda row: points(row[column], self.targets[row["task"]]) or NOTHING

    def interval_of(self, title: str) -> Spec:
        """Return the column of intervals."""

        def interval(row: Row) -> str:
            low, high = (written(row[name], self.targets[row["task"]]) for name in ("low", "high"))
            return f"{low} to {high}" if low and high else NOTHING

        return Column(title), interval


def _predictions(material: DownstreamMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    frame = material.tables["predictions"]
    several = frame.get_column("model").n_unique() > 1
    specs: list[Spec] = [
        text_of("task", "task", names_row=True),
        *([text_of("model", "model")] if several else []),
        material.score_of("predicted", "score"),
        material.interval_of("90% interval"),
        *([] if frame["own"].is_null().all() else [material.score_of("so far", "own")]),
        material.score_of("chance", "chance"),
        material.score_of("largest rung", "largest_score"),
        *([] if frame["largest_noise"].is_null().all() else [material.difference_of("± noise", "largest_noise")]),
        text_of("method", "method"),
        material.difference_of("error on rungs left out", "error"),
    ]
    why: list[Spec] = [specs[0], *(specs[1:2] if several else []), text_of("because", "refused", prose=True)]
    refused = frame.filter(pl.col("refused") != "").to_dicts()
    unit = ", differences in points" if all(map(is_share, material.targets.values())) else ""
    caption = f"Predicted scores with 90% intervals{unit}"
    note = say(
        "Noise: standard deviation of the last scores of the largest rung about their trend. Error: mean absolute "
        "error of the method on rungs left out. All: ", csv("predictions"), ", the ladder: ", csv("rungs"), ".",
        note=True,
    )  # fmt: skip
    return (
        table("predictions", caption, specs, frame.to_dicts()),
        note,
        table("refused", "Scores that cannot be told", why, refused),
        *pictures,
    )


def _link(_: DownstreamMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    return pictures


def _left_out(material: DownstreamMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    methods = material.tables["methods"]
    several = methods.get_column("model").n_unique() > 1
    specs: list[Spec] = [
        text_of("task", "task", names_row=True),
        *([text_of("model", "model")] if several else []),
        text_of("method", "method"),
        material.score_of("prediction", "score"),
        material.difference_of("error on rungs left out", "error"),
        (Column("chosen", True), lambda row: "yes" if row["chosen"] else ""),
    ]
    compared = folded(
        table("methods", "Every method, with its mean absolute error on rungs left out", specs, methods.to_dicts()),
        "Every method, with its mean absolute error on rungs left out",
        16,
    )
    rungs: list[Spec] = [
        text_of("task", "task", names_row=True),
        text_of("rung", "run"),
        text_of("left out with", "fold"),
        (Column("parameters"), lambda row: short(row["N"])),
        (Column("tokens"), lambda row: short(row["D"])),
        text_of("method", "method"),
        material.score_of("predicted", "predicted"),
        material.interval_of("90% interval"),
        material.score_of("true", "true"),
    ]
    left_out = folded(
        table("left-out", "Rungs left out, predicted from smaller ones", rungs, material.tables["left_out"].to_dicts()),
        "Rungs left out, predicted from smaller ones",
    )
    if compared is None and left_out is None:
        return ()
    note = say("As tables: ", csv("methods"), ", ", csv("left_out"), ".", note=True)
    return (*pictures, compared, left_out, note)


def _remarks(material: DownstreamMaterial, _: Sequence[Picture]) -> Iterable[Block | None]:
    return [say(sentence(remark)) for remark in material.report.remarks]


def _ladder_chart(material: DownstreamMaterial) -> Chart:
    return ladder_figure(material.report.predictions)


def _link_chart(material: DownstreamMaterial) -> Chart | None:
    return link_figure(material.report.predictions)


def _left_out_chart(material: DownstreamMaterial) -> Chart | None:
    return left_out_chart(material.report.predictions)


SECTIONS = (
    ReportSection[DownstreamMaterial](
        anchor="predictions",
        title="Predictions",
        position=10,
        tables={
            "predictions": lambda material: predictions_table(material.report.predictions),
            "rungs": lambda material: rungs_table(material.report.predictions),
        },
        charts=(_ladder_chart,),
        blocks=_predictions,
        summary=lambda material: [*headline(material.report.predictions), *basis(material.report.predictions)],
    ),
    ReportSection[DownstreamMaterial](
        anchor="link", title="From loss to score", position=20, charts=(_link_chart,), blocks=_link
    ),
    ReportSection[DownstreamMaterial](
        anchor="left-out",
        title="Rungs left out",
        position=30,
        tables={
            "methods": lambda material: methods_table(material.report.predictions),
            "left_out": lambda material: left_out_table(material.report.predictions),
        },
        charts=(_left_out_chart,),
        blocks=_left_out,
    ),
    ReportSection[DownstreamMaterial](anchor="remarks", title="Assumptions and doubts", position=40, blocks=_remarks),
)
