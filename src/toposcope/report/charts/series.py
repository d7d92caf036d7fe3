"""Rows of charts over training, and what their titles say about many runs."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import polars as pl

from toposcope.analysis.trajectories import Trajectory
from toposcope.probes.feature import Feature
from toposcope.report.material import Material
from toposcope.typing import Vector


def rows_of(trajectories: Iterable[Trajectory], value: Callable[[Trajectory], Vector | None]) -> pl.DataFrame:
    """Return ``run``, ``step``, ``value`` of the runs that have a quantity, where it is finite."""
    frames = [
        pl.DataFrame({"run": t.run, "step": t.steps, "value": np.asarray(values, dtype=np.float64)})
        for t in trajectories
        if (values := value(t)) is not None
    ]
    empty = pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "value": pl.Float64})
    return pl.concat([empty, *frames]).filter(pl.col("value").is_finite())


def run_names(material: Material) -> list[str]:
    """Return all runs of the study in its order, which is the order of their colours."""
    return [t.run for t in material.trajectories]


def faults_of(material: Material) -> pl.DataFrame:
    """Return the checkpoints in which the doctor found a fault: ``run``, ``step``, ``finding``."""
    faults = material.findings.filter(severity="fault").explode("steps").drop_nulls("steps")
    return faults.select("run", pl.col("steps").alias("step"), pl.col("message").alias("finding"))


def runs_of(n: int, total: int) -> str:
    """Write a number of runs out of all."""
    if total == 1:
        return "the run" if n else "no run"
    return f"all {total} runs" if n == total else f"{n or 'none'} of {total} runs"


def first_last(values: Vector) -> tuple[float, float] | None:
    """Return the first and the last finite value; None with fewer than two."""
    known = values[np.isfinite(values)]
    return (float(known[0]), float(known[-1])) if len(known) > 1 else None


def direction_of(trajectories: Iterable[Trajectory], feature: Feature) -> str:
    """Say in how many of the runs that have a feature it rises or falls."""
    return direction([pair for t in trajectories if feature in t.features if (pair := first_last(t.features[feature]))])


def direction(ends: Sequence[tuple[float, float]]) -> str:
    """Say in how many runs a quantity rises or falls from the first to the last checkpoint: "rises in all 3 runs"."""
    if not ends:
        return "is known at one checkpoint at most"
    rose, fell = sum(last > first for first, last in ends), sum(last < first for first, last in ends)
    if rose and fell:
        return f"rises in {rose} and falls in {fell} of {len(ends)} runs"
    if rose or fell:
        return f"{'rises' if rose else 'falls'} in {runs_of(rose or fell, len(ends))}"
    return f"does not change in {'the run' if len(ends) == 1 else f'any of {len(ends)} runs'}"
