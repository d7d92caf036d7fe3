"""Families of runs that differ by their seed alone, and what can be planted in them."""

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.trajectory import Trajectory
from toposcope.study.kinds import feature_named

Array = NDArray[np.float64]
NAMES = (
    "neural_persistence np_mean", "rips H0.total", "rips H1.total", "controls frobenius_norm",
    "controls stable_rank", "controls alpha",
)  # fmt: skip
LOSS = "text_loss"
Noise = Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Student's t of four degrees of freedom."""
    return rng.standard_t(4, shape)


def family(
    n_runs: int, n_steps: int, seed: int, *, persistence: float = 0.9, noise: Noise = normal
) -> tuple[NDArray[np.int64], dict[str, Array]]:
    """Return steps and quantities, shape (runs, steps): courses in common, times how each seed goes its own way.

    Quantities share part of it, as norms and totals do.
    """
    rng = np.random.default_rng(seed)
    paths = noise(rng, (len(NAMES) + 3, n_runs, n_steps))
    for t in range(1, n_steps):
        paths[..., t] = persistence * paths[..., t - 1] + np.sqrt(1 - persistence**2) * paths[..., t]
    *own, shared, other = paths
    course = np.linspace(1, 2, n_steps)
    mixed = [0.7 * one + 0.7 * (shared if i % 2 else other) for i, one in enumerate(own)]
    values = {name: course * np.exp(0.02 * path) for name, path in zip(NAMES, mixed, strict=False)}
    return np.arange(n_steps) * 100, {LOSS: (5 - course) * np.exp(0.005 * mixed[-1]), **values}


def trajectories(steps: NDArray[np.int64], values: dict[str, Array], prefix: str = "seed") -> list[Trajectory]:
    """Return the runs; a step at which a run knows nothing is none of its steps."""
    found = []
    for i in range(len(values[LOSS])):
        of_run = {name: v[i] for name, v in values.items()}
        kept = np.isfinite(np.array(list(of_run.values()))).any(axis=0)
        features = {feature_named(name): v[kept] for name, v in of_run.items() if name != LOSS}
        covariates = {"step": steps[kept].astype(float)}
        found.append(Trajectory(f"{prefix}{i + 1}", steps[kept], features, {LOSS: of_run[LOSS][kept]}, covariates))
    return found


def runs_frame(trajectories: list[Trajectory], sizes: list[int]) -> pl.DataFrame:
    """Return what `Study.runs` says of them."""
    rows = [
        (t.run, "series", size, "complete", int(t.steps[-1]), len(t.steps))
        for t, size in zip(trajectories, sizes, strict=True)
    ]
    schema = ["run", "kind", "n_parameters", "status", "last_step", "n_checkpoints"]
    return pl.DataFrame(rows, schema=schema, orient="row")
