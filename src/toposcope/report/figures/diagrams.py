"""Persistence diagrams at chosen checkpoints, and Betti curves over training (CROCKER plot)."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from toposcope.analysis.trajectories import WEIGHT_NORM, Trajectory
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, betti_curve
from toposcope.report.figures.chart import (
    COLOURS,
    FAINT,
    LABEL,
    Chart,
    TrainingAxis,
    largest_run,
    new_figure,
    number,
    percent,
)
from toposcope.report.figures.layers import on_even_steps, short_names
from toposcope.report.headline import H0
from toposcope.report.material import Material
from toposcope.typing import Vector

PROBE = "rips"
MAX_BARS = 60
"""Bars drawn of each diagram, the longest first."""
MAX_CHECKPOINTS = 26
N_VALUES = 64
H0_COLOUR, H1_COLOUR = COLOURS[0], COLOURS[1]


def diagram_chart(material: Material) -> Chart | None:
    """Draw diagrams and barcodes of the layer that moved most in the largest run, at three checkpoints."""
    trajectories = [t for t in material.trajectories if _moves(t) and len(t.steps) > 1]
    if PROBE not in material.labels.get_column("label") or not trajectories:
        return None
    trajectory = largest_run(trajectories, material.runs)
    moves = _moves(trajectory)
    layer = max(moves, key=lambda name: moves[name])
    steps = _shown_steps(trajectory, layer)
    read = {step: _read(material, trajectory.run, step).get(layer) for step in steps}
    bars = {step: {name: positive(d) for name, d in d.items()} for step, d in read.items() if d}
    if len(bars) < 2 or any("H0" not in d for d in bars.values()):
        return None
    label = short_names([layer], trajectory.roles)[0]
    figure = new_figure(4.6)
    panels = figure.subplots(2, len(bars), sharex="row", sharey="row", squeeze=False)
    for i, (step, of_step) in enumerate(bars.items()):
        plot_points(panels[0, i], of_step)
        plot_barcode(panels[1, i], of_step)
        panels[0, i].set_title(f"step {step:,}")
    longest = max(float(b.max()) for d in bars.values() for b in d.values() if len(b))
    for axes in panels[0]:
        axes.plot([0, longest], [0, longest], color=FAINT, linewidth=1, zorder=0)
        axes.set(xlabel="birth")
        axes.locator_params(nbins=4)
    panels[0, 0].set_ylabel("death")
    panels[1, 0].set_ylabel(f"bars, longest {MAX_BARS}")
    figure.supxlabel("filtration value (distance between rows)", fontsize=LABEL)
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2)
    summary = "; ".join(diagram_summary(step, of_step) for step, of_step in bars.items())
    first, *_, last = (of_step["H0"] for of_step in bars.values())
    change = percent(float((first[:, 1] - first[:, 0]).sum()), float((last[:, 1] - last[:, 0]).sum()))
    return Chart(
        "diagrams",
        f"H0 total of {label} of {trajectory.run}, the layer that moved most, changes by {change} between the first "
        f"and the last checkpoint: {summary}. Columns: the first checkpoint, the one after the largest change, and "
        f"the last. Above: diagrams; below: their {MAX_BARS} longest bars of each dimension.",
        f"Persistence diagrams and barcodes of layer {layer} of {trajectory.run} at {len(bars)} checkpoints: "
        f"{summary}.",
        figure,
    )


def _moves(trajectory: Trajectory) -> dict[str, float]:
    """Return how far H0 total moved between the first and last checkpoint, as a factor's logarithm, by layer.

    Of the total divided by the weight norm where that is known.
    """
    moves = {}
    for layer, features in trajectory.layers.items():
        total = features.get(H0.feature.of_group(layer))
        if total is not None:
            norm = features.get(WEIGHT_NORM.of_group(layer), np.ones(len(total)))
            with np.errstate(divide="ignore", invalid="ignore"):
                move = abs(float(np.log((total[-1] / norm[-1]) / (total[0] / norm[0]))))
            if np.isfinite(move):
                moves[layer] = move
    return moves


def _shown_steps(trajectory: Trajectory, layer: str) -> list[int]:
    """Return the first step, the step after which H0 total of the layer had changed most, and the last step."""
    total = trajectory.layers[layer][H0.feature.of_group(layer)]
    change = np.nan_to_num(np.abs(np.diff(total)))
    return sorted({int(trajectory.steps[i]) for i in (0, int(change.argmax()) + 1, -1)})


def _read(material: Material, run: str, step: int) -> dict[str, dict[str, Diagram]]:
    """Return the diagrams of a checkpoint; empty if their file is missing."""
    try:
        return material.diagrams(run, step, PROBE)
    except ToposcopeError:
        return {}


def positive(diagram: Diagram) -> Vector:
    """Return the points of positive length as births and deaths, whichever way the filtration goes."""
    pairs = np.sort(diagram.pairs, axis=1)
    return pairs[pairs[:, 1] > pairs[:, 0]]


def plot_points(axes: Axes, bars: dict[str, Vector]) -> None:
    """Draw a diagram of each dimension."""
    for name, colour, marker in (("H0", H0_COLOUR, "o"), ("H1", H1_COLOUR, "^")):
        if name in bars:
            axes.plot(*bars[name].T, linestyle="none", marker=marker, color=colour, alpha=0.6, label=name)


def plot_barcode(axes: Axes, bars: dict[str, Vector]) -> None:
    """Draw the longest bars, the shortest of them lowest, H1 above H0."""
    height = 0
    for name, colour in (("H0", H0_COLOUR), ("H1", H1_COLOUR)):
        pairs = bars.get(name, np.empty((0, 2)))
        longest = pairs[np.argsort(pairs[:, 1] - pairs[:, 0], kind="stable")][-MAX_BARS:]
        axes.hlines(height + np.arange(len(longest)), longest[:, 0], longest[:, 1], color=colour, linewidth=1)
        height += len(longest) + 3
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")


def diagram_summary(step: int, bars: dict[str, Vector]) -> str:
    """Describe a checkpoint's diagrams: total persistence of H0, the longest bar, the number of loops."""
    total, longest = (float(f(bars["H0"][:, 1] - bars["H0"][:, 0])) if len(bars["H0"]) else 0 for f in (np.sum, np.max))
    loops = f", {len(bars['H1'])} loops" if "H1" in bars else ""
    return f"step {step:,}: H0 total {number(total)}, longest bar {number(longest)}{loops}"


@dataclass(frozen=True)
class Curves:
    """Betti curves of one dimension over training.

    Attributes
    ----------
    at : ndarray, shape (m,)
        Filtration values.
    counts : ndarray, shape (m, n)
        By filtration value and checkpoint.
    middle : ndarray, shape (n,)
        The value by which half of the components have merged (the median death), or the mean value at which loops are
        alive.
    """

    at: Vector
    counts: Vector
    middle: Vector


def crocker_chart(material: Material) -> Chart | None:
    """Draw Betti curves over training, of distances and of distances divided by each layer's weight norm."""
    trajectories = [t for t in material.trajectories if len(t.steps) > 2 and t.layers]
    if PROBE not in material.labels.get_column("label") or not trajectories:
        return None
    trajectory = largest_run(trajectories, material.runs)
    n = len(trajectory.steps)
    steps = trajectory.steps[np.unique(np.linspace(0, n - 1, min(n, MAX_CHECKPOINTS)).round().astype(int))]
    read = {int(step): d for step in steps if (d := _read(material, trajectory.run, int(step)))}
    if len(read) < 3:
        return None
    norms = {
        layer: dict(zip(trajectory.steps.tolist(), features[WEIGHT_NORM.of_group(layer)], strict=True))
        for layer, features in trajectory.layers.items()
        if WEIGHT_NORM.of_group(layer) in features
    }
    scales = [None, norms] if norms else [None]
    dimensions = [k for k in (0, 1) if all(f"H{k}" in of_layer for d in read.values() for of_layer in d.values())]
    figure = new_figure(2.5 * len(dimensions) + 0.4)
    panels = figure.subplots(len(dimensions), len(scales), sharex=True, squeeze=False)
    middles: dict[tuple[int, bool], Vector] = {}
    at_steps = np.array(list(read))
    for row, dimension in zip(panels, dimensions, strict=True):
        for axes, scale in zip(row, scales, strict=True):
            curves = betti_curves(read, f"H{dimension}", scale)
            middles[dimension, scale is not None] = curves.middle
            _crocker_panel(axes, at_steps, curves)
        figure.colorbar(
            row[-1].images[0], ax=list(row), label="components" if dimension == 0 else "loops", pad=0.02, aspect=15
        )
        row[0].set_ylabel(f"H{dimension}: distance")
    panels[0, 0].set_title("undivided")
    if len(scales) > 1:
        panels[0, 1].set_title("divided by the layer's\nweight norm")
    for axes in panels[-1]:
        axes.set_xlabel("training step")
    training = TrainingAxis([trajectory], material.findings)
    marks = "".join(sorted({training.mark_suspects(axes) for axes in panels[-1]}))
    summary = describe_middles(middles, trajectory.run)
    return Chart(
        "crocker",
        f"{summary} Betti numbers, summed over layers, at {len(read)} of {n} checkpoints; white line: the distance at "
        f"which half of the components have merged (H0), or the mean distance at which loops are alive (H1).{marks}",
        f"CROCKER plot of {trajectory.run}: Betti numbers by filtration value and training step. {summary}",
        figure,
    )


def betti_curves(
    read: dict[int, dict[str, dict[str, Diagram]]], name: str, norms: dict[str, dict[int, float]] | None
) -> Curves:
    """Add up the Betti curves of all layers at each checkpoint, distances divided by norms if given."""
    clouds: list[list[Diagram]] = []
    for step, of_layers in read.items():
        divisors = {layer: 1.0 if norms is None else norms.get(layer, {}).get(step, np.nan) for layer in of_layers}
        clouds.append(
            [Diagram(d[name].pairs / divisors[k], d[name].dimension) for k, d in of_layers.items() if divisors[k] > 0]
        )
    deaths = [np.concatenate([np.empty(0), *(d.pairs[d.lifetimes > 0, 1] for d in cloud)]) for cloud in clouds]
    every = np.concatenate(deaths)
    at = np.linspace(0, float(np.quantile(every, 0.995)) if len(every) else 1.0, N_VALUES)
    summed = [np.sum([np.zeros(N_VALUES), *(betti_curve(d, at) for d in cloud)], axis=0) for cloud in clouds]
    counts = np.array(summed, dtype=np.float64).T
    if name == "H0":
        middle = np.array([np.median(d) if len(d) else np.nan for d in deaths])
    else:
        middle = at @ counts / np.maximum(counts.sum(axis=0), 1)
    return Curves(at, counts, middle)


def _crocker_panel(axes: Axes, steps: NDArray[np.int64], curves: Curves) -> None:
    image, extent = on_even_steps(steps, curves.counts)
    axes.imshow(image, aspect="auto", origin="lower", extent=(*extent, 0, float(curves.at[-1])))
    axes.plot(steps, curves.middle, color="white", linewidth=2.5)
    axes.plot(steps, curves.middle, color="black", linewidth=1, linestyle="--")
    axes.grid(visible=False)


def describe_middles(middles: dict[tuple[int, bool], Vector], run: str, scale: str = "weight norm") -> str:
    """Describe how far the curves moved, before and after division by the scale."""
    parts = []
    for dimension, what in (
        (0, "the distance at which half of the components have merged"),
        (1, "the mean distance at which loops are alive"),
    ):
        raw = _known(middles.get((dimension, False), np.empty(0)))
        if not len(raw):
            continue
        text = f"{what} moves from {number(raw[0])} to {number(raw[-1])} ({percent(raw[0], raw[-1])}"
        ratio = _known(middles.get((dimension, True), np.empty(0)))
        if len(ratio):
            text += f"; divided by the {scale} {percent(ratio[0], ratio[-1])}"
        parts.append(f"{text})")
    return f"In {run} {', and '.join(parts)}."


def _known(values: Vector) -> Vector:
    """Return the finite values."""
    return values[np.isfinite(values)]
