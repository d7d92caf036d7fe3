"""A layer read a few rows at a time."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toposcope.checkpoints import Layer
from toposcope.homology.arrays import not_finite

Matrix = NDArray[np.float64]

BLOCK = 1 << 23
"""Bytes of a block of rows in float64; a block is never less than one row."""


class Rows:
    """The rows of a layer, as stored, read when they are asked for; all at once where the format has no other way.

    Raises
    ------
    ToposcopeError
        If the layer has to be read at once, and cannot be.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._whole = None if layer.entry.sequential_rows else layer.read()

    def blocks(self, block: int = BLOCK) -> Iterator[tuple[int, int]]:
        """Yield where each block of rows begins and ends."""
        m, n = self._layer.shape
        step = max(1, block // (8 * n))
        for start in range(0, m, step):
            yield start, min(start + step, m)

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop`.

        Raises
        ------
        ToposcopeError
            If they cannot be read, or hold NaN or infinities; then it tells how many there are in the whole layer.
        """
        rows = self._read(start, stop)
        if not math.isfinite(_largest(rows)):
            count = sum(int((~self._read(*block).isfinite()).sum()) for block in self.blocks())
            shape = self._layer.shape
            raise not_finite(f"layer {self._layer.name}", count, math.prod(shape), shape)
        return rows

    def _read(self, start: int, stop: int) -> Tensor:
        return self._layer.read(start, stop) if self._whole is None else self._whole[start:stop]


def largest_entry(layer: Layer) -> float:
    """Return max|W|.

    Raises
    ------
    ToposcopeError
        If the layer cannot be read, or is not finite.
    """
    rows = Rows(layer)
    return max(_largest(rows.read(*block)) for block in rows.blocks())


def _largest(rows: Tensor) -> float:
    """Return max|w|; NaN if there is one."""
    low, high = (float(value) for value in torch.aminmax(rows))
    return max(-low, high)


class Widening:
    """Blocks in float64, divided by `unit`, each in the memory of the one before.

    Memory taken anew for every block would be scattered, and add up.
    """

    def __init__(self, unit: float) -> None:
        self._unit = unit
        self._memory = torch.empty(0, dtype=torch.float64)

    def __call__(self, *parts: Tensor) -> Matrix:
        """Return parts, one below the other, as one matrix; it is overwritten by the next."""
        m, n = sum(len(part) for part in parts), parts[0].shape[1]
        if m * n > len(self._memory):
            self._memory = torch.empty(m * n, dtype=torch.float64)
        block = self._memory[: m * n].view(m, n)
        for part, room in zip(parts, torch.split(block, [len(part) for part in parts]), strict=True):
            room.copy_(part)  # torch.cat would copy each part before it widens it
        W: Matrix = block.numpy()
        if self._unit != 1:
            W /= self._unit
        return W
