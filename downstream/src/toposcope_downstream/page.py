"""The page of predicted scores: the predictions, the ladder and the link they rest on, and held-out models."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl

from toposcope.extend import (
    UNDEFINED,
    Block,
    Chart,
    Column,
    Picture,
    ReportData,
    ReportSection,
    Row,
    Spec,
    diagonal,
    folded,
    linked,
    remarks_section,
    short,
    table,
    text_of,
    write_sections,
)
from toposcope_downstream import predicted
from toposcope_downstream.evaluations import Target
from toposcope_downstream.figure import ladder_figure, limits, link_figure
from toposcope_downstream.panels import panels
from toposcope_downstream.prediction import DownstreamReport

WITHIN, BEYOND = "within its interval", "beyond it"


def held_out_chart(predictions: Sequence[predicted.TaskPrediction]) -> Chart | None:
    """Draw predicted against true scores of held-out models, with 90% intervals; None if none was held out."""
    by_task = {
        task: found[0]
        for task, found in predicted.predictions_by(predictions, predicted.task_of).items()
        if predicted.chosen_held_out(found[0])
    }
    if not by_task:
        return None
    figures = {task: _panel(found) for task, found in by_task.items()}
    held, judged = predicted.held_of(list(by_task.values()))
    title = "Held-out models, predicted from smaller ones"
    if judged:
        title = f"The 90% interval holds the true score in {held:,} of {judged:,} predictions of held-out models"
    caption = (
        "Dots: scores of ladder models predicted from smaller ones alone; right predictions lie on the dashed line."
    )
    text = f"Scatter chart of predicted against true scores. {title}."
    return Chart("held-out", title, caption, text, panels(figures))


def _panel(prediction: predicted.TaskPrediction) -> alt.LayerChart:
    share = predicted.is_share(prediction.target)
    found = [
        (each.run, short(each.N), short(each.D), each.true, each.predicted, each.low, each.high)
        for each in predicted.chosen_held_out(prediction)
    ]
    rows = predicted.frame_of(found, ("run", "N", "D"), ("true", "predicted", "low", "high"))
    known = pl.col("low").is_finite() & pl.col("high").is_finite()
    beyond = known & ~pl.col("true").is_between("low", "high")
    rows = rows.with_columns(held=pl.when(beyond).then(pl.lit(BEYOND)).otherwise(pl.lit(WITHIN)))
    low, high = limits(
        [value for name in ("true", "predicted", "low", "high") for value in rows[name] if np.isfinite(value)],
        share=share,
    )
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    axis = alt.Axis(format="~%" if share else "~g", tickCount=4)
    number = ".1%" if share else ".4~g"
    colour = alt.Color(
        "held:N", title=None, scale=alt.Scale(domain=[WITHIN, BEYOND]),
        legend=alt.Legend(symbolOpacity=1),
    )  # fmt: skip
    x = alt.X("true:Q", title="true score", scale=scale, axis=axis)
    base = alt.Chart(rows).encode(x, color=colour)
    numbers = (alt.Tooltip(f"{name}:Q", format=number) for name in ("predicted", "low", "high", "true"))
    tooltip = ["run:N", "N:N", "D:N", *numbers]
    return alt.LayerChart(layer=[
        diagonal(low, high),
        alt.Chart(rows.filter(known)).mark_rule(strokeWidth=1.5).encode(
            x, alt.Y("low:Q", title="predicted", scale=scale, axis=axis), alt.Y2("high:Q"), color=colour
        ),
        base.mark_point(size=45, filled=True, opacity=1).encode(
            alt.Y("predicted:Q", title="predicted", scale=scale, axis=axis), tooltip=tooltip
        ),
    ])  # fmt: skip


def write_downstream(folder: Path, report: DownstreamReport) -> Path:
    """Write the page of predicted scores: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    return write_sections(folder, "Predicted scores", SECTIONS, report)


Data = ReportData[DownstreamReport]


def _targets(data: Data) -> Mapping[str, Target]:
    """Return the target of each task."""
    return {each.task: each.target for each in data.report.predictions}


def _score_of(
    data: Data, title: str, *columns: str, write: Callable[[float | None, Target], str] = predicted.written
) -> Spec:
    """Return a column of scores, or of intervals from one column to another, each in the unit of its task."""
    targets = _targets(data)

    def cell(row: Row) -> str:
        ends = [write(row[column], targets[row["task"]]) for column in columns]
        return " to ".join(ends) if all(ends) else UNDEFINED

    return Column(title), cell


def _predictions(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    frame = data.tables["predictions"]
    several = frame.get_column("model").n_unique() > 1
    specs: list[Spec] = [
        text_of("task", "task", names_row=True),
        *([text_of("model", "model")] if several else []),
        _score_of(data, "predicted", "score"),
        _score_of(data, "90% interval", "low", "high"),
        *([] if frame["own"].is_null().all() else [_score_of(data, "so far", "own")]),
        _score_of(data, "chance", "chance"),
        _score_of(data, "largest ladder model", "largest_score"),
        *(
            []
            if frame["largest_noise"].is_null().all()
            else [_score_of(data, "± noise", "largest_noise", write=predicted.points)]
        ),
        text_of("method", "method"),
        _score_of(data, "error on held-out models", "error", write=predicted.points),
    ]
    why: list[Spec] = [specs[0], *(specs[1:2] if several else []), text_of("because", "refused", prose=True)]
    refused = frame.filter(pl.col("refused") != "").to_dicts()
    unit = ", differences in points" if all(map(predicted.is_share, _targets(data).values())) else ""
    caption = f"Predicted scores with 90% intervals{unit}"
    note = linked(
        "Noise: standard deviation of the last scores of the largest ladder model about their trend. Error: mean "
        "absolute error of the method on held-out models. All: predictions.csv, the ladder: ladder.csv.",
        note=True,
    )
    return (
        table("predictions", caption, specs, frame.to_dicts()),
        note,
        table("refused", "Scores that cannot be told", why, refused),
        *pictures,
    )


def _held_out(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    methods = data.tables["methods"]
    several = methods.get_column("model").n_unique() > 1
    specs: list[Spec] = [
        text_of("task", "task", names_row=True),
        *([text_of("model", "model")] if several else []),
        text_of("method", "method"),
        _score_of(data, "prediction", "score"),
        _score_of(data, "error on held-out models", "error", write=predicted.points),
        (Column("share of the prediction"), lambda row: UNDEFINED if row["share"] is None else f"{row['share']:.0%}"),
    ]
    caption = "Every method, with its mean absolute error on held-out models"
    compared = folded(table("methods", caption, specs, methods.to_dicts()), max_rows=16)
    models: list[Spec] = [
        text_of("task", "task", names_row=True),
        text_of("model", "run"),
        text_of("held out with", "fold"),
        (Column("parameters"), lambda row: short(row["N"])),
        (Column("tokens"), lambda row: short(row["D"])),
        text_of("method", "method"),
        _score_of(data, "predicted", "predicted"),
        _score_of(data, "90% interval", "low", "high"),
        _score_of(data, "true", "true"),
    ]
    rows = data.tables["held_out"].to_dicts()
    held_out = folded(table("held-out", "Held-out models, predicted from smaller ones", models, rows))
    if compared is None and held_out is None:
        return ()
    note = linked("As tables: methods.csv, held_out.csv.", note=True)
    return (*pictures, compared, held_out, note)


SECTIONS = (
    ReportSection[Data](
        anchor="predictions",
        title="Predictions",
        tables={
            "predictions": lambda data: predicted.predictions_table(data.report.predictions),
            "ladder": lambda data: predicted.ladder_table(data.report.predictions),
        },
        charts=(lambda data: ladder_figure(data.report.predictions),),
        blocks=_predictions,
        summary=lambda data: [*predicted.headline(data.report.predictions), *predicted.basis(data.report.predictions)],
    ),
    ReportSection[Data](
        anchor="link", title="From loss to score", charts=(lambda data: link_figure(data.report.predictions),)
    ),
    ReportSection[Data](
        anchor="held-out",
        title="Held-out models",
        tables={
            "methods": lambda data: predicted.methods_table(data.report.predictions),
            "held_out": lambda data: predicted.held_out_table(data.report.predictions),
        },
        charts=(lambda data: held_out_chart(data.report.predictions),),
        blocks=_held_out,
    ),
    remarks_section(lambda data: data.report.remarks),
)
