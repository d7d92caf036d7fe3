"""A test of features against the losses of other runs, by permuting the pairing (docs/methods/association.md)."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.permutations import orders
from toposcope.typing import Indices

MAX_ENUMERATED_RUNS = 7
"""All pairings of up to this many runs are enumerated."""
N_DRAWN_PAIRINGS = 5000
MIN_RUNS = 4
"""Three runs have six pairings, so that p could not be below 1/6."""


def pairing_p(strengths: NDArray[np.float64], seed: int) -> float:
    """Return the share of all pairings of features with losses that are as strong as the true one.

    Under the null hypothesis that all runs share what moves the loss, a feature is associated with another run's loss
    as with its own, and every pairing is equally likely to be the strongest: the share is an exact p for any series.

    Parameters
    ----------
    strengths : ndarray, shape (r, r)
        Strength of the association of the feature of run j with the loss of run i; NaN where they cannot be compared.
    seed : int
        Seed of the random pairings, where there are too many to enumerate.

    Returns
    -------
    float
        At least 1 / r! with up to 7 runs; NaN with fewer than 4 comparable runs, which allow no p below .05.
    """
    runs = list(range(len(strengths)))
    if len(runs) < MIN_RUNS:
        return math.nan
    while runs and np.isnan(strengths[np.ix_(runs, runs)]).any():
        gaps = np.isnan(strengths[np.ix_(runs, runs)])
        runs.pop(int(np.argmax(gaps.sum(axis=0) + gaps.sum(axis=1))))
    n = len(runs)
    if n < MIN_RUNS:
        return math.nan
    square = strengths[np.ix_(runs, runs)]
    pairings = orders(n) if n <= MAX_ENUMERATED_RUNS else _drawn_pairings(n, seed)
    sums = square[np.arange(n), pairings].sum(axis=1)
    return float((sums >= sums[0] * (1 - 1e-12)).mean())


@lru_cache(2)
def _drawn_pairings(n: int, seed: int) -> Indices:
    """Return random orders of n runs, the true one first, shape (`N_DRAWN_PAIRINGS`, n)."""
    rng = np.random.default_rng(seed)
    return np.vstack([np.arange(n), rng.permuted(np.tile(np.arange(n), (N_DRAWN_PAIRINGS - 1, 1)), axis=1)])
