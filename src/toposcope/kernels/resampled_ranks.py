"""Spearman's rho of many resamples, each ranked anew by counting, in time linear in its length.

A resample of n checkpoints takes values that were ranked before. Counting how often each of them was drawn gives the
mid-ranks of the resample (the group drawn c times after b smaller ones has rank b + (c + 1) / 2) without sorting it.
Resamples are counted side by side, one in each lane of the processor's vectors. Ranks are whole or half numbers, and so
are their sums, which are exact in any order.
"""

import numpy as np

from toposcope.kernels.compiled import compiled
from toposcope.typing import Indices, Matrix, Vector

RANK_LANES = 64  # resamples that are counted at once: few enough for their counts to stay in the cache


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
def _sort(groups: Indices, order: Indices, begin: Indices) -> None:
    """Sort places by their group; group g takes ``order[begin[g] : begin[g + 1]]``."""
    begin[:] = 0
    for group in groups:
        begin[group + 1] += 1
    for g in range(len(groups)):
        begin[g + 1] += begin[g]
    filled = begin.copy()
    for i in range(len(groups)):
        order[filled[groups[i]]] = i
        filled[groups[i]] += 1


@compiled
def _add_up(
    order: Indices,
    begin: Indices,
    counts: Matrix,
    weights: Matrix,
    n_drawn: float,
    count: Vector,
    weight: Vector,
    below: Vector,
    products: Vector,
    squares: Vector,
) -> None:
    """Add up, in each lane, twice the centred rank of every group times its weight, and squared for all drawn of it."""
    below[:] = 0.0
    products[:] = 0.0
    squares[:] = 0.0
    for g in range(len(order)):
        first, end = begin[g], begin[g + 1]
        if first == end:
            return
        place = order[first]
        for r in range(RANK_LANES):
            count[r] = counts[place, r]
            weight[r] = weights[place, r]
        for k in range(first + 1, end):
            place = order[k]
            for r in range(RANK_LANES):
                count[r] += counts[place, r]
                weight[r] += weights[place, r]
        for r in range(RANK_LANES):
            here = count[r]
            rank = 2.0 * below[r] + here - n_drawn
            products[r] += rank * weight[r]
            squares[r] += rank * rank * here
            below[r] += here


@compiled
def resampled_spearman(features: Indices, target: Indices, draws: Indices) -> Matrix:
    """Return Spearman's rho of every feature with the target in every resample."""
    n_features, n = features.shape
    rho = np.empty((n_features, len(draws)))
    order, begin = np.empty((n_features, n), np.int64), np.empty((n_features, n + 1), np.int64)
    for f in range(n_features):
        _sort(features[f], order[f], begin[f])
    group_counts, group_ranks = np.empty(n, np.int64), np.empty(n)
    counts, weights = np.empty((n, RANK_LANES)), np.empty((n, RANK_LANES))
    count, weight, below = np.empty(RANK_LANES), np.empty(RANK_LANES), np.empty(RANK_LANES)
    products, squares, target_squares = np.empty(RANK_LANES), np.empty(RANK_LANES), np.empty(RANK_LANES)
    for start in range(0, len(draws), RANK_LANES):
        block = draws[start : start + RANK_LANES]
        counts[:] = 0.0
        weights[:] = 0.0
        for r in range(len(block)):
            target_squares[r] = _rank(target, block[r], group_counts, group_ranks)
            for i in block[r]:
                counts[i, r] += 1.0
                weights[i, r] += group_ranks[target[i]]
        for f in range(n_features):
            n_drawn = float(draws.shape[1])
            _add_up(order[f], begin[f], counts, weights, n_drawn, count, weight, below, products, squares)
            for r in range(len(block)):
                both = squares[r] * target_squares[r]
                rho[f, start + r] = products[r] / np.sqrt(both) if both > 0.0 else np.nan
    return rho
