"""Reads a layer a few rows at a time."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.homology.arrays import not_finite
from toposcope.kernels.magnitudes import largest_magnitude, widened
from toposcope.typing import Matrix

BLOCK_BYTES = 1 << 23  # of a block of rows in float64; a block is never less than one row
PIECE_ENTRIES = 1 << 15  # summed at a time: they fit in the cache, and rounding does not grow with the matrix


def block_length(width: int) -> int:
    """Return how many rows of this many entries make a block."""
    return max(1, BLOCK_BYTES // (8 * width))


class Rows:
    """The rows of a layer, read on demand; all at once if the format requires it. See `Layer.read_narrow`."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._whole = None if layer.entry.sequential_rows else layer.read_narrow()

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the start and stop of each block of rows."""
        m, n = self._layer.shape
        step = block_length(n)
        for start in range(0, m, step):
            yield start, min(start + step, m)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop`."""
        rows = self._read(start, stop)
        if not math.isfinite(largest_magnitude(rows)):
            blocks = (widened(self._read(*block)) for block in self.blocks())
            count = sum(int(np.count_nonzero(~np.isfinite(block))) for block in blocks)
            shape = self._layer.shape
            raise not_finite(f"layer {self._layer.name}", count, math.prod(shape), shape)
        return rows

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        return self._layer.read_narrow(start, stop) if self._whole is None else self._whole[start:stop]


def largest_entry(layer: Layer) -> float:
    """Return max|W|."""
    rows = Rows(layer)
    return max(largest_magnitude(rows.read(*block)) for block in rows.blocks())


class Widening:
    """Converts blocks to float64, divided by `unit`, in memory that the next block reuses, so as not to fragment it."""

    def __init__(self, unit: float) -> None:
        self._unit = unit
        self._memory = np.empty(0)

    def __call__(self, *parts: NDArray[Any]) -> Matrix:
        """Return parts stacked as one matrix, which the next call overwrites."""
        m, n = sum(len(part) for part in parts), parts[0].shape[1]
        if m * n > len(self._memory):
            self._memory = np.empty(m * n)
        W: Matrix = self._memory[: m * n].reshape(m, n)
        start = 0
        for part in parts:
            W[start : start + len(part)] = widened(part)
            start += len(part)
        if self._unit != 1:
            W /= self._unit
        return W


def pieces(W: Matrix) -> Iterator[Matrix]:
    """Yield the entries of a block of rows, a few at a time."""
    entries = W.reshape(-1)
    for start in range(0, len(entries), PIECE_ENTRIES):
        yield entries[start : start + PIECE_ENTRIES]


def unit_of(largest: Callable[[Layer], float], *layers: Layer) -> float:
    """Return a power of two near the largest entry of float64, else 1: exact to divide by, powers in range."""
    if all(layer.dtype != "float64" for layer in layers):
        return 1.0
    return math.ldexp(1.0, min(1023, math.frexp(max(largest(layer) for layer in layers))[1]))
