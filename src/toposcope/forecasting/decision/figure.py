"""The charts of a decision and of a scaling law: loss over budget by either way, and over size at fixed compute."""

from dataclasses import replace
from typing import NamedTuple

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.axes import budget_axis, count_axis
from toposcope.charts.chart import Chart
from toposcope.forecasting.decision.decision import MARGIN_LEVEL, Decision, continued, reasons, scaled
from toposcope.forecasting.scaling.frontier import by_law
from toposcope.forecasting.scaling.planner import FLOP, LEVEL, Plan, plan
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw
from toposcope.typing import Vector
from toposcope.wording import short

SPAN = 12.0  # a curve goes from N* / 12 to 12 N*
N_SIZES = 121
MAX_CURVES = 5
MAX_COMPUTE_RATIO = 1.2  # points are of a budget if their compute is within this factor of it
BUDGET_FACTOR = 30.0  # budgets are drawn from the one asked about divided by this factor to that multiplied by it
N_BUDGETS = 81
MAX_LAWS = 200  # bootstrapped laws that the bands are computed from
HEIGHT = 320


class IsoFlop(NamedTuple):
    """The best size of a compute; ``N, loss, low, high`` of each size (NaN without a bootstrap); the points near."""

    best: Plan
    curve: pl.DataFrame
    points: Points


def isoflop(fitted: FittedScalingLaw, budget_flops: float) -> IsoFlop:
    """Return the curve of a budget, with its 95% interval."""
    best = plan(fitted, budget_flops)
    N = np.geomspace(best.N.value / SPAN, best.N.value * SPAN, N_SIZES)
    resampled = np.array(
        [law.loss(N, budget_flops / (FLOP * N)) for law in fitted.bootstrap] or [np.full(N_SIZES, np.nan)]
    )
    low, high = np.percentile(resampled, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
    loss = fitted.law.loss(N, budget_flops / (FLOP * N))
    near = np.abs(np.log(fitted.points.C / budget_flops)) <= np.log(MAX_COMPUTE_RATIO)
    return IsoFlop(best, pl.DataFrame({"N": N, "loss": loss, "low": low, "high": high}), fitted.points.where(near))


def budgets_of(points: Points, n: int = MAX_CURVES) -> Vector:
    """Return budgets of two digits, evenly in the logarithm over the middle nine tenths of the points; n at most."""
    low, high = np.quantile(np.log(points.C), [0.05, 0.95])
    return np.unique([float(f"{budget:.1e}") for budget in np.exp(np.linspace(low, high, n))])


def isoflop_figure(fitted: FittedScalingLaw, planned: Plan | None = None) -> Chart:
    """Draw the loss over parameters at a few budgets, one of them that of a plan, with bands, points and best sizes."""
    budgets = {*budgets_of(fitted.points, MAX_CURVES - (planned is not None)).tolist()}
    is_planned = planned.budget_flops if planned else np.nan
    curves = {
        _power(budget) + (" (planned)" if budget == is_planned else ""): isoflop(fitted, budget)
        for budget in sorted(budgets | ({planned.budget_flops} if planned else set()))
    }
    loss = pl.concat([c.curve.with_columns(budget=pl.lit(name)) for name, c in curves.items()])
    points = pl.concat([
        pl.DataFrame({"N": c.points.N, "loss": c.points.loss}).with_columns(budget=pl.lit(name))
        for name, c in curves.items()
    ])  # fmt: skip
    best = pl.DataFrame({
        "budget": [*curves], "N": [c.best.N.value for c in curves.values()],
        "loss": [c.best.loss.value for c in curves.values()],
    })  # fmt: skip
    sizes = [*loss["N"], *points["N"]]
    x = count_axis("N", "parameters N", min(sizes), max(sizes))
    y = alt.Y("loss:Q", title="loss (nats)", scale=alt.Scale(zero=False))
    legend = alt.Legend(columns=3, symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3)
    colour = alt.Color("budget:N", scale=alt.Scale(domain=[*curves]), title="compute (FLOP)", legend=legend)
    lines, dots = (alt.Chart(frame).encode(x, y, color=colour) for frame in (loss, points))
    of_best = alt.Chart(best).encode(x, y, tooltip=["budget", "N", "loss"])
    layers = [
        lines.mark_line().encode(tooltip=["budget", "N", "loss"]),
        dots.mark_point(filled=True, opacity=0.8).encode(tooltip=["budget", "N", "loss"]),
        of_best.mark_line(strokeDash=[5, 4], color="gray"),
        of_best.mark_point(shape="diamond", size=90, filled=True, opacity=1).encode(color=colour),
    ]
    has_bands = bool(loss["low"].is_finite().all())
    if has_bands:
        layers.insert(0, lines.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title="loss (nats)"), y2="high:Q"))
    bands = f", with {LEVEL:.0%} intervals" if has_bands else ""
    caption = (
        f"Lines: the fitted law at equal compute C = 6 N D{bands}; dots: runs within a factor of 1.2 of a budget; "
        "diamonds: the best size of each budget."
    )
    title = f"Compute-optimal parameters grow as C^{by_law(fitted).a.value:.2f}"
    if planned is not None:
        title = f"With {_power(planned.budget_flops)} FLOP the best model has {short(planned.N.value)} parameters"
    text = f"Line chart of the loss against parameters, a U-shaped curve for each of {len(curves)} budgets. {title}."
    return Chart("isoflop", title, caption, text, alt.LayerChart(layer=layers).properties(height=340))


def _power(value: float) -> str:
    return f"{value:.3g}".replace("e+", "e")


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
    low_end = alt.Y("low:Q", title=y["title"], scale=y["scale"])
    figure = alt.LayerChart(layer=[
        base.mark_area(opacity=0.18, clip=True).encode(y=low_end, y2="high:Q"),
        base.mark_line(clip=True).encode(y, strokeDash=dash),
        alt.Chart(floor).mark_rule(strokeDash=[2, 3]).encode(y=y),
        alt.Chart(floor).mark_text(align="left", dy=10).encode(x=alt.value(4), y=y, text="name"),
        alt.Chart(given).mark_rule().encode(x),
        alt.Chart(given).mark_text(align="left", dx=5, baseline="top").encode(x, y=alt.value(2), text="name"),
        even.mark_point(size=80, filled=True, opacity=1).encode(x, y, tooltip=["budget", "loss"]),
    ]).properties(height=HEIGHT)  # fmt: skip
    answer, arms, *_ = reasons(decision)
    caption = f"Bands hold {MARGIN_LEVEL:.0%} of the laws fitted to resampled runs" + (
        "; a dot is a break-even." if where else "."
    )
    text = f"Line chart of the final loss of the continued run and of the best fresh run over the budget. {arms}"
    return Chart("decision", answer.split(";")[0].rstrip("."), caption, text, figure)


def _losses(fitted: FittedScalingLaw, decision: Decision) -> pl.DataFrame:
    budgets = np.geomspace(decision.run.budget / BUDGET_FACTOR, decision.run.budget * BUDGET_FACTOR, N_BUDGETS)
    runs = [replace(decision.run, budget=float(budget)) for budget in budgets]
    laws = [law for law in fitted.bootstrap if law.A > 0 and law.B > 0][:MAX_LAWS] or [fitted.law]
    frames = []
    for way, arm in (("continue the run", continued), ("best fresh run", scaled)):
        low, high = np.percentile(
            [[arm(law, run).loss for run in runs] for law in laws],
            [50 * (1 - MARGIN_LEVEL), 50 * (1 + MARGIN_LEVEL)],
            axis=0,
        )
        columns = {"budget": budgets, "loss": [arm(fitted.law, run).loss for run in runs], "low": low, "high": high}
        frames.append(pl.DataFrame(columns).with_columns(way=pl.lit(way)))
    return pl.concat(frames)


def _loss_axis(lines: pl.DataFrame) -> alt.Y:
    """Return the axis from below the lowest loss to somewhat above the loss of the smallest budget continued."""
    lowest, highest = min(lines["loss"].to_list()), float(lines.item(0, "loss"))
    margin = 0.06 * (highest - lowest) or 0.05
    scale = alt.Scale(domain=[lowest - margin, highest + 4 * margin], nice=False, zero=False)
    return alt.Y("loss:Q", title="final loss (nats)", scale=scale)
