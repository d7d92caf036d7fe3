"""How evenly the size of a tensor's values is spread over rows and columns, which differs once it is trained."""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

MIN_SAMPLES = 16
"""Rows or columns needed to estimate their spread."""


class Spread(msgspec.Struct, frozen=True):
    """Spread of the values of one tensor.

    Attributes
    ----------
    low, high : float
        Smallest and largest value.
    rows, columns : float
        How much the mean squares of neighbouring rows (columns) differ, in units of what they would in a matrix of
        independent values of one kind: about 1 there, and 0 for an orthogonal matrix. NaN if there are too few.
    kurtosis : float
        Of the values within a row, the mean over the rows: 3 for normal values, 1.8 for uniform ones. NaN likewise.
    """

    low: float
    high: float
    rows: float = math.nan
    columns: float = math.nan
    kurtosis: float = math.nan


class SpreadSums:
    """Running sums over a tensor of some shape that is read a few whole rows at a time."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._width = math.prod(shape[1:]) if len(shape) >= 2 else 0
        self._low, self._high = math.inf, -math.inf
        self._rows: list[NDArray[np.float64]] = []
        self._columns = np.zeros((2, self._width))

    def add(self, values: NDArray[np.float32]) -> None:
        """Add the next values."""
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        if not self._width:
            return
        squares = np.square(values.reshape(-1, self._width), dtype=np.float64)
        present = squares > 0
        # Exact zeros (a padding row, an identity matrix) are not drawn from the distribution.
        self._rows.append(np.stack([present.sum(1), squares.sum(1), np.square(squares).sum(1)]))
        count, second, _ = self._rows[-1]
        # Each row has the same weight, whatever the scale of its block.
        weight = count / np.where(second > 0, second, 1)
        self._columns += [present.sum(0), weight @ squares]

    def spread(self) -> Spread:
        """Return the spread of the values so far."""
        if not self._width:
            return Spread(self._low, self._high)
        count, second, fourth = np.concatenate(self._rows, axis=1)
        full = count >= MIN_SAMPLES
        if full.sum() < MIN_SAMPLES:
            return Spread(self._low, self._high)
        count, mean, fourth = count[full], second[full] / count[full], fourth[full] / count[full]
        kurtosis = float(np.mean(fourth / mean**2))
        column_count, column_second = self._columns[:, self._columns[0] >= MIN_SAMPLES]
        return Spread(
            self._low,
            self._high,
            _unevenness(mean, float(count.mean()), kurtosis),
            _unevenness(column_second / column_count, float(column_count.mean()), kurtosis)
            if len(column_count) >= MIN_SAMPLES
            else math.nan,
            kurtosis,
        )


def _unevenness(means: NDArray[np.float64], count: float, kurtosis: float) -> float:
    """Return the deviation among mean squares of `count` values each, relative to that of independent values.

    From the differences of neighbours (von Neumann, 1941), which a matrix stacked from a few blocks of different
    scale, such as query, key and value, does not raise.
    """
    middle = (means[1:] + means[:-1]) / 2
    variance = float(np.mean((np.diff(means) / middle) ** 2)) / 2
    expected = max(kurtosis - 1, 0.1) / count
    return math.sqrt(variance / expected)
