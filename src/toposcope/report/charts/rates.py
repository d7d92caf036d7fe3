"""How fast persistence diagrams change, and the learning rate."""

from functools import partial

import numpy as np
import polars as pl

from toposcope.analysis.trajectories import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.probes.feature import Feature
from toposcope.report.charts.series import faults_of, logged, run_names, runs_of, series_of
from toposcope.report.material import Material
from toposcope.study.kinds import feature_named
from toposcope.typing import Vector

DISTANCES = {f"H{k}": feature_named(f"distances H{k}.wasserstein_2") for k in (0, 1)}


def change_rate_chart(material: Material) -> Chart | None:
    """Draw the Wasserstein-2 distance between the diagrams of neighbouring checkpoints, per step."""
    rows = series_of(material.trajectories, {k: partial(_per_step, feature=f) for k, f in DISTANCES.items()})
    rows = rows.filter(pl.col("value") > 0)
    if not len(rows):
        return None
    dimension = str(rows.item(0, "series"))
    peaks = rows.filter(series=dimension).sort("value", descending=True).unique("run", keep="first")
    low, *_, high = [*peaks.get_column("step").sort(), int(peaks.get_column("step").to_numpy().max())]
    where = f"at step {low:,}" if low == high else f"between steps {low:,} and {high:,}"
    title = f"{dimension} diagrams change fastest {where} in {runs_of(len(peaks), len(peaks))}"
    caption = "Wasserstein-2 distance from the checkpoint before, over the steps between; dashed: H1."
    figure = training_lines(
        rows, "Wasserstein-2 distance per step", run_names(material), faults=faults_of(material), dashes=list(DISTANCES)
    )
    return Chart("diagram-change", title, caption, f"Line chart of the rate of change of diagrams. {title}.", figure)


def learning_rate_chart(material: Material) -> Chart | None:
    """Draw the learning rate of every run."""
    rows = logged(material, "learning_rate")
    if not len(rows):
        return None
    by_run = rows.sort("step").group_by("run").agg(last=pl.col("value").last(), highest=pl.col("value").max())
    lower = len(by_run.filter(pl.col("last") < pl.col("highest")))
    title = f"The learning rate ends below its highest value in {runs_of(lower, len(by_run))}"
    figure = training_lines(rows, "learning rate", run_names(material), height=140, may_be_log=False)
    return Chart("learning-rate", title, "As logged.", f"Line chart of the learning rate. {title}.", figure)


def _per_step(trajectory: Trajectory, feature: Feature) -> Vector | None:
    values = trajectory.features.get(feature)
    return None if values is None else values / np.diff(trajectory.steps, prepend=np.nan)
