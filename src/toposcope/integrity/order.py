"""Checkpoints, or tensors of them, that are swapped, and stretches that are stored in reverse order."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from toposcope.integrity import tuning
from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import History, convincing
from toposcope.typing import Indices, Matrix, Vector

CHUNK = 256  # checkpoints whose distances are held at once, with the `MAX_LAG` behind them


def find_swaps(histories: Sequence[History], counts: Mapping[str, Mapping[int, int]] | None = None) -> list[Suspect]:
    """Find pairs of checkpoints that hold each other's tensors; `counts` are those saved with them, by name."""
    suspects: list[Suspect] = []
    every = sorted({step for history in histories for step in history.steps.tolist()})
    gains: dict[str, list[tuple[tuple[int, int], float]]] = {}
    while len(suspects) < len(every):
        gains |= {h.name: list(_swap_gains(h)) for h in histories if h.is_matrix and h.name not in gains}
        swaps = _best_swaps(histories, gains, every, counts or {})
        if not swaps:
            break
        for (a, b), names, reason in swaps:
            histories = [_swapped_back(h, a, b) if h.name in names else h for h in histories]
            gains = {name: of for name, of in gains.items() if name not in names}
            suspects.append(Suspect((a, b), names, "order", reason))
    return suspects


def _swapped_back(history: History, a: int, b: int) -> History:
    positions = np.flatnonzero(np.isin(history.steps, [a, b]))
    return history.swapped(*map(int, positions)) if len(positions) == 2 else history


def _best_swaps(
    histories: Sequence[History],
    gains: Mapping[str, Sequence[tuple[tuple[int, int], float]]],
    every: Sequence[int],
    counts: Mapping[str, Mapping[int, int]],
) -> list[tuple[tuple[int, int], list[str], str]]:
    """Return the swaps that shorten the path the most, with the tensors that agree and the reason."""
    votes: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for name, of_pairs in gains.items():
        for pair, ratio in of_pairs:
            votes[pair][name] = ratio
    matrices = {history.name: history for history in histories if history.is_matrix}
    place = {step: k for k, step in enumerate(every)}
    touched = np.zeros(len(every), dtype=np.bool_)
    swaps = []
    for pair, ratios in sorted(votes.items(), key=lambda v: (sum(map(math.log, v[1].values())), v[0]), reverse=True):
        around = slice(max(0, place[pair[0]] - 2 * tuning.NEARBY), place[pair[1]] + 2 * tuning.NEARBY)
        if touched[around].any():
            continue
        moving = [name for name, history in matrices.items() if name in ratios or _moves_past(history, *pair)]
        most = 2 * len(ratios) > len(moving)
        in_order = any(a < b for of in counts.values() if (a := of.get(pair[0])) is not None and (b := of.get(pair[1])))
        enough = max(tuning.MIN_AGREEING, tuning.MIN_BROKEN_SHARE * len(moving))
        if not most and (in_order or len(ratios) < enough):
            continue
        evidence = sum(_evidence(matrices[name], *pair) for name in ratios)
        # All tensors of a checkpoint change places together; fewer could be any choice of them, at any lag.
        n_looks = len(every) * (1 if most else len(moving) * tuning.MAX_LAG)
        if convincing(evidence - (0 if most else len(moving) * math.log(2)), n_looks):
            touched[around] = True
            shorter = f"in the other order the path past them is {np.median(list(ratios.values())):.2g} times shorter"
            whose = "steps {} and {} are swapped" + (", but not the counters saved with them" if in_order else "")
            names = list(matrices) if most else list(ratios)
            swaps.append((pair, names, f"{whose.format(*pair)}: {shorter}"))
    return swaps


def _moves_past(history: History, *pair: int) -> bool:
    """Return whether a matrix walks past two checkpoints, so that it should show their order."""
    a, b = np.searchsorted(history.steps, pair).tolist()
    return a > 0 and b < len(history.steps) - 1 and _walks(history.walking(), a, b)


def _evidence(history: History, *pair: int) -> float:
    """Return the evidence of one matrix that two checkpoints are swapped."""
    a, b = np.searchsorted(history.steps, pair).tolist()

    def gain(values: Matrix, floor: float) -> float:
        squared = np.square(values[:, None] - values).sum(axis=2) + floor
        now, then, middle = _paths(squared, np.array([1]), np.array([len(values) - 2]))
        return float(((sum(now) + middle) / (sum(then) + middle))[0])

    places = [a - 1, a, b, b + 1] if b - a == 1 else [a - 1, a, a + 1, b - 1, b, b + 1]
    # The ratio of the likelihoods of a random walk in either order: half of each of its intervals counts.
    return len({a - 1, a, b - 1, b}) / 2 * history.evidence(places, {a - 1, a, b - 1, b}, gain)


def _swap_gains(history: History) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield the steps of each pair that gains by a swap, the very ends left out, and how much shorter the path is."""
    walking = history.walking()
    for low in range(0, len(history.steps) - 3, CHUNK):
        high = min(len(history.steps), low + 1 + CHUNK + tuning.MAX_LAG + 1)
        near = history.part(slice(low, high))
        a, b = _pairs(high - low)
        floor = near.rounding_floor()[a]
        now, then, middle = _paths(near.distances(), a, b)
        whole = _ratio(now[0] + now[1] + middle, then[0] + then[1] + middle, floor)
        # Both checkpoints must gain: at a break of the run, only one does.
        gains = np.minimum(*(_ratio(x, y, floor) for x, y in zip(now, then, strict=True)))
        for k in np.flatnonzero((whole > tuning.MIN_GAIN) & (gains > tuning.MIN_GAIN_OF_EACH)):
            pair = low + int(a[k]), low + int(b[k])
            if _walks(walking, *pair) and _fits(history, *pair):
                yield (int(history.steps[pair[0]]), int(history.steps[pair[1]])), float(whole[k])


@lru_cache(maxsize=8)
def _pairs(n: int) -> tuple[Indices, Indices]:
    """Return all pairs of checkpoints that are near enough, the first in the chunk, with one before and one after."""
    a, b = np.triu_indices(n, 1)
    near = (a > 0) & (a <= CHUNK) & (b < n - 1) & (b - a <= tuning.MAX_LAG)
    return a[near], b[near]


def _paths(distances: Matrix, a: Indices, b: Indices) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector], Vector]:
    """Return the path past each of a pair as it is, and swapped; the last distance, of neighbours, is part of both."""
    d, apart = distances, b - a > 1
    now = d[a - 1, a] + np.where(apart, d[a, a + 1], 0.0), d[b, b + 1] + np.where(apart, d[b - 1, b], 0.0)
    then = d[a - 1, b] + np.where(apart, d[b, a + 1], 0.0), d[a, b + 1] + np.where(apart, d[b - 1, a], 0.0)
    return now, then, np.where(apart, 0.0, d[a, b])


def _ratio(now: Vector, then: Vector, floor: Vector) -> Vector:
    return np.asarray((now + floor) / (then + floor))


def _walks(walking: Vector, a: int, b: int) -> bool:
    """Return whether a tensor walks near two checkpoints, judged by intervals that touch neither."""
    near = [
        k
        for k in range(max(0, a - tuning.NEARBY - 2), min(len(walking), b + tuning.NEARBY + 1))
        if not {a, b} & {k, k + 1, k + 2}
    ]
    return len(near) > 0 and float(np.median(walking[near])) > tuning.MIN_WALKING


def _fits(history: History, a: int, b: int) -> bool:
    """Return whether a tensor walks past two checkpoints once they are swapped; after a kick it slides back instead."""
    low, high = max(0, a - 2), min(len(history.steps), b + 3)
    near = history.part(slice(low, high))
    walking = near.swapped(a - low, b - low).walking()
    touched = [k for k in range(len(walking)) if {a, b} & {low + k, low + k + 1, low + k + 2}]
    return bool(np.min(walking[touched]) > tuning.MIN_WALK_AFTER)


def find_reversed(histories: Sequence[History]) -> list[Suspect]:
    """Find stretches that are in reverse order: turned around, the path past them is much shorter on both sides."""
    matrices = [history for history in histories if history.is_matrix]
    if not matrices:
        return []
    steps = matrices[0].steps
    matrices = [history for history in matrices if np.array_equal(history.steps, steps)]
    if float(np.median([np.median(h.walking()) for h in matrices])) < tuning.MIN_WALKING:
        return []
    found = [each for begin in range(1, len(steps) - tuning.MIN_LENGTH, CHUNK) for each in _stretches(matrices, begin)]
    taken = np.zeros(len(steps), np.bool_)
    suspects = []
    for _, a, b in sorted(found, reverse=True):
        if not taken[a : b + 1].any():
            taken[a : b + 1] = True
            moved = tuple(int(step) for k, step in enumerate(steps[a : b + 1]) if 2 * k != b - a)
            reason = f"steps {steps[a]} to {steps[b]} are stored in reverse order; rename them, or fetch them again"
            suspects.append(Suspect(moved, [h.name for h in histories], "order", reason))
    return suspects


def _stretches(matrices: Sequence[History], begin: int) -> Iterator[tuple[float, int, int]]:
    """Yield how much shorter the path is with an inner stretch turned around that begins in the chunk, and its ends."""
    n = len(matrices[0].steps)
    low, high = max(0, begin - 2), min(n, begin + CHUNK + tuning.MAX_STRETCH + 2)
    near = [h.part(slice(low, high)) for h in matrices]
    distances = np.stack([h.distances() + h.rounding_floor()[0] for h in near])

    def times(a: Indices, b: Indices, c: Indices, d: Indices) -> Vector:
        """Return how many times further a is from b than c from d, in the median over the matrices."""
        return np.asarray(np.median(distances[:, a, b] / distances[:, c, d], axis=0))

    for length in range(tuning.MIN_LENGTH - 1, tuning.MAX_STRETCH):
        a = np.arange(begin - low, min(begin + CHUNK, n - 1 - length) - low)
        into, out_of = times(a - 1, a, a - 1, a + length), times(a + length, a + length + 1, a, a + length + 1)
        a = a[chosen := (into > tuning.MIN_TURNED_GAIN) & (out_of > tuning.MIN_TURNED_GAIN)]
        gains, b = (into * out_of)[chosen], a + length
        # If two checkpoints alone have changed places, those next to the ends, within or outside, do not agree.
        before, after = np.maximum(a - 2, 0), np.minimum(b + 2, high - low - 1)
        agrees = (a < 2) | (times(before, b, before, a) <= 1)
        agrees &= (b + 2 >= high - low) | (times(a, after, b, after) <= 1)
        if length > tuning.MIN_LENGTH - 1:
            agrees &= (times(a, a + 1, b, a + 1) <= 1) & (times(b, b - 1, a, b - 1) <= 1)
        for gain, first in zip(gains[agrees].tolist(), a[agrees].tolist(), strict=True):
            yield gain, low + first, low + first + length
