"""Populations of runs of one size whose truth is known: what a feature says of the final loss, given the loss."""

from collections.abc import Callable

import numpy as np
import polars as pl
from named_features import by_feature
from numpy.typing import NDArray

from toposcope.analysis.trajectory import WEIGHT_NORM, Trajectory

Array = NDArray[np.float64]
Features = Callable[[np.random.Generator, Array, Array, Array], dict[str, Array]]
"""From a generator, the true loss (runs, steps), the logarithms of the rates (runs,) and what the loss does not show
(runs,): features by name, shape (runs, steps)."""
RATES = np.log([1.0, 2.0, 4.0, 8.0])


def wandering(rng: np.random.Generator, shape: tuple[int, ...], phi: float = 0.95) -> Array:
    """Stationary AR(1) paths along the last axis, of variance 1."""
    noise = rng.standard_normal(shape)
    path = noise.copy()
    for t in range(1, shape[-1]):
        path[..., t] = phi * path[..., t - 1] + np.sqrt(1 - phi**2) * noise[..., t]
    return path


def population(
    features: Features, n_runs: int, n_steps: int, seed: int, *, sizes: tuple[int, ...] = (3000,), peaks: bool = True
) -> tuple[list[Trajectory], pl.DataFrame, pl.DataFrame]:
    """Return trajectories, log and runs; the final loss depends on the loss, on the rate, and on something hidden.

    Runs of several sizes have other losses and norms by size; features get the loss less what the size makes of it.
    """
    rng = np.random.default_rng(seed)
    steps = np.arange(1, n_steps + 1) * 100
    falling = 2 + np.exp(-np.linspace(0, 3, n_steps))
    quality, hidden = rng.standard_normal((2, n_runs))
    rate = np.resize(RATES, n_runs) if peaks else np.zeros(n_runs)
    place = np.arange(n_runs) % len(sizes)
    relative = 0.05 * (quality[:, None] + 0.4 * wandering(rng, (n_runs, n_steps)) + 0.3 * rate[:, None])
    loss = falling + relative - 0.3 * place[:, None]
    final = loss[:, -1] + 0.03 * (hidden + 0.5 * (rate - RATES.mean()) ** 2)
    norm = 10 * np.exp(0.02 * rate[:, None] + 0.01 * wandering(rng, (n_runs, n_steps)) + 0.5 * place[:, None])
    made = features(rng, falling + relative, rate, hidden)
    found, logs, rows = [], [], []
    for i in range(n_runs):
        name = f"run-{i}"
        losses = np.append(loss[i], final[i])
        at = np.append(steps, steps[-1] + 100)
        values = {**{k: v[i] for k, v in made.items()}, str(WEIGHT_NORM): norm[i]}
        series = {k: np.append(v, v[-1]) for k, v in values.items()}
        covariates = {"step": at.astype(float), "learning_rate": np.full(len(at), 1e-3 * np.exp(rate[i]))}
        covariates["weight_norm"] = series[str(WEIGHT_NORM)]
        found.append(Trajectory(name, at, by_feature(series), {"validation_loss": losses}, covariates))
        logs.append(pl.DataFrame({"run": name, "step": at, "loss": losses, "validation_loss": losses}))
        rows.append((name, "family", sizes[place[i]], "complete", int(at[-1]), len(at)))
    schema = ["run", "kind", "n_parameters", "status", "last_step", "n_checkpoints"]
    return found, pl.concat(logs), pl.DataFrame(rows, schema=schema, orient="row")
