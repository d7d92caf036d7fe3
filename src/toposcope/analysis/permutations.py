"""Permutation tests: signs, orders, and correlations across runs."""

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.ranks import MIN_RESIDUAL_SHARE, mid_ranks, orthonormal_basis
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Indices, Matrix, Vector

MAX_ENUMERATED_SIGNS, MAX_ENUMERATED_ORDERS = 14, 8
"""All signs, and all orders, of up to this many values are enumerated."""
N_DRAWN_SIGNS, N_DRAWN_ORDERS = 1 << MAX_ENUMERATED_SIGNS, 5000
RELATIVE_TOLERANCE = 1e-12


@lru_cache(MAX_ENUMERATED_ORDERS)
def orders(n: int) -> NDArray[np.int64]:
    """Return all n! orders of n places, the identity first, shape (n!, n)."""
    return np.array(list(itertools.permutations(range(n))))


@lru_cache(4)
def drawn_orders(n: int, seed: int) -> Indices:
    """Return random orders of n places, the identity first, shape (`N_DRAWN_ORDERS`, n)."""
    rng = np.random.default_rng(seed)
    return np.vstack([np.arange(n), rng.permuted(np.tile(np.arange(n), (N_DRAWN_ORDERS - 1, 1)), axis=1)])


def sign_flip(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p of the mean of paired differences, by flipping their signs.

    All 2^n signs of up to 14 differences are enumerated; of more, 2^14 random ones and the observed ones.

    Parameters
    ----------
    differences : ndarray, shape (n,)
        At least one.
    """
    return float(sign_flips(differences[None])[0])


def sign_flips(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `sign_flip` of each row, shape (k, n)."""
    n = differences.shape[1]
    if n <= MAX_ENUMERATED_SIGNS:
        signs = 1 - 2 * (np.arange(1 << n)[:, None] >> np.arange(n) & 1)
    else:
        drawn = np.random.default_rng(derive_seed(42, "signs", n)).choice([-1, 1], (N_DRAWN_SIGNS, n))
        signs = np.vstack([np.ones(n, dtype=drawn.dtype), drawn])
    sums = np.abs(differences @ signs.T.astype(np.float64))
    reached = sums >= np.abs(differences.sum(axis=1, keepdims=True)) * (1 - RELATIVE_TOLERANCE)
    return np.asarray(reached.mean(axis=1))


MIN_FREEDOM = 2  # residual degrees of freedom (runs - strata - controls - 1) below which a correlation is not defined
N_PERMUTATIONS = 20_000  # of more than 8 runs, or of several strata
MAX_CONTROL_DEGREE, RUNS_PER_TERM = 3, 3  # powers of controls are taken out while there are so many runs per term
TOLERANCE = 1e-9  # correlations that differ by less are equal


class Correlations(NamedTuple):
    """Rank correlations across runs, and their two-sided p by permuting the runs; NaN where not defined."""

    rho: Vector  # shape (f,)
    p: Vector


def correlate_across_runs(
    features: Matrix, target: Vector, strata: Indices, controls: Matrix | None = None
) -> Correlations:
    """Correlate the ranks of features and of a target within strata, given controls.

    The ranks of the controls, with their squares and cubes while there are three runs for each term, are regressed out
    of both. The target is permuted within strata and regressed on the controls anew (Manly 1986; Winkler et al. 2014):
    exact without controls.

    Parameters
    ----------
    features : ndarray, shape (f, n)
    target : ndarray, shape (n,)
    strata : ndarray, shape (n,), int64
        Runs are compared with those of the same stratum. All orders of up to 8 runs of one stratum are counted, else
        20,000 drawn ones.
    controls : ndarray, shape (k, n), optional
    """
    n, n_strata = len(strata), len(np.unique(strata))
    basis = _control_basis(np.empty((0, n)) if controls is None else controls, strata)
    x, y = _scores(features, strata), _scores(target, strata)
    left = x - (x @ basis) @ basis.T
    sizes = np.linalg.norm(left, axis=1)
    free = sizes > MIN_RESIDUAL_SHARE
    rho, p = np.full((2, len(features)), np.nan)
    if (
        n - n_strata - basis.shape[1] - 1 < MIN_FREEDOM
        or not np.linalg.norm(y - basis @ (basis.T @ y)) > MIN_RESIDUAL_SHARE
    ):
        return Correlations(rho, p)
    few = n_strata == 1 and n <= MAX_ENUMERATED_ORDERS
    moved = y[orders(n) if few else draw_permutations(strata, N_PERMUTATIONS, SEED)].T
    total = (moved**2).sum(axis=0)
    squares = total - ((basis.T @ moved) ** 2).sum(axis=0)
    squares[squares <= MIN_RESIDUAL_SHARE * total] = np.inf
    of_orders = (left[free] / sizes[free, None]) @ moved / np.sqrt(squares)
    rho[free] = np.clip(of_orders[:, 0], -1, 1)
    p[free] = (np.abs(of_orders) >= np.abs(of_orders[:, :1]) - TOLERANCE).mean(axis=1)
    return Correlations(rho, p)


def _scores(values: NDArray[np.float64], strata: Indices) -> NDArray[np.float64]:
    """Return mid-ranks within strata as a share of the runs there, less their mean."""
    result = np.empty(values.shape)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        result[..., members] = mid_ranks(values[..., members]) / (len(members) + 1)
    return _centred(result, strata)


def _control_basis(controls: Matrix, strata: Indices) -> Matrix:
    """Return an orthonormal basis of the ranks of controls, then squares, then cubes, with 3 runs or more per term."""
    linear = _scores(controls, strata)
    sizes = np.abs(linear).max(axis=1, initial=0.0)
    linear = linear[sizes > MIN_RESIDUAL_SHARE] / sizes[sizes > MIN_RESIDUAL_SHARE, None]
    n_terms = max(len(linear), (len(strata) - len(np.unique(strata)) + 1) // RUNS_PER_TERM)
    powers = [_centred(linear**degree, strata) for degree in range(1, MAX_CONTROL_DEGREE + 1)]
    return orthonormal_basis(np.concatenate(powers)[:n_terms])


def _centred(values: Matrix, strata: Indices) -> Matrix:
    """Return values less their mean within strata."""
    of = strata == np.unique(strata)[:, None]
    return np.asarray(values - (values @ of.T / of.sum(axis=1)) @ of)


def draw_permutations(strata: Indices, count: int, seed: int) -> Indices:
    """Draw orders of the runs within their strata, the given order first, shape (count, n)."""
    result = np.tile(np.arange(len(strata)), (count, 1))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        rng = np.random.default_rng(derive_seed(seed, "runs", int(stratum)))
        result[1:, members] = rng.permuted(np.tile(members, (count - 1, 1)), axis=1)
    return result
