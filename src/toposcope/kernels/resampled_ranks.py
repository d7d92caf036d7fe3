"""Spearman's rho of many resamples, each ranked anew by counting, in time linear in its length.

A resample of n checkpoints takes values that were ranked before. Counting how often each of them was drawn gives the
mid-ranks of the resample (the group drawn c times after b smaller ones has rank b + (c + 1) / 2) without sorting it.
"""

import numpy as np

from toposcope.kernels.compiled import compiled
from toposcope.typing import Indices, Matrix, Vector


@compiled
def _rank(groups: Indices, drawn: Indices, counts: Indices, group_ranks: Vector) -> float:
    """Fill the centred mid-rank of every group in a resample; return the sum of squares of the drawn ranks."""
    counts[:] = 0
    for i in drawn:
        counts[groups[i]] += 1
    below, centre, squares = 0, 0.5 * (len(drawn) + 1), 0.0
    for g in range(len(counts)):
        rank = below + 0.5 * (counts[g] + 1) - centre
        group_ranks[g] = rank
        squares += counts[g] * rank * rank
        below += counts[g]
    return squares


@compiled
def resampled_spearman(features: Indices, target: Indices, draws: Indices) -> Matrix:
    """Return Spearman's rho of every feature with the target in every resample.

    Parameters
    ----------
    features : ndarray, shape (f, n), int64
        Dense ranks from 0: equal values share one.
    target : ndarray, shape (n,), int64
        Dense ranks from 0.
    draws : ndarray, shape (r, m), int64
        Places drawn, in [0, n).

    Returns
    -------
    ndarray, shape (f, r), float64
        NaN where a resample holds one value only.

    Notes
    -----
    O(f r (n + m)) time, O(n) memory beside the result.
    """
    n_features, n = features.shape
    rho = np.empty((n_features, len(draws)))
    counts, ranks, target_ranks = np.empty(n, np.int64), np.empty(n), np.empty(n)
    for r in range(len(draws)):
        drawn = draws[r]
        target_squares = _rank(target, drawn, counts, target_ranks)
        for f in range(n_features):
            groups = features[f]
            squares = _rank(groups, drawn, counts, ranks)
            if squares == 0.0 or target_squares == 0.0:
                rho[f, r] = np.nan
                continue
            product = 0.0
            for i in drawn:
                product += ranks[groups[i]] * target_ranks[target[i]]
            rho[f, r] = product / np.sqrt(squares * target_squares)
    return rho
