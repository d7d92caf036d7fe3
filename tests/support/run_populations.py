"""Populations whose truth is known: what topology and its placebos carry of the final loss."""

from typing import Literal

import numpy as np
import polars as pl
from made_up_populations import Array, population, wandering

from toposcope.analysis.between_runs.population import RunPopulation, run_population
from toposcope.analysis.trajectory import Trajectory

Carried = Literal["nothing", "the known", "the hidden"]
"""What features carry: noise; loss, rate and noise, bent; or what moves the final loss and the loss does not show."""
NONE = pl.DataFrame()


def features_of(carried: Carried, names: list[str], rng: np.random.Generator, known: list[Array]) -> dict[str, Array]:
    """Return features by name, shape (runs, steps) each; `known` are loss, rate and what is hidden."""
    loss, rate, hidden = known
    own = wandering(rng, (len(names), *loss.shape))
    relative = (loss - loss.mean(axis=0)) / loss.std(axis=0)
    of_each = {
        "nothing": np.zeros_like(loss),
        "the known": 2 * np.abs(relative) + relative + 0.5 * (rate[:, None] - 1) ** 2,
        "the hidden": 3 * np.repeat(hidden[:, None], loss.shape[1], axis=1),
    }[carried]
    return {name: np.exp(0.3 * (of_each + noise)) for name, noise in zip(names, own, strict=True)}


def frames(
    topology: Carried,
    n_runs: int = 48,
    seed: int = 0,
    *,
    projections: Carried | None = None,
    twin: Carried | None = None,
    sizes: tuple[int, ...] = (3000, 7000),
) -> tuple[list[Trajectory], pl.DataFrame, pl.DataFrame]:
    """Return trajectories, log and runs of a population, with ten checkpoints each."""
    measured: dict[str, Carried | None] = {"rips": topology, "random_projections": projections, "placebo_twin": twin}

    def features(rng: np.random.Generator, loss: Array, rate: Array, hidden: Array) -> dict[str, Array]:
        made: dict[str, Array] = features_of("nothing", ["controls stable_rank"], rng, [loss, rate, hidden])
        for probe, carried in measured.items():
            names = [f"{probe} {statistic}" for statistic in ("H0.total", "H0.max", "H1.total", "H1.max")]
            made |= features_of(carried, names, rng, [loss, rate, hidden]) if carried else {}
        return made

    return population(features, n_runs, 10, seed, sizes=sizes)


def of_runs(topology: Carried, n_runs: int = 48, seed: int = 0, **options: object) -> RunPopulation:
    """Return such a population with its targets and groups; see `frames`."""
    return run_population(*frames(topology, n_runs, seed, **options), NONE, NONE)  # type: ignore[arg-type]
