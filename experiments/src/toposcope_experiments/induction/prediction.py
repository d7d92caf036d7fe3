"""How well quantities of an attention map predict the prefix matching of its head, in runs that are left out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, UNDETERMINED, Matrix, Vector, derive_seed, sign_flip
from toposcope_experiments.induction.training import CONTROLS, IN_CONTEXT, TOPOLOGY

RIDGE, N_TWINS = 1e-3, 20
MORE, NOT_FOUND, OF_THE_STEP = "says more", "not found", "of the step and layer alone"
RISEN = 0.5  # share of the way from its first value to its last at which a quantity is said to have moved


class Gain(NamedTuple):
    """What topology takes off the error of a prediction, by run left out."""

    error: Vector  # of the controls alone
    gain: Vector
    twins: Vector  # mean gains of other runs' topology in its place

    @property
    def p(self) -> float:
        """Two-sided, by flipping the signs of runs."""
        return sign_flip(self.gain)

    @property
    def standard_error(self) -> float:
        """Of the mean gain, over runs."""
        return float(self.gain.std(ddof=1) / np.sqrt(len(self.gain)))

    @property
    def verdict(self) -> str:
        """Whether topology says more than plain quantities, and more than another run's topology."""
        if 2 / 2 ** len(self.gain) >= LEVEL:
            return UNDETERMINED
        if not (self.gain.mean() > 0 and self.p < LEVEL):
            return NOT_FOUND
        return MORE if (self.gain.mean() > self.twins).mean() >= 1 - LEVEL else OF_THE_STEP


def predictors(frame: pl.DataFrame, names: Sequence[str]) -> Matrix:
    """Return quantities, their squares and products, with the layer and the step."""
    own = frame.select("layer", "step", *names).to_numpy().astype(np.float64)
    own = (own - own.mean(axis=0)) / np.maximum(own.std(axis=0), 1e-12)
    i, j = np.triu_indices(own.shape[1])
    return np.hstack([np.ones((len(own), 1)), own, own[:, i] * own[:, j]])


def errors(X: Matrix, frame: pl.DataFrame) -> Vector:
    """Return the mean absolute error of prefix matching in each run, by a ridge on the other runs."""
    y, runs = frame["prefix_matching"].to_numpy(), frame["run"].to_numpy()
    found = []
    for run in np.unique(runs):
        seen = runs != run
        penalty = RIDGE * seen.sum() * np.eye(X.shape[1])
        weights = np.linalg.solve(X[seen].T @ X[seen] + penalty, X[seen].T @ y[seen])
        found.append(float(np.abs(X[~seen] @ weights - y[~seen]).mean()))
    return np.array(found)


def gain_of_topology(frame: pl.DataFrame, names: Sequence[str] = TOPOLOGY, given: Sequence[str] = CONTROLS) -> Gain:
    """Return what topology adds to other quantities, and what another run's topology at the same step and head adds."""
    frame = frame.filter(pl.col("condition") == IN_CONTEXT).sort("run", "step", "layer", "head")
    plain = errors(predictors(frame, given), frame)
    n_runs = frame["run"].n_unique()
    own = frame.select(names).to_numpy().reshape(n_runs, -1, len(names))
    rng, twins = np.random.default_rng(derive_seed(0, "twins")), []
    for _ in range(N_TWINS):
        other = (np.arange(n_runs) + rng.integers(1, n_runs)) % n_runs
        values = own[other].reshape(-1, len(names))
        changed = frame.with_columns(pl.Series(name, values[:, k]) for k, name in enumerate(names))
        twins.append(float((plain - errors(predictors(changed, (*given, *names)), changed)).mean()))
    return Gain(plain, plain - errors(predictors(frame, (*given, *names)), frame), np.array(twins))


def leads(frame: pl.DataFrame, quantity: str) -> Vector:
    """Return how many steps before prefix matching a quantity has moved, in the best head of each in-context run."""
    found = []
    for _, run in frame.filter(pl.col("condition") == IN_CONTEXT).sort("step").group_by("run", maintain_order=True):
        last = run.filter(pl.col("step") == run["step"].max())
        layer, head = last.sort("prefix_matching")[-1].select("layer", "head").row(0)
        best = run.filter((pl.col("layer") == layer) & (pl.col("head") == head))
        found.append(_moved(best, "prefix_matching") - _moved(best, quantity))
    return np.array(found)


def _moved(head: pl.DataFrame, quantity: str) -> float:
    values = head[quantity].to_numpy()
    share = (values - values[0]) / (values[-1] - values[0] or np.nan)
    return float(head["step"].to_numpy()[np.argmax(share >= RISEN)])
