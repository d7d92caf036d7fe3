"""Evaluations of made ladders, whose tasks follow known laws."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl

from toposcope.logs.columns import ACCURACY
from toposcope.typing import Vector
from toposcope_downstream.evaluations import COLUMNS, Evaluations, Target

Truth = Callable[[Vector, Vector], Vector]
"""The score, without noise, of models of N parameters after D tokens."""

SIZES = (1.9e8, 3.7e8, 7.6e8, 1.28e9)
LENGTHS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""In units of 20 tokens a parameter."""


def loss_of(N: Vector, D: Vector) -> Vector:
    """Return a loss as laws of it have it."""
    return np.asarray(0.5 + 100 * N**-0.28 + 200 * D**-0.3)


def sigmoid_of_loss(midpoint: float, slope: float, chance: float = 0.25, ceiling: float = 1.0) -> Truth:
    """Return a score that is a falling sigmoid of `loss_of`."""
    return lambda N, D: chance + (ceiling - chance) / (1 + np.exp(slope * (loss_of(N, D) - midpoint)))


def wandering_log_odds(random: np.random.Generator, size: float = 0.35) -> Truth:
    """Return a score whose log-odds rise with ln compute by a slope that changes every 0.6 decades: no law holds."""
    from scipy.special import expit

    knots = np.arange(18, 28, 0.6) * np.log(10)
    slopes = np.clip(0.45 + size * random.normal(size=len(knots)), 0, None)
    level = np.cumsum(0.76 * slopes)
    off = np.interp(np.log(9.6e19), knots, level) + random.uniform(-0.3, 0.6)
    return lambda N, D: 0.25 + 0.75 * expit(np.interp(np.log(6 * N * D), knots, level) - off)


def made_evaluations(
    truths: Mapping[str, Truth],
    *,
    chance: float | None = 0.25,
    n: int | None = 2000,
    runs: Sequence[tuple[float, float]] | None = None,
    along: Sequence[float] = (0.2, 0.4, 0.6, 0.8, 0.92, 0.94, 0.96, 0.98, 1.0),
    spread: float = 0.003,
    seed: int = 0,
) -> Evaluations:
    """Return the evaluations of a ladder.

    Questions are drawn anew for each run, and kept along it; checkpoints differ by ``spread``.

    Parameters
    ----------
    truths : mapping
        By task.
    chance : float, optional
        What the targets state.
    n : int, optional
    runs : sequence of pairs, optional
        Parameters and tokens; by default `SIZES` times `LENGTHS`.
    along : sequence of float
        Shares of each run's tokens at which it is evaluated.
    spread : float
    seed : int
    """
    random = np.random.default_rng(seed)
    runs = runs or [(N, 20 * N * length) for N in SIZES for length in LENGTHS]
    rows = []
    for N, D in runs:
        tokens = D * np.array(along)
        sizes = np.full(len(tokens), N)
        for task, truth in truths.items():
            exact = truth(sizes, tokens)
            drawn = random.normal() * np.sqrt(exact * (1 - exact) / n) if n else 0.0
            score = np.clip(exact + drawn + spread * random.normal(size=len(tokens)), 0, 1)
            loss = loss_of(sizes, tokens) * np.exp(0.003 * random.normal(size=len(tokens)))
            for role, metric, values in (("score", "acc", score), ("loss", "bits_per_byte", loss)):
                for value, seen in zip(values.tolist(), tokens.tolist(), strict=True):
                    rows.append({
                        "run": f"{N:.3g}-{D:.3g}", "recipe": "", "N": N, "D": seen, "task": task, "metric": metric,
                        "role": role, "value": value, "n": n,
                    })  # fmt: skip
    table = pl.DataFrame(rows, schema_overrides={k: v for k, v in COLUMNS.items() if k in rows[0]})
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in COLUMNS.items() if name not in table.columns]
    table = table.with_columns(missing).select(*COLUMNS).sort("recipe", "run", "D", "step", "task", "metric")
    return Evaluations(table, {task: Target(task, ACCURACY, chance, n) for task in truths})
