"""Spectra and topology of hidden states from layer to layer."""

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.trajectories import CLOUD_ROLES, Trajectory, cloud_feature
from toposcope.charts.chart import Chart
from toposcope.probes.feature import Feature
from toposcope.probes.hidden_states import count_blocks, hidden
from toposcope.probes.probe import HIDDEN
from toposcope.report.charts.series import largest_run
from toposcope.report.charts.states import HEIGHT, QUANTITIES, chart_name, first_cloud
from toposcope.report.material import Material
from toposcope.typing import Vector

OF_DEPTH = ("rankme", "H0.total", "H1.total", "two_nn", "anisotropy")
MAX_TICKS = 8
"""Numbers of blocks that are written at an axis whose last place is no number."""


def depth_charts(material: Material) -> list[Chart]:
    """Draw quantities of the largest run by depth, at the first, a middle and the last checkpoint: a chart for each."""
    cloud = first_cloud(material)
    features = {q: cloud_feature(cloud, q.statistic) for q in QUANTITIES if cloud and q.statistic in OF_DEPTH}
    deep = [t for t in material.trajectories if any(len(_through(t, feature)) > 2 for feature in features.values())]
    if not deep:
        return []
    trajectory = largest_run(deep, material.runs)
    charts = []
    for quantity, feature in features.items():
        layers = _through(trajectory, feature)
        known = np.flatnonzero(np.isfinite([*layers.values()]).all(axis=0))
        if len(layers) <= 2 or not len(known):
            continue
        places = sorted({int(known[0]), int(known[len(known) // 2]), int(known[-1])})
        title = f"{quantity.title} {_through_layers(layers, places)} of {trajectory.run}"
        caption = (
            "Hidden states from the embedding to the last: a line for the first, a middle and the last checkpoint."
        )
        alternative = f"Line chart of a quantity of hidden states by depth, one line a checkpoint. {title}."
        figure = _figure(trajectory, layers, places, quantity.axis or quantity.title)
        charts.append(Chart(chart_name("depth", quantity.statistic), title, caption, alternative, figure))
    return charts


def _figure(trajectory: Trajectory, layers: Mapping[int, Vector], places: Sequence[int], title: str) -> alt.Chart:
    steps = {p: f"step {trajectory.steps[p]:,}" for p in places}
    rows = pl.DataFrame(
        [(depth, steps[p], float(values[p])) for p in places for depth, values in layers.items()],
        schema=["blocks", "checkpoint", "value"], orient="row",
    )  # fmt: skip
    figure: alt.Chart = alt.Chart(rows).mark_line(point={"size": 40}).encode(
        x=alt.X("blocks:Q", title="blocks passed", axis=_depth_axis(trajectory, list(layers))),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        color=alt.Color("checkpoint:N", title=None, sort=list(steps.values())),
        tooltip=["checkpoint:N", "blocks:Q", alt.Tooltip("value:Q", format=".4~g")],
    ).properties(height=HEIGHT)  # fmt: skip
    return figure


def _depth_axis(trajectory: Trajectory, places: Sequence[int]) -> alt.Axis:
    """Return the axis of blocks passed; its last place is "last" where the number of blocks is unknown."""
    *numbers, last = places
    if last == _n_blocks(trajectory) or hidden(last) in trajectory.layers:
        return alt.Axis(tickMinStep=1, format="d")
    written = [*numbers[:: -(-len(numbers) // MAX_TICKS)], last]
    return alt.Axis(values=written, labelExpr=f"datum.value === {last} ? 'last' : datum.label", format="d")


def _through(trajectory: Trajectory, feature: Feature) -> dict[int, Vector]:
    """Return a feature by the number of blocks passed.

    The feature of the network is that of the last hidden state: after all blocks, or one place further if their number
    is unknown.
    """
    by_depth = {
        int(layer.rpartition(".")[2]): features[feature.of_group(layer)]
        for layer, features in trajectory.layers.items()
        if trajectory.roles.get(layer) == HIDDEN and feature.of_group(layer) in features
    }
    if by_depth and feature in trajectory.features:
        by_depth[max(_n_blocks(trajectory), max(by_depth) + 1)] = trajectory.features[feature]
    return dict(sorted(by_depth.items()))


def _n_blocks(trajectory: Trajectory) -> int:
    """Return the number of blocks by the names of the run's weight layers; 0 if no weight layer was measured."""
    return count_blocks(layer for layer, role in trajectory.roles.items() if role not in CLOUD_ROLES)


def _through_layers(layers: Mapping[int, Vector], places: Sequence[int]) -> str:
    """Say whether a quantity is higher or lower behind the last block than at the embedding."""
    first, last = layers[min(layers)], layers[max(layers)]
    began, ended = (_goes(float(first[p]), float(last[p])) for p in (places[0], places[-1]))
    if began == ended or len(places) == 1:
        return f"{ended} through the layers"
    return f"{began} through the layers at the first checkpoint and {ended} at the last,"


def _goes(first: float, last: float) -> str:
    return "rises" if last > first else "falls" if last < first else "stays the same"
