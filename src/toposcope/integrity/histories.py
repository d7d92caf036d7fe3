"""History of a tensor over training, from its sketches: distances, correlations, scale factors."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import MANTISSA_BITS
from toposcope.integrity.layouts import Plan
from toposcope.integrity.summary import CheckpointSummary
from toposcope.typing import Matrix, Steps, Vector

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MIN_HISTORY, MIN_SKETCH = 5, 16  # checkpoints, and values of a sketch; of fewer, a walk often comes back
NEARBY = 4  # checkpoints on either side that something is compared with
MAX_CHANCE = 1e-3  # series in which chance alone makes a tensor seem off its path, or checkpoints swapped
MAX_DIRECTIONS = 5  # main directions of a tensor's moves that are looked beyond
MIN_AGREEING = 3  # tensors that agree where each of them shows less
MIN_BROKEN_SHARE = 0.2  # share of the matrices, and `MIN_AGREEING` at least, that lose their correlation
EVIDENCE = 32  # intervals on either side whose directions are usual


@dataclass(frozen=True, eq=False)
class History:
    """One tensor at those steps where it is known, finite and not all zero."""

    name: str
    is_matrix: bool
    steps: Steps  # shape (n,)
    tensors: NDArray[np.object_]  # shape (n,); its summaries, whose sketches are all as long
    rounding: float  # relative distance between neighbouring numbers of its dtype

    def without(self, steps: Collection[int]) -> "History":
        """Return the history without some checkpoints."""
        return self.part(~np.isin(self.steps, list(steps)))

    def part(self, places: slice | Sequence[int] | NDArray[Any]) -> "History":
        """Return the history of some places."""
        return replace(self, steps=self.steps[places], tensors=self.tensors[places])

    def swapped(self, a: int, b: int) -> "History":
        """Return the history with the values at two positions swapped."""
        order = np.arange(len(self.steps))
        order[[a, b]] = b, a
        return replace(self, tensors=self.tensors[order])

    @property
    def values(self) -> Matrix:
        """The sketches, shape (n, m), in float64; not kept, as those of all tensors take gigabytes."""
        return _widened(self)

    @cached_property
    def squared_norms(self) -> Vector:
        """The squared norms."""
        return np.asarray(np.einsum("ij,ij->i", self.values, self.values))

    @cached_property
    def squared_moves(self) -> Vector:
        """The squared distances between each checkpoint and the next."""
        return np.asarray(np.square(np.diff(self.values, axis=0)).sum(axis=1))

    def rounding_floor(self) -> Vector:
        """Return the squared distances that rounding alone can make: every value off by one unit in the last place."""
        return self.rounding**2 * self.squared_norms

    def lagged_distances(self, max_lag: int) -> list[Vector]:
        """Return squared distances between checkpoints k and k + lag, for lags from 1 on."""
        lags = range(1, min(max_lag, len(self.steps) - 1) + 1)
        return [np.square(self.values[lag:] - self.values[:-lag]).sum(axis=1) for lag in lags]

    def distances(self) -> Matrix:
        """Return all squared distances, shape (n, n)."""
        sums = self.squared_norms[:, None] + self.squared_norms
        return np.asarray(np.maximum(sums - 2 * (self.values @ self.values.T), 0))

    def walking(self) -> Vector:
        """Return the squared distance over two intervals over the sum of those over each, by its first checkpoint."""
        two, both = self.two_intervals()
        return np.asarray(two / both)

    def two_intervals(self) -> tuple[Vector, Vector]:
        """Return the squared distance over two intervals, and the sum of those over each, by its first checkpoint."""
        one, two = self.squared_moves, np.square(self.values[2:] - self.values[:-2]).sum(axis=1)
        floor = self.rounding_floor()[2:]
        return two + floor, one[:-1] + one[1:] + floor

    def correlations(self) -> Vector:
        """Return the correlation of each checkpoint with the next; 1 where one of them is constant."""
        centred = self.values - self.values.mean(axis=1, keepdims=True)
        size = np.sqrt(np.einsum("ij,ij->i", centred, centred))
        product = np.einsum("ij,ij->i", centred[:-1], centred[1:])
        scale = size[:-1] * size[1:]
        return np.asarray(np.divide(product, scale, out=np.ones_like(product), where=scale > 0))

    def evidence(
        self, places: Sequence[int], touched: Collection[int], ratio: Callable[[Matrix, float], float]
    ) -> float:
        """Return how unlikely it is by chance that these checkpoints are so far from each other, as a logarithm.

        Random moves in D directions have a ratio of distances as large as R with a probability of about R to the -D. D
        is that of the moves nearby, but for the intervals `touched`. Where the tensor goes to and fro along a few
        directions, what lies beyond these is looked at, too.
        """
        low, high = max(0, min(places) - EVIDENCE), max(places) + EVIDENCE + 1
        moves = np.diff(self.part(slice(low, high)).values, axis=0)
        moves = np.delete(moves, [k - low for k in touched], axis=0)
        values, most = self.part(list(places)).values, 0.0
        floor = self.rounding**2 * float(np.square(values).sum(axis=1).mean())
        for removed in range(MAX_DIRECTIONS):
            squares = np.einsum("ij,ij->i", moves, moves)
            # Beyond its main directions, what is smaller than the rounding moves in all directions.
            real = squares > (floor if removed else 0)
            moves, units = moves[real], moves[real] / np.sqrt(squares[real, None])
            products = units @ units.T
            # A pair of moves along one line more than there is, so that few moves do not seem to have many directions.
            n_pairs = len(moves) * (len(moves) - 1) / 2
            directions = (n_pairs + 1) / ((float(np.square(products).sum()) - len(moves)) / 2 + 1)
            most = max(most, directions * math.log(ratio(values, floor)))
            if not len(moves):
                break
            main = np.linalg.eigh(products)[1][:, -1] @ units
            main /= np.linalg.norm(main)
            moves, values = moves - np.outer(moves @ main, main), values - np.outer(values @ main, main)
        return most

    def scale_factors(self) -> tuple[Vector, Vector]:
        """Return by what factor each checkpoint multiplies the one before, and the relative size of the residual."""
        squares = self.squared_norms
        factor = np.einsum("ij,ij->i", self.values[:-1], self.values[1:]) / squares[:-1]
        rest = np.maximum(squares[1:] - factor**2 * squares[:-1], self.rounding_floor()[1:])
        return factor, np.sqrt(rest / squares[:-1])


def tensor_histories(
    whole: Sequence[CheckpointSummary], excluded: Collection[int], excluded_of: Mapping[str, Collection[int]]
) -> list[History]:
    """Return the histories of all tensors known at enough steps, without those `excluded` of all or of some."""
    found = []
    plan = Plan(whole)
    for name in plan.expected:
        # Sketches of different shapes cannot be compared.
        shape, dtypes = next(iter(plan.shapes(name).items()), ((), []))
        without = {*excluded, *excluded_of.get(name, ())}
        known = {
            item.step: tensor
            for item in whole
            if (tensor := item.tensors.get(name)) is not None
            and (tensor.sketch and tensor.shape == shape and not tensor.n_not_finite and not tensor.is_zero)
            and item.step not in without
        }
        if len(known) < MIN_HISTORY:
            continue
        # Sketches are in float32; of a shape, all are as long.
        rounding = 2.0 ** -min(MANTISSA_BITS[dtype] for dtype in {*dtypes, "float32"})
        tensors = np.array(list(known.values()), dtype=object)
        history = History(name, len(shape) >= 2, np.array(list(known)), tensors, rounding)
        history = history.part(np.flatnonzero(history.values.any(axis=1)))
        if len(history.steps) >= MIN_HISTORY and len(tensors[0].values()) >= MIN_SKETCH:
            found.append(history)
    return found


@lru_cache(maxsize=4)
def _widened(history: History) -> Matrix:
    sketches = np.frombuffer(b"".join(tensor.sketch for tensor in history.tensors), np.float32)
    return sketches.reshape(len(history.steps), -1).astype(np.float64)


def convincing(evidence: float, n_looks: int) -> bool:
    """Return whether chance gives as much evidence in one of so many looks in less than one series of a thousand."""
    return evidence > math.log(n_looks / MAX_CHANCE)


def all_places(histories: Sequence[History]) -> int:
    """Count the checkpoints of all tensors."""
    return sum(len(history.steps) for history in histories)


def nearby(k: int, n: int) -> list[int]:
    """Return the places near the k-th of n, without itself."""
    return [j for j in range(max(0, k - NEARBY), min(n, k + NEARBY + 1)) if j != k]
