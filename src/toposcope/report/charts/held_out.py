"""What was held out against what was predicted of it: scores of rungs, losses of runs, wins of larger models."""

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.axes import budget_axis
from toposcope.charts.chart import Chart
from toposcope.charts.panels import panels
from toposcope.charts.theme import MUTED
from toposcope.charts.zero import diagonal
from toposcope.forecasting.decision.calibration import Bin, calibration_error
from toposcope.forecasting.decision.decision import CONTINUE_BELOW, SCALE_ABOVE
from toposcope.forecasting.downstream.figure import limits
from toposcope.forecasting.downstream.predicted import (
    TaskPrediction,
    chosen_left_out,
    frame_of,
    held_of,
    is_share,
    predictions_by,
    task_of,
)
from toposcope.forecasting.downstream.translation import Translation
from toposcope.forecasting.wording import counted, short

WITHIN, BEYOND = "within its interval", "beyond it"


def left_out_chart(predictions: Sequence[TaskPrediction]) -> Chart | None:
    """Draw predicted against true scores of rungs left out, with 90% intervals; None if none was left out."""
    by_task = {
        task: found[0] for task, found in predictions_by(predictions, task_of).items() if chosen_left_out(found[0])
    }
    if not by_task:
        return None
    figures = {task: _score_panel(found) for task, found in by_task.items()}
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


def _score_panel(prediction: TaskPrediction) -> alt.LayerChart:
    share = is_share(prediction.target)
    rows = frame_of(
        [
            (rung.run, short(rung.N), short(rung.D), rung.true, rung.predicted, rung.low, rung.high)
            for rung in chosen_left_out(prediction)
        ],
        ("run", "N", "D"),
        ("true", "predicted", "low", "high"),
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
    predicted = frame_of(rows, ("model",), ("compute", "loss", "low", "high"))
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
    frame = frame_of(rows, ("recipe", "loss", "run"), ("reach", "predicted", "true"))
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


RELIABILITY_HEIGHT = 320


def reliability_chart(bins_by_name: Mapping[str, Sequence[Bin]], n_pairs: int) -> Chart:
    """Draw the share of decisions in which scaling was better against the predicted probability.

    Parameters
    ----------
    bins_by_name : mapping
        Bins by what the probabilities are, such as before and after recalibration; the last are those that are used.
    n_pairs : int
        Number of decisions.
    """
    rows = [
        {"by": name, "predicted": b.said, "won": b.came, "share": b.weight, "pairs": b.n}
        for name, bins in bins_by_name.items()
        for b in bins
    ]
    percent, scale = alt.Axis(format="%"), alt.Scale(domain=[-0.04, 1.04], nice=False)
    x = alt.X("predicted:Q", title="predicted probability that scaling wins", axis=percent, scale=scale)
    y = alt.Y("won:Q", title="share in which it won", axis=percent, scale=scale)
    perfect = alt.Chart(pl.DataFrame({"predicted": [0.0, 1.0], "won": [0.0, 1.0]}))
    undecided = pl.DataFrame({"from": [CONTINUE_BELOW], "to": [SCALE_ABOVE], "word": ["undecided"], "at": [0.5]})
    base = alt.Chart(pl.DataFrame(rows)).encode(
        x,
        y,
        color=alt.Color("by:N", sort=None, title=None, legend=alt.Legend(columns=1)),
        tooltip=["by", "predicted", "won", "pairs"],
    )
    shaded = alt.Chart(undecided)
    figure = alt.LayerChart(layer=[
        shaded.mark_rect(color="gray", opacity=0.1).encode(x="from:Q", x2="to:Q"),
        shaded.mark_text(baseline="bottom").encode(x="at:Q", y=alt.value(16), text="word"),
        perfect.mark_line(strokeDash=[4, 4], color="gray", strokeWidth=1).encode(x, y),
        base.mark_line(strokeWidth=1),
        base.mark_point(filled=True, opacity=0.7).encode(size=alt.Size("share:Q", legend=None)),
    ]).properties(height=RELIABILITY_HEIGHT)  # fmt: skip
    off = {name: 100 * calibration_error(list(bins)) for name, bins in bins_by_name.items()}
    title = f"Predicted probabilities are off by {list(off.values())[-1]:.1f} points on average"
    caption = (
        f"{n_pairs:,} pairs of runs at equal compute, held out from law and calibration; a larger mark stands for more "
        "pairs. Calibrated probabilities lie on the dashed line."
    )
    each = "; ".join(f"{name}: {value:.1f} points off" for name, value in off.items())
    return Chart("reliability", title, caption, f"Reliability diagram of the predicted probabilities. {each}.", figure)
