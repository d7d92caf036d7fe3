"""How a schedule goes on by the nearest sibling whose learning rate has been that of the run so far."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.logs import Run
from toposcope.logs.caching import cached
from toposcope.logs.schedules.logged import LoggedRates, logged_rates, rounding
from toposcope.logs.schedules.recognised import CONSTANT, WARMED_UP, Plan, warm_up_end
from toposcope.typing import Vector

# on the schedules of 349 published runs
MAX_SIBLING_MISFIT = 0.02  # root mean square difference of a sibling that agrees, over the range of the rates
MAX_APART = 0.02  # mean difference, over the peak, of schedules that go on alike
N_STEPS_AHEAD = 64  # steps from the last one seen to the end at which schedules are compared
SAME_RATE = 1e-3  # of the peak; smaller differences count as none
SAME_LENGTH = 0.01  # relative difference of two numbers of steps that count as one


class Continuation(NamedTuple):
    """How a schedule goes on."""

    rates: Plan  # the rate at any steps from the last one seen on
    last_step: int
    words: str  # a sentence for people


class _Rates(NamedTuple):
    """Learning rates, and the step at which they reach their peak; NaN where they rise still, or did so before."""

    steps: Vector
    rates: Vector
    warm_up: float


class _Sibling(NamedTuple):
    """A sibling of the log's family and schedule, with its rates to its last planned step."""

    run: Run
    last_step: int
    whole: _Rates

    @property
    def peak(self) -> float:
        return float(self.whole.rates.max())

    def at(self, steps: NDArray[np.number[Any]]) -> Vector:
        return np.interp(steps.astype(np.float64), self.whole.steps, self.whole.rates)


class _Match(NamedTuple):
    """A sibling whose rates are those of the run so far, times a factor and stretched by a line between corners."""

    sibling: _Sibling
    corners: tuple[tuple[float, ...], tuple[float, ...]]  # steps of the run and of the sibling that correspond
    factor: float

    def rates(self, steps: NDArray[np.number[Any]]) -> Vector:
        return self.factor * self.sibling.at(np.interp(steps.astype(np.float64), *self.corners))


def continued_by_siblings(
    log: Run, logged: LoggedRates | None, siblings: Sequence[Run], end: int | None
) -> Continuation | None:
    """Return how the schedule goes on as that of the nearest sibling that agrees with it so far, if any does.

    Where the end is unknown, it is that of the siblings that agree, if they have all the same.
    """
    seen = None if logged is None else cached(log, None, "rates compared", lambda: _compared(logged))
    candidates = [sibling for run in siblings if (sibling := _sibling(log, run)) is not None]
    if end is None:
        agreeing = [s for s in candidates if s.last_step > log.steps[-1] and _match(seen, s, s.last_step, 0)]
        lengths = [sibling.last_step for sibling in agreeing]
        if not lengths or max(lengths) > (1 + SAME_LENGTH) * min(lengths):
            return None
        end = int(np.median(lengths))
    if end <= log.steps[-1]:
        return None
    candidates.sort(key=lambda sibling: _distance(sibling, log, end))
    for tail in dict.fromkeys((_shared_end(candidates, end), 0)):
        matches = [match for sibling in candidates if (match := _match(seen, sibling, end, tail)) is not None]
        if matches:
            break
    else:
        return None
    nearest = matches[0]
    ahead = np.linspace(int(log.steps[-1]), end, N_STEPS_AHEAD + 1)[1:]
    rates = nearest.rates(ahead)
    peak = nearest.factor * nearest.sibling.peak
    apart = np.abs(np.array([match.rates(ahead) for match in matches]) - rates) / peak
    n_others = int((np.maximum(apart.mean(axis=1), apart[:, -4:].mean(axis=1)) > MAX_APART).sum())
    which = f", the nearest of {len(matches)} siblings that agree" if len(matches) > 1 else ", a sibling that agrees"
    is_as_long = abs(nearest.sibling.last_step - end) <= SAME_LENGTH * end
    stretched = "" if is_as_long else f", stretched from {nearest.sibling.last_step:,} steps"
    others = f"; {n_others} of them go on differently: declare the schedule" if n_others else ""
    words = (
        f"learning rate goes on as that of {nearest.sibling.run.name}{which} with it so far{stretched}, to "
        f"{100 * rates[-1] / peak:.3g}% of its peak at step {end:,}{others}"
    )
    return Continuation(nearest.rates, end, words)


def _warm_up(logged: LoggedRates) -> float:
    """Return where warm-up ends; NaN if the log begins after it."""
    return np.nan if logged.rates[0] >= WARMED_UP * logged.peak else warm_up_end(logged.steps, logged.rates)


def _compared(logged: LoggedRates) -> _Rates:
    """Return the rates by which siblings are recognised: those after warm-up or, while they rise, all."""
    steps, rates = logged.steps, logged.rates
    if int(np.argmax(rates >= WARMED_UP * logged.peak)) == len(rates) - 1:
        return _Rates(steps, rates, np.nan)
    warm_up = _warm_up(logged)
    after = np.flatnonzero(steps >= np.nan_to_num(warm_up))
    few = after[np.unique(np.linspace(0, len(after) - 1, 100).round().astype(np.int64))]
    return _Rates(steps[few], rates[few], warm_up)


def _sibling(log: Run, run: Run) -> _Sibling | None:
    """Return a run with its rates; None if none were logged, or if it is of another family or schedule than the log."""
    names = [re.sub(r"[^a-z]", "", each.schedule.lower()) for each in (log, run)]
    if run.family != log.family or (all(names) and names[0] != names[1]):
        return None
    last = max(run.last_step or 0, run.last_seen)
    whole = cached(run, None, ("whole rates", last), lambda: _whole(run, last))
    return None if whole is None else _Sibling(run, last, whole)


def _whole(run: Run, last: int) -> _Rates | None:
    """Return the rates of a run to its last planned step: beyond its log along the line of its last rows."""
    logged = logged_rates(run)
    if logged is None:
        return None
    steps, rates = logged.steps, logged.rates
    if last > steps[-1] and len(rates) > 1:
        slope = (rates[-1] - rates[-2]) / (steps[-1] - steps[-2])
        final = np.clip(rates[-1] + slope * (last - steps[-1]), 0, logged.peak)
        steps, rates = np.append(steps, last), np.append(rates, final)
    return _Rates(steps, rates, _warm_up(logged))


def _distance(sibling: _Sibling, log: Run, end: int) -> tuple[float, float, str]:
    """Return how far a sibling is from the run: in length, in size, then by name."""
    length, size = np.abs(np.log([sibling.last_step / end, sibling.run.parameters / log.parameters]))
    return (0.0 if length <= SAME_LENGTH else float(length)), (float(size) if size >= 0 else np.inf), sibling.run.name


def _shared_end(candidates: Sequence[_Sibling], end: int) -> int:
    """Return how many last steps are not stretched, since the nearest two of other lengths have them in common."""
    if not candidates or abs(candidates[0].last_step - end) <= SAME_LENGTH * end:
        return 0
    one = candidates[0]
    other = next((s for s in candidates if abs(s.last_step - one.last_step) > SAME_LENGTH * one.last_step), one)

    def compute() -> int:
        back = np.arange(min(one.last_step, other.last_step))
        ends = [sibling.at(sibling.last_step - back) / sibling.peak for sibling in (one, other)]
        differ = np.abs(ends[0] - ends[1]) > SAME_RATE
        return int(np.argmax(differ)) if differ.any() else 0

    return cached(one.run, None, ("shared end", other.run), compute)


def _match(seen: _Rates | None, sibling: _Sibling, end: int, tail: int) -> _Match | None:
    """Return a sibling that agrees with what was seen, its last steps counted from the end; None if it does not."""
    last, whole = sibling.last_step, sibling.whole
    if seen is None:
        return _Match(sibling, ((0, end), (0, last)), 1 / sibling.peak)
    # where one warm-up was not logged, it is that of the other
    warm_ups = [warm_up for warm_up in (seen.warm_up, whole.warm_up) if np.isfinite(warm_up)] or [0.0]
    corners = (0, warm_ups[0], end - tail, end), (0, warm_ups[-1], last - tail, last)
    if any(steps[1] >= steps[2] for steps in corners):
        return None
    rates, largest = sibling.at(np.interp(seen.steps, *corners)), float(seen.rates.max())
    size = float(rates @ rates)
    factor = float(rates @ seen.rates) / size if size > 0 else 0.0
    tolerance = max(MAX_SIBLING_MISFIT * float(np.ptp(seen.rates)), CONSTANT * largest, rounding(seen.rates))
    if np.sqrt(np.mean((seen.rates - factor * rates) ** 2)) > tolerance:
        return None
    return _Match(sibling, corners, 1.0 if abs(factor - 1) < 1e-9 else factor)  # equal rates stay equal
