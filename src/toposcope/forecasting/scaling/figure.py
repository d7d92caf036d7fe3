"""The chart of a scaling law: loss against the size of the model at fixed compute, and the sizes that are best."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.axes import count_axis
from toposcope.charts.chart import Chart
from toposcope.forecasting.scaling.frontier import by_law
from toposcope.forecasting.scaling.isoflop import MAX_CURVES, IsoFlop, budgets_of, isoflops
from toposcope.forecasting.scaling.planner import Plan
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw
from toposcope.forecasting.wording import short

HEIGHT = 340


def isoflop_figure(fitted: FittedScalingLaw, planned: Plan | None = None) -> Chart:
    """Draw the loss over parameters at a few budgets, with its band, the points near them, and the best sizes.

    Parameters
    ----------
    fitted : FittedScalingLaw
    planned : Plan, optional
        Whose budget is drawn beside those of the points.
    """
    budgets = {*budgets_of(fitted.points, MAX_CURVES - (planned is not None)).tolist()}
    curves = isoflops(fitted, sorted(budgets | ({planned.budget_flops} if planned else set())))
    names = [_name(curve, planned) for curve in curves]
    loss = pl.concat([_frame(name, curve) for name, curve in zip(names, curves, strict=True)])
    points = pl.concat([
        pl.DataFrame({"N": curve.points.N, "loss": curve.points.loss}).with_columns(budget=pl.lit(name))
        for name, curve in zip(names, curves, strict=True)
    ])  # fmt: skip
    best = pl.DataFrame({
        "budget": names, "N": [c.best.N.value for c in curves], "loss": [c.best.loss.value for c in curves],
    })  # fmt: skip
    sizes = [*loss["N"], *points["N"]]
    x = count_axis("N", "parameters N", min(sizes), max(sizes))
    y = alt.Y("loss:Q", title="loss (nats)", scale=alt.Scale(zero=False))
    legend = alt.Legend(columns=3, symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3)
    colour = alt.Color("budget:N", scale=alt.Scale(domain=names), title="compute (FLOP)", legend=legend)
    lines, dots = (alt.Chart(frame).encode(x, y, color=colour) for frame in (loss, points))
    of_best = alt.Chart(best).encode(x, y, tooltip=["budget", "N", "loss"])
    layers = [
        lines.mark_line().encode(tooltip=["budget", "N", "loss"]),
        dots.mark_point(filled=True, opacity=0.8).encode(tooltip=["budget", "N", "loss"]),
        of_best.mark_line(strokeDash=[5, 4], color="gray"),
        of_best.mark_point(shape="diamond", size=90, filled=True, opacity=1).encode(color=colour),
    ]  # fmt: skip
    has_bands = bool(np.isfinite(curves[0].low).all())
    if has_bands:
        layers.insert(0, lines.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title="loss (nats)"), y2="high:Q"))
    caption = (
        f"Lines: the fitted law at equal compute C = 6 N D{', with 95% intervals' if has_bands else ''}; dots: runs "
        "within a factor of 1.2 of a budget; diamonds: the best size of each budget."
    )
    title = _title(fitted, planned)
    text = f"Line chart of the loss against parameters, a U-shaped curve for each of {len(curves)} budgets. {title}."
    return Chart("isoflop", title, caption, text, alt.LayerChart(layer=layers).properties(height=HEIGHT))


def _title(fitted: FittedScalingLaw, planned: Plan | None) -> str:
    if planned is None:
        return f"Compute-optimal parameters grow as C^{by_law(fitted).a.value:.2f}"
    return f"With {_power(planned.budget_flops)} FLOP the best model has {short(planned.N.value)} parameters"


def _frame(name: str, curve: IsoFlop) -> pl.DataFrame:
    return pl.DataFrame({"budget": name, "N": curve.N, "loss": curve.loss, "low": curve.low, "high": curve.high})


def _name(curve: IsoFlop, planned: Plan | None) -> str:
    budget = curve.best.budget_flops
    return _power(budget) + (" (planned)" if planned is not None and budget == planned.budget_flops else "")


def _power(value: float) -> str:
    return f"{value:.3g}".replace("e+", "e")
