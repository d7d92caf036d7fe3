"""A new recipe's losses: its small runs with what is predicted, and runs left out; a panel for each loss."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from toposcope.charts.axes import budget_axis, diagonal, panels
from toposcope.charts.chart import Chart
from toposcope.charts.theme import MUTED
from toposcope.forecasting.downstream.translation import Translation
from toposcope.forecasting.wording import counted

MAX_POINTS = 400
"""Runs left out that are drawn in a panel; of more, evenly chosen ones."""


def translated_losses_chart(recipe: str, translations: Sequence[Translation]) -> Chart | None:
    """Draw the losses of the new recipe's runs over compute, with the predictions; None if it has no runs."""
    shown = [each for each in translations if len(each.runs)]
    if not shown:
        return None
    compute = [value for each in shown for value in each.runs.C]
    compute += [6 * found.model.N * found.model.D for each in shown for found in each.predictions]
    x = budget_axis("compute", "training compute 6 N D (FLOP)", min(compute) / 1.6, max(compute) * 1.6)
    title = f"Losses of {recipe}"
    caption = "Grey dots: its runs. Diamonds: predictions with 90% intervals."
    text = f"Scatter chart of losses over training compute, {counted(len(shown), 'panel')}. {title}."
    return Chart("losses", title, caption, text, panels({each.loss: _loss_panel(each, x) for each in shown}))


def translation_left_out_chart(translations: Sequence[Translation]) -> Chart | None:
    """Draw predicted against true losses of runs left out, by the method that is used; None without any."""
    figures = {each.loss: figure for each in translations if (figure := _left_out_panel(each)) is not None}
    if not figures:
        return None
    title = "Losses of runs left out, predicted from smaller runs and the laws of other recipes"
    caption = "Each recipe in turn is taken for the new one, on every corpus; right predictions lie on the dashed line."
    return Chart(
        "left-out", title, caption, f"Scatter chart of predicted against true losses. {title}.", panels(figures)
    )


def _loss_panel(translation: Translation, x: alt.X) -> alt.LayerChart:
    points = translation.runs
    runs = pl.DataFrame({"run": [str(run) for run in points.run], "compute": points.C, "loss": points.loss})
    rows = [
        (each.model.name, 6 * each.model.N * each.model.D, each.loss, each.low, each.high)
        for each in translation.predictions
        if not each.refusal
    ]
    floats = dict.fromkeys(("compute", "loss", "low", "high"), pl.Float64)
    predicted = pl.DataFrame(rows, schema={"model": pl.String, **floats}, orient="row")
    y = alt.Y("loss:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
    colour = alt.Color("model:N", title=None, sort=None, legend=alt.Legend(symbolOpacity=1))
    ranges = alt.Chart(predicted.filter(pl.col("low").is_finite())).mark_rule(strokeWidth=2)
    diamonds = alt.Chart(predicted).mark_point(shape="diamond", size=110, filled=True, opacity=1)
    return alt.LayerChart(layer=[
        alt.Chart(runs).mark_point(size=30, filled=True, color=MUTED).encode(x, y, tooltip=["run:N", "loss:Q"]),
        ranges.encode(x, alt.Y("low:Q", title=None, scale=y["scale"]), alt.Y2("high:Q"), color=colour),
        diamonds.encode(x, y, color=colour, tooltip=["model:N", "loss:Q", "low:Q", "high:Q"]),
    ])  # fmt: skip


def _left_out_panel(translation: Translation) -> alt.LayerChart | None:
    rows = [
        (each.recipe, each.loss, each.run, each.reach, each.predicted, each.true)
        for each in translation.left_out
        if each.method == translation.method
    ]
    if not rows:
        return None
    texts, floats = dict.fromkeys(("recipe", "loss", "run"), pl.String), ("reach", "predicted", "true")
    frame = pl.DataFrame(rows, schema={**texts, **dict.fromkeys(floats, pl.Float64)}, orient="row")
    frame = frame.gather_every(-(-len(frame) // MAX_POINTS))
    true = frame.get_column("true").to_list()
    colour = alt.Color("recipe:N", title=None, legend=alt.Legend(symbolOpacity=1))
    dots = alt.Chart(frame).mark_point(size=14, filled=True, opacity=0.5)
    return alt.LayerChart(layer=[
        diagonal(min(true), max(true)),
        dots.encode(
            alt.X("true:Q", title="true loss", scale=alt.Scale(zero=False)),
            alt.Y("predicted:Q", title="predicted", scale=alt.Scale(zero=False)),
            color=colour, tooltip=["run:N", "loss:N", "predicted:Q", "true:Q", "reach:Q"],
        ),
    ])  # fmt: skip
