"""Where the logged learning rate leaves its schedule: it jumps back, rises again, or is not as declared."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.logs.run import Run
from toposcope.logs.schedules.logged import known_rates
from toposcope.typing import Vector

MIN_RISE, MIN_RISE_SHARE = 0.02, 0.005  # of the lowest rate and of the peak so far; a smaller rise is rounding
MIN_LEVEL_ROWS, MIN_LEVEL_SHARE = 10, 0.1
"""Rows, and share of the run, over which a rate that stays has ended its warm-up; stairs of a warm-up are shorter."""
JUMP_ROWS = 2  # within which a rate jumps; one that takes longer creeps
MAX_RISING_ROWS = 0.1  # share of the rows from which a rate rises: one that does more often follows no schedule
MAX_UNEVEN = 0.05  # relative difference of distances and of peaks of one cycle
MAX_DIFFERENCE = 0.01  # share of the peak by which a logged rate may differ from the declared one
MAX_LEFT = 0.05  # share of the plan within which a rate may fall to 0
FIRST_ROWS = 5  # of a log, which may show the base of a cyclic rate
MAX_VALLEY = 0.05  # share of the peak from which a rise back to it looks as a warm restart does
MAX_LOST, MIN_BEFORE_LOST, MIN_LOST_ROWS = 0.01, 0.2, 3
"""Share of the rate before to which a lost rate falls in a row, share of the peak that this was, rows that it stays."""
CYCLIC = ("cycl", "restart", "sgdr", "triangular")  # in the names of schedules whose rates rise again


class Departure(NamedTuple):
    """One place where the learning rate leaves its schedule."""

    step: int  # the first that is off
    kind: Literal["jump", "excursion", "rise", "lost", "declared"]
    expected: float  # the rate before it, or as declared
    rate: float  # the rate there; of a rise or an excursion the highest
    last: int  # the last step of an excursion or a rise; that of the log if it lasts

    def __str__(self) -> str:
        if self.kind == "declared":
            return f"the learning rate is {self.rate:.3g} at step {self.step:,}, where {self.expected:.3g} is declared"
        change = f"from {self.expected:.3g} to {self.rate:.3g}"
        if self.kind == "excursion":
            return f"the learning rate rises {change} at step {self.step:,} and is back after step {self.last:,}"
        if self.kind == "lost":
            return f"the learning rate falls {change} at step {self.step:,}, before the end"
        if self.kind == "jump":
            return f"the learning rate jumps {change} at step {self.step:,}"
        return f"the learning rate rises again {change}, from step {self.step:,} to {self.last:,}"


class _Rise(NamedTuple):
    """Rows at which a rate begins to rise and is highest; None where it fell before it rose."""

    low: int
    high: int


def departures(run: Run, plan: Callable[[NDArray[np.number[Any]]], Vector] | None = None) -> list[Departure]:
    """Return where the logged rate leaves its schedule, in order; nothing if no rate was logged.

    After the warm-up no schedule rises, but a cyclic one: one that is named so, or that has risen at least twice before
    to such a height at even distances, or after each cycle twice as long as the last. A single row that is off its
    neighbours is a slip of the log, and ignored.

    Parameters
    ----------
    run : Run
    plan : callable, optional
        The declared rate at any steps: where it rises the logged rate may. If there is nothing else, it is listed where
        the log differs from it after the warm-up.
    """
    steps, rates, _ = known_rates(run)
    if len(rates) < 3 or not rates.max() > 0:
        return []
    logged = steps, rates
    steps, rates = _without_slips(*logged)
    rises, warm_up = _rises(steps, rates, run.last_step or float(steps[-1]))
    if plan is not None:
        declared = plan(steps)
        rises = [rise for rise in rises if np.diff(declared[[*rise]])[0] < np.diff(rates[[*rise]])[0] / 2]
    name = run.schedule.lower()
    if any(word in name for word in CYCLIC) or _are_cycles(steps, rates, rises):
        return []
    if sum(high - low for low, high in rises) > len(rates) / 2 and len(rises) > MAX_RISING_ROWS * len(rates):
        return []
    found = [_departure(steps, rates, rise) for rise in rises if not _is_restart(rates, rise)]
    found += _lost(steps, rates, warm_up, run.last_step)
    if plan is not None and not found:
        return _from_plan(*logged, plan(logged[0]), warm_up)
    return sorted(found, key=lambda departure: departure.step)


def _is_restart(rates: Vector, rise: _Rise) -> bool:
    """Return whether a rise may be a warm restart: from near 0, or the base where the log begins, to about its peak."""
    low, high = rise
    peak = rates[: low + 1].max()
    base, usual = rates[:FIRST_ROWS].min(), float(np.median(np.abs(np.diff(rates))))
    from_base = base < peak / 2 and abs(rates[low] - base) <= max(MAX_UNEVEN * base, usual)
    stays = rates[min(high + 2 * JUMP_ROWS, len(rates) - 1)] > rates[high] / 2
    reaches = rates[high] >= 0.9 * peak or (from_base and high >= len(rates) - JUMP_ROWS)  # or still rises
    return bool((from_base or rates[low] <= MAX_VALLEY * peak) and stays and reaches and rates[high] <= 1.25 * peak)


def _lost(steps: Vector, rates: Vector, warm_up: int, end: int | None) -> list[Departure]:
    """Return where the rate falls to nearly 0 within a row, long before the end, and stays there."""
    falls = np.flatnonzero((rates[1:] <= MAX_LOST * rates[:-1]) & (rates[:-1] > MIN_BEFORE_LOST * rates.max())) + 1
    for row in falls.tolist():
        if row <= warm_up or rates[row] > MAX_LOST * rates[warm_up:row].min():
            continue  # the end of an excursion
        stays = rates[row : row + MIN_LOST_ROWS].max() <= MAX_LOST * rates[row - 1] and row + MIN_LOST_ROWS <= len(
            rates
        )
        if stays and (end is None or steps[row] < (1 - MAX_LEFT) * end):
            return [Departure(int(steps[row]), "lost", rates[row - 1], rates[row], int(steps[-1]))]
    return []


def _without_slips(steps: Vector, rates: Vector) -> tuple[Vector, Vector]:
    """Return rates with that of a neighbour in place of each row that is off both, where these are alike."""
    before, here, after = rates[:-2], rates[1:-1], rates[2:]
    low, high = np.minimum(before, after), np.maximum(before, after)
    margin = MIN_RISE * low + MIN_RISE_SHARE * np.median(rates)
    peaks = (here > high + margin) & (high - low <= np.maximum(margin, (here - high) / 2))
    clean = rates.copy()
    clean[1:-1] = np.where(peaks, high, np.where(here < low - margin, low, here))
    # the last row alone, with nothing after it, is no evidence
    end = -1 if clean[-1] > (1 + MIN_RISE) * clean[-2] else None
    return steps[:end], clean[:end]


def _rises(steps: Vector, rates: Vector, end: float) -> tuple[list[_Rise], int]:
    """Return the rises after the warm-up, and the row at which this ends."""
    rises: list[_Rise] = []
    shares = (MIN_RISE_SHARE * np.maximum.accumulate(rates)).tolist()
    values, at = rates.tolist(), steps.tolist()
    warm_up, rising = -1, True
    low = high = level = 0  # rows: the last at the lowest rate, the first at the highest, the first of this level
    lowest = values[0]
    for i, (rate, share) in enumerate(zip(values, shares, strict=True)):
        margin = MIN_RISE * (values[high] if rising else lowest) + share
        if rising:
            level = i if rate > values[level] + margin else level
            high = i if rate > values[high] else high
            settled = warm_up < 0 and i - level >= MIN_LEVEL_ROWS and at[i] - at[level] >= MIN_LEVEL_SHARE * end
            if rate < values[high] - margin or settled:
                if warm_up >= 0:
                    rises.append(_Rise(low, high))
                warm_up = high if warm_up < 0 else warm_up
                rising, low, lowest = False, i, rate
        elif rate > lowest + margin:
            # a log may begin with the rate that its warm-up leads to
            warm_up = -1 if low <= 1 and not rises else warm_up
            rising, high, level = True, i, i
        else:
            low = i if rate <= lowest + margin / 10 else low
            lowest = min(lowest, rate)
    if rising and warm_up >= 0:
        rises.append(_Rise(low, high))
    return rises, max(warm_up, 0)


def _are_cycles(steps: Vector, rates: Vector, rises: list[_Rise]) -> bool:
    """Return whether rises lead to like heights at distances that are even, or double."""
    if len(rises) < 2:
        return False
    tops = np.array([rates[high] for _, high in rises])
    begins = np.array([0.0, *(steps[low] for low, _ in rises)])
    apart = np.diff(begins if len(rises) == 2 else begins[1:])
    even = any(np.ptp(apart * share ** np.arange(len(apart))) <= MAX_UNEVEN * apart[0] for share in (1.0, 0.5))
    factors = tops[1:] / tops[:-1]
    return bool(even and np.ptp(factors) <= MAX_UNEVEN and factors.max() <= 1 + MAX_UNEVEN)


def _departure(steps: Vector, rates: Vector, rise: _Rise) -> Departure:
    low, high = rise
    first = low + 1
    back = np.flatnonzero(rates[high:] <= (1 + MIN_RISE) * rates[low] + MIN_RISE_SHARE * rates[:first].max())
    half = (rates[low] + rates[high]) / 2
    # a fall as long as that of a cycle is none back
    if len(back) and rates[max(high, high + back[0] - JUMP_ROWS)] > half:
        return Departure(int(steps[first]), "excursion", rates[low], rates[high], int(steps[high + back[0] - 1]))
    near = rates[min(low + JUMP_ROWS, len(rates) - 1)]
    if near > half:
        return Departure(
            int(steps[first]), "jump", rates[low], float(rates[first : first + JUMP_ROWS].max()), int(steps[-1])
        )
    return Departure(int(steps[first]), "rise", rates[low], rates[high], int(steps[high]))


def _from_plan(steps: Vector, rates: Vector, plan: Vector, warm_up: int) -> list[Departure]:
    """Return the first row of each stretch of two or more after the warm-up that is not as declared."""
    off = np.abs(rates - plan) > MAX_DIFFERENCE * plan.max()
    off[:warm_up] = False
    begins = np.flatnonzero(off & np.roll(off, -1) & ~np.roll(off, 1))
    return [
        Departure(int(steps[i]), "declared", float(plan[i]), float(rates[i]), int(steps[-1]))
        for i in begins
        if i + 1 < len(rates)
    ]
