"""Loss against the size of the model at fixed compute, and the sizes that are best."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from toposcope.forecasting.scaling.frontier import by_law
from toposcope.forecasting.scaling.isoflop import IsoFlop, budgets_of, isoflops
from toposcope.forecasting.scaling.planner import Interval, Plan
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw
from toposcope.report.figures.chart import COLOURS, INK, MARKERS, STYLE, Chart, legend, new_figure, number
from toposcope.report.ticks import plain_or_power, power_of_ten

N_CURVES = 5
HEIGHT = 4.4


def isoflop_chart(fitted: FittedScalingLaw, planned: Plan | None = None) -> Chart:
    """Draw the loss over parameters at a few budgets, with its band, the points near them, and the best sizes.

    Parameters
    ----------
    fitted : FittedScalingLaw
    planned : Plan, optional
        Whose budget is drawn beside those of the points.
    """
    budgets = list(budgets_of(fitted.points, N_CURVES - (planned is not None)))
    curves = sorted(isoflops(fitted, [*budgets, *([planned.budget_flops] if planned else [])]), key=_budget)
    with mpl.rc_context(STYLE):
        figure = new_figure(HEIGHT)
        axes = figure.subplots()
        for curve, colour, marker in zip(curves, COLOURS, MARKERS, strict=False):
            is_planned = planned is not None and _budget(curve) == planned.budget_flops
            label = f"C = {_powers(_budget(curve))}" + (" (planned)" if is_planned else "")
            axes.fill_between(curve.N, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(curve.N, curve.loss, color=colour, label=label, linewidth=2 if is_planned else None)
            near = curve.points
            axes.plot(near.N, near.loss, color=colour, marker=marker, linestyle="none", markersize=4.5, alpha=0.8)
        best = [curve.best for curve in curves]
        axes.plot(
            [b.N.value for b in best], [b.loss.value for b in best], color=INK, linestyle="--", marker="*",
            markersize=9, label="best size N*",
        )  # fmt: skip
        axes.set(xscale="log", xlabel="parameters N", ylabel="loss (nats)")
        _ticks(axes, curves)
        legend(figure, axes)
    summary, legend_text = _summary(fitted, planned), _legend_text(curves)
    alt = (
        f"Loss against parameters, one U-shaped curve for each of {len(curves)} budgets; the lowest places move right."
    )
    return Chart("isoflop", f"{summary} {legend_text}", f"{alt} {summary}", figure)


def _summary(fitted: FittedScalingLaw, planned: Plan | None) -> str:
    exponent = by_law(fitted).a
    grows = f"Compute-optimal parameters grow as C^{_with_interval(exponent)}."
    if planned is None:
        return grows
    text = (
        f"With {_powers(planned.budget_flops)} FLOP the best model has {_powers(planned.N.value)} parameters on "
        f"{_powers(planned.D.value)} tokens ({number(planned.tokens_per_parameter.value)} a parameter) and reaches "
        f"{_with_interval(planned.loss)} nats. {grows}"
    )
    if planned.beyond["C"] > 1:
        text += f" That is {number(planned.beyond['C'])} times beyond the compute of any point."
    return text


def _legend_text(curves: list[IsoFlop]) -> str:
    shown = sum(len(curve.points) for curve in curves)
    points = (
        f"markers are the {shown} points within a factor of 1.2 of a budget" if shown else "no point is near a budget"
    )
    band = "bands are 95% intervals of the law, " if np.isfinite(curves[0].low).all() else ""
    return f"Lines: the fitted law at equal compute C = 6 N D; {band}{points}, the dashed line joins the best sizes."


def _with_interval(value: Interval) -> str:
    interval = f" ({value.low:.3f} to {value.high:.3f})" if np.isfinite(value.low) else ""
    return f"{value.value:.3f}{interval}"


def _budget(curve: IsoFlop) -> float:
    return curve.best.budget_flops


def _powers(value: float) -> str:
    return plain_or_power(float(f"{value:.3g}"))


def _ticks(axes: Axes, curves: list[IsoFlop]) -> None:
    axes.xaxis.set_major_formatter(power_of_ten)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(6))
    lowest = min(float(curve.loss.min()) for curve in curves)
    highest = max(float(np.concatenate([curve.loss, curve.points.loss]).max()) for curve in curves)
    axes.set_ylim(lowest - 0.04 * (highest - lowest), highest + 0.02 * (highest - lowest))
