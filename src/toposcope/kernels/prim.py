"""Minimum spanning trees by Prim's algorithm: of a small or low-dimensional cloud, and of a matrix of lengths.

Cost: O(n^2 d) time, O(n) memory next to the input. Lengths come from coordinate differences in float64.
Source: Prim 1957; the tree lengths are the H0 deaths of the Vietoris-Rips filtration.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, compiled_sums
from toposcope.typing import Matrix, Vector

Clouds = NDArray[np.float64]


@compiled_sums
def squared_distance(a: Vector, b: Vector) -> float:
    """Return the squared distance of two points from their coordinate differences."""
    squared = 0.0
    for t in range(len(a)):
        difference = a[t] - b[t]
        squared += difference * difference
    return squared


@compiled
def squared_distances(points: Matrix, pairs: NDArray[np.int64]) -> Vector:
    """Return the squared distances of pairs of points, by their first two numbers; shape (m,)."""
    squares = np.empty(len(pairs))
    for k in range(len(pairs)):
        squares[k] = squared_distance(points[pairs[k, 0]], points[pairs[k, 1]])
    return squares


@compiled_sums
def _four_squares(a: Vector, b: Vector, c: Vector, d: Vector, e: Vector) -> tuple[float, float, float, float]:
    """Return the squared distances of four points from a fifth: four sums at once wait less for each other."""
    to_a = to_b = to_c = to_d = 0.0
    for t in range(len(e)):
        from_a, from_b, from_c, from_d = a[t] - e[t], b[t] - e[t], c[t] - e[t], d[t] - e[t]
        to_a += from_a * from_a
        to_b += from_b * from_b
        to_c += from_c * from_c
        to_d += from_d * from_d
    return to_a, to_b, to_c, to_d


@compiled
def prim_squares(points: Matrix) -> Vector:
    """Return the squared edge lengths of the minimum spanning tree, in the order Prim's algorithm adds them."""
    n = len(points)
    squares = np.empty(n - 1)
    # Behind the points outside stand others, so that four can be taken at a time; what is computed of them is not used.
    outside = np.zeros(n + 3, np.int64)
    outside[:n] = np.arange(n)
    nearest = np.full(n + 3, np.inf)
    n_outside, closest = n, 0
    for k in range(n - 1):
        added = points[outside[closest]]
        n_outside -= 1
        outside[closest], nearest[closest] = outside[n_outside], nearest[n_outside]
        for o in range(0, n_outside, 4):
            squared = _four_squares(
                points[outside[o]], points[outside[o + 1]], points[outside[o + 2]], points[outside[o + 3]], added
            )
            for i in range(4):
                nearest[o + i] = min(nearest[o + i], squared[i])
        shortest = np.inf
        for o in range(n_outside):
            if nearest[o] < shortest:
                shortest, closest = nearest[o], o
        squares[k] = shortest
    return squares


@compiled
def prim_squares_batch(clouds: Clouds) -> Matrix:
    """Return the same of several clouds of one shape, (r, n, d); shape (r, n - 1)."""
    squares = np.empty((clouds.shape[0], clouds.shape[1] - 1))
    for r in range(len(squares)):
        squares[r] = prim_squares(clouds[r])
    return squares


@compiled
def prim_lengths(lengths: Matrix) -> Vector:
    """Return the edge lengths of the tree, in the order they are added; shape (n - 1,)."""
    n = len(lengths)
    tree = np.empty(n - 1)
    nearest = np.full(n, np.inf)
    outside = np.arange(1, n)
    n_outside = n - 1
    added = 0
    for k in range(n - 1):
        closest = 0
        shortest = np.inf
        for o in range(n_outside):
            vertex = outside[o]
            nearest[vertex] = min(nearest[vertex], lengths[added, vertex])
            if nearest[vertex] < shortest:
                shortest = nearest[vertex]
                closest = o
        tree[k] = shortest
        added = outside[closest]
        n_outside -= 1
        outside[closest] = outside[n_outside]
    return tree
