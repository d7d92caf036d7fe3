"""Evaluations of recipes whose scaling laws are known, and of the published sweep of three corpora."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.logs.columns import Target
from toposcope_downstream.evaluations import COLUMNS, Evaluations, read_evaluations

SWEEP = Path(__file__).parents[4] / "shared" / "data" / "loss-to-loss" / "sweep.parquet"
SIZES = tuple(product((2e7, 5e7, 1e8, 3e8, 1e9), (1e9, 4e9, 2e10)))
LAWS = {
    "web": ScalingLaw(2.0, 400, 900, 0.34, 0.31),
    "books": ScalingLaw(1.9, 360, 810, 0.34, 0.31),
    "code": ScalingLaw(1.0, 240, 540, 0.34, 0.31),
}


def made(
    sizes: Mapping[str, Sequence[tuple[float, float]]],
    noise: float = 0.0,
    score: Callable[[str, float], float] | None = None,
) -> Evaluations:
    """Return losses of recipes on their corpora, 1.1 times as high on each other's, and on a task, 1.3 times."""
    random = np.random.default_rng(0)
    rows = []
    for recipe, places in sizes.items():
        for N, D in places:
            loss = float(LAWS[recipe].loss(N, D)) * float(np.exp(noise * random.normal()))
            row = {"run": f"{recipe} {N:g} {D:g}", "recipe": recipe, "N": N, "D": D}
            for corpus in sizes:
                value = loss * (1 if corpus == recipe else 1.1)
                rows.append(row | {"task": corpus, "metric": "loss", "role": "corpus_loss", "value": value})
            rows.append(row | {"task": "quiz", "metric": "ce_loss", "role": "loss", "value": 1.3 * loss})
            if score is not None:
                rows.append(
                    row | {"task": "quiz", "metric": "acc", "role": "score", "value": score(recipe, 1.3 * loss)}
                )
    table = pl.DataFrame(rows, schema=COLUMNS)
    return Evaluations(table, {"quiz": Target("acc", "accuracy", True, 0.25, 2000)} if score is not None else {})


def sweep() -> Evaluations:
    """Return the published sweep, or skip."""
    if not SWEEP.is_file():
        pytest.skip("the loss-to-loss data is not beside this repository")
    return read_evaluations(SWEEP)


def only(evaluations: Evaluations, recipe: str, runs: Iterable[str]) -> Evaluations:
    """Return evaluations with only some runs of a recipe."""
    kept = evaluations.table.filter((pl.col("recipe") != recipe) | pl.col("run").is_in([*runs]))
    return Evaluations(kept, evaluations.targets)


def small_runs(points: Points, share: float, count: int) -> list[str]:
    """Return so many runs with at most a share of the largest compute, spread evenly over them."""
    order = np.argsort(points.C, kind="stable")
    order = order[points.C[order] <= share * points.C.max()]
    return [str(run) for run in points.run[order[np.linspace(0, len(order) - 1, count).round().astype(int)]]]
