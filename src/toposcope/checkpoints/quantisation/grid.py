"""Scale factors of a weight: one for all of it, or one for each row, block or group."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.quantisation.packed import Floats, factors


@dataclass(frozen=True)
class Grid:
    """The blocks of a weight that share a factor.

    Attributes
    ----------
    counts : tuple of int
        Factors along each axis of the weight.
    blocks : tuple of int
        Weights along each axis that share one.
    """

    counts: tuple[int, ...]
    blocks: tuple[int, ...]

    @property
    def words(self) -> str:
        """What shares a factor, for a cell of a table."""
        height, width = self.blocks[-2:]
        if self.counts[-2:] == (1, 1):
            return "one scale" if max(self.counts) == 1 else "one scale per matrix"
        if height == 1:
            return "one scale per row" if self.counts[-1] == 1 else f"groups of {width}"
        return f"{height} x {width} blocks"

    def rows(self, stored: Entry, start: int, stop: int) -> Floats:
        """Read the factors of some rows of the weight, in a shape that broadcasts against these rows."""
        block = self.blocks[0]
        low, high = (0, 1) if self.counts[0] == 1 else (start // block, -(-stop // block))
        spread = factors(stored, low, high).reshape(high - low, *self.counts[1:])
        if self.counts[0] > 1 and block > 1:
            spread = spread[np.arange(start, stop) // block - low]
        for axis, (count, block) in enumerate(zip(self.counts[1:], self.blocks[1:], strict=True), start=1):
            if count > 1 and block > 1:
                spread = np.repeat(spread, block, axis)
        return spread

    def scale(self, weight: Floats, stored: Entry, start: int) -> Floats:
        """Multiply rows of a weight, from `start` on, by their factors, in place."""
        spread = self.rows(stored, start, start + len(weight))
        weight *= spread[tuple(slice(size) for size in weight.shape)]
        return weight


def grid(shape: tuple[int, ...], stored: tuple[int, ...], block: tuple[int, int] | None = None) -> Grid | None:
    """Return how factors of a shape spread over a weight; None if they do not fit it.

    Parameters
    ----------
    shape : tuple of int
        Of the weight.
    stored : tuple of int
        Of the factors; if there are fewer axes, they belong to the first ones of the weight.
    block : (int, int), optional
        Weights along the last two axes that share a factor, where the last block may be cut off.
    """
    if len(stored) > len(shape) or 0 in shape:
        return None
    counts = stored + (1,) * (len(shape) - len(stored))
    preferred = (0,) * (len(shape) - 2) + (block or (0, 0))
    blocks = [_block(*sizes) for sizes in zip(shape, counts, preferred, strict=True)]
    return Grid(counts, tuple(blocks)) if all(blocks) else None


def _block(size: int, count: int, preferred: int) -> int:
    """Return how many weights along an axis share a factor; 0 if no such number is known."""
    if count in (1, size):
        return size // count
    if preferred and -(-size // preferred) == count:
        return preferred
    return size // count if count and size % count == 0 else 0


def as_block(value: Any) -> tuple[int, int] | None:
    """Return the sides of a block as a configuration states them."""
    whole = isinstance(value, list) and len(value) == 2 and all(type(side) is int and side > 0 for side in value)
    return (value[0], value[1]) if whole else None


def by_group(values: NDArray[Any], group_of: NDArray[np.intp]) -> NDArray[Any]:
    """Return the number of each column's group, where the last axis holds one number a group."""
    return np.take(values, group_of, axis=-1)
