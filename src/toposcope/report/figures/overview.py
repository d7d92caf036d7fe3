"""One figure for those who look at one."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from toposcope.analysis.trajectories import Trajectory
from toposcope.report.figures.correlation import of_network, strongest
from toposcope.report.figures.drawn import Drawn, Training, chosen, legend, logarithmic_if_wide, looks, new_figure
from toposcope.report.headline import H0, NP, TARGETS, TRAJECTORIES
from toposcope.report.material import Material

MARKS = 8
"""On a line, about; the panels are small."""
SHORT = {"neural_persistence np_mean": "NP", "rips H0.total": "H0", "rips H1.total": "H1"}


def overview(material: Material) -> Drawn | None:
    """Draw loss, neural persistence, H0 total, and what they have to do with each other."""
    found = [t for t in material.trajectories if t.targets and {NP.feature, H0.feature} <= t.features.keys()]
    rows = of_network(material).filter(pl.col("feature").is_in([h.key for h in TRAJECTORIES]))
    if not found or not len(rows):
        return None
    shown, left_out = chosen(found, material.runs)
    figure = new_figure(5.4)
    panels = figure.subplots(2, 2)
    training = Training(shown, material.findings)
    for trajectory, (colour, marker) in zip(shown, looks(), strict=False):
        for axes, values in zip(panels.flat, _series(trajectory), strict=False):
            axes.plot(
                training.of(trajectory.run, trajectory.steps), values, color=colour, marker=marker, markersize=4.5,
                markevery=max(1, len(values) // MARKS), label=trajectory.run,
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
            np.linspace(-0.1, 0.1, len(shown)), shown, looks(), strict=False
        ):
            mine = rows.filter(run=trajectory.run, feature=headline.key)
            _before_and_after(last, place + offset, mine, colour, marker)
    last.axhline(0, color="black", linewidth=0.8)
    last.set(ylim=(-1.05, 1.05), xlim=(-0.5, len(TRAJECTORIES) - 0.5))
    last.set_xticks(range(len(TRAJECTORIES)), [SHORT[h.key] for h in TRAJECTORIES])
    last.set_xlabel("filled: alone, hollow: given step")
    logarithmic_if_wide(panels[1, 0])
    legend(figure, panels[0, 0])
    parts = [f"{h.name}: {told}" for h in TRAJECTORIES if (told := strongest(rows, h.key))]
    return Drawn(
        "overview",
        f"What topology tells of the loss: {'; '.join(parts)}. Loss, neural persistence and H0 total over training, "
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
