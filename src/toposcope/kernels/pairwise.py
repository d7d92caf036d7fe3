"""All distances of a cloud from coordinate differences, and which of its rows repeat an earlier one.

Cost: O(n^2 d) time; no memory but the result. Sixteen sums at once wait less for each other than one, and each point
read serves four. What a pair of points gets depends on nothing but the two.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, compiled_sums, inlined
from toposcope.typing import Indices, Matrix, Vector

CACHED_POINT_BYTES, HASHED_ENTRIES = 1 << 18, 1 << 14  # what stays in the cache while others are compared or hashed


def distance_matrix(points: Matrix) -> Matrix:
    """Return the Euclidean distances of all points, symmetric, zero on the diagonal; shape (n, n), float64."""
    distances = np.zeros((len(points), len(points)))
    _measure_all(points, distances)
    return distances


@compiled
def _measure_all(points: Matrix, distances: Matrix) -> None:
    n, d = points.shape
    width = 4 * max(1, CACHED_POINT_BYTES // (32 * d))
    for begin in range(0, n, width):
        end = min(begin + width, n)
        for i in range(0, end, 4):
            for j in range(max(begin, i), end, 4):
                squares = _sixteen_squares(*_four(points, i), *_four(points, j))
                for row in range(min(4, n - i)):
                    for column in range(min(4, n - j)):
                        length = np.sqrt(squares[4 * row + column])
                        distances[i + row, j + column] = distances[j + column, i + row] = length


@inlined
def _four(points: Matrix, begin: int) -> tuple[Vector, Vector, Vector, Vector]:
    """Return four points; where fewer are left, the last again: no pair is summed in another way."""
    last = len(points) - 1
    return points[begin], points[min(begin + 1, last)], points[min(begin + 2, last)], points[min(begin + 3, last)]


@compiled
def pair_distance(points: Matrix, a: int, b: int) -> float:
    """Return the distance of two points, to the last bit as `distance_matrix` does; meant for few pairs."""
    p, q = points[a], points[b]
    return float(np.sqrt(_sixteen_squares(p, p, p, p, q, q, q, q)[0]))


@compiled
def edge_squares(points: Matrix, ends: Indices, squares: Vector) -> None:
    """Write the squared lengths of edges, shape (m, 2), of which the roots are those of `distance_matrix`."""
    for k in range(len(ends)):
        a, b = points[ends[k, 0]], points[ends[k, 1]]
        squares[k] = _sixteen_squares(a, a, a, a, b, b, b, b)[0]


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


def first_occurrences(points: Matrix) -> Indices:
    """Return the rows that equal no earlier row, ascending; 0.0 and -0.0 are equal."""
    return np.delete(np.arange(len(points)), repeats(points)[:, 1])


def repeats(points: Matrix) -> Indices:
    """Return an earlier row that a later one equals, and the later one, for all that there are; shape (k, 2)."""
    hashes = _hashes(points)
    order = np.argsort(hashes, kind="stable")
    is_new = np.append(True, hashes[order[1:]] != hashes[order[:-1]])
    first = order[np.flatnonzero(is_new)[np.cumsum(is_new) - 1]]  # of each hash
    later, first = order[~is_new], first[~is_new]
    pairs: Indices = np.column_stack([first, later])[(points[later] == points[first]).all(axis=1)]
    return pairs


def _hashes(points: Matrix) -> NDArray[np.uint64]:
    """Return a sum of the mixed bits of each row's entries, each times an odd number of its own."""
    n, d = points.shape
    factors = np.random.default_rng(0).integers(1 << 63, size=d, dtype=np.uint64) * 2 + 1
    hashes, height = np.empty(n, np.uint64), max(1, HASHED_ENTRIES // d)
    for begin in range(0, n, height):
        bits = (points[begin : begin + height] + 0.0).view(np.uint64)  # -0.0 becomes 0.0
        bits ^= bits >> 32
        bits *= factors
        hashes[begin : begin + height] = bits.sum(axis=1)
    return hashes
