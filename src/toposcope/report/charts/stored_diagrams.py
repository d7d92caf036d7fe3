"""The stored diagrams that charts read: of layers, and of the last hidden state."""

from collections.abc import Iterable

import polars as pl

from toposcope.analysis.trajectories import STATES, Trajectory
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.probes.feature import NETWORK
from toposcope.report.charts.series import largest_run
from toposcope.report.headline import clouds_of
from toposcope.report.material import Material

PROBE = "rips"


def diagrams_of(material: Material, run: str, step: int, label: str = PROBE) -> dict[str, dict[str, Diagram]]:
    """Return the diagrams of a checkpoint by layer; empty if their file is missing."""
    try:
        return material.diagrams(run, step, label)
    except ToposcopeError:
        return {}


def states_of(material: Material, run: Trajectory, steps: Iterable[int]) -> dict[int, dict[str, Diagram]]:
    """Return the diagrams of the last hidden state by step, without the steps whose file is missing."""
    label = material.labels.filter(pl.col("probe") == STATES).get_column("label")[0]
    read = {int(step): diagrams_of(material, run.run, int(step), label).get(NETWORK) for step in steps}
    return {step: found for step, found in read.items() if found}


def largest_with_states(material: Material) -> tuple[str, Trajectory] | None:
    """Return the cloud and the largest run whose hidden states were measured here; published ones have no diagrams."""
    cloud = next((label for label in clouds_of(material.trajectories) if label.startswith(STATES)), "")
    runs = [t for t in material.trajectories if cloud in t.clouds and len(t.steps) > 1]
    runs = [t for t in runs if any(feature.label == cloud for feature in t.features)]
    return (cloud, largest_run(runs, material.runs)) if cloud and runs else None
