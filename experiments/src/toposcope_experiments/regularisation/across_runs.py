"""Rank correlations across runs, within strata, and their p by permuting the runs."""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import Indices, Matrix, Vector, derive_seed, mid_ranks

MIN_FREEDOM = 2  # residual degrees of freedom (runs - strata - 1) below which a correlation is not defined
MAX_ENUMERATED, N_PERMUTATIONS = 8, 20_000  # runs of which all orders are counted, and orders drawn of more
SEED = 42
TOLERANCE = 1e-9  # correlations that differ by less are equal


class Correlations(NamedTuple):
    """Rank correlations across runs, and their two-sided p by permuting the runs; NaN where not defined."""

    rho: Vector  # shape (f,)
    p: Vector


def correlate_across_runs(features: Matrix, target: Vector, strata: Indices) -> Correlations:
    """Correlate the ranks of features, shape (f, n), and of a target, shape (n,), within strata.

    Runs are compared with those of the same stratum, int64, shape (n,). The target is permuted within strata: all
    orders of up to 8 runs of one stratum are counted, else 20,000 drawn ones.
    """
    n, n_strata = len(strata), len(np.unique(strata))
    x, y = _scores(features, strata), _scores(target, strata)
    sizes, size = np.linalg.norm(x, axis=1), float(np.linalg.norm(y))
    free = sizes > TOLERANCE
    rho, p = np.full((2, len(features)), np.nan)
    if n - n_strata - 1 < MIN_FREEDOM or not size > TOLERANCE:
        return Correlations(rho, p)
    few = n_strata == 1 and n <= MAX_ENUMERATED
    orders = np.array(list(itertools.permutations(range(n)))) if few else draw_permutations(strata, N_PERMUTATIONS)
    of_orders = (x[free] / sizes[free, None]) @ y[orders].T / size
    rho[free] = np.clip(of_orders[:, 0], -1, 1)
    p[free] = (np.abs(of_orders) >= np.abs(of_orders[:, :1]) - TOLERANCE).mean(axis=1)
    return Correlations(rho, p)


def _scores(values: NDArray[np.float64], strata: Indices) -> NDArray[np.float64]:
    """Return mid-ranks within strata as a share of the runs there, less their mean."""
    result = np.empty(values.shape)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        result[..., members] = mid_ranks(values[..., members]) / (len(members) + 1) - 0.5
    return result


def draw_permutations(strata: Indices, count: int) -> Indices:
    """Draw orders of the runs within their strata, the given order first, shape (count, n)."""
    result = np.tile(np.arange(len(strata)), (count, 1))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        rng = np.random.default_rng(derive_seed(SEED, "runs", int(stratum)))
        result[1:, members] = rng.permuted(np.tile(members, (count - 1, 1)), axis=1)
    return result
