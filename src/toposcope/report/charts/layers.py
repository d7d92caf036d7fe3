"""Which layers move, and when: heat maps of layer by step, and groups of layers over training."""

from collections.abc import Callable
from functools import partial

import numpy as np
import polars as pl

from toposcope.analysis.trajectories import WEIGHT_NORM, Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import step_heat_map, training_lines
from toposcope.report.charts.layer_names import in_order, in_words, short_names
from toposcope.report.charts.series import faults_of, first_last, largest_run, run_names, runs_of, series_of, spread
from toposcope.report.headline import H0, NP
from toposcope.report.material import Material
from toposcope.typing import Vector

MAX_COLUMNS, MAX_ROWS = 60, 100
"""Checkpoints and layers of a heat map; of more, as many evenly spread ones are drawn."""


def layer_heat_maps(material: Material) -> list[Chart]:
    """Draw how far each layer of the largest run has moved since the first checkpoint."""
    maps = (
        ("layers-neural-persistence", "Mean neural persistence", "change", _np_change),
        ("layers-h0", "H0 total / weight norm", "change, %", _h0_change),
    )
    return [chart for name, what, axis, change in maps if (chart := _heat_map(material, name, what, axis, change))]


def _heat_map(
    material: Material, name: str, what: str, axis: str, change: Callable[[Trajectory, str], Vector | None]
) -> Chart | None:
    changes = {
        t.run: of_run
        for t in material.trajectories
        if (of_run := {x: v for x in in_order(t) if (v := change(t, x)) is not None and np.isfinite(v).sum() > 1})
    }
    trajectories = [t for t in material.trajectories if t.run in changes]
    if not trajectories:
        return None
    run = largest_run(trajectories, material.runs)
    of_run = changes[run.run]
    labels = dict(zip(of_run, short_names(list(of_run), run.roles), strict=True))
    most = max(of_run, key=lambda layer: abs(of_run[layer][np.isfinite(of_run[layer])][-1]))
    layers, columns = [list(of_run)[i] for i in spread(len(of_run), MAX_ROWS)], spread(len(run.steps), MAX_COLUMNS)
    rows = pl.concat(
        pl.DataFrame({"layer": labels[x], "step": run.steps[columns], "value": of_run[x][columns]}) for x in layers
    )
    moved = abs(of_run[most][np.isfinite(of_run[most])][-1]) > 0
    subject = f"{in_words(labels[most])} has moved most" if moved else "no layer has moved"
    title = f"{what}: {subject} by the end of {run.run}"
    cut = len(layers) < len(of_run) or len(columns) < len(run.steps)
    left_out = f"; {len(layers)} of {len(of_run)} layers, {len(columns)} of {len(run.steps)} checkpoints" if cut else ""
    caption = f"Change since the first checkpoint, layer by layer{left_out}. Crosses: not defined."
    figure = step_heat_map(rows, "layer", [labels[x] for x in layers], axis, signed=True)
    return Chart(name, title, caption, f"Heat map of layer by training step. {title}.", figure)


def _np_change(trajectory: Trajectory, layer: str) -> Vector | None:
    values = trajectory.layers[layer].get(NP.feature.of_group(layer))
    return None if values is None else values - values[0]


def _h0_change(trajectory: Trajectory, layer: str) -> Vector | None:
    total, norm = (trajectory.layers[layer].get(f.of_group(layer)) for f in (H0.feature, WEIGHT_NORM))
    if total is None or norm is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(100 * (total / norm / (total[0] / norm[0]) - 1))


PAIRS = (("attention", "MLP"), ("early", "late"))


def layer_group_charts(material: Material) -> list[Chart]:
    """Draw attention against MLP layers and early against late ones."""
    quantities = (
        ("neural-persistence", "neural persistence", NP.axis, _np_of),
        ("h0", "growth of H0 total", "H0 total (first checkpoint: 1)", _h0_growth),
    )
    return [
        chart
        for pair in PAIRS
        for name, what, axis, value in quantities
        if (chart := _pair_chart(material, pair, name, what, axis, value)) is not None
    ]


def _pair_chart(
    material: Material, pair: tuple[str, str], name: str, what: str, axis: str,
    value: Callable[..., Vector | None],
) -> Chart | None:  # fmt: skip
    both = [t for t in material.trajectories if all(value(t, group) is not None for group in pair)]
    ends = {t.run: [first_last(v) for group in pair if (v := value(t, group)) is not None] for t in both}
    last = {run: (a[1], b[1]) for run, (a, b) in ends.items() if a and b}
    if not last:
        return None
    above, below = sum(a > b for a, b in last.values()), sum(a < b for a, b in last.values())
    one, other = pair if above or not below else pair[::-1]
    where = runs_of(above or below or len(last), len(last)) if len(last) > 1 else next(iter(last))
    how = "ends above that" if above or below else "ends equal to that"
    title = f"The {what} of {one} layers {how} of {other} layers in {where}"
    rows = series_of(both, {group: partial(value, group=group) for group in pair})
    figure = training_lines(rows, axis, run_names(material), faults=faults_of(material), dashes=pair)
    text = f"Line chart of the {what} of {one} and {other} layers against the training step. {title}."
    caption = f"Solid: {pair[0]} layers; dashed: {pair[1]} layers."
    return Chart(f"groups-{pair[0]}-{pair[1].lower()}-{name}", title, caption, text, figure)


def _np_of(trajectory: Trajectory, group: str) -> Vector | None:
    return trajectory.groups.get(group.lower(), {}).get(NP.feature.of_group(group.lower()))


def _h0_growth(trajectory: Trajectory, group: str) -> Vector | None:
    values = trajectory.groups.get(group.lower(), {}).get(H0.feature.of_group(group.lower()))
    known = np.empty(0) if values is None else values[np.isfinite(values)]
    return None if values is None or not len(known) or not known[0] > 0 else values / known[0]
