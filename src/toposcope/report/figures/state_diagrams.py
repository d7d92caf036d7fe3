"""Persistence diagrams of the last hidden state at chosen checkpoints, and Betti curves over training."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from toposcope.analysis.trajectories import STATES, Trajectory, cloud_feature
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.probes.feature import NETWORK
from toposcope.report.figures.chart import FAINT, LABEL, Chart, largest_run, new_figure, percent
from toposcope.report.figures.diagrams import (
    MAX_BARS,
    Curves,
    betti_curves,
    describe_middles,
    diagram_summary,
    plot_barcode,
    plot_points,
    positive,
)
from toposcope.report.headline import cloud_named, clouds_of
from toposcope.report.material import Material
from toposcope.typing import Vector

MAX_TICKS = 6
RADIUS = "rms_radius"


def state_diagram_chart(material: Material) -> Chart | None:
    """Draw diagrams and barcodes of the last hidden state of the largest run, at three checkpoints."""
    chosen = _largest(material)
    if chosen is None:
        return None
    cloud, trajectory = chosen
    total = trajectory.features.get(cloud_feature(cloud, "H0.total"), np.full(len(trajectory.steps), np.nan))
    change = np.nan_to_num(np.abs(np.diff(total)))
    places = sorted({0, int(change.argmax()) + 1, len(total) - 1}) if len(change) else [0]
    read = _read(material, trajectory, [int(trajectory.steps[i]) for i in places])
    bars = {step: {name: positive(d) for name, d in found.items()} for step, found in read.items()}
    if len(bars) < 2 or any("H0" not in found or not len(found["H0"]) for found in bars.values()):
        return None
    figure = new_figure(4.6)
    panels = figure.subplots(2, len(bars), sharex="row", sharey="row", squeeze=False)
    longest = max(float(b.max()) for found in bars.values() for b in found.values() if len(b))
    for column, (step, found) in zip(panels.T, bars.items(), strict=True):
        plot_points(column[0], found)
        plot_barcode(column[1], found)
        column[0].plot([0, longest], [0, longest], color=FAINT, linewidth=1, zorder=0)
        column[0].set(xlabel="birth", title=f"step {step:,}")
        column[0].locator_params(nbins=4)
    panels[0, 0].set_ylabel("death")
    panels[1, 0].set_ylabel(f"bars, longest {MAX_BARS}")
    figure.supxlabel("filtration value (distance between points)", fontsize=LABEL)
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2)
    summary = "; ".join(diagram_summary(step, found) for step, found in bars.items())
    first, *_, last = (float((found["H0"][:, 1] - found["H0"][:, 0]).sum()) for found in bars.values())
    return Chart(
        "state_diagrams",
        f"H0 total of the last hidden state of {trajectory.run} changes by {percent(first, last)} between the first "
        f"and the last checkpoint: {summary}. Columns: the first checkpoint, the one after the largest change, and "
        f"the last. Above: diagrams; below: their {MAX_BARS} longest bars of each dimension. "
        f"Cloud: {cloud_named(cloud, 'the last hidden state')}.",
        f"Persistence diagrams and barcodes of the last hidden state of {trajectory.run} at {len(bars)} checkpoints: "
        f"{summary}.",
        figure,
    )


def state_crocker_chart(material: Material) -> Chart | None:
    """Draw Betti curves of the last hidden state over training, of distances and of distances over the radius."""
    chosen = _largest(material)
    if chosen is None:
        return None
    cloud, trajectory = chosen
    read = {step: {NETWORK: d} for step, d in _read(material, trajectory, trajectory.steps.tolist()).items()}
    if len(read) < 3:
        return None
    radius = trajectory.features.get(cloud_feature(cloud, RADIUS))
    norms = None if radius is None else {NETWORK: dict(zip(trajectory.steps.tolist(), radius.tolist(), strict=True))}
    scales = [None] if norms is None else [None, norms]
    dimensions = [k for k in (0, 1) if all(f"H{k}" in found[NETWORK] for found in read.values())]
    figure = new_figure(2.5 * len(dimensions) + 0.4)
    panels = figure.subplots(len(dimensions), len(scales), sharex=True, squeeze=False)
    middles: dict[tuple[int, bool], Vector] = {}
    for row, dimension in zip(panels, dimensions, strict=True):
        for axes, scale in zip(row, scales, strict=True):
            curves = betti_curves(read, f"H{dimension}", scale)
            middles[dimension, scale is not None] = curves.middle
            _in_order(axes, list(read), curves)
        what = "components" if dimension == 0 else "loops"
        figure.colorbar(row[-1].images[0], ax=list(row), label=what, pad=0.02, aspect=15)
        row[0].set_ylabel(f"H{dimension}: distance")
    panels[0, 0].set_title("undivided")
    for axes in panels[0, 1:]:
        axes.set_title("divided by the\ncloud's radius")
    for axes in panels[-1]:
        axes.set_xlabel("checkpoint (step)")
    summary = describe_middles(middles, trajectory.run, "radius of the cloud")
    return Chart(
        "state_crocker",
        f"{summary} Betti numbers of the last hidden state at {len(read)} checkpoints, in their order, not to scale; "
        "white line: the distance at which half of the components have merged (H0), or the mean distance at which "
        f"loops are alive (H1). Cloud: {cloud_named(cloud, 'the last hidden state')}.",
        f"CROCKER plot of the last hidden state of {trajectory.run}: Betti numbers by filtration value and checkpoint. "
        f"{summary}",
        figure,
    )


def _largest(material: Material) -> tuple[str, Trajectory] | None:
    """Return the cloud and the largest run whose hidden states were measured here; published ones have no diagrams."""
    cloud = next((label for label in clouds_of(material.trajectories) if label.startswith(STATES)), "")
    found = [t for t in material.trajectories if cloud in t.clouds and len(t.steps) > 1]
    found = [t for t in found if any(feature.label == cloud for feature in t.features)]
    return (cloud, largest_run(found, material.runs)) if cloud and found else None


def _read(material: Material, trajectory: Trajectory, steps: list[int]) -> dict[int, dict[str, Diagram]]:
    """Return the diagrams of the last hidden state by step, without the steps whose file is missing."""
    label = material.labels.filter(pl.col("probe") == STATES).get_column("label")[0]
    found = {}
    for step in steps:
        try:
            of_step = material.diagrams(trajectory.run, step, label).get(NETWORK)
        except ToposcopeError:
            continue
        if of_step:
            found[step] = of_step
    return found


def _in_order(axes: Axes, steps: list[int], curves: Curves) -> None:
    """Draw a column a checkpoint: steps that are spaced by their logarithm leave no room on an even axis."""
    n = len(steps)
    axes.imshow(curves.counts, aspect="auto", origin="lower", extent=(-0.5, n - 0.5, 0, float(curves.at[-1])))
    for colour, width, line in (("white", 2.5, "-"), ("black", 1.0, "--")):
        axes.plot(range(n), curves.middle, color=colour, linewidth=width, linestyle=line)
    ticks = np.unique(np.linspace(0, n - 1, min(n, MAX_TICKS)).round().astype(int))
    axes.set_xticks(ticks, [f"{steps[i]:,}" for i in ticks], rotation=45)
    axes.grid(visible=False)
