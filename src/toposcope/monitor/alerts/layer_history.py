"""Estimates the level and the noise of one statistic of every layer from recent measurements."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.typing import Vector

N_LEVEL = 3
"""Measurements whose median is the level of a layer; few, so that a trend does not count as noise."""
N_LONG = 15
"""Measurements of the long median, so that the return from an excursion is not a deviation."""
N_NOISE = 64
"""Differences between consecutive measurements whose median absolute value is the noise of a layer."""
MIN_VALUES = 8
"""Measurements of a layer before it is judged."""
POOLED_WEIGHT = 8
"""Weight of the median noise of all layers, in differences, if it exceeds the layer's own."""


class Baseline(NamedTuple):
    """Level and noise of layers before a new measurement.

    Attributes
    ----------
    level, long_level : ndarray, shape (n_layers,)
        Medians of the last few values, and of more of them.
    noise : ndarray, shape (n_layers,)
    ready : ndarray of bool
        Layers with enough values to be judged.
    """

    level: Vector
    long_level: Vector
    noise: Vector
    ready: NDArray[np.bool_]

    @property
    def low(self) -> Vector:
        """Level from which falls are measured."""
        return np.minimum(self.level, self.long_level)

    @property
    def high(self) -> Vector:
        """Level from which rises are measured."""
        return np.maximum(self.level, self.long_level)


class LayerHistory:
    """Recent values of one statistic of every layer, in constant memory.

    Parameters
    ----------
    min_noise : float
        Floor of the noise estimate, for values that are rounded or constant.
    """

    def __init__(self, min_noise: float) -> None:
        self._min_noise = min_noise
        self._columns: dict[str, int] = {}
        self._values = np.empty((N_LEVEL, 0))
        self._long = np.empty((N_LONG, 0))
        self._differences = np.empty((N_NOISE, 0))
        self._counts = np.empty(0, np.int64)

    def columns(self, layers: Sequence[str]) -> NDArray[np.int64]:
        """Return the columns of layers, adding new layers."""
        new = [layer for layer in layers if layer not in self._columns]
        if new:
            self._columns |= {layer: len(self._columns) + k for k, layer in enumerate(new)}
            self._values = _widened(self._values, len(new))
            self._long = _widened(self._long, len(new))
            self._differences = _widened(self._differences, len(new))
            self._counts = np.concatenate([self._counts, np.zeros(len(new), np.int64)])
        return np.array([self._columns[layer] for layer in layers], np.int64)

    def forget(self, layers: Sequence[str]) -> None:
        """Begin anew with layers whose training changed."""
        columns = [self._columns[layer] for layer in layers if layer in self._columns]
        self._counts[columns] = 0
        for values in (self._values, self._long, self._differences):
            values[:, columns] = np.nan

    def baseline(self, columns: NDArray[np.int64]) -> Baseline:
        """Return the level and noise of layers, before new values are added."""
        counts = self._counts[columns]
        level = _medians(self._values[:, columns], np.minimum(counts, N_LEVEL))
        long_level = _medians(self._long[:, columns], np.minimum(counts, N_LONG))
        n = np.clip(counts - 1, 0, N_NOISE)
        noise = np.fmax(_medians(self._differences[:, columns], n), self._min_noise)
        pooled = noise * (np.median(noise) / noise) ** (POOLED_WEIGHT / (n + POOLED_WEIGHT))
        return Baseline(level, long_level, np.maximum(noise, pooled), counts >= MIN_VALUES)

    def add(self, columns: NDArray[np.int64], values: Vector) -> None:
        """Add new values, which must be finite."""
        counts = self._counts[columns]
        last = self._values[(counts - 1) % N_LEVEL, columns]
        self._values[counts % N_LEVEL, columns] = values
        self._long[counts % N_LONG, columns] = values
        later = counts > 0
        self._differences[(counts[later] - 1) % N_NOISE, columns[later]] = np.abs(values - last)[later]
        self._counts[columns] += 1


def _widened(array: Vector, n_columns: int) -> Vector:
    return np.concatenate([array, np.full((len(array), n_columns), np.nan)], axis=1)


def _medians(values: Vector, counts: NDArray[np.int64]) -> Vector:
    """Return the median of each column's first `counts` values, the rest being NaN."""
    ordered = np.sort(values, axis=0)
    return np.asarray(ordered[np.minimum(counts // 2, len(ordered) - 1), np.arange(ordered.shape[1])])
