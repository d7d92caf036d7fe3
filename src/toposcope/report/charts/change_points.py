"""Change points of mean neural persistence, on its trajectory."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour, training_lines
from toposcope.report.charts.series import faults_of, rows_of, run_names
from toposcope.report.headline import NP
from toposcope.report.material import Material


def change_point_chart(material: Material) -> Chart | None:
    """Draw where the lines of mean neural persistence break, with the interval of each place."""
    points = material.tables["change_points"].filter(feature=NP.key)
    lines = {t.run: (t.steps, t.features[NP.feature]) for t in material.trajectories if NP.feature in t.features}
    points = points.filter(pl.col("run").is_in(list(lines)))
    if not len(points):
        return None
    values = [_at(*lines[run], step) for run, step in points.select("run", "step").iter_rows()]
    points = points.select("run", "step", "low", "high", "explained").with_columns(value=pl.Series(values))
    rows = rows_of(material.trajectories, lambda t: t.features.get(NP.feature))
    base = alt.Chart(points).encode(
        y=alt.Y("value:Q"),
        color=run_colour(run_names(material)),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("step:Q"), alt.Tooltip("low:Q"), alt.Tooltip("high:Q")],
    )
    marks = base.encode(x=alt.X("step:Q"))
    figure: alt.LayerChart = training_lines(rows, NP.axis, run_names(material), faults=faults_of(material))
    for layer in (
        base.mark_rule(strokeWidth=3, opacity=0.45).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")),
        marks.transform_filter("datum.explained").mark_point(filled=False, size=90, strokeWidth=2),
        marks.transform_filter("!datum.explained").mark_point(filled=True, size=110, opacity=1),
    ):
        figure += layer
    title = f"{described(points)} of neural persistence"
    caption = "Points: change points, hollow where a smooth trend explains them; bars: 95% interval of the place."
    return Chart(
        "change-points", title, caption, f"Line chart of neural persistence with its change points. {title}.", figure
    )


def described(points: pl.DataFrame) -> str:
    """Count the change points that no smooth trend explains."""
    beyond = int((~points.get_column("explained")).sum())
    if len(points) == 1:
        return f"A smooth trend {'does not explain' if beyond else 'explains'} the one change point"
    which = f"{len(points)} change points"
    return (
        f"A smooth trend does not explain {beyond} of {which}" if beyond else f"A smooth trend explains all of {which}"
    )


def _at(steps: np.ndarray, values: np.ndarray, step: int) -> float:
    known = np.isfinite(values)
    return float(np.interp(step, steps[known], values[known]))
