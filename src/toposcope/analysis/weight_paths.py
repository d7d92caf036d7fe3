"""The paths of runs through their weights, from distances between checkpoints (docs/methods/trajectories.md)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.homology import (
    classical_scaling,
    principal_shares,
    random_walk_shares,
    random_walk_shares_of,
)
from toposcope.probes.trajectory import DISTANCE
from toposcope.typing import Matrix, Steps

PROBE = "trajectory"
MIN_CHECKPOINTS = 3  # fewer have no two components, and no neighbourhoods
SUMMARY: dict[str, type[pl.DataType]] = {
    "run": pl.String,
    "n_checkpoints": pl.Int64,
    **dict.fromkeys(("path_length", "displacement", "straightness"), pl.Float64),
    **dict.fromkeys((f"pc{k}_{name}" for k in (1, 2) for name in ("share", "walk", "walk_same_steps")), pl.Float64),
}
POINTS: dict[str, type[pl.DataType]] = {
    "run": pl.String,
    "step": pl.Int64,
    **dict.fromkeys(("pc1", "pc2"), pl.Float64),
}


@dataclass(frozen=True, eq=False)
class WeightPath:
    """One run: the steps of its checkpoints, shape (n,), and the distances between them, shape (n, n)."""

    run: str
    steps: Steps
    distances: Matrix


def weight_paths(frame: pl.DataFrame, labels: pl.DataFrame) -> list[WeightPath]:
    """Return the paths of all runs with at least three different checkpoints, as the first such probe measured them."""
    options = labels.filter(probe=PROBE).get_column("options").to_list()[:1] if len(labels) else []
    rows = frame.filter(pl.col("options").is_in(options), probe=PROBE)
    paths = []
    for (run,), of_run in rows.group_by("run", maintain_order=True):
        known: dict[int, dict[int, float]] = {step: {} for step in of_run.get_column("step").unique().sort()}
        named = of_run.filter(pl.col("statistic").str.starts_with(DISTANCE))
        for step, statistic, value in named.select("step", "statistic", "value").iter_rows():
            known[step][int(statistic.removeprefix(DISTANCE))] = value
        steps: list[int] = []
        for step, distances in known.items():
            if all(earlier in distances for earlier in steps):
                steps.append(step)
        matrix = np.array([[known[max(a, b)][min(a, b)] if a != b else 0.0 for b in steps] for a in steps])
        if len(steps) >= MIN_CHECKPOINTS and matrix.any():
            paths.append(WeightPath(str(run), np.array(steps), matrix))
    return paths


def path_tables(paths: Iterable[WeightPath]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return one row for each run, and the principal components of one checkpoint a row: see `SUMMARY` and `POINTS`."""
    summaries, points = [], []
    for path in paths:
        D = path.distances
        steps = np.diagonal(D, 1)
        shares = {
            "share": principal_shares(D),
            "walk": random_walk_shares(len(D)),
            "walk_same_steps": random_walk_shares_of(steps),
        }
        summaries.append(
            {
                "run": path.run,
                "n_checkpoints": len(D),
                "path_length": float(steps.sum()),
                "displacement": float(D[-1, 0]),
                "straightness": float(D[-1, 0] / steps.sum()),
                **{f"pc{k}_{name}": float(values[k - 1]) for name, values in shares.items() for k in (1, 2)},
            }
        )
        components = classical_scaling(D).points
        # every axis in the direction from the first to the last
        coordinates = components * np.where(components[-1] < components[0], -1.0, 1.0)
        points += [(path.run, int(step), *row) for step, row in zip(path.steps, coordinates.tolist(), strict=True)]
    return pl.DataFrame(summaries, schema=SUMMARY), pl.DataFrame(points, schema=POINTS, orient="row")
