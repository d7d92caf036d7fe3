"""Evaluations of recipes whose scaling laws are known, and of the published sweep of three corpora."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from toposcope.forecasting.scaling.scaling_law import ScalingLaw
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
    return Evaluations(pl.DataFrame(rows, schema=COLUMNS))


def sweep() -> Evaluations:
    """Return the published sweep, or skip."""
    if not SWEEP.is_file():
        pytest.skip("the loss-to-loss data is not beside this repository")
    return read_evaluations(SWEEP)
