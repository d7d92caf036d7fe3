"""Skill of one model over another, with an interval over groups of runs, and the tests of their paired errors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toposcope.analysis import tuning
from toposcope.analysis.nested_models.columns import Problem
from toposcope.analysis.nested_models.fitting import CONTROLS, Fold, further_tables, named_draws
from toposcope.analysis.nested_models.population import CONFIGURATIONS, SIZES
from toposcope.analysis.permutations import sign_flips
from toposcope.typing import Indices, Matrix, Vector

RESAMPLES = 1000
INTERVAL = (0.025, 0.975)
MIN_INTERVAL_GROUPS = 6  # fewer groups have no interval, and no p that could be significant


@dataclass(frozen=True, eq=False)
class Skills:
    """Skills of k models over others, from g groups."""

    skill: Vector  # shape (k,); 1 - MAE / MAE of the other model; NaN where that has no error
    low: Vector  # shape (k,); 95% interval, from resampling groups
    high: Vector
    p: Vector  # shape (k,); two-sided, of the groups' mean differences, by flipping their signs
    n_groups: int


def compare(errors: Matrix, base: Matrix, groups: Indices) -> Skills:
    """Compare the errors of k models with those of other models on the same runs."""
    member = _membership(groups)
    ours, theirs = errors @ member.T, base @ member.T
    totals = theirs.sum(axis=1)
    skill = 1 - ours.sum(axis=1) / np.where(totals > 0, totals, np.nan)
    unknown = np.full(len(errors), np.nan)
    n_groups = len(member)
    if n_groups < MIN_INTERVAL_GROUPS:
        return Skills(skill, unknown, unknown, unknown, n_groups)
    draws = named_draws("bootstrap", n_groups)
    counts = draws.multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=RESAMPLES).astype(np.float64)
    below = theirs @ counts.T
    resampled = 1 - (ours @ counts.T) / np.where(below > 0, below, np.nan)
    defined = np.asarray(np.isfinite(resampled).all(axis=1))
    ends = np.quantile(np.where(defined[:, None], resampled, 0.0), INTERVAL, axis=1)
    low, high = (np.where(defined, end, np.nan) for end in ends)
    return Skills(skill, low, high, sign_flips((ours - theirs) / member.sum(axis=1)), n_groups)


def wilcoxon_p(errors: Matrix, base: Matrix, groups: Indices) -> Vector:
    """Return the two-sided p of the signed ranks of the groups' mean differences, shape (k,)."""
    from scipy.stats import wilcoxon  # slow to import

    member = _membership(groups)
    differences = (errors - base) @ member.T / member.sum(axis=1)
    if len(member) < MIN_INTERVAL_GROUPS:
        return np.full(len(errors), np.nan)
    return np.array([wilcoxon(row, zero_method="zsplit").pvalue if row.any() else 1.0 for row in differences])


def _membership(groups: Indices) -> Matrix:
    """Return which runs are in each group, shape (g, n)."""
    names, place = np.unique(groups, return_inverse=True)
    member = np.zeros((len(names), len(groups)))
    member[place, np.arange(len(groups))] = 1.0
    return member


N_SHUFFLES = 19  # draws of the topology of other runs
N_PLANTED = 20  # planted features of each noise level


def shuffled(problem: Problem, fitted: Sequence[Fold], base: Vector) -> dict[str, Skills]:
    """Return what the topology of another run of the same size adds, by the name of the model."""
    tables = {name: t for name, t in further_tables(problem).items() if name not in CONTROLS.values()}
    orders = [_order(problem, draw) for draw in range(N_SHUFFLES)]
    return {
        name: _draws(problem, np.array([_predicted(fitted, table[order]) for order in orders]), base)
        for name, table in tables.items()
    }


def planted(problem: Problem, fitted: Sequence[Fold], base: Vector) -> list[Skills]:
    """Return what a feature adds that shows the residuals of the model with norms and spectra, by noise level."""
    residuals = problem.fitted() - base
    spread = float(residuals.std())
    rng = named_draws("planted", problem.target, str(problem.columns.fraction))
    unit = residuals / spread if spread > 0 else residuals
    found = []
    for level in tuning.NOISE_LEVELS:
        noise = rng.standard_normal((N_PLANTED, len(unit)))
        predicted = [_predicted(fitted, (unit + level * of_draw)[:, None]) for of_draw in noise]
        found.append(_draws(problem, np.array(predicted), base))
    return found


def _predicted(fitted: Sequence[Fold], table: Matrix) -> Vector:
    predicted = np.full(len(table), np.nan)
    for fold in fitted:
        predicted[fold.held_out] = fold.prediction_with(table)
    return predicted


def _draws(problem: Problem, predicted: Matrix, base: Vector) -> Skills:
    errors, of_base = problem.errors(predicted), np.tile(problem.errors(base), (len(predicted), 1))
    return compare(errors, of_base, problem.groups[CONFIGURATIONS])


def _order(problem: Problem, draw: int) -> Indices:
    """Return for every run another one of the same size; sizes of few runs count as one."""
    sizes = problem.groups.get(SIZES, np.zeros(len(problem.values), dtype=np.int64))
    sizes = np.where(np.bincount(sizes)[sizes] < tuning.MIN_RUNS_OF_SIZE, len(sizes), sizes)
    rng = named_draws("shuffle", str(problem.columns.fraction), draw)
    order = np.empty(len(sizes), dtype=np.int64)
    for size in np.unique(sizes):
        members = rng.permutation(np.flatnonzero(sizes == size))
        order[members] = np.roll(members, 1)
    return order
