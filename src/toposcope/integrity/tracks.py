"""The way a tensor takes through training, as its sketches tell it: distances, turns, stretches."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from toposcope.integrity.evidence import Evidence
from toposcope.integrity.values import usual_layout

Array = NDArray[np.float64]

FEWEST_VALUES = 16
"""Below, a random walk comes back to where it was too often."""
FEWEST_CHECKPOINTS = 5
QUARTERS = 4
NEAR = 4
"""Steps on either side something is compared with."""
WALKING = 0.8
"""The squared distance over two intervals, in units of the sum over each: 1 for a random walk, 2 for straight movement,
1/2 for noise about a fixed point. Such noise has no order, and none is judged below this."""
SEVERAL = 3
"""Tensors that agree on the pair and need less each."""
FEWEST_MATRICES = 6
"""So many have a median worth the name."""
LONGEST = 64
"""Checkpoints between which distances are looked at."""


@dataclass(frozen=True)
class Track:
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
    steps: NDArray[np.int64]
    values: Array
    rounding: float

    def without(self, steps: Collection[int]) -> "Track":
        """Return the track with some checkpoints left out."""
        kept = ~np.isin(self.steps, list(steps))
        return Track(self.name, self.is_matrix, self.steps[kept], self.values[kept], self.rounding)

    def exchanged(self, a: int, b: int) -> "Track":
        """Return the track with the values at two places exchanged."""
        order = np.arange(len(self.steps))
        order[[a, b]] = b, a
        return Track(self.name, self.is_matrix, self.steps, self.values[order], self.rounding)

    def squares(self) -> Array:
        """Return the squared norms."""
        return np.asarray(np.einsum("ij,ij->i", self.values, self.values))

    def floor(self) -> Array:
        """Return the squared distances that rounding alone may make: every value one step to the side."""
        return self.rounding**2 * self.squares()

    def lagged(self, longest: int) -> list[Array]:
        """Return squared distances between the checkpoints k and k + lag, by lag from 1 on, in four parts.

        Values are dealt to the quarters in turn, so that what one quarter alone shows is the work of a few values.
        """
        width = self.values.shape[1] // QUARTERS * QUARTERS
        dealt = self.values[:, :width].reshape(len(self.steps), -1, QUARTERS)
        return [
            np.square(dealt[lag:] - dealt[:-lag]).sum(axis=1) for lag in range(1, min(longest, len(self.steps) - 1) + 1)
        ]

    def distances(self) -> Array:
        """Return all squared distances, shape (n, n, `QUARTERS`), by the quarters that `lagged` deals."""
        width = self.values.shape[1] // QUARTERS * QUARTERS
        dealt = self.values[:, :width].reshape(len(self.steps), -1, QUARTERS).transpose(2, 0, 1)
        squares = np.einsum("qij,qij->qi", dealt, dealt)
        found = squares[:, :, None] + squares[:, None, :] - 2 * (dealt @ dealt.transpose(0, 2, 1))
        return np.asarray(np.maximum(found, 0).transpose(1, 2, 0))

    def walking(self) -> Array:
        """Return the squared distance over two intervals over the sum of those over each, by its first checkpoint."""
        two, both = self.two_intervals()
        return np.asarray(two / both)

    def two_intervals(self) -> tuple[Array, Array]:
        """Return the squared distance over two intervals, and the sum of those over each, by its first checkpoint."""
        one, two = (np.square(self.values[lag:] - self.values[:-lag]).sum(axis=1) for lag in (1, 2))
        floor = self.floor()[2:]
        return two + floor, one[:-1] + one[1:] + floor

    def correlations(self) -> Array:
        """Return the correlation of each checkpoint with the next; 1 where one of them is constant."""
        centred = self.values - self.values.mean(axis=1, keepdims=True)
        size = np.sqrt(np.einsum("ij,ij->i", centred, centred))
        product = np.einsum("ij,ij->i", centred[:-1], centred[1:])
        scale = size[:-1] * size[1:]
        return np.asarray(np.divide(product, scale, out=np.ones_like(product), where=scale > 0))

    def stretches(self) -> tuple[Array, Array]:
        """Return by what factor each checkpoint is the one before, and the relative size of what that leaves over."""
        squares = self.squares()
        factor = np.einsum("ij,ij->i", self.values[:-1], self.values[1:]) / squares[:-1]
        rest = np.maximum(squares[1:] - factor**2 * squares[:-1], self.floor()[1:])
        return factor, np.sqrt(rest / squares[:-1])


def tracks(
    evidence: Sequence[Evidence], apart: Collection[int], elsewhere: Mapping[str, Collection[int]] | None = None
) -> list[Track]:
    """Return the tracks of all tensors that are known at enough steps.

    Parameters
    ----------
    evidence : sequence of Evidence
    apart : collection of int
        Steps to leave out.
    elsewhere : mapping of str to collection of int, optional
        Steps to leave out of single tensors, by name.
    """
    whole = [item for item in evidence if not item.error]
    found = []
    for name, (shape, dtype) in usual_layout(whole).items():
        steps, values = [], []
        left_out = {*apart, *(elsewhere or {}).get(name, ())}
        for item in whole:
            tensor = item.tensors.get(name)
            usable = tensor and tensor.sketch and tensor.shape == shape and not tensor.n_not_finite
            if tensor and usable and not tensor.is_zero and item.step not in left_out:
                sketch = tensor.values().astype(np.float64)
                if sketch.any():
                    steps.append(item.step)
                    values.append(sketch)
        if len(steps) >= FEWEST_CHECKPOINTS and len(values[0]) >= FEWEST_VALUES:
            rounding = float(torch.finfo(getattr(torch, dtype)).eps)
            found.append(Track(name, len(shape) >= 2, np.array(steps), np.stack(values), rounding))
    return found


def totals(parts: Array) -> Array:
    """Add up the parts of squared distances that `Track.lagged` returns."""
    return np.asarray(parts.sum(axis=1))
