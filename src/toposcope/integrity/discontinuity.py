"""Checkpoints that are off the path of training, judged by their neighbours.

Every rule compares distances with distances, or correlations with correlations, of the same tensor nearby, so that none
has a unit. What a healthy run may do, and the margin a rule leaves it, stands at its threshold.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from toposcope.integrity.breaks import replaced, scaled
from toposcope.integrity.finding import Finding, Suspect, steps_text
from toposcope.integrity.histories import (
    MIN_AGREEING,
    MIN_BROKEN_SHARE,
    NEARBY,
    History,
    all_places,
    convincing,
    nearby,
    tensor_histories,
)
from toposcope.integrity.made_of_others import copied, straight
from toposcope.integrity.order import find_swaps
from toposcope.integrity.summary import CheckpointSummary
from toposcope.progress import Progress, silent
from toposcope.typing import Matrix, Vector

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MAX_STRETCH = 64  # largest lag, in checkpoints, at which distances are compared
MIN_MATRICES = 6  # needed for a median over the matrices
MIN_WALKING = 0.8  # squared distance over two intervals over the sum of both: 1 for a walk, 1/2 for noise

# Off the path: distance from the neighbours over that between them; 1/2 straight on, 1/sqrt 2 for a walk, 1 for noise
MIN_DETOUR = 2.0
MIN_DETOUR_OF_MOST = 1.25  # of the median over the matrices, which scatters less
CORRELATION_LOSS = 0.5  # share of the neighbours' correlation lost too, where a matrix does not walk
MIN_LOUDNESS = 2.0  # or a detour relative to all but one nearby; a learning rate that is high stays so for a while

# The weights of another run from some step on
MAX_UNRELATED = 0.15  # correlation that counts as none: 256 independent values give 0.06
MIN_SPEED_UP = 6.0  # how many times faster than nearby, per step, a correlation falls; restarts do not do that
MAX_DIVERGED = 3.0  # factor beyond which weights have diverged rather than been replaced
MIN_LEAP = 4.0  # how much further than in any other interval as long most matrices move in a leap


def discontinuities(
    whole: Sequence[CheckpointSummary],
    excluded: Collection[int],
    excluded_of: Mapping[str, Collection[int]],
    progress: Progress = silent,
) -> Iterator[Finding]:
    """Find what is off the path of training, without the steps `excluded` of all tensors or of some."""
    histories = tensor_histories(whole, excluded, excluded_of)
    if not histories:
        return
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    for item in whole:
        for name, count in item.state.counters.items() if item.state else ():
            counts[name][item.step] = count
    yield from _by_rules(_long_enough(histories), counts, progress)


def _by_rules(
    histories: Sequence[History], counts: Mapping[str, Mapping[int, int]], progress: Progress
) -> Iterator[Finding]:
    """Apply all rules, each to what the rules before it left."""
    vectors = {history.name for history in histories if not history.is_matrix}
    reported = set()
    rules: Sequence[Callable[[Sequence[History]], Iterable[Suspect]]] = (
        copied,
        straight,
        partial(find_swaps, counts=counts),
        partial(_off_path, longest=1),
        _off_path,
        scaled,
        _broken,
        replaced,
        _leapt,
    )
    for done, rule in enumerate(rules, start=1):
        progress("compare", done - 1, len(rules))
        for suspect in rule(histories):
            if suspect.check in ("break", "leap") and suspect.steps in reported:
                continue
            reported.add(suspect.steps)
            yield suspect.finding(len(histories))
            if suspect.check not in ("break", "leap"):
                # What matrices show of a checkpoint holds for its vectors, which show less.
                concerned = vectors.union(suspect.layers)
                histories = [
                    history.without(suspect.steps) if history.name in concerned else history for history in histories
                ]
        histories = _long_enough(histories)
        progress("compare", done, len(rules))


def _long_enough(histories: Sequence[History]) -> list[History]:
    return [history for history in histories if len(history.steps) > 3]


def _off_path(histories: Sequence[History], longest: int = MAX_STRETCH) -> list[Suspect]:
    """Find stretches of checkpoints whose neighbours on either side are near each other, but far from them."""
    layers: dict[tuple[int, ...], list[str]] = defaultdict(list)
    ratios: dict[tuple[int, ...], list[float]] = defaultdict(list)
    single: dict[int, list[float]] = defaultdict(list)
    n_matrices = sum(history.is_matrix for history in histories)
    for history in histories:
        for steps, ratio in _detours(history, longest):
            layers[steps].append(history.name)
            ratios[steps].append(ratio)
        if history.is_matrix and longest > 1:
            walking = history.two_intervals()
            alone = _detour_ratios(history.lagged_distances(2), history.rounding_floor(), 1)
            for k in np.flatnonzero(alone > MIN_DETOUR_OF_MOST).tolist():
                if _is_a_detour(history, walking, k + 1, k + 2) or _is_louder(alone, k):
                    single[int(history.steps[k + 1])].append(float(alone[k]))
    for step, of_matrices in single.items():
        if 2 * len(of_matrices) > max(n_matrices, 2 * MIN_MATRICES - 1):
            layers[step,], ratios[step,] = [history.name for history in histories], of_matrices
    suspects = []
    known = {history.name: history for history in histories}
    for steps, names in sorted(layers.items()):
        found = [(known[name].is_matrix, _evidence(known[name], steps)) for name in names]
        # Vectors, which have few directions to go, turn together where a run does: the surest of them counts.
        evidence = sum(e for is_matrix, e in found if is_matrix) + max((e for m, e in found if not m), default=0)
        if convincing(evidence, all_places(histories)):
            times, are = _times(float(np.median(ratios[steps]))), "is" if len(steps) == 1 else "are"
            further = f"{times} further from the neighbours than these from each other"
            reason = f"{steps_text(steps)} {are} off the path: {further}"
            suspects.append(Suspect(steps, names, "off path", reason))
    return suspects


def _evidence(history: History, steps: tuple[int, ...]) -> float:
    """Return the evidence of one tensor that it is off its path at some steps."""
    at = np.flatnonzero(np.isin(history.steps, steps)).tolist()
    if not at or at[0] == 0 or at[-1] + 1 == len(history.steps):
        return 0.0
    places = [at[0] - 1, at[0], at[-1], at[-1] + 1]
    return history.evidence(places, range(places[0], places[-1]), _detour_ratio)


def _detour_ratio(values: Matrix, floor: float) -> float:
    there, back, across = (float(np.square(values[a] - values[b]).sum()) for a, b in ((0, 1), (2, 3), (0, 3)))
    return float(np.sqrt((min(there, back) + floor) / (across + floor)))


def _times(ratio: float) -> str:
    return "more than 1000 times" if ratio > 1000 else f"{ratio:.3g} times"


def _detours(history: History, longest: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the shortest stretches of one tensor that are off its path, each with its ratio."""
    detours: list[tuple[tuple[int, ...], float]] = []
    while len(history.steps) > 3:
        worst = _worst_detour(history, longest)
        if worst is None:
            break
        detours.append(worst)
        history = history.without(worst[0])
    return detours


def _worst_detour(history: History, longest: int) -> tuple[tuple[int, ...], float] | None:
    """Return, of the shortest stretches off the path, the furthest; next to it a right one may look wrong."""
    n, floor = len(history.steps), history.rounding_floor()
    lagged, walking = history.lagged_distances(min(longest + 1, n - 1)), history.two_intervals()
    for length in range(1, min(len(lagged), (n + 1) // 2)):
        ratios = _detour_ratios(lagged, floor, length)
        for k in sorted(np.flatnonzero(ratios > MIN_DETOUR).tolist(), key=lambda k: -float(ratios[k])):
            alone = length == 1 and history.is_matrix and _is_louder(ratios, k)
            if alone or _is_a_detour(history, walking, k + 1, k + 1 + length):
                return tuple(history.steps[k + 1 : k + 1 + length].tolist()), float(ratios[k])
    return None


def _is_a_detour(history: History, walking: tuple[Vector, Vector], begin: int, end: int) -> bool:
    """Return whether a detour is no louder noise about a fixed point: the run walks, or correlation is lost."""
    two, both = walking
    around = range(max(0, begin - NEARBY - 2), min(len(two), end + NEARBY))
    near = [k for k in around if k + 2 < begin or k >= end or begin <= k < end - 2]
    # The ratio of sums: where noise follows the learning rate, single ratios are anything up to 1.
    if near and two[near].sum() > MIN_WALKING * both[near].sum():
        return True
    if not history.is_matrix:
        return False
    there, back, across = (
        float(history.part([a, b]).correlations()[0]) for a, b in ((begin - 1, begin), (end - 1, end), (begin - 1, end))
    )
    return across > CORRELATION_LOSS and max(there, back) < CORRELATION_LOSS * across


def _is_louder(ratios: Vector, k: int) -> bool:
    """Return whether one detour stands out from those nearby, of which one other may be real."""
    away = sorted((j for j in range(len(ratios)) if abs(j - k) > 1), key=lambda j: abs(j - k))
    others = sorted(ratios[away[: 4 * NEARBY]])
    return len(others) > NEARBY and bool(ratios[k] > MIN_LOUDNESS * others[-2])


def _detour_ratios(lagged: Sequence[Vector], floor: Vector, length: int) -> Vector:
    """Return the smaller distance of each stretch to its two neighbours, over the distance between these."""
    n = len(floor) - length - 1
    nearer = np.minimum(lagged[0][:n], lagged[0][length:])
    return np.asarray(np.sqrt((nearer + floor[:n]) / (lagged[length] + floor[:n])))


def _broken(histories: Sequence[History]) -> Iterator[Suspect]:
    """Find steps from which on the weights have nothing to do with those before."""
    lost: dict[int, list[str]] = defaultdict(list)
    matrices = [history for history in histories if history.is_matrix]
    for history in matrices:
        correlation = history.correlations()
        fall = -np.log(np.clip(correlation, 0.05, 1))
        elapsed = np.diff(history.steps)
        growth = history.squared_norms[1:] / history.squared_norms[:-1]
        for k in np.flatnonzero((correlation < MAX_UNRELATED) & (growth < MAX_DIVERGED**2)):
            near = nearby(int(k), len(fall))
            pace = float(np.median(fall[near] / elapsed[near]))
            # Weights may forget their initialisation between the first two checkpoints; nothing of the kind may follow.
            settled = k > 0 or bool(np.all(fall[1:4] < -np.log(0.95)))
            if settled and fall[k] > MIN_SPEED_UP * pace * elapsed[k]:
                lost[int(history.steps[k + 1])].append(history.name)
    every = sorted({int(step) for history in histories for step in history.steps})
    enough = max(min(MIN_AGREEING, len(matrices)), MIN_BROKEN_SHARE * len(matrices))
    for step, names in sorted(lost.items()):
        # One small matrix may forget its first values in the first interval.
        if len(names) < (MIN_AGREEING if step == every[1] else enough):
            continue
        layers = _all_if_most(names, histories)
        if step in (every[1], every[-1]):
            wrong = every[0] if step == every[1] else step
            reason = f"step {wrong} has nothing in common with its neighbour"
            yield Suspect((wrong,), layers, "off path", reason)
        else:
            reason = f"from step {step} on the weights have nothing in common with those before"
            yield Suspect((step,), layers, "break", reason)


def _leapt(histories: Sequence[History]) -> Iterator[Suspect]:
    """Find intervals in which the weights move further than in any other."""
    far_moves: dict[int, list[tuple[str, float]]] = defaultdict(list)
    matrices = [history for history in histories if history.is_matrix]
    for history in matrices:
        distances = np.sqrt(history.squared_moves + history.rounding_floor()[1:])
        elapsed = np.diff(history.steps)
        # At the beginning everything moves.
        for k in (np.flatnonzero(distances[1:] > MIN_LEAP * np.median(distances)) + 1).tolist():
            alike = (2 * elapsed >= elapsed[k]) & (np.arange(len(distances)) != k)
            if alike.sum() > NEARBY:
                most = np.max((distances * np.maximum(1, elapsed[k] / elapsed))[alike])
                if distances[k] > MIN_LEAP * most:
                    far_moves[int(history.steps[k + 1])].append((history.name, float(distances[k] / most)))
    last = max((int(history.steps[-1]) for history in matrices), default=0)
    for step, moves in sorted(far_moves.items()):
        if 2 * len(moves) > len(matrices):
            further = f"{_times(float(np.median([r for _, r in moves])))} further than in any other interval as long"
            layers = _all_if_most([name for name, _ in moves], histories)
            reason = f"just before step {step} the weights move {further}"
            if step == last:
                yield Suspect((step,), layers, "off path", reason)
            else:
                # The weights alone do not show whether a run was kicked or a checkpoint was damaged for good.
                reason += "; a learning rate far too high, a batch of wrong data, or noise added to the checkpoints"
                yield Suspect((step,), layers, "leap", reason, "note")


def _all_if_most(names: list[str], histories: Sequence[History]) -> list[str]:
    """Include the vectors, which are alike in all runs, if most matrices agree."""
    matrices = [history.name for history in histories if history.is_matrix]
    return [history.name for history in histories] if 2 * len(names) > len(matrices) else names
