"""Counters saved in checkpoints, and the state of an optimizer, against the steps and against each other."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from toposcope.integrity import tuning
from toposcope.integrity.finding import Finding, by_steps, steps_text
from toposcope.integrity.summary import CheckpointSummary
from toposcope.integrity.training_state import OPTIMIZER, SCHEDULER
from toposcope.typing import Vector
from toposcope.wording import examples


class Judged(NamedTuple):
    """Steps whose counter is wrong; whether these are each other's; steps at which it begins again, or leaps."""

    wrong: list[int]
    permuted: bool = False
    restarts: Sequence[int] = ()
    leaps: Sequence[int] = ()


def judge(steps: Sequence[int], counters: Sequence[int]) -> Judged:
    """Judge counters of ascending steps; any pace is right, if it is kept or changes for good."""
    s, values = np.array(steps, np.float64), np.array(counters, np.float64)
    if len(s) < tuning.MIN_COUNTED or len(np.unique(values)) == 1:
        return Judged([])
    ascending = np.sort(values)
    pace = float(np.median(np.diff(ascending) / np.diff(s)))
    if pace > 0 and _fit(s, ascending, pace).all() and not _fit(s, values, pace).all():
        return Judged([int(step) for step, a, b in zip(steps, values, ascending, strict=True) if a != b], True)
    changes = np.diff(values) / np.diff(s)
    positive = changes[changes > 0]
    if not len(positive):
        return Judged([])
    fits = _kept(s, values, float(np.median(positive)))
    if fits.all():
        return Judged([])
    return _chained(s, values, float(np.median(positive)))


def _room(expected: Vector) -> Vector:
    return np.maximum(tuning.MIN_COUNTER_TOLERANCE, tuning.COUNTER_TOLERANCE * expected)


def _fit(s: Vector, values: Vector, pace: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    expected = pace * np.diff(s)
    return np.asarray(np.abs(np.diff(values) - expected) <= _room(expected))


def _kept(s: Vector, values: Vector, pace: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which intervals keep the pace, or one that two intervals or more agree in."""
    kept = _fit(s, values, pace)
    changes = np.diff(values) / np.diff(s)
    for k in np.flatnonzero(~kept & (changes > 0)).tolist():
        others = [changes[j] for j in (k - 1, k + 1) if 0 <= j < len(changes)]
        kept[k] = any(abs(changes[k] - other) <= tuning.COUNTER_TOLERANCE * changes[k] for other in others)
    return kept


def _chained(s: Vector, values: Vector, pace: float) -> Judged:
    """Return the checkpoints outside the cheapest chain of checkpoints that fit each other."""
    n, kept = len(s), _kept(s, values, pace)
    costs, back, kinds = np.arange(n, dtype=np.float64), np.full(n, -1), [""] * n
    for j in range(1, n):
        expected = pace * (s[j] - s[:j])
        room = _room(expected)
        fits = np.abs(values[j] - values[:j] - expected) <= room
        fits[j - 1] |= kept[j - 1]
        restarts = (values[j] < values[:j]) & (values[j] <= expected + room)
        extra = np.where(fits, 0.0, np.where(restarts, tuning.RESTART_COST, tuning.JUMP_COST))
        total = costs[:j] + np.arange(j - 1, -1, -1) + extra
        i = int(total.argmin())
        if total[i] < costs[j]:
            costs[j], back[j] = total[i], i
            kinds[j] = "" if fits[i] else "restart" if restarts[i] else "leap"
    last = int((costs + np.arange(n - 1, -1, -1)).argmin())
    chain = [last]
    while back[chain[-1]] >= 0:
        chain.append(int(back[chain[-1]]))
    wrong = sorted(set(range(n)) - set(chain))
    offset = float(np.median(values[chain] - pace * s[chain]))
    expected, held = np.sort(pace * s[wrong] + offset), np.sort(values[wrong])
    permuted = len(wrong) > 1 and bool((np.abs(held - expected) <= _room(pace * np.diff(s).min())).all())
    at = {kind: sorted(int(s[j]) for j in chain if kinds[j] == kind) for kind in ("restart", "leap")}
    return Judged([int(s[k]) for k in wrong], permuted, at["restart"], at["leap"])


def counter_findings(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find counters that do not fit the steps or the names, and checkpoints that hold each other's."""
    items = [item for item in summaries if not item.error]
    known: dict[str, dict[int, int]] = defaultdict(dict)
    for item in items:
        for name, count in item.state.counters.items() if item.state else ():
            known[name][item.step] = count
    same: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for name, counts in known.items():
        judged = judge(list(counts), list(counts.values()))
        wrong, restarts = set(judged.wrong), judged.restarts
        wrong |= {step for step in counts if judged.leaps and step >= judged.leaps[0]}
        if name not in (OPTIMIZER, SCHEDULER):
            unlike_name = {item.step for item in items if item.stated and item.step in counts}
            n_unlike = len(unlike_name)
            if 2 * n_unlike < len(counts) or (len(counts) < tuning.MIN_COUNTED and n_unlike < len(counts)):
                wrong |= {step for step in unlike_name if not restarts or step < restarts[0]}
            if unlike_name - wrong and not judged.permuted:
                same["names", tuple(sorted(unlike_name - wrong))].append(name)
        kind = "order" if judged.permuted else "wrong"
        for key in ((kind, tuple(sorted(wrong))), ("restarts", tuple(restarts))):
            if key[1]:
                same[key].append(name)
    stated = {item.step: item.stated for item in items}
    for (kind, steps), names in same.items():
        yield _finding(kind, steps, names, known[names[0]], stated)


def _finding(
    kind: str, steps: tuple[int, ...], names: list[str], counts: dict[int, int], stated: dict[int, str]
) -> Finding:
    own = [name for name in names if name not in (OPTIMIZER, SCHEDULER)]
    check, word = "step inside" if own else "optimizer", " and ".join(names)
    held = ", ".join(f"{counts[step]} at {step}" for step in steps[:4]) + (" ..." if len(steps) > 4 else "")
    if kind == "names":
        more = f"; so do the other {len(steps) - 1}" if len(steps) > 1 else ""
        return Finding(check, "note", steps, "", f"{stated[steps[0]]}{more}")
    if kind == "restarts":
        words = f"{word} begins again before {steps_text(steps)}, as after a resume or in a new stage"
        return Finding(check, "note", steps, "", words)
    if kind == "order":
        reverse = all(counts[a] > counts[b] for a, b in pairwise(steps))
        how = "in reverse order" if reverse and len(steps) > 2 else "in each other's place"
        words = f"{steps_text(steps)} are {how}: {word} inside is {held}; rename them, or fetch them again"
        return Finding("order", "fault", steps, "", words)
    if own and len(steps) == 1 and stated[steps[0]]:
        return Finding(check, "fault", steps, "", f"{stated[steps[0]]}; rename it, or fetch it again")
    words = f"{steps_text(steps)}: {word} inside is {held}, which does not fit the others; fetch or save it again"
    return Finding(check, "fault", steps, "", words)


def state_findings(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find moments of an optimizer that hold what no moment does, or that are not those of the weights."""
    items = [item for item in summaries if not item.error and item.state]
    for item in items:
        if item.state and item.state.error:
            yield Finding(item.state.kind, "fault", (item.step,), "", item.state.error)
        if item.state and item.state.wrong:
            more = f", and {len(item.state.wrong) - 1} more" if len(item.state.wrong) > 1 else ""
            words = f"the optimizer's state at step {item.step} holds {item.state.wrong[0]}{more}; save it again"
            yield Finding("optimizer", "fault", (item.step,), "", words)
    moments = {item.step: item.state.moments for item in items if item.state and item.state.moments}
    usual = {
        place: Counter(m[place] for m in moments.values() if place in m).most_common(1)[0]
        for place in {place for m in moments.values() for place in m}
    }
    misfits: dict[str, set[int]] = defaultdict(set)
    for item in items:
        held = moments.get(item.step, {})
        shapes = {tensor.shape for tensor in item.tensors.values()}
        alien = [place for place, shape in held.items() if shape not in shapes]
        # Factored, flattened and packed moments are of other shapes throughout.
        if len(alien) <= (1 - tuning.MIN_FITTING) * len(held):
            for place in alien:
                misfits[place].add(item.step)
        for place, shape in held.items():
            most, count = usual[place]
            if shape != most and 2 * count > len(moments):
                misfits[place].add(item.step)
    for steps, places in by_steps(misfits.items()):
        sides = " x ".join(map(str, moments[steps[0]][places[0]]))
        named = examples(places, 1)
        words = f"{steps_text(steps)}: {named}: shape {sides}, which is not that of its weight; save it again"
        yield Finding("optimizer", "fault", steps, "", words)
