"""Largest magnitudes of a tensor and where they are, from blocks of its values."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.magnitudes import MASKS, SIGNED, widened
from toposcope.typing import Indices, Matrix, Vector

N_LARGEST = 8
"""Values of a tensor that are kept."""
CHUNK = 64
"""Values of which first only the largest is found; those of the chunks with the largest are then looked at."""
MIN_CHUNKED = 2 * N_LARGEST * CHUNK
"""Values from which on chunks save time."""


class LargestValues:
    """The `N_LARGEST` values of largest magnitude among all that were added."""

    def __init__(self) -> None:
        self._values, self._positions = np.empty(0), np.empty(0, np.int64)

    def add(self, values: NDArray[Any], begin: int) -> None:
        """Add finite values of one of the formats of `toposcope.kernels.magnitudes`.

        Parameters
        ----------
        values : ndarray, shape (n,)
        begin : int
            Position of the first of them in the flattened tensor.
        """
        signed = SIGNED[values.dtype.itemsize]
        keys = values.view(signed) & MASKS[signed]
        positions = _largest(keys)
        both = np.concatenate([self._values, widened(values[positions]).astype(np.float64)])
        order = np.argsort(-np.abs(both), kind="stable")[:N_LARGEST]
        self._values, self._positions = both[order], np.concatenate([self._positions, begin + positions])[order]

    def result(self) -> tuple[Vector, Indices]:
        """Return values, largest magnitude first, and their positions, each of at most `N_LARGEST`."""
        return self._values, self._positions


def largest_of_rows(rows: NDArray[Any]) -> tuple[Matrix, NDArray[np.int64]]:
    """Return what `LargestValues` finds in each row of finite values."""
    signed = SIGNED[rows.dtype.itemsize]
    positions = _largest(rows.view(signed) & MASKS[signed])
    values = widened(np.take_along_axis(rows, positions, axis=1)).astype(np.float64)
    order = np.argsort(-np.abs(values), kind="stable", axis=1)
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(positions, order, axis=1)


def _largest(keys: NDArray[np.signedinteger[Any]]) -> NDArray[np.int64]:
    """Return the indices of the `N_LARGEST` largest, along the last axis."""
    *outer, n = keys.shape
    if n <= N_LARGEST:
        return np.broadcast_to(np.arange(n), keys.shape)
    if n < MIN_CHUNKED:
        return np.argpartition(keys, -N_LARGEST)[..., -N_LARGEST:]
    whole = n // CHUNK * CHUNK
    chunks = _largest(keys[..., :whole].reshape(*outer, -1, CHUNK).max(axis=-1))
    inside = (chunks[..., None] * CHUNK + np.arange(CHUNK)).reshape(*outer, -1)
    rest = np.broadcast_to(np.arange(whole, n), (*outer, n - whole))
    positions = np.concatenate([inside, rest], axis=-1)
    found = _largest(np.take_along_axis(keys, positions, axis=-1))
    return np.take_along_axis(positions, found, axis=-1)
