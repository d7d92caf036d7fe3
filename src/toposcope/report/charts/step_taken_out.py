"""One picture of why a correlation with the loss says little: against the step, then with the step taken out."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.given_covariates import covariate_basis
from toposcope.analysis.ranks import residuals
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND
from toposcope.charts.chart import Chart
from toposcope.charts.zero import zero_line
from toposcope.probes.feature import TOPOLOGY
from toposcope.report.formats import signed
from toposcope.report.headline import TARGETS, named, uncapitalised
from toposcope.report.learnt import main_quantities
from toposcope.report.study_data import StudyData
from toposcope.report.verdict import covariates_of
from toposcope.study.kinds import feature_named
from toposcope.typing import Vector

HEIGHT = 105


def step_taken_out(data: StudyData) -> Chart | None:
    """Draw one feature and the loss of one run over training, and below it what the covariates leave of both.

    It is a topological quantity that says more than the step, if any does, else the one that goes with the loss most.
    """
    rows = main_quantities(data).filter(pl.col("rho_given_all").is_finite(), pl.col("n") > 1, kind=TOPOLOGY)
    if not len(rows):
        return None
    order = [pl.col("verdict") == BEYOND, pl.col("rho").abs()]
    row = rows.sort(order, descending=True, maintain_order=True).row(0, named=True)
    run = next(t for t in data.trajectories if t.run == row["run"])
    name, loss = named(row["feature"]), TARGETS[row["target"]]
    left = covariates_of(rows.filter(run=row["run"], feature=row["feature"]))
    alone, given = signed(row["rho"], 2), signed(row["rho_given_all"], 2)
    panels = (f"as measured: rho {alone}", f"the step taken out: rho {given}")
    title = f"{name} and the loss: rho {alone} alone, {given} with the step taken out"
    caption = (
        f"{name} and {loss} of {run.run}, each in standard deviations; below, what {left} leave of both, whose "
        "correlation is that of ranks with the noise made white."
    )
    series = {uncapitalised(name): run.features[feature_named(row["feature"])], loss: run.targets[row["target"]]}
    figure = _figure(_values(run, series, panels), list(series), panels)
    alternative = f"Two line charts of {uncapitalised(name)} and {loss}. {title}."
    return Chart("step-taken-out", title, caption, alternative, figure)


def _values(run: Trajectory, series: dict[str, Vector], panels: tuple[str, str]) -> pl.DataFrame:
    """Return ``step, series, panel, value``: of each series in standard deviations, alone and given the covariates."""
    at = np.isfinite(np.array(list(series.values()))).all(axis=0)
    known = {name: values[at] for name, values in run.covariates.items() if np.isfinite(values[at]).all()}
    alone = np.array([values[at] for values in series.values()])
    given = residuals(alone, covariate_basis(run.steps[at], known))
    return pl.concat(
        pl.DataFrame({"step": run.steps[at], "series": name, "panel": panel, "value": values / (values.std() or 1.0)})
        for panel, part in zip(panels, (alone - alone.mean(axis=1, keepdims=True), given), strict=True)
        for name, values in zip(series, part, strict=True)
    )


def _figure(rows: pl.DataFrame, series: list[str], panels: tuple[str, str]) -> alt.FacetChart:
    base = alt.Chart().encode(
        x=alt.X("step:Q", title="training step", scale=alt.Scale(nice=False), axis=alt.Axis(format=",d", tickCount=4)),
        y=alt.Y("value:Q", title=None, axis=alt.Axis(tickCount=4)),
        color=alt.Color("series:N", sort=series, title=None, legend=alt.Legend(orient="top")),
        tooltip=["series:N", "step:Q", alt.Tooltip("value:Q", format="+.2f")],
    )
    layers = alt.layer(zero_line("y"), base.mark_line(strokeWidth=1.4), data=rows).properties(height=HEIGHT)
    facet = alt.Facet("panel:N", sort=list(panels), title=None, header=alt.Header(labelAnchor="start"))
    return layers.facet(facet, columns=1)
