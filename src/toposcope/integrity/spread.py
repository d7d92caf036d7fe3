"""How evenly the size of a tensor's values is spread over it: what tells a random matrix from a trained one."""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

FEWEST = 16
"""Rows and columns from which on their spread says something."""


class Spread(msgspec.Struct, frozen=True):
    """How the values of one tensor are spread.

    Attributes
    ----------
    low, high : float
        The least and the greatest value.
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


class SpreadTally:
    """Sums over a tensor that passes by, some whole rows at a time.

    Parameters
    ----------
    shape : tuple of int
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._width = math.prod(shape[1:]) if len(shape) >= 2 else 0
        self._low, self._high = math.inf, -math.inf
        self._rows: list[NDArray[np.float64]] = []
        self._columns = np.zeros((2, self._width))

    def add(self, values: NDArray[np.float32]) -> None:
        """Count in the next values."""
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        if not self._width:
            return
        squares = np.square(values.reshape(-1, self._width), dtype=np.float64)
        present = squares > 0
        # Values of exactly zero (a padding row, an identity matrix) are no sample of anything.
        self._rows.append(np.stack([present.sum(1), squares.sum(1), np.square(squares).sum(1)]))
        count, second, _ = self._rows[-1]
        # Rows count alike, so that a stacked matrix has as many of them as it shows.
        weight = count / np.where(second > 0, second, 1)
        self._columns += [present.sum(0), weight @ squares]

    def spread(self) -> Spread:
        """Return what the sums say."""
        if not self._width:
            return Spread(self._low, self._high)
        count, second, fourth = np.concatenate(self._rows, axis=1)
        full = count >= FEWEST
        if full.sum() < FEWEST:
            return Spread(self._low, self._high)
        count, mean, fourth = count[full], second[full] / count[full], fourth[full] / count[full]
        kurtosis = float(np.mean(fourth / mean**2))
        column_count, column_second = self._columns[:, self._columns[0] >= FEWEST]
        return Spread(
            self._low,
            self._high,
            _unevenness(mean, float(count.mean()), kurtosis),
            _unevenness(column_second / column_count, float(column_count.mean()), kurtosis)
            if len(column_count) >= FEWEST
            else math.nan,
            kurtosis,
        )


def _unevenness(means: NDArray[np.float64], count: float, kurtosis: float) -> float:
    """Return the deviation among mean squares of `count` values each, over what independent values would show.

    From the differences of neighbours (von Neumann, 1941), which a matrix stacked from a few blocks of different
    scale, such as query, key and value, does not raise.
    """
    middle = (means[1:] + means[:-1]) / 2
    variance = float(np.mean((np.diff(means) / middle) ** 2)) / 2
    expected = max(kurtosis - 1, 0.1) / count
    return math.sqrt(variance / expected)
