"""Correlation of every feature with the loss, alone against given the step."""

import altair as alt
import polars as pl

from toposcope.analysis.verdict import VERDICTS
from toposcope.charts.axes import diagonal, zero_line
from toposcope.charts.chart import Chart
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import primary
from toposcope.report.headline import named
from toposcope.report.material import Material

MIN_STRONG = 0.5
"""The title counts correlations at least as strong as this."""
HEIGHT = 380


def partial_correlation_chart(material: Material) -> Chart | None:
    """Draw the partial correlation given the step against rho: a mark for each feature and run."""
    rows = primary(material).filter(pl.col("group") == NETWORK, pl.col("rho").is_finite())
    topology, defined = pl.col("kind") == TOPOLOGY, pl.col("rho_given_step").is_finite()
    if not len(rows.filter(topology, defined)):
        return None
    left_out = len(rows.filter(topology, ~defined))
    title = _title(rows.filter(topology, defined))
    caption = (
        "On the dashed line the step explains nothing of a correlation, on the level line all of it"
        f"{f'; {left_out:,} pairs of run and topological feature have no partial correlation' if left_out else ''}."
    )
    alternative = f"Scatter plot of partial rank correlations given the step against rank correlations. {title}."
    return Chart("partial", title, caption, alternative, _figure(rows.filter(defined)))


def _figure(rows: pl.DataFrame) -> alt.LayerChart:
    points = rows.select(
        "run",
        pl.col("feature").map_elements(named, return_dtype=pl.String),
        "verdict",
        "rho",
        given="rho_given_step",
        kind=pl.when(kind=TOPOLOGY).then(pl.lit("topology")).otherwise(pl.lit("control")),
    )
    ends = alt.Scale(domain=[-1, 1], nice=False)
    given = alt.Y("given:Q", title="rho given the step", scale=ends)
    alone = alt.X("rho:Q", title="rho with the loss", scale=ends, axis=alt.Axis(grid=True))
    present = [name for name in VERDICTS if name in set(points.get_column("verdict"))]
    marks = alt.Chart(points).mark_point(filled=False, size=45, strokeWidth=1.6)
    return alt.LayerChart(
        layer=[
            diagonal(-1, 1),
            zero_line("y"),
            marks.encode(
                x=alone,
                y=given,
                color=alt.Color(
                    "verdict:N",
                    title=None,
                    scale=alt.Scale(domain=list(VERDICTS)),
                    legend=alt.Legend(values=present),
                ),
                shape=alt.Shape("kind:N", title=None, sort=["topology", "control"]),
                tooltip=[
                    *(alt.Tooltip(f"{n}:N") for n in ("feature", "run", "verdict")),
                    *(alt.Tooltip(f"{n}:Q", format="+.3f") for n in ("rho", "given")),
                ],
            ),
        ]
    ).properties(height=HEIGHT)


def _title(rows: pl.DataFrame) -> str:
    """Say how many strong correlations of topology the step explains for the most part."""
    strong = rows.filter(pl.col("rho").abs() > MIN_STRONG)
    weak = len(strong.filter(pl.col("rho_given_step").abs() < pl.col("rho").abs() / 2))
    if not len(strong):
        return f"No correlation of topology with the loss has |rho| over {MIN_STRONG:g}"
    return f"Given the step, {weak} of {len(strong)} strong correlations of topology lose more than half"
