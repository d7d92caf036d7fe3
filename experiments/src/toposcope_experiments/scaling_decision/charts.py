"""The map: who wins by size and compute, and where scaling up begins to pay, in truth and as predicted."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import plain
from toposcope_experiments.scaling_decision.design import FURTHER, STRIDE
from toposcope_experiments.scaling_decision.prediction import OF_CONTROLS, OWN, SIZE_AND_STEP
from toposcope_experiments.scaling_decision.score import points_as_said, scaling_points
from toposcope_experiments.scaling_decision.verdict import MNAT, Outcome

TRUE = "true"
BOUNDARIES = (TRUE, SIZE_AND_STEP, OF_CONTROLS, OWN)
ROW_HEIGHT = 44
GIGA = 1e9
LEGEND = alt.Legend(orient="bottom", direction="vertical")


def cell_table(outcome: Outcome) -> pl.DataFrame:
    """Return the mean margin over conditions and seeds of each pair, further compute and point, in mnat."""
    decisions = outcome.decisions
    margin, compute = decisions.margin.mean(axis=(0, 1)), np.exp(decisions["log_compute"][0, 0])
    share = (decisions.margin < 0).mean(axis=(0, 1))
    rows = [
        {
            "pair": pair, "more": more, "gigaflops": compute[group, point] / GIGA,
            "margin": MNAT * margin[group, point], "scale": share[group, point],
        }
        for group, (pair, _, more) in enumerate(decisions.groups.iter_rows())
        for point in range(margin.shape[1])
    ]  # fmt: skip
    return pl.DataFrame(rows)


def boundary_table(outcome: Outcome) -> pl.DataFrame:
    """Return the median scaling point of each pair and further compute, in truth and as predicted."""
    decisions = outcome.decisions
    log_compute, shape = decisions["log_compute"], decisions.margin.shape[:3]
    true = np.array([each.log_compute for each in scaling_points(log_compute, decisions.margin)])
    said = {name: points_as_said(log_compute, outcome.predictors[name][0]) for name in BOUNDARIES[1:]}
    rows = [
        {"pair": pair, "more": more, "by": name, "gigaflops": float(np.exp(median) / GIGA)}
        for name, points in {TRUE: true, **said}.items()
        for (pair, _, more), median in zip(
            decisions.groups.iter_rows(), np.median(points.reshape(shape), axis=(0, 1)), strict=True
        )
    ]
    return pl.DataFrame(rows)


def map_chart(outcome: Outcome) -> Chart:
    """Draw the map, a panel for each amount of further compute."""
    half = np.sqrt(STRIDE)
    said = {more: f"{plain(more, 2)} times" for more in FURTHER}
    cells = outcome_rows(cell_table(outcome), said).with_columns(
        begin=pl.col("gigaflops") / half, end=pl.col("gigaflops") * half
    )
    boundaries = outcome_rows(boundary_table(outcome), said)
    widest = float(cells["margin"].abs().max())  # type: ignore[arg-type]
    order = outcome.decisions.groups["pair"].unique(maintain_order=True).to_list()
    panels = []
    for more in said.values():
        x = alt.Scale(type="log", nice=False)
        y = alt.Y("pair:N", title="width", sort=order, axis=alt.Axis(ticks=False))
        cell = alt.Chart(cells.filter(further=more)).mark_rect(height=ROW_HEIGHT - 10)
        rects = cell.encode(
            x=alt.X("begin:Q", title="compute so far (GFLOP)", scale=x, axis=alt.Axis(format="~s")),
            x2="end:Q",
            y=y,
            color=alt.Color(
                "margin:Q",
                title="larger less going on (mnat)",
                scale=alt.Scale(scheme="blueorange", reverse=True, domain=[-widest, widest]),
            ),
            tooltip=[
                "pair:N",
                alt.Tooltip("gigaflops:Q", title="GFLOP", format=".3~g"),
                alt.Tooltip("margin:Q", title="margin (mnat)", format="+.1f"),
                alt.Tooltip("scale:Q", title="scaling up is better", format=".0%"),
            ],
        )
        points = alt.Chart(boundaries.filter(further=more)).mark_point(size=70, filled=True, opacity=1, color="black")
        marks = points.encode(
            x=alt.X("gigaflops:Q", scale=x),
            y=y,
            yOffset=alt.YOffset("by:N", sort=list(BOUNDARIES)),
            shape=alt.Shape("by:N", title="scaling point", sort=list(BOUNDARIES), legend=LEGEND),
            tooltip=["pair:N", "by:N", alt.Tooltip("gigaflops:Q", title="GFLOP", format=".3~g")],
        )
        panel = alt.LayerChart(layer=[rects, marks], title=f"Further compute: {more}")
        panels.append(panel.properties(height=ROW_HEIGHT * len(order)))
    figure = alt.VConcatChart(vconcat=panels)
    title = "When a fresh larger model wins"
    caption = (
        "Mean margin over conditions: blue where going on ends lower, orange where a fresh larger model does; further "
        "compute in times of that so far. Points: where scaling up begins to pay, the median over runs, in truth and "
        "as predicted for conditions that were left out."
    )
    words = "; ".join(
        f"{pair}, {said[more]} further: {plain(compute, 3)} GFLOP"
        for pair, more, by, compute in boundary_table(outcome).iter_rows()
        if by == TRUE
    )
    return Chart("scaling-decision-map", title, caption, f"Map of the margin. {title}: {words}.", figure)


def outcome_rows(rows: pl.DataFrame, said: dict[float, str]) -> pl.DataFrame:
    """Add the words for the further compute."""
    return rows.with_columns(further=pl.col("more").replace_strict(said, return_dtype=pl.String))
