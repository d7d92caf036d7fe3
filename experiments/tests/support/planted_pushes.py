"""Planted truths: matrices trained under the pushes, with a loss that depends on what is planted, for the verdicts.

    python experiments/tests/support/planted_pushes.py [FOLDER]

prints how often each verdict is reached; with a folder of results, on the changes that their pushes made.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from toposcope.extend import Matrix, Vector, derive_seed
from toposcope_experiments.interventions.matrix_statistics import STATISTICS, MatrixStatistic, along, permuted
from toposcope_experiments.interventions.results import (
    ARMS,
    BASE,
    CHAOS,
    COLUMNS,
    DOWN,
    NEIGHBOURS,
    OWN_DOSES,
    RANDOM,
    RANK,
    SPREAD,
    STATISTIC,
    TWIN,
    UNDIRECTED,
    UP,
    StatisticRuns,
    read_results,
    statistics_of,
)
from toposcope_experiments.interventions.verdict import judge

Stack = NDArray[np.float64]  # shape (seeds, rows, columns)
N_ROWS, N_COLUMNS, N_STEPS, RATE = 14, 6, 40, 0.05
GRADIENT_NOISE = 0.1
SHARE, MAX_SHARE = 0.3, 1.2
PILOT, N_CALIBRATIONS = 24, 4
NOISE = 12.0  # mnat, of a run's loss: 17 of a paired difference, as measured on transformers of 7,000 parameters
EFFECT = 25.0  # mnat, of the planted truths: half of pushed up less pushed down
STATISTIC_NAME = "scale_free_h0"
H0_BEYOND, H0_ALONE, RANK_ALONE, SPREAD_ALONE = "H0 beyond the others", "H0 alone", "rank alone", "spread alone"
MIXED, NULL, COST = "H0 and rank alike", "nothing", "pushing in any direction"
QUANTITIES = {STATISTIC: STATISTICS[STATISTIC_NAME], **{arm: STATISTICS[arm] for arm in (SPREAD, RANK, NEIGHBOURS)}}
TRUTHS = (H0_BEYOND, H0_ALONE, RANK_ALONE, SPREAD_ALONE, MIXED, NULL, COST)


def _measured(statistic: MatrixStatistic, weights: Stack) -> tuple[Vector, Stack]:
    """Return a statistic of each matrix, and its gradient."""
    leaf = torch.from_numpy(weights).requires_grad_()
    value = statistic.value(leaf, statistic.pair(leaf.detach()))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach().numpy(), gradient.numpy()


@dataclass(frozen=True, eq=False)
class Trained:
    """What every push changed at the end, and the share of the gradient that pushed."""

    # logarithms of quantities over those of the base run of the seed; by arm and direction, then by quantity
    changes: dict[tuple[str, int], dict[str, Vector]]
    shares: dict[str, float]

    @classmethod
    def of(cls, runs: StatisticRuns) -> "Trained":
        """Return what the pushes of results changed, in the seeds of which all runs ended."""
        columns = {STATISTIC: "dose", **OWN_DOSES}
        keys = [(arm, way) for arm in ARMS for way in runs.directions(arm)]
        changes = {key: {name: runs.values(column, *key) for name, column in columns.items()} for key in keys}
        every = np.array([list(of.values()) for of in changes.values()])
        known = np.isfinite(every).all(axis=(0, 1))
        shares = {arm: np.array([runs.values("share", arm, way) for way in runs.directions(arm)]) for arm in ARMS}
        means = {arm: float(np.nanmean(each)) for arm, each in shares.items() if np.isfinite(each).any()}
        return cls({key: {name: v[known] for name, v in of.items()} for key, of in changes.items()}, means)


def train(n_seeds: int, seed: int = 0) -> Trained:
    """Train all arms; a placebo's share is set on the first seeds so that it reaches the dose of the statistic."""
    ends = {(BASE, UNDIRECTED): _train(n_seeds, seed, BASE, UNDIRECTED, 0.0)}
    ends[CHAOS, UNDIRECTED] = _train(n_seeds, seed, CHAOS, UNDIRECTED, 0.0)
    shares = {STATISTIC: SHARE, RANDOM: SHARE}

    def dose(arm: str, share: float) -> float:
        ends = (_train(PILOT, seed, arm, way, share) for way in (UP, DOWN))
        pilots = [np.log(_measured(QUANTITIES[STATISTIC], end)[0]).mean() for end in ends]
        return float(pilots[0] - pilots[1])

    target = dose(STATISTIC, SHARE)
    for arm in (TWIN, SPREAD, RANK, NEIGHBOURS):
        share = SHARE
        for _ in range(N_CALIBRATIONS):
            share = float(np.clip(share * target / max(dose(arm, share), target / 4), SHARE / 8, MAX_SHARE))
        shares[arm] = share
    for arm, share in shares.items():
        for way in (UP, DOWN):
            ends[arm, way] = _train(n_seeds, seed, arm, way, share)
    logs = {key: {name: np.log(_measured(of, end)[0]) for name, of in QUANTITIES.items()} for key, end in ends.items()}
    base = logs[BASE, UNDIRECTED]
    changes = {key: {name: log - base[name] for name, log in of.items()} for key, of in logs.items()}
    return Trained(changes, shares)


def _train(n_seeds: int, seed: int, arm: str, way: int, share: float) -> Stack:
    """Return the matrices at the end of gradient descent from small weights to noisy targets of lower rank."""
    rng = np.random.default_rng(derive_seed(seed, "planted"))
    shape = n_seeds, N_ROWS, N_COLUMNS

    def drawn(*size: int) -> Stack:
        # each from its own stream: fewer seeds are the first of more
        return rng.spawn(1)[0].standard_normal(size)

    left, right, rest = drawn(n_seeds, N_ROWS, 2), drawn(n_seeds, 2, N_COLUMNS), drawn(*shape)
    target, weights = left @ right + rest, 0.3 * drawn(*shape)
    direction, order = drawn(*shape), rng.spawn(1)[0].permutation(N_ROWS * N_COLUMNS)
    pushed = {
        RANDOM: along(torch.from_numpy(direction)),
        TWIN: permuted(QUANTITIES[STATISTIC], torch.from_numpy(order).expand(n_seeds, -1)),
        **QUANTITIES,
    }
    nudge, noise = drawn(*shape), rng.spawn(1)[0]
    if arm == CHAOS:
        weights = weights * (1 + 1e-4 * nudge)
    for _ in range(N_STEPS):
        gradient = weights - target + GRADIENT_NOISE * noise.standard_normal(shape)
        if share:
            push = _measured(pushed[arm], weights)[1]
            size = np.sqrt((gradient**2).sum(axis=(1, 2)) / (push**2).sum(axis=(1, 2)))
            gradient = gradient - way * share * size[:, None, None] * push
        weights = weights - RATE * gradient
    return weights


def planted_loss(trained: Trained, truth: str) -> dict[tuple[str, int], Vector]:
    """Return what the loss of every run is by a truth, in mnat, scaled so that pushing the statistic has `EFFECT`."""
    changes = {key: np.array([of[name] for name in QUANTITIES]) for key, of in trained.changes.items()}
    if truth in (NULL, COST):
        cost = EFFECT if truth == COST else 0.0
        return {key: np.full(len(change[0]), cost * abs(key[1])) for key, change in changes.items()}
    weights = {
        H0_BEYOND: _beyond_the_others(changes),
        H0_ALONE: np.array([1.0, 0, 0, 0]),
        RANK_ALONE: np.array([0.0, 0, 1, 0]),
        SPREAD_ALONE: np.array([0.0, 1, 0, 0]),
    }
    if truth == MIXED:
        return {
            key: (planted_loss(trained, H0_ALONE)[key] + planted_loss(trained, RANK_ALONE)[key]) / 2 for key in changes
        }
    weight = weights[truth]
    reached = weight @ (changes[STATISTIC, UP] - changes[STATISTIC, DOWN]).mean(axis=1) / 2
    return {key: -EFFECT / reached * (weight @ change) for key, change in changes.items()}


def _beyond_the_others(changes: dict[tuple[str, int], Matrix]) -> Vector:
    """Return H0 less what the changes of spread, rank and neighbours predict of it where those are pushed."""
    pushed = np.concatenate([changes[arm, way] for arm in (SPREAD, RANK, NEIGHBOURS) for way in (UP, DOWN)], axis=1)
    coefficients = np.linalg.lstsq(pushed[1:].T, pushed[0], rcond=None)[0]
    return np.array([1.0, *-coefficients])


def results_of(
    trained: Trained, loss: dict[tuple[str, int], Vector], seeds: Sequence[int], rng: np.random.Generator
) -> pl.DataFrame:
    """Return the table of results of some seeds, with noise of their own."""
    places, n, keys = np.asarray(seeds), len(seeds), list(loss)

    def changes(name: str) -> Vector:
        return np.concatenate([trained.changes[key][name][places] for key in keys])

    noise = NOISE * rng.standard_normal(n * len(keys))
    losses = 2 + (np.concatenate([loss[key][places] for key in keys]) + noise) / 1000
    columns = {
        "statistic": STATISTIC_NAME,
        "arm": [arm for arm, _ in keys for _ in seeds],
        "direction": [way for _, way in keys for _ in seeds],
        "seed": np.tile(np.arange(n), len(keys)),
        "share": [trained.shares.get(arm) for arm, _ in keys for _ in seeds],
        "dose": changes(STATISTIC),
        "target_dose": None,
        "loss": losses,
        "loss_half": losses,
        "diverged": 0,
        **{column: changes(name) for name, column in OWN_DOSES.items()},
    }
    return pl.DataFrame(columns, schema_overrides=COLUMNS)


def rates(trained: Trained, truth: str, n_seeds: int, n_repetitions: int, *, own: bool = True) -> Counter[str]:
    """Return how often each verdict is reached on a truth, over draws of seeds and of the noise of the losses."""
    loss = planted_loss(trained, truth)
    rng = np.random.default_rng(derive_seed(0, "planted rates", truth))
    n_trained = len(loss[BASE, UNDIRECTED])
    found: Counter[str] = Counter()
    for _ in range(n_repetitions):
        table = results_of(trained, loss, rng.permutation(n_trained)[:n_seeds].tolist(), rng)
        table = table if own else table.drop(OWN_DOSES.values())
        (verdict,) = judge([StatisticRuns(STATISTIC_NAME, table)])
        found[verdict.words if verdict.explained_by else verdict.verdict] += 1
    return found


def print_rates(trained: Trained, n_repetitions: int = 200) -> None:
    """Print how often each verdict is reached, without the changes of plain quantities too where they matter."""
    from toposcope.extend import joined, print_table

    rows = []
    for truth, own in [*((truth, True) for truth in TRUTHS), (H0_ALONE, False)]:
        for n in (24, 91):
            if n > len(trained.changes[BASE, UNDIRECTED][STATISTIC]):
                continue
            found = rates(trained, truth, n, n_repetitions, own=own)
            listed = [f"{verdict} {count / n_repetitions:.1%}" for verdict, count in found.most_common()]
            rows.append([truth if own else f"{truth}, at equal dose only", n, joined(listed)])
    print_table(["truth", "seeds", "verdicts"], rows, f"Verdicts in {n_repetitions} repetitions")


if __name__ == "__main__":
    if sys.argv[1:]:
        print_rates(Trained.of(next(statistics_of(read_results(Path(sys.argv[1]))[0]))))
    else:
        print_rates(train(600))
