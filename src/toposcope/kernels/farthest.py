"""Greedy farthest-point order of a cloud.

Cost: O(n d) for each landmark; O(n) memory.
Source: Gonzalez 1985.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.euclidean_prim import squared_distance


@numba.njit(cache=True, nogil=True)
def farthest_order(
    points: NDArray[np.float64], first: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
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
    nearest = np.full(len(points), np.inf)
    indices = np.empty(count, np.int64)
    squared_radii = np.empty(count)
    farthest = first
    for k in range(count):
        indices[k] = farthest
        landmark = points[farthest]
        for i in range(len(points)):
            nearest[i] = min(nearest[i], squared_distance(points[i], landmark))
        nearest[farthest] = -1.0  # chosen, and never again: not even where all others repeat landmarks
        farthest = int(np.argmax(nearest))
        squared_radii[k] = max(nearest[farthest], 0.0)
    return indices, squared_radii
