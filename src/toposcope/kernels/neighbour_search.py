"""The nearest points outside one's own component, for many points at once, by BLAS.

One product gives, for a block of rows, |y|^2 - 2 x.y, and with |x|^2 a *lower bound* of every squared distance: the
rounding error of such a product is at most c (|x| + |y|)^2 (Higham 2002, section 3.1), and it is subtracted, the mixed
term by one more coordinate of the product. The few entries of least bound are kept and measured exactly, from
coordinate differences in float64; every point that is not on the list is at least as far as the last bound kept. So
nothing depends on how the product was rounded: points too close to each other, beside their distance from the origin,
for float32 are searched for again in float64, and at last by differences.

Cost: O(n d) a row, most of it BLAS; memory for one block of rows beside two copies of the points.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.kernels.euclidean_prim import squared_distance
from toposcope.kernels.union_find import Parents
from toposcope.typing import Indices, Matrix, Vector

N_LISTED = 10
"""Neighbours listed for a point."""

BLOCK_BYTES = 1 << 24
"""Size of the block of bounds held at once."""

RUN = 256
"""Bounds compared with the last one kept at once."""


class Neighbours(NamedTuple):
    """The nearest points outside the component of each of k points.

    Attributes
    ----------
    indices : ndarray, shape (k, N_LISTED), int32
    squares : ndarray, shape (k, N_LISTED), float64
        Exact squared distances, ascending; infinite where there are fewer points.
    beyond : ndarray, shape (k,), float64
        No point that is neither listed nor of the own component has a smaller squared distance.
    """

    indices: NDArray[np.int32]
    squares: Matrix
    beyond: Vector


def rounding(d: int, dtype: type[np.floating[Any]]) -> tuple[float, float]:
    """Return c and t such that a squared distance in d dimensions is at most c (|x| + |y|)^2 + t below its product.

    The product has d + 2 terms; its factors and the squared norms in it are rounded too, and terms may underflow. The
    usual bound, linear in d, needs c well below one.
    """
    format = np.finfo(dtype)
    return 2.02 * (d + 8) * float(format.eps) / 2, 8 * (d + 2) * float(format.tiny)


def product_factors(points: Matrix, dtype: type[np.floating[Any]]) -> tuple[NDArray[Any], Vector]:
    """Return what lower bounds of squared distances are made of: ``(left_factor(right) @ right.T)[i] + own[i]``.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64
        No coordinate above one.
    dtype : numpy.float32 or numpy.float64

    Returns
    -------
    right : ndarray, shape (n, d + 2)
    own : ndarray, shape (n,), float64
    """
    n, d = points.shape
    relative, absolute = rounding(d, dtype)
    # Bounds are tightest about the centre; lengths are measured on the points as they are.
    centre, squared_norms, right = points.mean(axis=0), np.empty(n), np.empty((n, d + 2), dtype)
    for begin in range(0, n, 256):  # no second copy of the points
        rows = slice(begin, begin + 256)
        centred = points[rows] - centre
        squared_norms[rows] = np.einsum("ij,ij->i", centred, centred)
        right[rows, :d] = centred
    right[:, d] = np.sqrt(relative * squared_norms)
    right[:, d + 1] = (1 - relative) * squared_norms
    return right, (1 - relative) * squared_norms - absolute


def left_factor(right: NDArray[Any]) -> NDArray[Any]:
    """Return the left factor of bounds from some rows of the right one."""
    left = -2 * right
    left[:, -1] = 1
    return left


class ProductSearch:
    """Search by products in one precision.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64, C-contiguous
        No coordinate above one.
    dtype : numpy.float32 or numpy.float64
    """

    def __init__(self, points: Matrix, dtype: type[np.floating[Any]]) -> None:
        self._points = points
        self._right, self._own = product_factors(points, dtype)
        self._left = left_factor(self._right)

    def __call__(self, rows: Indices, labels: Parents) -> Neighbours:
        """Return the neighbours of some points outside their components."""
        n = len(self._points)
        lists = _unfilled(len(rows))
        height = max(16, BLOCK_BYTES // (self._left.itemsize * n))
        block = np.empty((min(height, len(rows)), n), self._left.dtype)
        for begin in range(0, len(rows), height):
            chosen = rows[begin : begin + height]
            part = slice(begin, begin + len(chosen))
            bounds = np.matmul(self._left[chosen], self._right.T, out=block[: len(chosen)])
            _least(bounds, chosen, labels, lists.indices[part], lists.beyond[part])
            lists.beyond[part] += self._own[chosen]
        _measure(self._points, rows, lists.indices, lists.squares)
        return lists


def difference_search(points: Matrix, rows: Indices, labels: Parents) -> Neighbours:
    """Return the neighbours of some points outside their components, from coordinate differences alone."""
    lists = _unfilled(len(rows))
    _scan(points, rows, labels, lists.indices, lists.squares, lists.beyond)
    return lists


def _unfilled(count: int) -> Neighbours:
    return Neighbours(np.empty((count, N_LISTED), np.int32), np.empty((count, N_LISTED)), np.empty(count))


@compiled
def insert_ascending(values: Any, indices: Any, value: float, index: int) -> None:
    """Put a value in its place in an ascending list, whose last one is dropped."""
    k = len(values) - 1
    while k > 0 and values[k - 1] > value:
        values[k] = values[k - 1]
        indices[k] = indices[k - 1]
        k -= 1
    values[k] = value
    indices[k] = index


@compiled
def _least(
    bounds: NDArray[np.floating[Any]],
    rows: Indices,
    labels: Parents,
    indices: NDArray[np.int32],
    beyond: Vector,
) -> None:
    """List the columns of least bound outside each row's component, and the last bound kept."""
    n = bounds.shape[1]
    words = np.zeros(RUN // 8, np.uint64)
    flags = words.view(np.uint8)
    least = np.empty(N_LISTED, bounds.dtype)
    for r in range(len(rows)):
        own = labels[rows[r]]
        least[:] = np.inf
        indices[r] = -1
        last = least[N_LISTED - 1]
        for c in range(0, n, RUN):
            run = bounds[r, c : c + RUN]
            others = labels[c : c + RUN]
            for j in range(len(run)):
                flags[j] = (run[j] < last) & (others[j] != own)
            flags[len(run) :] = 0
            for w in range(len(words)):
                if words[w] == 0:
                    continue
                for j in range(8 * w, min(8 * w + 8, len(run))):
                    if flags[j] and run[j] < last:
                        insert_ascending(least, indices[r], run[j], c + j)
                        last = least[N_LISTED - 1]
        beyond[r] = last


@compiled
def _measure(points: Matrix, rows: Indices, indices: NDArray[np.int32], squares: Matrix) -> None:
    """Measure the listed points exactly, and sort the lists."""
    for r in range(len(rows)):
        listed = indices[r].copy()
        indices[r] = -1
        squares[r] = np.inf
        for k in range(N_LISTED):
            if listed[k] >= 0:
                insert_ascending(
                    squares[r], indices[r], squared_distance(points[rows[r]], points[listed[k]]), listed[k]
                )


@compiled
def _scan(
    points: Matrix,
    rows: Indices,
    labels: Parents,
    indices: NDArray[np.int32],
    squares: Matrix,
    beyond: Vector,
) -> None:
    for r in range(len(rows)):
        own = labels[rows[r]]
        indices[r] = -1
        squares[r] = np.inf
        for j in range(len(points)):
            if labels[j] == own:
                continue
            square = squared_distance(points[rows[r]], points[j])
            if square < squares[r, N_LISTED - 1]:
                insert_ascending(squares[r], indices[r], square, j)
        beyond[r] = squares[r, N_LISTED - 1]
