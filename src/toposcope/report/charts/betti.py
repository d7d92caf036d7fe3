"""Betti curves over training (CROCKER plots): of the weights of all layers, and of the last hidden state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.trajectories import WEIGHT_NORM, cloud_feature
from toposcope.charts.chart import Chart
from toposcope.homology import Diagram, betti_curve
from toposcope.probes.feature import NETWORK
from toposcope.report.charts.series import first_last, largest_run, spread
from toposcope.report.charts.stored_diagrams import PROBE, diagrams_of, largest_with_states, states_of
from toposcope.report.material import Material
from toposcope.typing import Vector

MAX_CHECKPOINTS = 26
N_VALUES = 48
"""Filtration values of a curve."""
MIN_CHANGE = 0.005
"""A relative change below this is called none."""
PANEL = 270
"""Width of a panel in a file, in pixels."""
RADIUS = "rms_radius"
Read = Mapping[int, Mapping[str, Mapping[str, Diagram]]]
"""Diagrams by step, layer and name."""


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
        alive; NaN where there are none.
    """

    at: Vector
    counts: Vector
    middle: Vector


def betti_charts(material: Material) -> list[Chart]:
    """Draw Betti curves over training, of distances and of distances divided by each layer's weight norm."""
    trajectories = [t for t in material.trajectories if len(t.steps) > 2 and t.layers]
    if PROBE not in material.labels.get_column("label") or not trajectories:
        return []
    run = largest_run(trajectories, material.runs)
    steps = [int(run.steps[i]) for i in spread(len(run.steps), MAX_CHECKPOINTS)]
    norms = {
        layer: dict(zip(run.steps.tolist(), features[WEIGHT_NORM.of_group(layer)].tolist(), strict=True))
        for layer, features in run.layers.items()
        if WEIGHT_NORM.of_group(layer) in features
    }
    read = {step: d for step in steps if (d := diagrams_of(material, run.run, step))}
    return _charts("betti", "", run.run, "weight norm", read, norms)


def state_betti_charts(material: Material) -> list[Chart]:
    """Draw Betti curves of the last hidden state, of distances and of distances divided by the radius of the cloud."""
    chosen = largest_with_states(material)
    if chosen is None:
        return []
    cloud, run = chosen
    steps = [int(run.steps[i]) for i in spread(len(run.steps), MAX_CHECKPOINTS)]
    radius = run.features.get(cloud_feature(cloud, RADIUS))
    norms = {} if radius is None else {NETWORK: dict(zip(run.steps.tolist(), radius.tolist(), strict=True))}
    read = {step: {NETWORK: found} for step, found in states_of(material, run, steps).items()}
    return _charts("state-betti", "hidden states: ", run.run, "radius", read, norms)


def _charts(
    stem: str, what: str, run: str, scale: str, read: Read, norms: Mapping[str, Mapping[int, float]]
) -> list[Chart]:
    if len(read) < 3:
        return []
    charts = []
    for name, counted, subject in (("H0", "components", "components merge"), ("H1", "loops", "loops live")):
        if not all(name in of_layer for d in read.values() for of_layer in d.values()):
            continue
        panels = {"distance": betti_curves(read, name, None)}
        if not np.isfinite(panels["distance"].middle).any():
            continue
        if norms:
            panels[f"distance / {scale}"] = betti_curves(read, name, norms)
        figure = alt.concat(*(_panel(list(read), c, axis, counted) for axis, c in panels.items()), columns=len(panels))
        raw, *divided = (_shift(curves.middle) for curves in panels.values())
        where = f"{raw} distances by the end" if raw else f"one of {len(read)} checkpoints"
        title = f"{what}{subject} at {where} of {run}"
        title = title[0].upper() + title[1:] + (f", relative to the {scale} at {divided[0]}" if any(divided) else "")
        caption = (
            f"Number of {counted} by distance and checkpoint, in order; dashed: the "
            + ("distance at which half of them have merged." if name == "H0" else "mean distance at which they live.")
        )  # fmt: skip
        text = f"CROCKER plot: Betti numbers by distance and training step. {title}."
        charts.append(Chart(f"{stem}-{name.lower()}", title, caption, text, figure))
    return charts


def _panel(steps: list[int], curves: Curves, axis: str, counted: str) -> alt.LayerChart:
    height = float(curves.at[1] - curves.at[0])
    cells = pl.DataFrame({
        "step": np.repeat(steps, len(curves.at)), "low": np.tile(curves.at, len(steps)),
        "count": curves.counts.T.ravel(),
    }).with_columns(high=pl.col("low") + height)  # fmt: skip
    middles = pl.DataFrame({"step": steps, "middle": curves.middle}).filter(pl.col("middle").is_finite())
    edges = alt.Scale(domain=[0, float(curves.at[-1]) + height], nice=False)
    x = alt.X("step:O", title="training step", axis=alt.Axis(format=",d", labelAngle=0, labelSeparation=8))
    line = alt.Chart(middles).encode(x=x, y=alt.Y("middle:Q"), tooltip=[alt.Tooltip("step:O"), alt.Tooltip("middle:Q")])
    return alt.LayerChart(
        layer=[
            alt.Chart(cells)
            .mark_rect()
            .encode(
                x=x,
                y=alt.Y("low:Q", title=axis, scale=edges, axis=alt.Axis(grid=False)),
                y2=alt.Y2("high:Q"),
                color=alt.Color("count:Q", title=counted),
                tooltip=[
                    alt.Tooltip("step:O"),
                    alt.Tooltip("low:Q", title="distance", format=".3~g"),
                    alt.Tooltip("count:Q"),
                ],
            ),
            line.mark_line(color="white", strokeWidth=3),
            line.mark_line(color="black", strokeWidth=1.2, strokeDash=[4, 3]),
        ]
    ).properties(width=PANEL)


def _shift(middle: Vector) -> str:
    """Compare the last known middle with the first; empty if fewer than two are known."""
    ends = first_last(middle)
    if ends is None:
        return ""
    if abs(ends[1] - ends[0]) <= MIN_CHANGE * abs(ends[0]):
        return "the same"
    return "larger" if ends[1] > ends[0] else "smaller"


def betti_curves(read: Read, name: str, norms: Mapping[str, Mapping[int, float]] | None) -> Curves:
    """Add up the Betti curves of all layers at each checkpoint, distances divided by norms if given."""
    clouds = [list(_divided(step, of_layers, name, norms)) for step, of_layers in read.items()]
    deaths = [np.concatenate([np.empty(0), *(d.pairs[d.lifetimes > 0, 1] for d in cloud)]) for cloud in clouds]
    every = np.concatenate(deaths)
    at = np.linspace(0, float(np.quantile(every, 0.995)) if len(every) else 1.0, N_VALUES)
    summed = [np.sum([np.zeros(N_VALUES), *(betti_curve(d, at) for d in cloud)], axis=0) for cloud in clouds]
    counts = np.array(summed, dtype=np.float64).T
    if name == "H0":
        return Curves(at, counts, np.array([np.median(d) if len(d) else np.nan for d in deaths]))
    alive = counts.sum(axis=0)
    return Curves(at, counts, np.divide(at @ counts, alive, out=np.full(len(alive), np.nan), where=alive > 0))


def _divided(
    step: int, of_layers: Mapping[str, Mapping[str, Diagram]], name: str,
    norms: Mapping[str, Mapping[int, float]] | None,
) -> Iterable[Diagram]:  # fmt: skip
    for layer, found in of_layers.items():
        divisor = 1.0 if norms is None else norms.get(layer, {}).get(step, np.nan)
        if divisor > 0:
            yield Diagram(found[name].pairs / divisor, found[name].dimension)
