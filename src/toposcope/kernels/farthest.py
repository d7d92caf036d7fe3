"""Greedy farthest-point order of a cloud.

Several of the farthest points are candidates for the next landmarks: their distances from all points are computed in
one pass over the memory. As long as the next landmark is a candidate, which is the rule in many dimensions, no pass is
needed.

Cost: O(n d) for each landmark, and for each candidate that is not used; O(n) memory.
Source: Gonzalez 1985.
"""

import numpy as np

from toposcope.kernels.compiled import compiled
from toposcope.kernels.euclidean_prim import squared_distance
from toposcope.typing import Indices, Matrix, Vector

MAX_CANDIDATES = 16
"""Points measured at a time."""


@compiled
def farthest_order(points: Matrix, first: int, count: int) -> tuple[Indices, Vector]:
    """Return distinct landmarks, each the farthest point from those before it.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64
    first : int
        The landmark to begin with.
    count : int
        How many, at most n.

    Returns
    -------
    indices : ndarray, shape (count,), int64
    squared_radii : ndarray, shape (count,), float64
        Largest squared distance of a point from the landmarks up to and with each.
    """
    n = len(points)
    nearest = np.full(n, np.inf)
    indices, squared_radii = np.empty(count, np.int64), np.empty(count)
    candidates, squares = np.full(MAX_CANDIDATES, -1), np.empty((MAX_CANDIDATES, n))
    farthest, size, used = first, 1, 1
    candidates[0] = first
    _measure(points, candidates[:1], squares)
    for k in range(count):
        place = _place(candidates[:size], farthest)
        if place < 0:
            size = _farthest(nearest, candidates[: min(2 * size, MAX_CANDIDATES) if used == size else used])
            used, place = 0, 0
            _measure(points, candidates[:size], squares)
        used += 1
        indices[k] = farthest
        for i in range(n):
            nearest[i] = min(nearest[i], squares[place, i])
        nearest[farthest] = -1.0  # chosen, and never again: not even where all others repeat landmarks
        farthest = int(np.argmax(nearest))
        squared_radii[k] = max(nearest[farthest], 0.0)
    return indices, squared_radii


@compiled
def _measure(points: Matrix, chosen: Indices, squares: Matrix) -> None:
    """Fill in the squared distances of all points from some, a line each."""
    for i in range(len(points)):
        for k in range(len(chosen)):
            squares[k, i] = squared_distance(points[i], points[chosen[k]])


@compiled
def _place(chosen: Indices, index: int) -> int:
    """Return where an index stands among others; -1 if it does not."""
    for k in range(len(chosen)):
        if chosen[k] == index:
            return k
    return -1


@compiled
def _farthest(nearest: Vector, chosen: Indices) -> int:
    """Fill in the points with the largest values that are not below zero, the largest first; return how many."""
    count = 0
    for i in range(len(nearest)):
        if nearest[i] < 0 or (count == len(chosen) and nearest[i] <= nearest[chosen[-1]]):
            continue
        k = min(count, len(chosen) - 1)
        while k > 0 and nearest[chosen[k - 1]] < nearest[i]:
            chosen[k] = chosen[k - 1]
            k -= 1
        chosen[k] = i
        count = min(count + 1, len(chosen))
    return count
