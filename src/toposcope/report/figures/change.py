"""The rate of change of persistence diagrams beside the learning rate, and change points."""

import numpy as np
import polars as pl
from matplotlib.ticker import NullLocator
from scipy.stats import spearmanr

from toposcope.analysis.trajectories import Trajectory
from toposcope.analysis.wording import joined
from toposcope.probes.feature import Feature
from toposcope.report.figures.chart import (
    INK,
    LABEL,
    Chart,
    TrainingAxis,
    choose_runs,
    legend,
    new_figure,
    number,
    run_styles,
    runs_of,
    span,
)
from toposcope.report.headline import NP
from toposcope.report.material import Material
from toposcope.report.ticks import power_of_ten
from toposcope.study.kinds import feature_named
from toposcope.typing import Vector

DISTANCES = ((feature_named("distances H0.wasserstein_2"), "H0"), (feature_named("distances H1.wasserstein_2"), "H1"))
MIN_CHECKPOINTS = 5
MAX_STEPS_NAMED = 4
"""A caption names up to this many change points one by one."""


def change_rate_chart(material: Material) -> Chart | None:
    """Draw the rate of change of persistence diagrams, and the learning rate."""
    trajectories = [t for t in material.trajectories if any(f in t.features for f, _ in DISTANCES)]
    known = [(f, name) for f, name in DISTANCES if any(f in t.features for t in trajectories)]
    if not trajectories:
        return None
    shown, left_out = choose_runs(trajectories, material.runs)
    log = material.log.filter(pl.col("learning_rate").is_finite())
    with_rate = any(len(log.filter(run=t.run)) for t in shown)
    training = TrainingAxis(shown, material.findings)
    figure = new_figure(1.9 * len(known) + 1.5 * with_rate + 0.7)
    panels = figure.subplots(
        len(known) + with_rate, 1, sharex=True, squeeze=False, height_ratios=[1.9] * len(known) + [1.4] * with_rate
    )[:, 0]
    for axes, (feature, name) in zip(panels, known, strict=False):
        for trajectory, (colour, marker) in zip(shown, run_styles(), strict=False):
            speed = _speed(trajectory, feature)
            positive = np.where(speed > 0, speed, np.nan)
            axes.plot(
                training.of(trajectory.run, trajectory.steps),
                positive,
                color=colour,
                marker=marker,
                label=trajectory.run,
            )
        axes.set(yscale="log", ylabel=f"{name}: Wasserstein-2\nper step")
        axes.yaxis.set_major_formatter(power_of_ten)
        axes.yaxis.set_minor_locator(NullLocator())
    if with_rate:
        for trajectory, (colour, _) in zip(shown, run_styles(), strict=False):
            rows = log.filter(run=trajectory.run)
            thin = max(1, len(rows) // 400)
            at = training.of(trajectory.run, rows["step"].gather_every(thin))
            panels[-1].plot(at, rows["learning_rate"].gather_every(thin), color=colour)
        panels[-1].set_ylabel("learning\nrate")
        panels[-1].ticklabel_format(axis="y", scilimits=(-2, 3))
    panels[-1].set_xlabel(training.label)
    legend(figure, panels[0])
    summary = " ".join(_of_rate(trajectories, feature, name, log) for feature, name in known)
    return Chart(
        "rate",
        f"{summary} Wasserstein-2 distance between the diagrams of consecutive checkpoints, over all layers, divided "
        f"by the steps between them (logarithmic axis).{left_out}" + training.mark_suspects(panels[-1]),
        f"Rate of change of persistence diagrams and learning rate against training step. {summary}",
        figure,
    )


def _speed(trajectory: Trajectory, feature: Feature) -> Vector:
    """Return distance per step since the checkpoint before; NaN at the first."""
    values = trajectory.features.get(feature, np.full(len(trajectory.steps), np.nan))
    gaps = np.diff(trajectory.steps, prepend=np.nan)
    return values / gaps


def _of_rate(trajectories: list[Trajectory], feature: Feature, name: str, log: pl.DataFrame) -> str:
    """Describe when diagrams move fastest, how much slower they end, and their correlation with the learning rate."""
    peaks, slower, correlations = [], [], []
    for trajectory in trajectories:
        speed = _speed(trajectory, feature)
        known = np.isfinite(speed)
        if known.sum() < MIN_CHECKPOINTS:
            continue
        steps, speed = trajectory.steps[known], speed[known]
        peaks.append(int(steps[speed.argmax()]))
        slower.append(float(speed.max() / speed[-1]) if speed[-1] > 0 else np.inf)
        rows = log.filter(run=trajectory.run)
        if len(rows):
            # The mean learning rate since the checkpoint before is what moved the weights.
            total = np.cumsum(rows["learning_rate"].to_numpy())
            at = np.searchsorted(rows["step"].to_numpy(), trajectory.steps, side="right") - 1
            mean = (
                np.diff(total[np.maximum(at, 0)], prepend=np.nan)[known]
                / np.diff(trajectory.steps, prepend=np.nan)[known]
            )
            if np.isfinite(mean).all() and np.ptp(mean) > 0 and np.ptp(speed) > 0:
                correlations.append(float(spearmanr(speed, mean)[0]))
    if not peaks:
        return f"{name} diagrams are compared at too few checkpoints to say when they move fastest."
    at_step = f"{min(peaks):,}" if min(peaks) == max(peaks) else f"{min(peaks):,} to {max(peaks):,}"
    fold = number(min(slower)) if min(slower) == max(slower) else f"{number(min(slower))} to {number(max(slower))}"
    text = f"{name} diagrams move fastest at step {at_step}, {fold} times as fast as at the end"
    return f"{text}; rho of their speed with the learning rate: {span(correlations)}." if correlations else f"{text}."


def change_point_chart(material: Material) -> Chart | None:
    """Draw change points of mean neural persistence, with their intervals, on its trajectory."""
    points = material.tables["change_points"].filter(feature=NP.key)
    trajectories = [t for t in material.trajectories if NP.feature in t.features]
    looked_at = set(points.get_column("run"))
    if not looked_at:
        return None
    with_points = [t for t in trajectories if t.run in looked_at]
    shown, left_out = choose_runs(with_points, material.runs)
    if not shown:
        return None
    figure = new_figure(1.15 * len(shown) + 0.9)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    training, marks = TrainingAxis(shown, material.findings), ""
    for axes, trajectory, (colour, _) in zip(panels, shown, run_styles(), strict=False):
        values = trajectory.features[NP.feature]
        run = trajectory.run
        axes.plot(training.of(run, trajectory.steps), values, color=colour)
        for row in points.filter(run=trajectory.run).iter_rows(named=True):
            height = float(np.interp(row["step"], trajectory.steps, values))
            face = "white" if row["explained"] else INK
            axes.hlines(
                height, *training.of(run, [row["low"], row["high"]]), color=INK, linewidth=2.2, alpha=0.55, zorder=3
            )
            axes.plot(
                training.of(run, row["step"]),
                height,
                marker="o",
                markersize=7,
                color=INK,
                markerfacecolor=face,
                zorder=4,
            )
        axes.set_title(trajectory.run, loc="left")
        marks = training.mark_suspects(axes, [run]) or marks
    figure.supylabel("mean neural persistence", fontsize=LABEL)
    panels[-1].set_xlabel(training.label)
    return Chart(
        "change_points",
        f"{_of_points(points)} Dots: change points; bars: 95% bootstrap interval of the place; hollow: a smooth "
        f"trend explains it, so it does not mark a phase.{left_out}{marks}",
        f"Mean neural persistence over training with its change points, one panel per run. {_of_points(points)}",
        figure,
    )


def _of_points(points: pl.DataFrame) -> str:
    beyond = points.filter(~pl.col("explained"))
    n_runs = points.get_column("run").n_unique()
    if not len(beyond):
        return f"A smooth trend explains each of the {len(points)} change points of mean neural persistence."
    named = [f"{run} at {step:,}" for run, step in beyond.select("run", "step").head(MAX_STEPS_NAMED).iter_rows()]
    more = f", and {len(beyond) - MAX_STEPS_NAMED} more" if len(beyond) > MAX_STEPS_NAMED else ""
    return (
        f"{len(beyond)} of {len(points)} change points of mean neural persistence, in "
        f"{runs_of(beyond.get_column('run').n_unique(), n_runs)}, are more than a smooth trend explains: "
        f"{joined(named) if not more else ', '.join(named) + more}."
    )
