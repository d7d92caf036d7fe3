"""Features of runs of different size, at equal step, equal tokens and equal loss."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.trajectories import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour
from toposcope.report.charts.series import run_names
from toposcope.report.headline import TRAJECTORIES, Headline, headlines_of
from toposcope.report.material import Material

OF_STATES = ("rankme", "H0.total", "H1.total")
MAX_RATIO_SPREAD = 1e-6
CLOCKS = {"step": "training step", "tokens": "tokens seen", "loss": "loss (nats per token)"}
MAX_FEATURES = 3
MAX_LEGEND_RUNS = 12
PANEL = 220
"""Width of a panel in a file, in pixels."""


def cross_size_charts(material: Material) -> list[Chart]:
    """Draw a few features of runs of all sizes, matched by step, tokens and loss."""
    known = material.tables["matched"].filter(pl.col("value").is_finite())
    present = set(known.get_column("feature"))
    headlines = (*headlines_of(material.trajectories, OF_STATES), *TRAJECTORIES)
    left_out = ["tokens"] if _tokens_are_steps(material.trajectories) else []
    known = known.filter(~pl.col("by").is_in(left_out))
    return [_chart(material, known, h) for h in [h for h in headlines if h.key in present][:MAX_FEATURES]]


def _chart(material: Material, known: pl.DataFrame, headline: Headline) -> Chart:
    rows = known.filter(feature=headline.key)
    clocks = [by for by in CLOCKS if by in rows.get_column("by")]
    legend = rows.get_column("run").n_unique() <= MAX_LEGEND_RUNS
    panels = [
        alt.Chart(rows.filter(by=by).select("run", "level", "value"), title=f"equal {by}")
        .mark_line(point={"size": 14})
        .encode(
            x=_axis(by, rows.filter(by=by)),
            y=alt.Y("value:Q", title=headline.axis if by == clocks[0] else None, scale=alt.Scale(zero=False)),
            color=run_colour(run_names(material), legend=legend),
            tooltip=[alt.Tooltip("run:N"), alt.Tooltip("level:Q", title=CLOCKS[by]), alt.Tooltip("value:Q")],
        )
        .properties(width=PANEL)
        for by in clocks
    ]
    collapse = material.tables["collapse"].filter(pl.col("spread").is_finite(), feature=headline.key)
    spreads = {by: spread for by, spread in collapse.select("by", "spread").iter_rows() if by in clocks}
    title = f"{headline.name} of different sizes {nearest(spreads)}"
    caption = "Each panel matches the runs by another clock; levels that not all runs reach are left out."
    stem = f"{headline.feature.probe}-{headline.feature.statistic}".lower().replace("_", "-").replace(".", "-")
    figure = alt.concat(*panels, columns=len(panels))
    return Chart(
        f"sizes-{stem}", title, caption, f"Line charts of {headline.name} of runs of all sizes. {title}.", figure
    )


def nearest(spreads: dict[str, float]) -> str:
    """Say by which clock sizes lie nearest."""
    if len(spreads) > 1:
        return f"lies nearest at equal {min(spreads, key=lambda by: spreads[by])}"
    return f"is compared at equal {next(iter(spreads))} only" if spreads else "cannot be compared"


def _axis(by: str, rows: pl.DataFrame) -> alt.X:
    if by == "loss":  # training goes to the right
        return alt.X("level:Q", title=CLOCKS[by], scale=alt.Scale(reverse=True, zero=False))
    scale = alt.Scale(type="log" if (rows.get_column("level") > 0).all() else "symlog", nice=False)
    return alt.X("level:Q", title=CLOCKS[by], scale=scale, axis=alt.Axis(format="~s"))


def _tokens_are_steps(trajectories: Sequence[Trajectory]) -> bool:
    """Return whether all runs see equally many tokens per step, so that equal tokens are equal steps."""
    if not trajectories:
        return False
    ratios = np.concatenate([t.tokens[t.steps > 0] / t.steps[t.steps > 0] for t in trajectories])
    ratios = ratios[np.isfinite(ratios)]
    return bool(len(ratios)) and bool(np.ptp(ratios) <= MAX_RATIO_SPREAD * ratios[0])
