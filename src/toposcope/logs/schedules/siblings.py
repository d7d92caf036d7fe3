"""How a schedule goes on by those siblings whose learning rate has been that of the run so far."""

import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from toposcope.logs import Run
from toposcope.logs.caching import cached
from toposcope.logs.schedules.logged import LoggedRates, logged_rates, rounding
from toposcope.logs.schedules.recognised import CONSTANT, WARMED_UP, Plan, warm_up_end
from toposcope.typing import Vector
from toposcope.wording import counted

# on the schedules of 349 published runs
MAX_SIBLING_MISFIT = 0.02  # root mean square difference of a sibling that agrees, over the range of the rates
MAX_APART = 0.02  # mean difference, over the peak, of schedules that go on alike
TAIL_DIFFERENCES, TAIL_QUANTILES = (1e-4, 1e-3), (0.1, 0.3, 0.5, 0.7, 0.9)
"""Over the peak, of rates that end alike; and of the numbers of steps over which pairs of siblings do so."""
MAX_TAIL_COST = 0.5  # times the differences without it: a tail that counts leaves no more
N_STEPS_AHEAD = 64  # steps from the last one seen to the end at which schedules are compared
MAX_TAIL_SHARE = 0.98  # share of the steps after warm-up that they may be
SAME_LENGTH = 0.01  # relative difference of two numbers of steps that count as one


class ScheduledRun(Protocol):
    """A run and the `Schedule` that it follows, to its end."""

    @property
    def log(self) -> Run:
        """What was logged."""

    @property
    def schedule(self) -> Any:
        """The schedule, of a class that is made here."""


class Continuation(NamedTuple):
    """How a schedule goes on."""

    rates: Plan  # the rate at any steps from the last one seen on
    last_step: int
    words: str  # a sentence for people


class _Seen(NamedTuple):
    """What was seen of the run: rates from the end of warm-up on, or, while they rise, all of them."""

    steps: Vector
    rates: Vector
    last_step: int
    warm_up: float
    rising: bool


class _Sibling(NamedTuple):
    """The schedule of a sibling, its rates over their peak; its warm-up is NaN where it was not logged."""

    run: ScheduledRun
    rates: Vector
    warm_up: float

    @property
    def last_step(self) -> int:
        return len(self.rates) - 1


class _Alignment(NamedTuple):
    """Siblings aligned with the run: which of their steps each step corresponds to, and how high the peak is.

    Arrays are of shape (n,): up to step `begin`, the end of warm-up, the steps of the run lie on a line to those of the
    sibling, and again up to `corner`; after it they are counted from the end.
    """

    siblings: tuple[_Sibling, ...]
    begin: Vector
    sibling_begin: Vector
    corner: Vector
    sibling_corner: Vector
    peak: Vector

    def rates(self, steps: Vector) -> Vector:
        """Return the siblings' rates at the steps of the run, over the peak, shape (n, m)."""
        begin, sibling_begin, corner, sibling_corner = (column[:, None] for column in self[1:5])
        at = sibling_begin + (steps - begin) * ((sibling_corner - sibling_begin) / (corner - begin))
        warming = steps < begin
        if warming.any():
            at = np.where(warming, sibling_begin * (np.maximum(steps, 0) / np.maximum(begin, 1e-300)), at)
        at = np.where(steps > corner, sibling_corner + (steps - corner), at)
        low = np.maximum(at, 0).astype(np.int64)
        for row, sibling in zip(low, self.siblings, strict=True):
            np.minimum(row, max(sibling.last_step - 1, 0), out=row)
        pairs = np.array([
            sibling.rates.take([row, row + 1], mode="clip") for row, sibling in zip(low, self.siblings, strict=True)
        ])  # fmt: skip
        share = np.clip(at - low, 0, 1)
        return np.asarray((1 - share) * pairs[:, 0] + share * pairs[:, 1])

    def select(self, places: Sequence[int] | NDArray[np.int64]) -> "_Alignment":
        """Return some of the siblings."""
        columns = (column[places] for column in self[1:])
        return _Alignment(tuple(self.siblings[place] for place in places), *columns)


def continued_by_siblings(
    log: Run, logged: LoggedRates | None, siblings: Sequence[ScheduledRun], end: int | None
) -> Continuation | None:
    """Return how the schedule goes on as those of siblings that agree with it so far; None if none does."""
    candidates = [sibling for run in siblings if (sibling := _sibling(run)) is not None and _may_vote(log, run)]
    seen = cached(log, None, "rates seen", lambda: _seen(log, logged))
    if end is None:
        end = _common_length(seen, candidates)
    if not candidates or end is None or end <= seen.last_step:
        return None
    seen = _with_warm_up(seen, candidates, end)
    ahead = np.linspace(seen.last_step, end, N_STEPS_AHEAD + 1)[1:]
    (matches,) = _agreeing(seen, candidates, end, [_tail(seen, candidates, end, ahead)])
    n = len(matches.siblings)
    if not n:
        return None
    rates = matches.rates(ahead)
    alike = _apart(rates) <= MAX_APART
    nearness = [_distances(sibling.run, log, end) for sibling in matches.siblings]
    votes = alike @ np.exp([-length for length, *_ in nearness])
    most = min(range(n), key=lambda i: (-round(float(votes[i]), 9), nearness[i]))
    followed = min(np.flatnonzero(alike[most]), key=lambda i: nearness[i])
    plan = partial(_plan, matches.select([int(followed)]), seen)
    return Continuation(plan, end, _words(int(alike[most].sum()), n, rates[followed], end))


def _plan(match: _Alignment, seen: _Seen, steps: NDArray[np.number]) -> Vector:
    t = np.asarray(steps, dtype=np.float64)
    rates = match.peak[0] * match.rates(t)[0]
    return np.where(t < seen.warm_up, _rise(seen, t), rates) if seen.rising else rates


def _words(n_alike: int, n: int, ahead: Vector, end: int) -> str:
    to = f"to {100 * ahead[-1]:.3g}% of its peak at step {end:,}"
    if n_alike == n:
        verb = "that agrees" if n == 1 else "that agree"
        return f"learning rate goes on as that of {counted(n, 'sibling')} {verb} with it so far, {to}"
    return (
        f"learning rate goes on as that of {n_alike} of the {n} siblings that agree with it so far, {to}; the others "
        "go on differently: declare the schedule"
    )


def _may_vote(log: Run, run: ScheduledRun) -> bool:
    """Return whether a sibling is of the log's family and does not name another schedule."""
    names = [re.sub(r"[^a-z]", "", name.lower()) for name in (log.schedule, run.log.schedule)]
    return run.log.family == log.family and (not all(names) or names[0] == names[1])


def _sibling(run: ScheduledRun) -> _Sibling | None:
    """Return the schedule of a sibling; None if no learning rate was logged."""

    def made() -> _Sibling | None:
        logged = logged_rates(run.log)
        if logged is None:
            return None
        return _Sibling(run, _to_the_end(run, logged) / run.schedule.peak, _warm_up(logged))

    return cached(run.log, run.schedule, "sibling schedule", made)


def _to_the_end(run: ScheduledRun, logged: LoggedRates) -> Vector:
    """Return the rates of a sibling to its last planned step: beyond its log along the line of its last rows."""
    rates: Vector = run.schedule.rates
    missing = (run.log.last_step or 0) - run.schedule.last_step
    if missing <= 0 or len(logged.rates) < 2:
        return rates
    slope = (logged.rates[-1] - logged.rates[-2]) / (logged.steps[-1] - logged.steps[-2])
    return np.concatenate([rates, np.clip(rates[-1] + slope * np.arange(1, missing + 1), 0, run.schedule.peak)])


def _warm_up(logged: LoggedRates) -> float:
    """Return where warm-up ends; NaN if the log begins after it."""
    if logged.rates[0] >= WARMED_UP * logged.peak:
        return np.nan
    return warm_up_end(logged.steps, logged.rates)


def _seen(log: Run, logged: LoggedRates | None) -> _Seen:
    last = int(log.steps[-1])
    if logged is None:
        return _Seen(np.empty(0), np.empty(0), last, np.nan, rising=False)
    steps, rates = logged.steps, logged.rates
    rising = len(rates) > 1 and int(np.argmax(rates >= WARMED_UP * logged.peak)) == len(rates) - 1
    warm_up = np.nan if rising else _warm_up(logged)
    if not rising:
        after = steps >= (0 if np.isnan(warm_up) else warm_up)
        steps, rates = steps[after], rates[after]
        few = np.unique(np.linspace(0, len(rates) - 1, 100).round().astype(np.int64))
        steps, rates = steps[few], rates[few]
    return _Seen(steps, rates, last, warm_up, rising)


def _with_warm_up(seen: _Seen, candidates: Sequence[_Sibling], end: int) -> _Seen:
    """Return what was seen with the end of warm-up by the siblings, where it is ahead: at their step or their share."""
    if not seen.rising:
        return seen
    known = np.array([(s.warm_up, s.warm_up / s.last_step) for s in candidates if np.isfinite(s.warm_up)])
    if not len(known):
        return seen
    spread = known.std(axis=0) / known.mean(axis=0)
    step, share = np.median(known, axis=0)
    warm_up = float(step if spread[0] <= spread[1] else share * end)
    if warm_up >= seen.steps[-1]:
        return seen._replace(warm_up=warm_up)
    if warm_up > seen.steps[-2]:  # the last row is the first after warm-up
        return _Seen(seen.steps[-1:], seen.rates[-1:], seen.last_step, warm_up, rising=False)
    return seen


def _rise(seen: _Seen, steps: Vector) -> Vector:
    """Return rates along the line of the warm-up that was logged."""
    slope, height = np.polyfit(seen.steps, seen.rates, 1)
    return np.asarray(np.maximum(height + slope * steps, 0))


def _common_length(seen: _Seen, candidates: Sequence[_Sibling]) -> int | None:
    """Return the number of steps of the siblings that agree, if they all have that number."""
    longer = [s for s in candidates if s.last_step > seen.last_step]
    lengths = [
        s.last_step
        for s in longer
        if _agreeing(_with_warm_up(seen, [s], s.last_step), [s], s.last_step, [0])[0].siblings
    ]
    if not lengths or max(lengths) > (1 + SAME_LENGTH) * min(lengths):
        return None
    return int(np.median(lengths))


def _agreeing(seen: _Seen, candidates: Sequence[_Sibling], end: int, tails: Sequence[int]) -> list[_Alignment]:
    """Return, for each number of last steps counted from the end, the siblings that agree with what was seen."""
    aligned, tail_of = _aligned(seen, candidates, end, tails)
    agree = np.ones(len(tail_of), dtype=bool)
    peak = aligned.peak
    if seen.rising:
        peak = np.full(len(peak), _rise(seen, np.array([seen.warm_up]))[0]) if len(peak) else peak
    elif len(seen.rates) and len(peak):
        largest = float(seen.rates.max())
        tolerance = max(MAX_SIBLING_MISFIT * float(np.ptp(seen.rates)), CONSTANT * largest, rounding(seen.rates))
        theirs = aligned.rates(seen.steps)
        size = np.einsum("ij,ij->i", theirs, theirs)
        peak = np.divide(theirs @ seen.rates, size, out=np.zeros(len(size)), where=size > 0)
        misfit = np.sqrt(np.mean((seen.rates - peak[:, None] * theirs) ** 2, axis=1))
        peak = np.where(np.abs(peak - largest) <= 1e-9 * largest, largest, peak)
        agree = misfit <= tolerance
    aligned = aligned._replace(peak=peak)
    return [aligned.select(np.flatnonzero(agree & (tail_of == k))) for k in range(len(tails))]


def _aligned(
    seen: _Seen, candidates: Sequence[_Sibling], end: int, tails: Sequence[int]
) -> tuple[_Alignment, NDArray[np.int64]]:
    """Return which steps of siblings those of the run correspond to, where they can, and by which of the tails."""
    tail_of = np.repeat(np.arange(len(tails)), len(candidates))
    last = np.tile([float(sibling.last_step) for sibling in candidates], len(tails))
    sibling_begin = np.tile([sibling.warm_up for sibling in candidates], len(tails))
    # where one warm-up was not logged, it is that of the other
    known = seen.warm_up if np.isfinite(seen.warm_up) else np.nan_to_num(sibling_begin)
    begin = np.broadcast_to(np.asarray(known, dtype=np.float64), last.shape)
    sibling_begin = np.where(np.isfinite(sibling_begin), sibling_begin, begin)
    left = np.minimum(end - begin, last - sibling_begin)
    tail = np.where(np.abs(last - end) <= SAME_LENGTH * end, 0, np.asarray(tails, dtype=np.float64)[tail_of])
    possible = (left > 0) & (tail <= MAX_TAIL_SHARE * left)
    if seen.rising and not np.isfinite(seen.warm_up):
        possible[:] = False
    siblings = tuple(candidates) * len(tails)
    aligned = _Alignment(siblings, begin, sibling_begin, end - tail, last - tail, np.ones(len(last)))
    return aligned.select(np.flatnonzero(possible)), tail_of[possible]


def _tail(seen: _Seen, candidates: Sequence[_Sibling], end: int, ahead: Vector) -> int:
    """Return how many of the last steps are the same in siblings of all lengths; 0 if their cool-downs scale."""
    lengths = np.array([s.last_step for s in candidates])
    if np.ptp(lengths) <= SAME_LENGTH * lengths.max():
        return 0
    by_length = np.argsort(lengths, kind="stable")
    chosen = np.unique(np.linspace(0, len(lengths) - 1, 40).round().astype(np.int64))
    some = [candidates[i] for i in by_length[chosen]]
    shortest = MAX_TAIL_SHARE * min(min(s.last_step - np.nan_to_num(s.warm_up) for s in some), end - seen.last_step)
    # over how many steps siblings next to each other in length end alike, as a few numbers to try
    ends = [end for one, other in pairwise(some) for end in _shared_end(one, other)]
    shared = np.quantile(ends, TAIL_QUANTILES) if ends else np.empty(0)
    tails = [0, *np.unique(np.concatenate([shared, np.minimum(shared, shortest)]).astype(np.int64)).tolist()]
    without, *others = _agreeing(seen, some, end, tails)
    limit = MAX_TAIL_COST * _tail_cost(without, len(some), ahead) - MAX_APART / N_STEPS_AHEAD
    # those that do not agree alone may cost too much
    costs = [
        _tail_cost(matches, len(some), ahead) if len(some) - len(matches.siblings) < limit * len(some) else 1.0
        for matches in others
    ]
    best = int(np.argmin(costs)) if costs else 0
    return tails[1 + best] if costs and costs[best] < limit else 0


def _shared_end(one: _Sibling, other: _Sibling) -> list[float]:
    """Return over how many steps two siblings end alike, by each limit; none where they are as long as each other."""

    def compute() -> list[float]:
        back = np.unique(np.linspace(0, one.last_step, 500).round().astype(np.int64))
        apart = np.abs(one.rates[one.last_step - back] - other.rates[other.last_step - back])
        ends = []
        for limit in TAIL_DIFFERENCES:
            differs = apart > limit
            # the corner lies between the last step that agrees and the next
            place = int(np.argmax(differs)) if differs.any() else len(back)
            ends.append(float(back[min(place, len(back) - 1)]))
        return ends

    if other.last_step - one.last_step <= SAME_LENGTH * other.last_step:
        return []
    return cached(one.run.log, one.run.schedule, ("shared end", other.run), compute)


def _tail_cost(matches: _Alignment, n: int, ahead: Vector) -> float:
    """Return how far siblings differ from the most similar of other lengths; those that do not agree differ by 1."""
    count = len(matches.siblings)
    if count < 2:
        return 1.0
    lengths = np.array([sibling.last_step for sibling in matches.siblings], dtype=np.float64)
    apart = _apart(matches.rates(ahead))
    apart[np.abs(lengths[:, None] - lengths) <= SAME_LENGTH * lengths] = 1.0
    return float((np.sort(apart, axis=1)[:, count // 4].sum() + n - count) / n)


def _apart(rates: Vector) -> Vector:
    """Return by how much schedules differ from each other, shape (n, n)."""
    differences = np.abs(rates[:, None, :] - rates[None, :, :])
    return np.asarray(np.maximum(differences.mean(axis=2), differences[:, :, -4:].mean(axis=2)))


def _distances(run: ScheduledRun, log: Run, end: int) -> tuple[float, float, str]:
    """Return how far a sibling is from the run: in length, in size, then by name."""
    length = abs(float(np.log((run.log.last_step or run.schedule.last_step) / end)))
    size = abs(float(np.log(run.log.parameters / log.parameters)))
    return length, size if np.isfinite(size) else np.inf, run.log.name
