"""Which rows of a matrix repeat an earlier one.

Cost: O(n d) for one hash a row, O(n log n) to sort them; O(n) memory.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.typing import Indices, Matrix


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
