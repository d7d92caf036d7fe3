"""Permutation tests: signs and orders."""

import itertools
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.seeds import derive_seed
from toposcope.typing import Indices

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
