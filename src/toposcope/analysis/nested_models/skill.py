"""Skill of one model beside another, with an interval over groups of runs, and the tests of their paired errors."""

from dataclasses import dataclass

import numpy as np

from toposcope.analysis.permutations import sign_flips
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector

RESAMPLES = 1000
INTERVAL = (0.025, 0.975)
MIN_INTERVAL_GROUPS = 6
"""Fewer groups have no interval, and no p that could be significant."""


@dataclass(frozen=True, eq=False)
class Skills:
    """Skills of k models beside others, over g groups.

    Attributes
    ----------
    skill : ndarray, shape (k,)
        1 - MAE / MAE of the other model; NaN where that has no error.
    low, high : ndarray, shape (k,)
        95% interval, from resampling groups.
    p : ndarray, shape (k,)
        Two-sided, of the groups' mean differences, by flipping their signs.
    n_groups : int
    """

    skill: Vector
    low: Vector
    high: Vector
    p: Vector
    n_groups: int


def compare(errors: Matrix, base: Matrix, groups: Indices) -> Skills:
    """Compare the errors of k models with those of other models on the same runs.

    Parameters
    ----------
    errors, base : ndarray, shape (k, n)
    groups : ndarray of int, shape (n,)
        Runs of a group are resampled, and have their sign flipped, together.
    """
    member = _membership(groups)
    ours, theirs = errors @ member.T, base @ member.T
    totals = theirs.sum(axis=1)
    skill = 1 - ours.sum(axis=1) / np.where(totals > 0, totals, np.nan)
    unknown = np.full(len(errors), np.nan)
    n_groups = len(member)
    if n_groups < MIN_INTERVAL_GROUPS:
        return Skills(skill, unknown, unknown, unknown, n_groups)
    counts = _resamples(n_groups)
    below = theirs @ counts.T
    resampled = 1 - (ours @ counts.T) / np.where(below > 0, below, np.nan)
    defined = np.asarray(np.isfinite(resampled).all(axis=1))
    ends = np.quantile(np.where(defined[:, None], resampled, 0.0), INTERVAL, axis=1)
    low, high = (np.where(defined, end, np.nan) for end in ends)
    differences = (ours - theirs) / member.sum(axis=1)
    return Skills(skill, low, high, sign_flips(differences), n_groups)


def _resamples(n: int) -> Matrix:
    """Return how often each group is in each bootstrap sample, shape (resamples, n)."""
    rng = np.random.default_rng(derive_seed(42, "nested models", "bootstrap", n))
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(np.float64)


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
