"""The study at a glance: the loss, two topological features and their correlations with the loss."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from toposcope.analysis.trajectories import Trajectory
from toposcope.report.figures.chart import (
    Chart,
    TrainingAxis,
    choose_runs,
    legend,
    logarithmic_if_wide,
    new_figure,
    run_styles,
    runs_of,
    span,
)
from toposcope.report.headline import H0, NP, TARGETS, TRAJECTORIES
from toposcope.report.material import Material

MARKERS_PER_LINE = 8
"""Approximate number of markers on a line; the panels are small."""
SHORT = {"neural_persistence np_mean": "NP", "rips H0.total": "H0", "rips H1.total": "H1"}


def overview_chart(material: Material) -> Chart | None:
    """Draw loss, neural persistence and H0 total over training, and their correlations with the loss."""
    found = [t for t in material.trajectories if t.targets and {NP.feature, H0.feature} <= t.features.keys()]
    rows = of_network(material).filter(pl.col("feature").is_in([h.key for h in TRAJECTORIES]))
    if not found or not len(rows):
        return None
    shown, left_out = choose_runs(found, material.runs)
    figure = new_figure(5.4)
    panels = figure.subplots(2, 2)
    training = TrainingAxis(shown, material.findings)
    for trajectory, (colour, marker) in zip(shown, run_styles(), strict=False):
        for axes, values in zip(panels.flat, _series(trajectory), strict=False):
            axes.plot(
                training.of(trajectory.run, trajectory.steps), values, color=colour, marker=marker, markersize=4.5,
                markevery=max(1, len(values) // MARKERS_PER_LINE), label=trajectory.run,
            )  # fmt: skip
    target = TARGETS[next(iter(shown[0].targets))]
    for axes, title in zip(
        panels.flat, (target, "mean neural persistence", "H0 total", "rho with the loss"), strict=True
    ):
        axes.set_title(title)
    for axes in panels.flat[:3]:
        axes.set_xlabel(training.label)
        axes.locator_params(axis="x", nbins=4)
    last = panels[1, 1]
    for place, headline in enumerate(TRAJECTORIES):
        for offset, trajectory, (colour, marker) in zip(
            np.linspace(-0.1, 0.1, len(shown)), shown, run_styles(), strict=False
        ):
            row = rows.filter(run=trajectory.run, feature=headline.key)
            _before_and_after(last, place + offset, row, colour, marker)
    last.axhline(0, color="black", linewidth=0.8)
    last.set(ylim=(-1.05, 1.05), xlim=(-0.5, len(TRAJECTORIES) - 0.5))
    last.set_xticks(range(len(TRAJECTORIES)), [SHORT[h.key] for h in TRAJECTORIES])
    last.set_xlabel("filled: alone, hollow: given step")
    logarithmic_if_wide(panels[1, 0])
    legend(figure, panels[0, 0])
    parts = [f"{h.name}: {description}" for h in TRAJECTORIES if (description := describe_feature(rows, h.key))]
    return Chart(
        "overview",
        f"Topology and the loss: {'; '.join(parts)}. Loss, neural persistence and H0 total over training, "
        f"and Spearman's rho with the loss alone (filled) and given the step (hollow).{left_out}",
        "Four panels: loss, mean neural persistence and H0 total against training step, and correlations. "
        f"{'; '.join(parts)}.",
        figure,
    )


def _series(trajectory: Trajectory) -> tuple[np.ndarray, ...]:
    return next(iter(trajectory.targets.values())), trajectory.features[NP.feature], trajectory.features[H0.feature]


def _before_and_after(axes: Axes, place: float, row: pl.DataFrame, colour: str, marker: str) -> None:
    """Draw rho alone and given the step, a line between them."""
    if len(row):
        x, y = (place - 0.2, place + 0.2), (row.item(0, "rho"), row.item(0, "rho_given_step"))
        axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.6)
        axes.plot(x[0], y[0], color=colour, marker=marker, markersize=5)
        axes.plot(x[1], y[1], color=colour, marker=marker, markersize=5, markerfacecolor="white")


def of_network(material: Material) -> pl.DataFrame:
    """Return the rows of the whole network with each run's first target, where rho is defined."""
    first = {t.run: next(iter(t.targets)) for t in material.trajectories if t.targets}
    rows = pl.DataFrame(list(first.items()), schema={"run": pl.String, "target": pl.String}, orient="row")
    table = material.tables["association"].filter(pl.col("rho").is_finite(), pl.col("group") == "network")
    return table.join(rows, on=["run", "target"], how="semi", maintain_order="left")


def describe_feature(rows: pl.DataFrame, feature: str) -> str:
    """Write the range of a feature's rho over the runs, alone and given the step; for captions."""
    of_feature = rows.filter(feature=feature)
    if not len(of_feature):
        return ""
    given = of_feature.filter(pl.col("rho_given_step").is_finite())
    undefined = len(of_feature) - len(given)
    parts = [f"given the step {span(given['rho_given_step'])}"] if len(given) else []
    if undefined:
        parts.append(
            f"given the step not defined in {runs_of(undefined, len(of_feature))}, ranked as the step ranks them"
        )
    return f"rho {span(of_feature['rho'])}, {', '.join(parts)}"
