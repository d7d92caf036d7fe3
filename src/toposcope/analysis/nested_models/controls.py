"""Controls of nested models: topology of other runs must add nothing, and planted features must be found."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toposcope.analysis.nested_models.fitting import CONTROLS, Fold, further_tables
from toposcope.analysis.nested_models.population import CONFIGURATIONS, SIZES
from toposcope.analysis.nested_models.problems import Problem
from toposcope.analysis.nested_models.skill import compare
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector

MIN_RUNS_OF_SIZE = 5
N_SHUFFLES = 19
"""Draws of the topology of other runs."""
NOISE_LEVELS: Vector = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Standard deviations of the noise of planted features, in those of the residuals that they show."""
N_PLANTED = 20
"""Planted features of each noise level."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Skills of models with made-up columns beside the model with norms and spectra, and their p.

    Attributes
    ----------
    skill, p : ndarray, shape (d,)
    """

    skill: Vector
    p: Vector


def shuffled(problem: Problem, fitted: Sequence[Fold], base: Vector) -> dict[str, Draws]:
    """Return what the topology of another run of the same size adds, by the name of the model.

    Parameters
    ----------
    problem : Problem
    fitted : sequence of Fold
        From `folds`, leaving configurations out.
    base : ndarray, shape (n,)
        Predictions of the model with norms and spectra.
    """
    tables = {name: t for name, t in further_tables(problem).items() if name not in CONTROLS.values()}
    orders = [_order(problem, draw) for draw in range(N_SHUFFLES)]
    return {
        name: _draws(problem, np.array([_predicted(fitted, table[order]) for order in orders]), base)
        for name, table in tables.items()
    }


def planted(problem: Problem, fitted: Sequence[Fold], base: Vector) -> list[Draws]:
    """Return what a feature adds that shows the residuals of the model with norms and spectra, by noise level."""
    residuals = problem.fitted() - base
    spread = float(residuals.std())
    rng = np.random.default_rng(
        derive_seed(42, "nested models", "planted", problem.target, str(problem.columns.fraction))
    )
    unit = residuals / spread if spread > 0 else residuals
    found = []
    for level in NOISE_LEVELS:
        noise = rng.standard_normal((N_PLANTED, len(unit)))
        predicted = [_predicted(fitted, (unit + level * of_draw)[:, None]) for of_draw in noise]
        found.append(_draws(problem, np.array(predicted), base))
    return found


def _predicted(fitted: Sequence[Fold], table: Matrix) -> Vector:
    predicted = np.full(len(table), np.nan)
    for fold in fitted:
        predicted[fold.held_out] = fold.prediction_with(table)
    return predicted


def _draws(problem: Problem, predicted: Matrix, base: Vector) -> Draws:
    errors, of_base = problem.errors(predicted), np.tile(problem.errors(base), (len(predicted), 1))
    skills = compare(errors, of_base, problem.groups[CONFIGURATIONS])
    return Draws(skills.skill, skills.p)


def _order(problem: Problem, draw: int) -> Indices:
    """Return for every run another one of the same size; sizes of few runs count as one."""
    sizes = problem.groups.get(SIZES, np.zeros(len(problem.values), dtype=np.int64))
    sizes = np.where(np.bincount(sizes)[sizes] < MIN_RUNS_OF_SIZE, len(sizes), sizes)
    rng = np.random.default_rng(derive_seed(42, "nested models", "shuffle", str(problem.columns.fraction), draw))
    order = np.empty(len(sizes), dtype=np.int64)
    for size in np.unique(sizes):
        members = rng.permutation(np.flatnonzero(sizes == size))
        order[members] = np.roll(members, 1)
    return order
