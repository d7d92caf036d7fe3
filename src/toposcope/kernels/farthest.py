"""Greedy farthest-point order of a cloud.

Several of the farthest points are candidates for the next landmarks: their distances from all points are computed in
one pass over the memory. As long as the next landmark is a candidate, which is the rule in many dimensions, no pass is
needed. In many dimensions products of integers bound these distances from below, and only those that may be the least
so far are measured: about n log(count) in place of n count.

Cost: O(n d) for each landmark, and for each candidate that is not used; O(n) memory, and there n d 16-bit integers.
Source: Gonzalez 1985.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.kernels.integer_products import Rounded, distance_bounds, rounded
from toposcope.kernels.prim import squared_distance
from toposcope.typing import Indices, Matrix, Vector

MAX_CANDIDATES = 16  # points measured at a time for the next landmarks
MIN_BOUNDED_WIDTH = 64  # from so many coordinates on, bounds are quicker than distances


def farthest_order(points: Matrix, first: int, count: int) -> tuple[Indices, Vector]:
    """Return distinct landmarks, each the farthest point from those before it."""
    n = len(points)
    nearest = np.full(n, np.inf)
    indices, squared_radii = np.empty(count, np.int64), np.empty(count)
    candidates, squares = np.full(MAX_CANDIDATES, -1), np.empty((MAX_CANDIDATES, n))
    candidates[0], size, done, factors = first, 1, 0, _factors(points)
    while True:
        chosen = candidates[:size]
        _measure_bounded(points, factors, chosen, nearest, squares)
        before, done = done, _take(chosen, squares, nearest, indices, squared_radii, done)
        if done == count:
            return indices, squared_radii
        used = done - before
        size = _farthest(nearest, candidates[: min(2 * size, MAX_CANDIDATES) if used == size else used])


def nearest_squares(points: Matrix, chosen: Indices) -> Vector:
    """Return the squared distance of each point from the nearest of some; arguments as of `farthest_order`."""
    nearest, squares, factors = np.full(len(points), np.inf), np.empty((MAX_CANDIDATES, len(points))), _factors(points)
    for begin in range(0, len(chosen), MAX_CANDIDATES):
        part = chosen[begin : begin + MAX_CANDIDATES]
        _measure_bounded(points, factors, part, nearest, squares)
        np.minimum(nearest, squares[: len(part)].min(axis=0), out=nearest)
    return nearest


def _measure_bounded(points: Matrix, factors: Rounded | None, chosen: Indices, nearest: Vector, out: Matrix) -> None:
    bounds = np.zeros((len(chosen), len(points)), np.float32)
    if factors is not None:
        distance_bounds(factors.some(chosen), factors, -1.0, bounds)
    _measure(points, chosen, nearest, bounds, out)


def _factors(points: Matrix) -> Rounded | None:
    return rounded(points, np.arange(len(points))) if points.shape[1] >= MIN_BOUNDED_WIDTH else None


@compiled
def _take(
    candidates: Indices, squares: Matrix, nearest: Vector, indices: Indices, squared_radii: Vector, done: int
) -> int:
    """Add landmarks as long as the next is among the candidates, the first of which is; return how many there are."""
    place = 0
    while place >= 0 and done < len(indices):
        indices[done] = candidates[place]
        for i in range(len(nearest)):
            nearest[i] = min(nearest[i], squares[place, i])
        nearest[candidates[place]] = -1.0  # chosen, and never again: not even where all others repeat landmarks
        farthest = int(np.argmax(nearest))
        squared_radii[done] = max(nearest[farthest], 0.0)
        done += 1
        place = _place(candidates, farthest)
    return done


@compiled
def _measure(points: Matrix, chosen: Indices, nearest: Vector, bounds: NDArray[np.float32], squares: Matrix) -> None:
    """Fill in the squared distances of all points from some, a line each; infinity for what a bound rules out."""
    for i in range(len(points)):
        for k in range(len(chosen)):
            squares[k, i] = np.inf if bounds[k, i] >= nearest[i] else squared_distance(points[i], points[chosen[k]])


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
