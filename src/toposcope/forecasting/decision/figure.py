"""The chart of a decision: the loss by either way to spend a budget, over the budget."""

from dataclasses import replace

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.axes import budget_axis
from toposcope.charts.chart import Chart
from toposcope.forecasting.decision.decision import Decision, continued, scaled
from toposcope.forecasting.decision.reasons import reasons
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw

BUDGET_FACTOR = 30.0
"""Budgets are drawn from the one asked about divided by this factor to that multiplied by it."""
N_BUDGETS = 81
MAX_LAWS = 200
"""Bootstrapped laws that the bands are computed from."""
HEIGHT = 320


def decision_figure(fitted: FittedScalingLaw, decision: Decision) -> Chart:
    """Draw the final loss of either way over the budget, with the break-even points."""
    lines = _losses(fitted, decision)
    low, high = lines["budget"].to_numpy()[[0, -1]]
    x, y = budget_axis("budget", "budget (FLOP)", float(low), float(high)), _loss_axis(lines)
    ways = lines["way"].unique(maintain_order=True).to_list()
    legend = alt.Legend(symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3)
    colour = alt.Color("way:N", scale=alt.Scale(domain=ways), title=None, legend=legend)
    dash = alt.StrokeDash("way:N", scale=alt.Scale(domain=ways, range=[[1, 0], [6, 4]]), title=None)
    base = alt.Chart(lines).encode(x, color=colour, tooltip=["way", "budget", "loss", "low", "high"])
    where = [each for each in decision.break_even if low < each < high]
    losses = [continued(fitted.law, replace(decision.run, budget=each)).loss for each in where]
    even = alt.Chart(pl.DataFrame({"budget": where, "loss": losses}, schema={"budget": pl.Float64, "loss": pl.Float64}))
    floor = pl.DataFrame({"loss": [decision.floor], "name": ["floor of the run"]})
    given = pl.DataFrame({"budget": [decision.run.budget], "name": ["the budget"]})
    figure = alt.LayerChart(layer=[
        base.mark_area(opacity=0.18, clip=True).encode(y=_as(y, "low"), y2="high:Q"),
        base.mark_line(clip=True).encode(y, strokeDash=dash),
        alt.Chart(floor).mark_rule(strokeDash=[2, 3]).encode(y=y),
        alt.Chart(floor).mark_text(align="left", dy=10).encode(x=alt.value(4), y=y, text="name"),
        alt.Chart(given).mark_rule().encode(x),
        alt.Chart(given).mark_text(align="left", dx=5, baseline="top").encode(x, y=alt.value(2), text="name"),
        even.mark_point(size=80, filled=True, opacity=1).encode(x, y, tooltip=["budget", "loss"]),
    ]).properties(height=HEIGHT)  # fmt: skip
    answer, arms, *_ = reasons(decision)
    caption = "Bands hold 90% of the laws fitted to resampled runs" + ("; a dot is a break-even." if where else ".")
    text = f"Line chart of the final loss of the continued run and of the best fresh run over the budget. {arms}"
    return Chart("decision", answer.split(";")[0].rstrip("."), caption, text, figure)


def _losses(fitted: FittedScalingLaw, decision: Decision) -> pl.DataFrame:
    budgets = np.geomspace(decision.run.budget / BUDGET_FACTOR, decision.run.budget * BUDGET_FACTOR, N_BUDGETS)
    runs = [replace(decision.run, budget=float(budget)) for budget in budgets]
    laws = [law for law in fitted.bootstrap if law.A > 0 and law.B > 0][:MAX_LAWS] or [fitted.law]
    frames = []
    for way, arm in (("continue the run", continued), ("best fresh run", scaled)):
        low, high = np.percentile([[arm(law, run).loss for run in runs] for law in laws], [5, 95], axis=0)
        columns = {"budget": budgets, "loss": [arm(fitted.law, run).loss for run in runs], "low": low, "high": high}
        frames.append(pl.DataFrame(columns).with_columns(way=pl.lit(way)))
    return pl.concat(frames)


def _loss_axis(lines: pl.DataFrame) -> alt.Y:
    """Return the axis from below the lowest loss to somewhat above the loss of the smallest budget continued."""
    lowest, highest = min(lines["loss"].to_list()), float(lines.item(0, "loss"))
    margin = 0.06 * (highest - lowest) or 0.05
    scale = alt.Scale(domain=[lowest - margin, highest + 4 * margin], nice=False, zero=False)
    return alt.Y("loss:Q", title="final loss (nats)", scale=scale)


def _as(y: alt.Y, field: str) -> alt.Y:
    return alt.Y(f"{field}:Q", title=y["title"], scale=y["scale"])
