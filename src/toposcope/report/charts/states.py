"""Spectra and topology of hidden states and embeddings: over training, and from layer to layer."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.phases import move
from toposcope.analysis.trajectory import CLOUD_ROLES, Trajectory, cloud_feature
from toposcope.charts.chart import Chart
from toposcope.probes.feature import Feature
from toposcope.probes.hidden_states import count_blocks, hidden
from toposcope.probes.probe import HIDDEN
from toposcope.report.charts import series
from toposcope.report.headline import cloud_named, clouds_of
from toposcope.report.study_data import StudyData
from toposcope.study.kinds import PUBLISHED
from toposcope.typing import Vector

HEIGHT = 170


class CloudQuantity(NamedTuple):
    """A statistic of a cloud, and its name with the unit."""

    statistic: str
    title: str
    axis: str = ""


QUANTITIES = (
    CloudQuantity("rankme", "RankMe"),
    CloudQuantity("effective_rank", "Effective rank"),
    CloudQuantity("top_eigenvalue", "Top eigenvalue"),
    CloudQuantity("anisotropy", "Anisotropy"),
    CloudQuantity("two_nn", "Intrinsic dimension"),
    CloudQuantity("H0.total", "H0 total"),
    CloudQuantity("H1.total", "H1 total"),
    CloudQuantity("H1.entropy", "H1 entropy", "H1 entropy (nats)"),
)


def representation_charts(data: StudyData) -> list[Chart]:
    """Draw what was measured of the last hidden state: a chart for each quantity, a line for each run."""
    return cloud_charts(data, first_cloud(data), "states")


def first_cloud(data: StudyData) -> str:
    """Return the cloud that charts are of; empty without hidden states."""
    return next(iter(clouds_of(data.trajectories)), "")


def chart_name(prefix: str, statistic: str) -> str:
    """Return the name of the chart of a statistic."""
    return f"{prefix}-{statistic.lower().replace('.', '-').replace('_', '-')}"


def cloud_charts(data: StudyData, cloud: str, prefix: str) -> list[Chart]:
    """Draw a chart for each quantity of a cloud of hidden states, measured or published; none without a cloud."""
    charts = []
    for quantity in QUANTITIES if cloud else ():
        feature = cloud_feature(cloud, quantity.statistic)
        trajectories = [t for t in data.trajectories if feature in t.features]
        rows = series.feature_rows(trajectories, feature)
        if not len(rows):
            continue
        bands = series.bands_of(trajectories, feature)
        moves = [moved for t in trajectories if (moved := move(t.steps, t.features[feature])) is not None]
        of = "the published hidden states" if cloud == PUBLISHED else "the last hidden state"
        title = f"{quantity.title} of {of} {series.course(moves)}"
        named = f"{cloud_named(cloud, 'The last hidden state')}, of a fixed text."
        caption = "As published." if cloud == PUBLISHED else named
        if len(bands):
            caption += " Bands: one standard deviation over draws of the points."
        charts.append(series.training_chart(
            data, chart_name(prefix, quantity.statistic), rows, title, caption, quantity.axis or quantity.title,
            what="a quantity of hidden states", bands=bands, height=HEIGHT,
        ))  # fmt: skip
    return charts


OF_EMBEDDINGS = ("rankme", "H0.total")
ENDS = {"embedding.input": "input", "embedding.output": "output"}


def embedding_charts(data: StudyData) -> list[Chart]:
    """Draw quantities of the embeddings over training: a chart for each, the output embedding dashed."""
    drawn = (_chart(data, quantity) for quantity in QUANTITIES if quantity.statistic in OF_EMBEDDINGS)
    return [chart for chart in drawn if chart is not None]


def _chart(data: StudyData, quantity: CloudQuantity) -> Chart | None:
    ends = {end: partial(_embedded, layer=layer, statistic=quantity.statistic) for layer, end in ENDS.items()}
    rows = series.series_of(data.trajectories, ends)
    if not len(rows):
        return None
    moves = {
        end: [pair for t in data.trajectories if (v := of(t)) is not None if (pair := series.first_last(v)) is not None]
        for end, of in ends.items()
    }
    known = [end for end in ends if len(rows.filter(series=end))]
    title = f"{quantity.title} of embeddings: {', '.join(f'{end} {series.direction(moves[end])}' for end in known)}"
    caption = "Points are the rows of the embedding matrices; tied embeddings are equal."
    return series.training_chart(
        data, chart_name("embedding", quantity.statistic), rows, title, caption, quantity.title,
        what="a quantity of embeddings", dashes=known, height=HEIGHT,
    )  # fmt: skip


def _embedded(trajectory: Trajectory, layer: str, statistic: str) -> Vector | None:
    """Return a statistic of an embedding by the first probe of them."""
    features = trajectory.layers.get(layer, {})
    label = next((f.label for f in features if f.probe == "embeddings"), "")
    return next((v for f, v in features.items() if f.label == label and f.statistic == statistic), None)


OF_DEPTH = ("rankme", "H0.total", "H1.total", "two_nn", "anisotropy")
MAX_TICKS = 8  # numbers of blocks that are written at an axis whose last place is no number


def depth_charts(data: StudyData) -> list[Chart]:
    """Draw quantities of the largest run by depth, at the first, a middle and the last checkpoint: a chart for each."""
    cloud = first_cloud(data)
    features = {q: cloud_feature(cloud, q.statistic) for q in QUANTITIES if cloud and q.statistic in OF_DEPTH}
    deep = [t for t in data.trajectories if any(len(_through(t, feature)) > 2 for feature in features.values())]
    if not deep:
        return []
    trajectory = series.largest_run(deep, data.runs)
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
        alternative = f"Line chart of a quantity of hidden states by depth, one line per checkpoint. {title}."
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
    ways = {1: "rises", -1: "falls", 0: "stays the same"}
    began, ended = (ways[int(np.sign(last[p] - first[p]))] for p in (places[0], places[-1]))
    if began == ended or len(places) == 1:
        return f"{ended} through the layers"
    return f"{began} through the layers at the first checkpoint and {ended} at the last,"
