"""Rungs of a ladder that were left out: the score predicted from smaller ones against the true one."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.panels import panels
from toposcope.charts.zero import diagonal
from toposcope.forecasting.downstream.figure import limits
from toposcope.forecasting.downstream.predicted import Predictions, TaskPrediction
from toposcope.forecasting.downstream.wording import chosen_left_out, held_of, is_share, predictions_by_task
from toposcope.forecasting.wording import short

WITHIN, BEYOND = "within its interval", "beyond it"


def left_out_chart(report: Predictions) -> Chart | None:
    """Draw predicted against true scores of rungs left out, with 90% intervals; None if none was left out."""
    by_task = {task: found[0] for task, found in predictions_by_task(report).items() if chosen_left_out(found[0])}
    if not by_task:
        return None
    figures = {task: _panel(found) for task, found in by_task.items()}
    held, judged = held_of(list(by_task.values()))
    title = (
        f"The 90% interval holds the true score in {held:,} of {judged:,} predictions of rungs left out"
        if judged
        else "Rungs left out, predicted from smaller ones"
    )
    caption = "Dots: scores of rungs predicted from smaller ones alone; right predictions lie on the dashed line."
    return Chart(
        "left-out", title, caption, f"Scatter chart of predicted against true scores. {title}.", panels(figures)
    )


def _panel(prediction: TaskPrediction) -> alt.LayerChart:
    share = is_share(prediction.target)
    rows = pl.DataFrame(
        [
            (rung.run, short(rung.N), short(rung.D), rung.true, rung.predicted, rung.low, rung.high)
            for rung in chosen_left_out(prediction)
        ],
        schema={
            **dict.fromkeys(("run", "N", "D"), pl.String),
            **dict.fromkeys(("true", "predicted", "low", "high"), pl.Float64),
        },
        orient="row",
    )
    known = pl.col("low").is_finite() & pl.col("high").is_finite()
    beyond = known & ~pl.col("true").is_between("low", "high")
    rows = rows.with_columns(held=pl.when(beyond).then(pl.lit(BEYOND)).otherwise(pl.lit(WITHIN)))
    low, high = limits(
        [value for name in ("true", "predicted", "low", "high") for value in rows[name] if np.isfinite(value)],
        share=share,
    )
    scale, axis = (
        alt.Scale(domain=[low, high], nice=False, zero=False),
        alt.Axis(format="~%" if share else "~g", tickCount=4),
    )
    number = ".1%" if share else ".4~g"
    colour = alt.Color(
        "held:N", title=None, scale=alt.Scale(domain=[WITHIN, BEYOND]),
        legend=alt.Legend(symbolOpacity=1),
    )  # fmt: skip
    x = alt.X("true:Q", title="true score", scale=scale, axis=axis)
    base = alt.Chart(rows).encode(x, color=colour)
    told = [
        "run:N",
        "N:N",
        "D:N",
        *(alt.Tooltip(f"{n}:Q", format=number) for n in ("predicted", "low", "high", "true")),
    ]
    return alt.LayerChart(layer=[
        diagonal(low, high),
        alt.Chart(rows.filter(known)).mark_rule(strokeWidth=1.5).encode(
            x, alt.Y("low:Q", title="predicted", scale=scale, axis=axis), alt.Y2("high:Q"), color=colour
        ),
        base.mark_point(size=45, filled=True, opacity=1).encode(
            alt.Y("predicted:Q", title="predicted", scale=scale, axis=axis), tooltip=told
        ),
    ])  # fmt: skip
