"""Exact permutation p-values of the difference between two groups, by all divisions of their values."""

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import derive_seed

MAX_ENUMERATED_DIVISIONS = 50_000  # all divisions of up to 18 values into two halves are enumerated
N_DRAWN_DIVISIONS = 1 << 14
RELATIVE_TOLERANCE = 1e-12


def two_groups(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the two-sided p of the difference between the means of two independent groups, by exchanging members.

    All divisions of the values into groups of these sizes are enumerated if they are at most 50,000; of more, 2^14
    random ones and the observed one.
    """
    values = np.concatenate([first, second])
    known = np.isfinite(values).all(axis=0)
    centred = np.where(known, values, 0.0)
    scale = np.abs(centred).max(axis=0, initial=0)
    centred = centred / np.where(scale > 0, scale, 1.0)
    centred -= centred.mean(axis=0)
    # With the mean taken out, the difference of the means is proportional to the sum of one group.
    sums = np.abs(_divisions(len(first), len(values)) @ centred)
    p = (sums >= np.abs(centred[: len(first)].sum(axis=0)) * (1 - RELATIVE_TOLERANCE) - RELATIVE_TOLERANCE).mean(axis=0)
    return np.where(known, p, np.nan)


@lru_cache(4)
def _divisions(n: int, total: int) -> NDArray[np.float64]:
    """Return which of `total` values are in the first group of n, a row for each division, the given one first."""
    if comb(total, n) <= MAX_ENUMERATED_DIVISIONS:
        members = np.array(list(combinations(range(total), n)), dtype=np.int64).reshape(-1, n)
    else:
        generator = np.random.default_rng(derive_seed(42, "divisions", n, total))
        places = np.tile(np.arange(total), (N_DRAWN_DIVISIONS, 1))
        members = np.vstack([np.arange(n), generator.permuted(places, axis=1)[:, :n]])
    divisions = np.zeros((len(members), total))
    np.put_along_axis(divisions, members, 1.0, axis=1)
    return divisions


def least_p(n: int, m: int) -> float:
    """Return the smallest p that `two_groups` can give for groups of n and m values."""
    count = comb(n + m, n)
    if count > MAX_ENUMERATED_DIVISIONS:
        return 1 / (N_DRAWN_DIVISIONS + 1)
    return (2 if n == m else 1) / count
