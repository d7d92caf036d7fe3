"""All distances of a cloud from coordinate differences, the least of them, and which rows repeat an earlier one.

Cost: O(n^2 d) time; no memory but the result. Sixteen sums at once wait less for each other than one, and each point
read serves four. What a pair of points gets depends on nothing but the two.

Which rows of a matrix repeat an earlier one.

Cost: O(n d) for one hash a row, O(n log n) to sort them; O(n) memory.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, compiled_sums
from toposcope.typing import Indices, Matrix, Vector

LANES = 16
"""Columns whose least entries are looked for side by side."""
BLOCK_BYTES = 1 << 18
"""Size of the points that stay in the cache while all before them are read."""


@compiled
def distance_matrix(points: Matrix) -> Matrix:
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
        for i in range(0, end, 4):
            for j in range(max(begin, i), end, 4):
                squares = _sixteen_squares(*_four(points, i), *_four(points, j))
                for row in range(min(4, n - i)):
                    for column in range(min(4, n - j)):
                        length = np.sqrt(squares[4 * row + column])
                        distances[i + row, j + column] = distances[j + column, i + row] = length
    return distances


@compiled
def _four(points: Matrix, begin: int) -> tuple[Vector, Vector, Vector, Vector]:
    """Return four points; where fewer are left, the last again: no pair is summed in another way."""
    last = len(points) - 1
    return points[begin], points[min(begin + 1, last)], points[min(begin + 2, last)], points[min(begin + 3, last)]


@compiled
def pair_distance(points: Matrix, a: int, b: int) -> float:
    """Return the distance of two points, to the last bit as `distance_matrix` does; meant for few pairs."""
    p, q = points[a], points[b]
    return float(np.sqrt(_sixteen_squares(p, p, p, p, q, q, q, q)[0]))


@compiled_sums
def _sixteen_squares(
    a: Vector, b: Vector, c: Vector, d: Vector, w: Vector, x: Vector, y: Vector, z: Vector
) -> tuple[float, ...]:
    """Return the squared distances of four points from four others."""
    aw = ax = ay = az = 0.0
    bw = bx = by = bz = 0.0
    cw = cx = cy = cz = 0.0
    dw = dx = dy = dz = 0.0
    for t in range(len(a)):
        aw += (a[t] - w[t]) * (a[t] - w[t])
        ax += (a[t] - x[t]) * (a[t] - x[t])
        ay += (a[t] - y[t]) * (a[t] - y[t])
        az += (a[t] - z[t]) * (a[t] - z[t])
        bw += (b[t] - w[t]) * (b[t] - w[t])
        bx += (b[t] - x[t]) * (b[t] - x[t])
        by += (b[t] - y[t]) * (b[t] - y[t])
        bz += (b[t] - z[t]) * (b[t] - z[t])
        cw += (c[t] - w[t]) * (c[t] - w[t])
        cx += (c[t] - x[t]) * (c[t] - x[t])
        cy += (c[t] - y[t]) * (c[t] - y[t])
        cz += (c[t] - z[t]) * (c[t] - z[t])
        dw += (d[t] - w[t]) * (d[t] - w[t])
        dx += (d[t] - x[t]) * (d[t] - x[t])
        dy += (d[t] - y[t]) * (d[t] - y[t])
        dz += (d[t] - z[t]) * (d[t] - z[t])
    return aw, ax, ay, az, bw, bx, by, bz, cw, cx, cy, cz, dw, dx, dy, dz


@compiled
def two_least(distances: Matrix) -> Matrix:
    """Return the two least entries of each row off the diagonal, infinite where there are none; shape (n, 2)."""
    n = len(distances)
    result = np.empty((n, 2))
    least, second = np.empty(LANES), np.empty(LANES)
    for i in range(n):
        least[:] = second[:] = np.inf
        for begin, end in ((0, i), (i + 1, n)):
            whole = begin + (end - begin) // LANES * LANES
            for j in range(begin, whole, LANES):
                for lane in range(LANES):
                    distance = distances[i, j + lane]
                    second[lane] = min(second[lane], max(least[lane], distance))
                    least[lane] = min(least[lane], distance)
            for j in range(whole, end):
                second[0] = min(second[0], max(least[0], distances[i, j]))
                least[0] = min(least[0], distances[i, j])
        for lane in range(1, LANES):
            second[0] = min(second[0], second[lane], max(least[0], least[lane]))
            least[0] = min(least[0], least[lane])
        result[i] = least[0], second[0]
    return result


def first_occurrences(points: Matrix) -> Indices:
    """Return the rows that equal no earlier row, ascending; 0.0 and -0.0 are equal.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64, C-contiguous

    Notes
    -----
    Of rows with one hash the first is kept, and those that differ from it: with colliding hashes a repeated row may be
    kept too.
    """
    hashes = _hashes(points)
    return np.flatnonzero(_is_first(points, hashes, np.argsort(hashes, kind="stable")))


@compiled
def _hashes(points: Matrix) -> NDArray[np.uint64]:
    """Fowler, Noll & Vo's FNV-1a over words in place of bytes, folded so that high bits reach low ones."""
    hashes = np.empty(len(points), np.uint64)
    word = np.empty(1, np.float64)
    bits = word.view(np.uint64)
    for i in range(len(points)):
        value = np.uint64(14695981039346656037)
        for t in range(points.shape[1]):
            word[0] = points[i, t] + 0.0  # -0.0 becomes 0.0
            value = (value ^ bits[0]) * np.uint64(1099511628211)
            value ^= value >> np.uint64(32)
        hashes[i] = value
    return hashes


@compiled
def _is_first(points: Matrix, hashes: NDArray[np.uint64], order: Indices) -> NDArray[np.bool_]:
    is_first = np.ones(len(points), np.bool_)
    first = order[0]
    for k in range(1, len(order)):
        row = order[k]
        if hashes[row] != hashes[first]:
            first = row
            continue
        same = True
        for t in range(points.shape[1]):
            same &= points[row, t] == points[first, t]
        is_first[row] = not same
    return is_first
