"""Persistence diagrams and Betti curves over training: of the layer that moved most, and of the last hidden state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.trajectory import STATES, WEIGHT_NORM, Trajectory, cloud_feature
from toposcope.charts.chart import Chart
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, betti_curve
from toposcope.probes.feature import NETWORK
from toposcope.report.charts.series import first_last, in_words, largest_run, short_names, spread
from toposcope.report.headline import H0, clouds_of
from toposcope.report.study_data import StudyData
from toposcope.typing import Vector

MIN_CHANGE = 0.005  # relative change of a Betti curve's middle below which a title says: the same

PROBE = "rips"


def diagrams_of(data: StudyData, run: str, step: int, label: str = PROBE) -> dict[str, dict[str, Diagram]]:
    """Return the diagrams of a checkpoint by layer; empty if their file is missing."""
    try:
        return data.diagrams(run, step, label)
    except ToposcopeError:
        return {}


def states_of(data: StudyData, run: Trajectory, steps: Iterable[int]) -> dict[int, dict[str, Diagram]]:
    """Return the diagrams of the last hidden state by step, without the steps whose file is missing."""
    label = data.labels.filter(pl.col("probe") == STATES).get_column("label")[0]
    read = {int(step): diagrams_of(data, run.run, int(step), label).get(NETWORK) for step in steps}
    return {step: found for step, found in read.items() if found}


def largest_with_states(data: StudyData) -> tuple[str, Trajectory] | None:
    """Return the cloud and the largest run whose hidden states were measured here; published ones have no diagrams."""
    cloud = next((label for label in clouds_of(data.trajectories) if label.startswith(STATES)), "")
    runs = [t for t in data.trajectories if cloud in t.clouds and len(t.steps) > 1]
    runs = [t for t in runs if any(feature.label == cloud for feature in t.features)]
    return (cloud, largest_run(runs, data.runs)) if cloud and runs else None


MAX_BARS = 300  # points drawn of each diagram, those of the longest bars
PANEL = 170  # width and height of a panel, in pixels


def diagram_chart(data: StudyData) -> Chart | None:
    """Draw the diagrams of the layer that moved most in the largest run, at three checkpoints."""
    chosen = moved_most(data)
    if chosen is None:
        return None
    run, layer = chosen
    read = {
        step: of_layers[layer]
        for step in _shown_steps(run, run.layers[layer][H0.feature.of_group(layer)])
        if layer in (of_layers := diagrams_of(data, run.run, step))
    }
    label = in_words(short_names([layer], run.roles)[0])
    return _chart("diagrams", f"{label} of {run.run}, the layer that moved most", read)


def moved_most(data: StudyData) -> tuple[Trajectory, str] | None:
    """Return the largest run whose diagrams are stored, and the layer of it that moved most."""
    trajectories = [t for t in data.trajectories if _moves(t) and len(t.steps) > 1]
    if PROBE not in data.labels.get_column("label") or not trajectories:
        return None
    run = largest_run(trajectories, data.runs)
    moves = _moves(run)
    return run, max(moves, key=lambda name: moves[name])


def state_diagram_chart(data: StudyData) -> Chart | None:
    """Draw the diagrams of the last hidden state of the largest run, at three checkpoints."""
    chosen = largest_with_states(data)
    if chosen is None:
        return None
    cloud, run = chosen
    total = run.features.get(cloud_feature(cloud, "H0.total"), np.full(len(run.steps), np.nan))
    return _chart(
        "state-diagrams", f"the last hidden state of {run.run}", states_of(data, run, _shown_steps(run, total))
    )


def _chart(name: str, what: str, read: Mapping[int, Mapping[str, Diagram]]) -> Chart | None:
    bars = {step: {k: _bars(d) for k, d in found.items() if k in ("H0", "H1")} for step, found in read.items()}
    if len(bars) < 2 or any("H0" not in found or not len(found["H0"]) for found in bars.values()):
        return None
    first, *_, last = (float((found["H0"][:, 1] - found["H0"][:, 0]).sum()) for found in bars.values())
    change = "grows" if last > first else "shrinks" if last < first else "does not change"
    title = f"H0 total {change} in {what}"
    steps = ", ".join(f"{step:,}" for step in bars)
    caption = f"Birth and death at steps {steps}: the first, the one after the largest change, the last."
    if any(len(d) > MAX_BARS for found in bars.values() for d in found.values()):
        caption += f" Only the {MAX_BARS} longest bars of each diagram are drawn."
    return Chart(name, title, caption, f"Persistence diagrams at {len(bars)} checkpoints. {title}.", _figure(bars))


def _figure(bars: Mapping[int, Mapping[str, Vector]]) -> alt.FacetChart:
    longest = max(float(b.max()) for found in bars.values() for b in found.values() if len(b))
    schema = {"checkpoint": pl.String, "dimension": pl.String, "birth": pl.Float64, "death": pl.Float64}
    rows = [
        (f"step {step:,}", dimension, *pair)
        for step, found in bars.items()
        for dimension, pairs in {**found, "": np.array([[0, 0], [longest, longest]])}.items()
        for pair in pairs[np.argsort(pairs[:, 0] - pairs[:, 1], kind="stable")][:MAX_BARS].tolist()
    ]
    base = alt.Chart().encode(x=alt.X("birth:Q"), y=alt.Y("death:Q"), tooltip=["dimension:N", "birth:Q", "death:Q"])
    both = alt.Scale(domain=["H0", "H1"])
    points = base.transform_filter("datum.dimension").mark_point(filled=True, opacity=0.6)
    layers = alt.LayerChart(
        data=pl.DataFrame(rows, schema=schema, orient="row"),
        layer=[
            base.transform_filter("!datum.dimension").mark_line(color="#888", strokeWidth=1),
            points.encode(
                color=alt.Color("dimension:N", title=None, scale=both),
                shape=alt.Shape("dimension:N", title=None, scale=both),
            ),
        ],
    ).properties(width=PANEL, height=PANEL)
    return layers.facet(
        facet=alt.Facet("checkpoint:N", sort=[f"step {step:,}" for step in bars], title=None), columns=len(bars)
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


def _shown_steps(trajectory: Trajectory, total: Vector) -> list[int]:
    """Return the first step, the step after which a total had changed most, and the last step."""
    change = np.nan_to_num(np.abs(np.diff(total)))
    return sorted({int(trajectory.steps[i]) for i in (0, int(change.argmax()) + 1, -1)})


def _bars(diagram: Diagram) -> Vector:
    """Return the points of positive length as births and deaths, whichever way the filtration goes."""
    pairs = np.sort(diagram.pairs, axis=1)
    return np.asarray(pairs[pairs[:, 1] > pairs[:, 0]])


MAX_CHECKPOINTS = 26
N_VALUES = 48  # filtration values of a curve
RADIUS = "rms_radius"
Read = Mapping[int, Mapping[str, Mapping[str, Diagram]]]  # diagrams by step, layer and name


@dataclass(frozen=True)
class Curves:
    """Betti curves of one dimension over training."""

    at: Vector  # shape (m,); filtration values
    counts: Vector  # shape (m, n); by filtration value and checkpoint
    # shape (n,); the value by which half of the components have merged (the median death), or the mean value at which
    # loops are alive; NaN where there are none
    middle: Vector


def betti_charts(data: StudyData) -> list[Chart]:
    """Draw Betti curves over training, of distances and of distances divided by each layer's weight norm."""
    trajectories = [t for t in data.trajectories if len(t.steps) > 2 and t.layers]
    if PROBE not in data.labels.get_column("label") or not trajectories:
        return []
    run = largest_run(trajectories, data.runs)
    steps = [int(run.steps[i]) for i in spread(len(run.steps), MAX_CHECKPOINTS)]
    norms = {
        layer: dict(zip(run.steps.tolist(), features[WEIGHT_NORM.of_group(layer)].tolist(), strict=True))
        for layer, features in run.layers.items()
        if WEIGHT_NORM.of_group(layer) in features
    }
    read = {step: d for step in steps if (d := diagrams_of(data, run.run, step))}
    return _charts("betti", "", run.run, "weight norm", read, norms)


def state_betti_charts(data: StudyData) -> list[Chart]:
    """Draw Betti curves of the last hidden state, of distances and of distances divided by the radius of the cloud."""
    chosen = largest_with_states(data)
    if chosen is None:
        return []
    cloud, run = chosen
    steps = [int(run.steps[i]) for i in spread(len(run.steps), MAX_CHECKPOINTS)]
    radius = run.features.get(cloud_feature(cloud, RADIUS))
    norms = {} if radius is None else {NETWORK: dict(zip(run.steps.tolist(), radius.tolist(), strict=True))}
    read = {step: {NETWORK: found} for step, found in states_of(data, run, steps).items()}
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
    line = alt.Chart(middles).encode(x=x, y=alt.Y("middle:Q"), tooltip=["step:O", "middle:Q"])
    return alt.LayerChart(
        layer=[
            alt.Chart(cells)
            .mark_rect()
            .encode(
                x=x,
                y=alt.Y("low:Q", title=axis, scale=edges, axis=alt.Axis(grid=False)),
                y2=alt.Y2("high:Q"),
                color=alt.Color("count:Q", title=counted),
                tooltip=["step:O", alt.Tooltip("low:Q", title="distance", format=".3~g"), "count:Q"],
            ),
            line.mark_line(color="white", strokeWidth=3),
            line.mark_line(color="black", strokeWidth=1.2, strokeDash=[4, 3]),
        ]
    ).properties(width=270)


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
