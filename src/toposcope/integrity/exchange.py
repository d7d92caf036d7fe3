"""Checkpoints, or tensors of them, that took each other's place."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.integrity.finding import Suspect
from toposcope.integrity.tracks import FEWEST_MATRICES, NEAR, QUARTERS, SEVERAL, WALKING, Array, Track, totals

EXCHANGE = 1.5
"""Two checkpoints are exchanged if exchanging them back makes the way (the sum of squared distances) so many times
shorter where it passes them: 5/3 where neighbours of a random walk were exchanged, 3 for straight movement; in the
right order at most 1, as long as the run walks."""
FITTING = 0.6
"""The same at the places themselves, once they are exchanged."""
EXCHANGE_OF_SEVERAL = 1.3
EXCHANGE_QUARTER = 1.1
EXCHANGE_LEAST = 1.1
"""What either of the two places has to gain at least."""
EXCHANGE_OF_MOST = 1.2
FURTHEST = 160
"""Checkpoints between two that are exchanged; such as are further apart are off the way, each by itself."""

Places = NDArray[np.intp]


def exchanged(known: Sequence[Track]) -> list[Suspect]:
    """Find pairs of checkpoints that have each other's tensors."""
    found = []
    for _ in range(len(known[0].steps) if known else 0):
        best = _best_exchange(known)
        if best is None:
            break
        (a, b), names, ratio = best
        concerned = set(names)
        known = [_put_back(track, a, b) if track.name in concerned else track for track in known]
        reason = f"steps {a} and {b} are exchanged: in the other order the way past them is {ratio:.2g} times shorter"
        found.append(Suspect((a, b), names, len(known), "order", reason))
    return found


def _put_back(track: Track, a: int, b: int) -> Track:
    places = np.flatnonzero(np.isin(track.steps, [a, b]))
    return track.exchanged(*map(int, places)) if len(places) == 2 else track


def _best_exchange(known: Sequence[Track]) -> tuple[tuple[int, int], list[str], float] | None:
    """Return the pair whose exchange shortens the way the most, with the tensors that say so."""
    said: dict[tuple[int, int], list[tuple[str, float]]] = defaultdict(list)
    of_matrices: dict[tuple[int, int], list[float]] = defaultdict(list)
    matrices = [track for track in known if track.is_matrix]
    for track in matrices:
        for (a, b), ratio, least in _exchange_ratios(track):
            pair = int(track.steps[a]), int(track.steps[b])
            if ratio > EXCHANGE_OF_SEVERAL and least > EXCHANGE_QUARTER:
                said[pair].append((track.name, ratio))
            of_matrices[pair].append(ratio)
    candidates = []
    for pair, layers in said.items():
        strong = [x for x in layers if x[1] > EXCHANGE]
        kept = layers if len(layers) >= SEVERAL else strong
        if kept:
            ratio = float(np.median([r for _, r in kept]))
            candidates.append((sum(np.log(r) for _, r in kept), pair, [n for n, _ in kept], ratio))
    for pair, ratios in of_matrices.items():
        median = float(np.median(ratios))
        if 2 * len(ratios) > max(len(matrices), 2 * FEWEST_MATRICES - 1) and median > EXCHANGE_OF_MOST:
            candidates.append((len(ratios) * np.log(median), pair, [track.name for track in known], median))
    if not candidates:
        return None
    _, pair, names, ratio = max(candidates, key=lambda c: (c[0], len(c[2])))
    return pair, names, ratio


def _exchange_ratios(track: Track) -> Iterator[tuple[tuple[int, int], float, float]]:
    """Return how many times shorter the way past a pair would be the other way round: of all, and the least quarter."""
    n = len(track.steps)
    # Places before the first and behind the last are no distance from anywhere.
    square = np.pad(track.distances(), ((1, 1), (1, 1), (0, 0)))
    a, b = np.triu_indices(n, 1)
    near = b - a <= FURTHEST
    a, b = a[near], b[near]
    floor = track.floor()[a]
    side_by_side = (b - a == 1)[:, None]

    def between(x: Places, y: Places) -> Array:
        return square[x + 1, y + 1]

    def unless_neighbours(parts: Array) -> Array:
        return np.where(side_by_side, 0.0, parts)

    middle = np.where(side_by_side, between(a, b), 0.0)
    now = (
        between(a - 1, a) + unless_neighbours(between(a, a + 1)),
        between(b, b + 1) + unless_neighbours(between(b - 1, b)),
    )
    then = (
        between(a - 1, b) + unless_neighbours(between(b, a + 1)),
        between(a, b + 1) + unless_neighbours(between(b - 1, a)),
    )
    whole = _ratio(totals(now[0] + now[1] + middle), totals(then[0] + then[1] + middle), floor)
    # Either place must gain: where a run breaks off, only one does.
    sides = [_ratio(totals(x), totals(y), floor) for x, y in zip(now, then, strict=True)]
    # Beside an end one wrong checkpoint looks the same as two that were exchanged.
    gains = np.where((a > 0) & (b < n - 1), np.minimum(*sides), 0)
    part = floor[:, None] / QUARTERS
    least = _ratio(now[0] + now[1] + middle, then[0] + then[1] + middle, part).min(axis=1)
    walking = track.walking()
    for k in np.flatnonzero((whole > EXCHANGE_LEAST) & (least > 1) & (gains > EXCHANGE_LEAST)):
        pair = int(a[k]), int(b[k])
        if _walks(walking, *pair) and _fits(track, *pair):
            yield pair, float(whole[k]), float(least[k])


def _ratio(now: Array, then: Array, floor: Array) -> Array:
    return np.asarray((now + floor) / (then + floor))


def _walks(walking: Array, a: int, b: int) -> bool:
    """Tell whether a tensor is on its way somewhere around two places, from what touches neither."""
    near = [k for k in range(max(0, a - NEAR - 2), min(len(walking), b + NEAR + 1)) if not {a, b} & {k, k + 1, k + 2}]
    return len(near) > 0 and float(np.median(walking[near])) > WALKING


def _fits(track: Track, a: int, b: int) -> bool:
    """Tell whether a tensor would walk past two places if they were exchanged; after a kick it slides back instead."""
    low, high = max(0, a - 2), min(len(track.steps), b + 3)
    there = track.exchanged(a, b)
    walking = Track(track.name, True, track.steps[low:high], there.values[low:high], track.rounding).walking()
    touched = [k for k in range(len(walking)) if {a, b} & {low + k, low + k + 1, low + k + 2}]
    return bool(np.min(walking[touched]) > FITTING)
