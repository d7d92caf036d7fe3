"""Which layers move, and when: heat maps of layer by step."""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from toposcope.analysis.trajectories import WEIGHT_NORM, Features, Trajectory
from toposcope.report.figures.chart import (
    Chart,
    TrainingAxis,
    choose_runs,
    new_figure,
    percent,
    signed,
)
from toposcope.report.headline import H0, NP
from toposcope.report.material import Material
from toposcope.typing import Vector

BLOCK = re.compile(r"(?:^|\.)(\d+)\.")
MAX_LABELS = 20
MAX_PANELS = 4
N_COLUMNS = 240
"""Columns of a heat map whose checkpoints are not evenly spaced."""


@dataclass(frozen=True)
class Quantity:
    """What a column of heat maps shows: a feature of each layer, less its value at the first checkpoint."""

    name: str
    title: str
    in_percent: bool

    def of(self, trajectory: Trajectory) -> dict[str, Vector]:
        """Return the change since the first checkpoint by layer; layers without it are absent."""
        changes = {}
        for layer in in_order(trajectory):
            values = self._values(trajectory.layers[layer], layer)
            if values is not None and np.isfinite(values[0]) and np.isfinite(values).sum() > 1:
                changes[layer] = (100 * (values / values[0] - 1)) if self.in_percent else values - values[0]
        return changes

    def text(self, change: float) -> str:
        """Write a change."""
        if not self.in_percent:
            return signed(change, 3) if abs(change) >= 0.0005 else "under 0.001"
        return percent(1, 1 + change / 100)

    def _values(self, features: Features, layer: str) -> Vector | None:
        if not self.in_percent:
            return features.get(NP.feature.of_group(layer))
        total, norm = (features.get(feature.of_group(layer)) for feature in (H0.feature, WEIGHT_NORM))
        if total is None or norm is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            values = total / norm
        return values if np.isfinite(values[0]) and values[0] > 0 else None


NP_CHANGE = Quantity("mean neural persistence", "change of mean\nneural persistence", in_percent=False)
H0_CHANGE = Quantity("H0 total / weight norm", "change of H0 total /\nweight norm, %", in_percent=True)


def layer_heat_maps(material: Material) -> Chart | None:
    """Draw how far each layer has moved since the first checkpoint."""
    trajectories = [t for t in material.trajectories if len(t.steps) > 1 and (NP_CHANGE.of(t) or H0_CHANGE.of(t))]
    if not trajectories:
        return None
    quantities = [q for q in (NP_CHANGE, H0_CHANGE) if any(q.of(t) for t in trajectories)]
    shown, left_out = choose_runs(trajectories, material.runs, MAX_PANELS)
    one_axis = TrainingAxis(shown, material.findings).in_steps
    heights = [(0.4 if one_axis else 0.65) + 0.145 * min(MAX_LABELS, len(t.layers)) for t in shown]
    figure = new_figure(sum(heights) + 1.2)
    panels = figure.subplots(
        len(shown), len(quantities), squeeze=False, height_ratios=heights, sharex="col" if one_axis else False
    )
    for column, quantity in enumerate(quantities):
        changes = {t.run: quantity.of(t) for t in shown}
        known = np.concatenate([np.ravel(v) for run in changes.values() for v in run.values()])
        low, high = float(np.nanmin(known)), float(np.nanmax(known))
        for axes, trajectory in zip(panels[:, column], shown, strict=True):
            _heat_map(axes, trajectory, changes[trajectory.run], (low, high if high > low else low + 1))
            axes.set_title(trajectory.run, loc="left")
        images = [axes.images[0] for axes in panels[:, column] if axes.images]
        figure.colorbar(
            images[0], ax=list(panels[:, column]), location="top", label=quantity.title, aspect=25, fraction=0.02
        )
    for axes in panels[-1]:
        axes.set_xlabel("training step")
    for axes in panels[:, 1:].flat:
        axes.tick_params(labelleft=False)
    marks = ""
    for row, trajectory in zip(panels, shown, strict=True):
        for axes in row:
            marks = TrainingAxis([trajectory], material.findings).mark_suspects(axes) or marks
    summary = " ".join(_describe(quantity, trajectories) for quantity in quantities)
    return Chart(
        "layers",
        f"{summary} Colour: change since the first checkpoint; rows: layers, from the first to the last.{left_out}"
        f"{marks}",
        f"Heat maps of layer by training step, a row of panels for each of {len(shown)} runs. {summary}",
        figure,
    )


def _heat_map(axes: Axes, trajectory: Trajectory, changes: dict[str, Vector], limits: tuple[float, float]) -> None:
    names = list(changes)
    if not names:
        axes.set_axis_off()
        return
    image, extent = on_even_steps(trajectory.steps, np.array([changes[name] for name in names]))
    axes.imshow(image, aspect="auto", vmin=limits[0], vmax=limits[1], extent=(*extent, len(names) - 0.5, -0.5))
    labels = short_names(names, trajectory.roles)
    every = -(-len(names) // MAX_LABELS)
    axes.set_yticks(range(0, len(names), every), labels[::every])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)


def on_even_steps(steps: NDArray[np.int64], rows: Vector) -> tuple[Vector, tuple[float, float]]:
    """Arrange columns for an image, whose columns are equally wide.

    Parameters
    ----------
    steps : ndarray, shape (n,)
    rows : ndarray, shape (m, n)

    Returns
    -------
    image : ndarray, shape (m, k)
        `rows` where the steps are even, else the column of the nearest step at k even ones.
    extent : (float, float)
        Steps at the left and the right edge.
    """
    gaps = np.diff(steps)
    if len(gaps) and (gaps == gaps[0]).all():
        half = gaps[0] / 2
        return rows, (float(steps[0] - half), float(steps[-1] + half))
    at = np.linspace(steps[0], steps[-1], N_COLUMNS)
    nearest = np.abs(at[:, None] - steps).argmin(axis=1)
    return rows[:, nearest], (float(steps[0]), float(steps[-1]))


def in_order(trajectory: Trajectory) -> list[str]:
    """Return the layers by block, the head last; checkpoint files may hold them in another order."""

    def place(layer: str) -> tuple[bool, int]:
        block = BLOCK.search(layer)
        return trajectory.roles.get(layer) == "head", int(block.group(1)) if block else -1

    return sorted(trajectory.layers, key=place)


def short_names(names: list[str], roles: dict[str, str]) -> list[str]:
    """Return the number of a layer's block and its role, or the layer's own name where that is not unique."""
    labels = []
    for name in names:
        block = BLOCK.search(name)
        role = roles.get(name) or "other"
        labels.append(f"{block.group(1)} {role}" if block else role)
    counts = Counter(labels)
    return [label if counts[label] == 1 else name[-18:] for label, name in zip(labels, names, strict=True)]


def _describe(quantity: Quantity, trajectories: list[Trajectory]) -> str:
    """Say which layers moved most and least, and when the one that moved most had changed by half as much."""
    ends = []
    for trajectory in trajectories:
        changes = quantity.of(trajectory)
        labels = dict(zip(changes, short_names(list(changes), trajectory.roles), strict=True))
        for layer, values in changes.items():
            known = np.isfinite(values)
            ends.append((trajectory, labels[layer], trajectory.steps[known], values[known]))
    if not ends:
        return ""
    ends.sort(key=lambda end: abs(end[3][-1]))
    (run_least, least, _, smallest), (run_most, most, steps, largest) = ends[0], ends[-1]
    half = int(steps[np.argmax(np.abs(largest) >= abs(largest[-1]) / 2)])
    roles = Counter(_most_moved_role(quantity, t) for t in trajectories if quantity.of(t))
    role, count = roles.most_common(1)[0]
    return (
        f"{quantity.name[0].upper()}{quantity.name[1:]} has moved most by the last checkpoint in {most} of "
        f"{run_most.run} "
        f"({quantity.text(largest[-1])}, half of it by step {half:,}), least in {least} of {run_least.run} "
        f"({quantity.text(smallest[-1])}); by role, most in {role} in {count} of {len(list(trajectories))} runs."
    )


def _most_moved_role(quantity: Quantity, trajectory: Trajectory) -> str:
    """Return the role whose layers moved most on average by the last checkpoint."""
    by_role: dict[str, list[float]] = {}
    for layer, values in quantity.of(trajectory).items():
        by_role.setdefault(trajectory.roles.get(layer) or "other", []).append(abs(values[np.isfinite(values)][-1]))
    return max(by_role, key=lambda role: float(np.mean(by_role[role])))
