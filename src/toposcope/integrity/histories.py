"""History of a tensor over training, from its sketches: distances, correlations, scale factors."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import MANTISSA_BITS
from toposcope.integrity.summary import CheckpointSummary
from toposcope.integrity.values import usual_layout
from toposcope.typing import Matrix, Steps, Vector

MIN_VALUES = 16
"""Of a sketch: with fewer, a random walk returns to where it was too often."""
MIN_CHECKPOINTS = 5
QUARTERS = 4
"""Parts of a sketch; what a single one shows is the work of a few values."""
NEARBY = 4
"""Checkpoints on either side that something is compared with."""
MIN_WALKING = 0.8
"""The squared distance over two intervals, in units of the sum over each: 1 for a random walk, 2 for straight movement,
1/2 for noise about a fixed point. Such noise has no order, and none is judged below this."""
MIN_AGREEING = 3
"""Tensors that need to agree where each of them shows less."""
MIN_MATRICES = 6
"""Needed for a median over the matrices."""
MAX_STRETCH = 64
"""Largest lag, in checkpoints, at which distances are compared."""


@dataclass(frozen=True)
class History:
    """One tensor at those steps where it is known, finite and not all zero.

    Attributes
    ----------
    name : str
    is_matrix : bool
    steps : ndarray of int, shape (n,)
    values : ndarray, shape (n, m)
        Sketches.
    rounding : float
        Relative distance between neighbouring numbers of its dtype.
    """

    name: str
    is_matrix: bool
    steps: Steps
    values: Matrix
    rounding: float

    def without(self, steps: Collection[int]) -> "History":
        """Return the history without some checkpoints."""
        rest = ~np.isin(self.steps, list(steps))
        return replace(self, steps=self.steps[rest], values=self.values[rest])

    def swapped(self, a: int, b: int) -> "History":
        """Return the history with the values at two positions swapped."""
        order = np.arange(len(self.steps))
        order[[a, b]] = b, a
        return replace(self, values=self.values[order])

    def squared_norms(self) -> Vector:
        """Return the squared norms."""
        return np.asarray(np.einsum("ij,ij->i", self.values, self.values))

    def rounding_floor(self) -> Vector:
        """Return the squared distances that rounding alone can make: every value off by one unit in the last place."""
        return self.rounding**2 * self.squared_norms()

    def lagged_distances(self, max_lag: int) -> list[Matrix]:
        """Return squared distances between checkpoints k and k + lag, for lags from 1 on, by quarter of the sketch."""
        width = self.values.shape[1] // QUARTERS * QUARTERS
        dealt = self.values[:, :width].reshape(len(self.steps), -1, QUARTERS).transpose(0, 2, 1).copy()
        moves = (dealt[lag:] - dealt[:-lag] for lag in range(1, min(max_lag, len(self.steps) - 1) + 1))
        return [np.asarray(np.einsum("kqi,kqi->kq", move, move)) for move in moves]

    def distances(self) -> NDArray[np.float64]:
        """Return all squared distances, shape (n, n, `QUARTERS`), by quarter of the sketch."""
        width = self.values.shape[1] // QUARTERS * QUARTERS
        dealt = self.values[:, :width].reshape(len(self.steps), -1, QUARTERS).transpose(2, 0, 1)
        squares = np.einsum("qij,qij->qi", dealt, dealt)
        found = squares[:, :, None] + squares[:, None, :] - 2 * (dealt @ dealt.transpose(0, 2, 1))
        return np.asarray(np.maximum(found, 0).transpose(1, 2, 0))

    def walking(self) -> Vector:
        """Return the squared distance over two intervals over the sum of those over each, by its first checkpoint."""
        two, both = self.two_intervals()
        return np.asarray(two / both)

    def two_intervals(self) -> tuple[Vector, Vector]:
        """Return the squared distance over two intervals, and the sum of those over each, by its first checkpoint."""
        one, two = (np.square(self.values[lag:] - self.values[:-lag]).sum(axis=1) for lag in (1, 2))
        floor = self.rounding_floor()[2:]
        return two + floor, one[:-1] + one[1:] + floor

    def correlations(self) -> Vector:
        """Return the correlation of each checkpoint with the next; 1 where one of them is constant."""
        centred = self.values - self.values.mean(axis=1, keepdims=True)
        size = np.sqrt(np.einsum("ij,ij->i", centred, centred))
        product = np.einsum("ij,ij->i", centred[:-1], centred[1:])
        scale = size[:-1] * size[1:]
        return np.asarray(np.divide(product, scale, out=np.ones_like(product), where=scale > 0))

    def scale_factors(self) -> tuple[Vector, Vector]:
        """Return by what factor each checkpoint multiplies the one before, and the relative size of the residual."""
        squares = self.squared_norms()
        factor = np.einsum("ij,ij->i", self.values[:-1], self.values[1:]) / squares[:-1]
        rest = np.maximum(squares[1:] - factor**2 * squares[:-1], self.rounding_floor()[1:])
        return factor, np.sqrt(rest / squares[:-1])


def tensor_histories(
    summaries: Sequence[CheckpointSummary],
    excluded: Collection[int],
    excluded_of: Mapping[str, Collection[int]] | None = None,
) -> list[History]:
    """Return the histories of all tensors that are known at enough steps.

    Parameters
    ----------
    summaries : sequence of CheckpointSummary
    excluded : collection of int
        Steps to leave out.
    excluded_of : mapping of str to collection of int, optional
        Steps to leave out of some tensors, by name.
    """
    whole = [item for item in summaries if not item.error]
    found = []
    for name, (shape, dtype) in usual_layout(whole).items():
        steps, values = [], []
        left_out = {*excluded, *(excluded_of or {}).get(name, ())}
        for item in whole:
            tensor = item.tensors.get(name)
            usable = tensor and tensor.sketch and tensor.shape == shape and not tensor.n_not_finite
            if tensor and usable and not tensor.is_zero and item.step not in left_out:
                sketch = tensor.values().astype(np.float64)
                if sketch.any():
                    steps.append(item.step)
                    values.append(sketch)
        if len(steps) >= MIN_CHECKPOINTS and len(values[0]) >= MIN_VALUES:
            rounding = 2.0 ** -MANTISSA_BITS[dtype]
            found.append(History(name, len(shape) >= 2, np.array(steps), np.stack(values), rounding))
    return found


def summed(parts: Matrix) -> Vector:
    """Add up squared distances over the quarters."""
    return np.asarray(parts.sum(axis=1))
