"""All distances of a cloud from coordinate differences, and the least of them.

Cost: O(n^2 d) time; no memory but the result. Eight sums at once wait less for each other than one, and each point read
serves several. What a pair of points gets depends on nothing but the two.
"""

import numba
import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 17
"""Size of the points that are kept in the cache while all before them pass."""

Point = NDArray[np.float64]


@numba.njit(cache=True, nogil=True)
def distance_matrix(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Euclidean distances of all points, symmetric, zero on the diagonal; shape (n, n), float64.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64
        C-contiguous; differences squared within the range of float64.
    """
    n, d = points.shape
    distances = np.zeros((n, n))
    width = 4 * max(1, BLOCK_BYTES // (32 * d))
    for begin in range(0, n, width):
        end = min(begin + width, n)
        for i in range(0, end, 2):
            # Where no second point or no fourth is left, the last stands in: no pair is summed in another way.
            k = min(i + 1, n - 1)
            for j in range(max(begin, i - i % 4), end, 4):
                to, last = points[j : j + 4], min(4, n - j) - 1
                squares = _eight_squares(points[i], points[k], to[0], to[min(1, last)], to[min(2, last)], to[last])
                for t in range(last + 1):
                    column = j + t
                    distances[i, column] = distances[column, i] = np.sqrt(squares[t])
                    distances[k, column] = distances[column, k] = np.sqrt(squares[4 + t])
    return distances


@numba.njit(cache=True, nogil=True)
def pair_distance(points: NDArray[np.float64], a: int, b: int) -> float:
    """Return the distance of two points, to the last bit as `distance_matrix` does; made for few."""
    p, q = points[a], points[b]
    return float(np.sqrt(_eight_squares(p, p, q, q, q, q)[0]))


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _eight_squares(
    p: Point, q: Point, a: Point, b: Point, c: Point, d: Point
) -> tuple[float, float, float, float, float, float, float, float]:
    """Return the squared distances of two points from four others."""
    p_a = p_b = p_c = p_d = q_a = q_b = q_c = q_d = 0.0
    for t in range(len(p)):
        p_a += (p[t] - a[t]) * (p[t] - a[t])
        p_b += (p[t] - b[t]) * (p[t] - b[t])
        p_c += (p[t] - c[t]) * (p[t] - c[t])
        p_d += (p[t] - d[t]) * (p[t] - d[t])
        q_a += (q[t] - a[t]) * (q[t] - a[t])
        q_b += (q[t] - b[t]) * (q[t] - b[t])
        q_c += (q[t] - c[t]) * (q[t] - c[t])
        q_d += (q[t] - d[t]) * (q[t] - d[t])
    return p_a, p_b, p_c, p_d, q_a, q_b, q_c, q_d


@numba.njit(cache=True, nogil=True)
def two_least(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the two least entries of each row beside the diagonal, infinite where there are none; shape (n, 2)."""
    n = len(distances)
    found = np.empty((n, 2))
    for i in range(n):
        least, second = np.inf, np.inf
        for j in range(n):
            distance = distances[i, j]
            if distance < second and j != i:
                if distance < least:
                    least, second = distance, least
                else:
                    second = distance
        found[i] = least, second
    return found
