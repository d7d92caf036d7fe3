"""Checkpoints, or tensors of them, that are swapped."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import MIN_AGREEING, MIN_BROKEN_SHARE, NEARBY, History, convincing
from toposcope.typing import Indices, Matrix, Vector

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).

# Swapped checkpoints: how many times shorter the path past them is in the other order
MIN_GAIN = 1.2  # 5/3 for neighbours of a random walk, 3 for straight movement, at most 1 in the right order
MIN_GAIN_OF_EACH = 1.1  # at each of the two checkpoints
MAX_LAG = 160  # checkpoints between two that are swapped; those further apart are each off the path
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
            gains = {name: pairs for name, pairs in gains.items() if name not in names}
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
    for name, pairs in gains.items():
        for pair, ratio in pairs:
            votes[pair][name] = ratio
    matrices = {history.name: history for history in histories if history.is_matrix}
    place = {step: k for k, step in enumerate(every)}
    touched = np.zeros(len(every), dtype=np.bool_)
    swaps = []
    for pair, ratios in sorted(votes.items(), key=lambda v: (sum(map(math.log, v[1].values())), v[0]), reverse=True):
        around = slice(max(0, place[pair[0]] - 2 * NEARBY), place[pair[1]] + 2 * NEARBY)
        if touched[around].any():
            continue
        moving = [name for name, history in matrices.items() if name in ratios or _moves_past(history, *pair)]
        most = 2 * len(ratios) > len(moving)
        in_order = any(
            a < b for count in counts.values() if (a := count.get(pair[0])) is not None and (b := count.get(pair[1]))
        )
        enough = max(MIN_AGREEING, MIN_BROKEN_SHARE * len(moving))
        if not most and (in_order or len(ratios) < enough):
            continue
        evidence = sum(_evidence(matrices[name], *pair) for name in ratios)
        # All tensors of a checkpoint change places together; fewer could be any choice of them, at any lag.
        n_looks = len(every) * (1 if most else len(moving) * MAX_LAG)
        if convincing(evidence - (0 if most else len(moving) * math.log(2)), n_looks):
            touched[around] = True
            shorter = f"in the other order the path past them is {np.median(list(ratios.values())):.2g} times shorter"
            whose = "steps {} and {} are swapped" + (", but not the counters saved with them" if in_order else "")
            names = list(matrices) if most else list(ratios)
            swaps.append((pair, names, f"{whose.format(*pair)}: {shorter}"))
    return swaps


def _moves_past(history: History, *pair: int) -> bool:
    """Return whether a matrix moves to two checkpoints and on, so that it should show their order."""
    a, b = np.searchsorted(history.steps, pair).tolist()
    moves = history.squared_moves > history.rounding_floor()[1:]
    return a > 0 and b < len(history.steps) - 1 and bool(moves[[a - 1, a, b - 1, b]].all())


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
    for low in range(0, len(history.steps) - 3, CHUNK):
        high = min(len(history.steps), low + 1 + CHUNK + MAX_LAG + 1)
        near = history.part(slice(low, high))
        a, b = _pairs(high - low)
        floor = near.rounding_floor()[a]
        now, then, middle = _paths(near.distances(), a, b)
        whole = _ratio(now[0] + now[1] + middle, then[0] + then[1] + middle, floor)
        # Both checkpoints must gain: at a break of the run, only one does.
        gains = np.minimum(*(_ratio(x, y, floor) for x, y in zip(now, then, strict=True)))
        for k in np.flatnonzero((whole > MIN_GAIN) & (gains > MIN_GAIN_OF_EACH)):
            pair = low + int(a[k]), low + int(b[k])
            yield (int(history.steps[pair[0]]), int(history.steps[pair[1]])), float(whole[k])


@lru_cache(maxsize=8)
def _pairs(n: int) -> tuple[Indices, Indices]:
    """Return all pairs of checkpoints that are near enough, the first in the chunk, with one before and one after."""
    a, b = np.triu_indices(n, 1)
    near = (a > 0) & (a <= CHUNK) & (b < n - 1) & (b - a <= MAX_LAG)
    return a[near], b[near]


def _paths(distances: Matrix, a: Indices, b: Indices) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector], Vector]:
    """Return the path past each of a pair as it is, and swapped; the last distance, of neighbours, is part of both."""
    d, apart = distances, b - a > 1
    now = d[a - 1, a] + np.where(apart, d[a, a + 1], 0.0), d[b, b + 1] + np.where(apart, d[b - 1, b], 0.0)
    then = d[a - 1, b] + np.where(apart, d[b, a + 1], 0.0), d[a, b + 1] + np.where(apart, d[b - 1, a], 0.0)
    return now, then, np.where(apart, 0.0, d[a, b])


def _ratio(now: Vector, then: Vector, floor: Vector) -> Vector:
    return np.asarray((now + floor) / (then + floor))
