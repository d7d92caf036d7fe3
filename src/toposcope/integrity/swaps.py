"""Checkpoints, or tensors of them, that are swapped."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import (
    MIN_AGREEING,
    MIN_MATRICES,
    MIN_WALKING,
    NEARBY,
    QUARTERS,
    History,
    summed,
)
from toposcope.typing import Indices, Matrix, Vector

MIN_GAIN = 1.5
"""Two checkpoints are swapped if swapping them back makes the path past them (the sum of squared distances) so many
times shorter: 5/3 for neighbours of a random walk, 3 for straight movement; in the right order at most 1, as long as
the run walks."""
MIN_WALK_AFTER = 0.6
"""Walk ratio at both checkpoints once they are swapped back."""
MIN_GAIN_OF_SEVERAL = 1.3
MIN_GAIN_OF_QUARTER = 1.1
MIN_GAIN_OF_EACH = 1.1
"""What each of the two checkpoints has to gain."""
MIN_GAIN_OF_MOST = 1.2
MAX_LAG = 160
"""Checkpoints between two that are swapped; those further apart are each off the path."""


def find_swaps(histories: Sequence[History]) -> list[Suspect]:
    """Find pairs of checkpoints that hold each other's tensors."""
    suspects = []
    for _ in range(len(histories[0].steps) if histories else 0):
        best = _best_swap(histories)
        if best is None:
            break
        (a, b), names, ratio = best
        concerned = set(names)
        histories = [_swapped_back(history, a, b) if history.name in concerned else history for history in histories]
        reason = f"steps {a} and {b} are swapped: in the other order the path past them is {ratio:.2g} times shorter"
        suspects.append(Suspect((a, b), names, len(histories), "order", reason))
    return suspects


def _swapped_back(history: History, a: int, b: int) -> History:
    positions = np.flatnonzero(np.isin(history.steps, [a, b]))
    return history.swapped(*map(int, positions)) if len(positions) == 2 else history


def _best_swap(histories: Sequence[History]) -> tuple[tuple[int, int], list[str], float] | None:
    """Return the pair whose swap shortens the path the most, with the tensors that agree and the ratio."""
    votes: dict[tuple[int, int], list[tuple[str, float]]] = defaultdict(list)
    of_matrices: dict[tuple[int, int], list[float]] = defaultdict(list)
    matrices = [history for history in histories if history.is_matrix]
    for history in matrices:
        for (a, b), ratio, least in _swap_gains(history):
            pair = int(history.steps[a]), int(history.steps[b])
            if ratio > MIN_GAIN_OF_SEVERAL and least > MIN_GAIN_OF_QUARTER:
                votes[pair].append((history.name, ratio))
            of_matrices[pair].append(ratio)
    candidates = []
    for pair, layers in votes.items():
        strong = [x for x in layers if x[1] > MIN_GAIN]
        agreeing = layers if len(layers) >= MIN_AGREEING else strong
        if agreeing:
            ratio = float(np.median([r for _, r in agreeing]))
            candidates.append((sum(np.log(r) for _, r in agreeing), pair, [n for n, _ in agreeing], ratio))
    for pair, ratios in of_matrices.items():
        median = float(np.median(ratios))
        if 2 * len(ratios) > max(len(matrices), 2 * MIN_MATRICES - 1) and median > MIN_GAIN_OF_MOST:
            candidates.append((len(ratios) * np.log(median), pair, [history.name for history in histories], median))
    if not candidates:
        return None
    _, pair, names, ratio = max(candidates, key=lambda c: (c[0], len(c[2])))
    return pair, names, ratio


def _swap_gains(history: History) -> Iterator[tuple[tuple[int, int], float, float]]:
    """Yield how many times shorter the path past a pair is once swapped: in all, and in the least quarter."""
    n = len(history.steps)
    parts = history.distances()
    a, b = _pairs(n)
    floor = history.rounding_floor()[a]
    now, then, middle = _paths(summed(parts), a, b)
    whole = _ratio(now[0] + now[1] + middle, then[0] + then[1] + middle, floor)
    # Both checkpoints must gain: at a break of the run, only one does.
    sides = [_ratio(x, y, floor) for x, y in zip(now, then, strict=True)]
    # At either end one wrong checkpoint looks the same as two that are swapped.
    gains = np.where((a > 0) & (b < n - 1), np.minimum(*sides), 0)
    promising = np.flatnonzero((whole > MIN_GAIN_OF_EACH) & (gains > MIN_GAIN_OF_EACH))
    if not len(promising):
        return
    a, b, whole, floor = a[promising], b[promising], whole[promising], floor[promising]
    quarters = (_paths(part, a, b) for part in np.moveaxis(parts, 2, 0))
    least = np.min(
        [_ratio(x + y + middle, v + w + middle, floor / QUARTERS) for (x, y), (v, w), middle in quarters], axis=0
    )
    walking = history.walking()
    for k in np.flatnonzero(least > 1):
        pair = int(a[k]), int(b[k])
        if _walks(walking, *pair) and _fits(history, *pair):
            yield pair, float(whole[k]), float(least[k])


@lru_cache(maxsize=8)
def _pairs(n: int) -> tuple[Indices, Indices]:
    """Return all pairs of checkpoints that are near enough."""
    a, b = np.triu_indices(n, 1)
    near = b - a <= MAX_LAG
    return a[near], b[near]


def _paths(distances: Matrix, a: Indices, b: Indices) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector], Vector]:
    """Return the path past each of a pair as it is, and once they are swapped, without what lies between neighbours.

    The last is the distance of two neighbours, which both paths take.
    """
    # Padding: nothing lies before the first checkpoint or after the last.
    square = np.pad(distances, 1)
    side_by_side = b - a == 1

    def between(x: Indices, y: Indices) -> Vector:
        return np.asarray(square[x + 1, y + 1])

    def unless_neighbours(lengths: Vector) -> Vector:
        return np.where(side_by_side, 0.0, lengths)

    now = (
        between(a - 1, a) + unless_neighbours(between(a, a + 1)),
        between(b, b + 1) + unless_neighbours(between(b - 1, b)),
    )
    then = (
        between(a - 1, b) + unless_neighbours(between(b, a + 1)),
        between(a, b + 1) + unless_neighbours(between(b - 1, a)),
    )
    return now, then, np.where(side_by_side, between(a, b), 0.0)


def _ratio(now: Vector, then: Vector, floor: Vector) -> Vector:
    return np.asarray((now + floor) / (then + floor))


def _walks(walking: Vector, a: int, b: int) -> bool:
    """Return whether a tensor walks near two checkpoints, judged by intervals that touch neither."""
    near = [
        k for k in range(max(0, a - NEARBY - 2), min(len(walking), b + NEARBY + 1)) if not {a, b} & {k, k + 1, k + 2}
    ]
    return len(near) > 0 and float(np.median(walking[near])) > MIN_WALKING


def _fits(history: History, a: int, b: int) -> bool:
    """Return whether a tensor walks past two checkpoints once they are swapped; after a kick it slides back instead."""
    low, high = max(0, a - 2), min(len(history.steps), b + 3)
    there = history.swapped(a, b)
    walking = History(history.name, True, history.steps[low:high], there.values[low:high], history.rounding).walking()
    touched = [k for k in range(len(walking)) if {a, b} & {low + k, low + k + 1, low + k + 2}]
    return bool(np.min(walking[touched]) > MIN_WALK_AFTER)
