"""Euclidean minimum spanning tree of a small or low-dimensional cloud: Prim's algorithm, distances on the fly.

Cost: O(n^2 d) time, O(n) memory beside the points. Lengths come from coordinate differences in float64.
Source: Prim 1957; the tree lengths are the H0 deaths of the Vietoris-Rips filtration.
"""

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def squared_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return the squared distance of two points from their coordinate differences."""
    squared = 0.0
    for t in range(len(a)):
        difference = a[t] - b[t]
        squared += difference * difference
    return squared


@numba.njit(cache=True, nogil=True)
def prim_squares(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared edge lengths of the minimum spanning tree, in the order Prim's algorithm adds them.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64
        Finite coordinates, n at least 1.

    Returns
    -------
    ndarray, shape (n - 1,), float64
    """
    n = len(points)
    squares = np.empty(n - 1)
    nearest = np.full(n, np.inf)
    outside = np.arange(1, n)
    n_outside = n - 1
    added = 0
    for k in range(n - 1):
        closest = 0
        shortest = np.inf
        for o in range(n_outside):
            vertex = outside[o]
            nearest[vertex] = min(nearest[vertex], squared_distance(points[vertex], points[added]))
            if nearest[vertex] < shortest:
                shortest = nearest[vertex]
                closest = o
        squares[k] = shortest
        added = outside[closest]
        n_outside -= 1
        outside[closest] = outside[n_outside]
    return squares
