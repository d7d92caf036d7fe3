"""Counters saved in checkpoints against the steps of their names and against each other."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from toposcope.integrity.finding import Finding, steps_text
from toposcope.integrity.summary import CheckpointSummary
from toposcope.integrity.training_state import OPTIMIZER, SCHEDULER
from toposcope.typing import Vector

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MIN_COUNTED = 3  # checkpoints that hold a counter
COUNTER_TOLERANCE, MIN_COUNTER_TOLERANCE = 0.1, 2.0  # off its pace, relative and in all: steps that a scaler skips
RESTART_COST, JUMP_COST = 0.5, 3.0  # of a counter that begins again, or falls otherwise, in wrong checkpoints
UNEVEN_COST = 0.9  # of an interval off the pace: two of them are dearer than one wrong checkpoint
MIN_EVEN_SHARE = 0.6  # of the intervals that keep the pace, for it to be a rule


class CounterVerdict(NamedTuple):
    """Steps whose counter is wrong; whether these are each other's."""

    wrong: list[int]
    permuted: bool = False


def judge(steps: Sequence[int], counters: Sequence[int]) -> CounterVerdict:
    """Judge counters of ascending steps: they rise, and where most intervals keep a pace, each checkpoint fits it."""
    s, values = np.array(steps, np.float64), np.array(counters, np.float64)
    rises = np.diff(values) / np.diff(s)
    if len(s) < MIN_COUNTED or not (rises > 0).any():
        return CounterVerdict([])
    ascending = np.sort(values)
    pace = float(np.median(np.diff(ascending) / np.diff(s)))
    if pace > 0 and (rises <= 0).any() and _keeps(s, ascending, pace).all():
        return CounterVerdict([int(step) for step, a, b in zip(steps, values, ascending, strict=True) if a != b], True)
    return _chained(s, values, rises)


def _tolerance(expected: Vector) -> Vector:
    return np.maximum(MIN_COUNTER_TOLERANCE, COUNTER_TOLERANCE * expected)


def _keeps(s: Vector, values: Vector, pace: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    expected = pace * np.diff(s)
    return np.asarray(np.abs(np.diff(values) - expected) <= _tolerance(expected))


def _chained(s: Vector, values: Vector, rises: Vector) -> CounterVerdict:
    """Return the checkpoints outside the cheapest chain of checkpoints that may follow each other."""
    n, pace = len(s), float(np.median(rises[rises > 0]))
    is_even = _keeps(s, values, pace).mean() > MIN_EVEN_SHARE
    # Epochs of many lengths have no pace: such a counter need only rise. After a restart the pace may be another.
    uneven = UNEVEN_COST if is_even else 0.0
    paces = np.maximum(pace if is_even else 2 * pace, np.append(rises, 0.0))
    costs, back = np.arange(n, dtype=np.float64), np.full(n, -1)
    for j in range(1, n):
        lag, rise = s[j] - s[:j], values[j] - values[:j]
        fits = np.abs(rise - pace * lag) <= _tolerance(pace * lag)
        again = (rise < 0) & (values[j] <= paces[j] * lag + _tolerance(paces[j] * lag))
        stalls = np.where(rise == 0, UNEVEN_COST, np.where(again, RESTART_COST, JUMP_COST))
        total = costs[:j] + np.arange(j - 1, -1, -1) + np.where(fits, 0.0, np.where(rise > 0, uneven, stalls))
        i = int(total.argmin())
        if total[i] < costs[j]:
            costs[j], back[j] = total[i], i
    chain = [int((costs + np.arange(n - 1, -1, -1)).argmin())]
    while back[chain[-1]] >= 0:
        chain.append(int(back[chain[-1]]))
    wrong = sorted(set(range(n)) - set(chain))
    expected, held = np.interp(s[wrong], s[chain[::-1]], values[chain[::-1]]), values[wrong]
    exchanged = np.abs(np.sort(held) - expected) <= _tolerance(pace * np.diff(s).min())
    return CounterVerdict([int(s[k]) for k in wrong], bool(exchanged.all() and (np.diff(held) < 0).any()))


def counter_findings(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find counters that do not fit the steps or the names, and checkpoints that hold each other's."""
    items = [item for item in summaries if not item.error]
    known: dict[str, dict[int, int]] = defaultdict(dict)
    for item in items:
        for name, count in item.state.counters.items() if item.state else ():
            known[name][item.step] = count
    stated = {item.step: item.stated for item in items}
    same: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for name, counts in known.items():
        verdict = judge(list(counts), list(counts.values()))
        wrong = set(verdict.wrong)
        if name not in (OPTIMIZER, SCHEDULER):
            unlike = [step for step in counts if stated[step]]
            wrong |= _unlike_names([*counts], unlike)
            if not wrong.issuperset(unlike) and not verdict.permuted:
                same["names", tuple(step for step in unlike if step not in wrong)].append(name)
        kind = "order" if verdict.permuted else "wrong"
        if wrong:
            same[kind, tuple(sorted(wrong))].append(name)
    for (kind, steps), names in same.items():
        yield _finding(kind, steps, names, known[names[0]], stated)


def _unlike_names(steps: Sequence[int], unlike: Sequence[int]) -> set[int]:
    """Return the steps that alone differ from their names; from some step on another unit is counted."""
    like, few = [step for step in steps if step not in unlike], len(steps) < MIN_COUNTED
    if not like or (2 * len(unlike) >= len(steps) and not few):
        return set()
    return {step for step in unlike if step < like[-1] or few}


def _finding(
    kind: str, steps: tuple[int, ...], names: list[str], counts: dict[int, int], stated: dict[int, str]
) -> Finding:
    own = [name for name in names if name not in (OPTIMIZER, SCHEDULER)]
    check, word = "step inside" if own else "optimizer", " and ".join(names)
    held = ", ".join(f"{counts[step]} at {step}" for step in steps[:4]) + (" ..." if len(steps) > 4 else "")
    if kind == "names":
        more = f"; so do the other {len(steps) - 1}" if len(steps) > 1 else ""
        return Finding(check, "note", steps, "", f"{stated[steps[0]]}{more}")
    if kind == "order":
        reverse = all(counts[a] > counts[b] for a, b in pairwise(steps))
        how = "in reverse order" if reverse and len(steps) > 2 else "in each other's place"
        words = f"{steps_text(steps)} are {how}: {word} inside is {held}; rename them, or fetch them again"
        return Finding("order", "fault", steps, "", words)
    if own and len(steps) == 1 and stated[steps[0]]:
        return Finding(check, "fault", steps, "", f"{stated[steps[0]]}; rename it, or fetch it again")
    words = f"{steps_text(steps)}: {word} inside is {held}, which does not fit the others; fetch or save it again"
    return Finding(check, "fault", steps, "", words)
