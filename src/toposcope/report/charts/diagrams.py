"""Persistence diagrams at chosen checkpoints: of the layer that moved most, and of the last hidden state."""

from collections.abc import Mapping

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.trajectories import WEIGHT_NORM, Trajectory, cloud_feature
from toposcope.charts.chart import Chart
from toposcope.homology import Diagram
from toposcope.report.charts.layer_names import in_words, short_names
from toposcope.report.charts.series import largest_run
from toposcope.report.charts.stored_diagrams import PROBE, diagrams_of, largest_with_states, states_of
from toposcope.report.headline import H0
from toposcope.report.material import Material
from toposcope.typing import Vector

MAX_BARS = 300
"""Points drawn of each diagram, those of the longest bars."""
PANEL = 170
"""Width and height of a panel, in pixels."""


def diagram_chart(material: Material) -> Chart | None:
    """Draw the diagrams of the layer that moved most in the largest run, at three checkpoints."""
    chosen = moved_most(material)
    if chosen is None:
        return None
    run, layer = chosen
    read = {
        step: of_layers[layer]
        for step in _shown_steps(run, run.layers[layer][H0.feature.of_group(layer)])
        if layer in (of_layers := diagrams_of(material, run.run, step))
    }
    label = in_words(short_names([layer], run.roles)[0])
    return _chart("diagrams", f"{label} of {run.run}, the layer that moved most", read)


def moved_most(material: Material) -> tuple[Trajectory, str] | None:
    """Return the largest run whose diagrams are stored, and the layer of it that moved most."""
    trajectories = [t for t in material.trajectories if _moves(t) and len(t.steps) > 1]
    if PROBE not in material.labels.get_column("label") or not trajectories:
        return None
    run = largest_run(trajectories, material.runs)
    moves = _moves(run)
    return run, max(moves, key=lambda name: moves[name])


def state_diagram_chart(material: Material) -> Chart | None:
    """Draw the diagrams of the last hidden state of the largest run, at three checkpoints."""
    chosen = largest_with_states(material)
    if chosen is None:
        return None
    cloud, run = chosen
    total = run.features.get(cloud_feature(cloud, "H0.total"), np.full(len(run.steps), np.nan))
    return _chart(
        "state-diagrams", f"the last hidden state of {run.run}", states_of(material, run, _shown_steps(run, total))
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
    base = alt.Chart().encode(
        x=alt.X("birth:Q"),
        y=alt.Y("death:Q"),
        tooltip=[alt.Tooltip("dimension:N"), alt.Tooltip("birth:Q"), alt.Tooltip("death:Q")],
    )
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
