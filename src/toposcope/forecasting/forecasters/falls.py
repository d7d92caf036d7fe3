"""The falls of a learning rate, few enough to sum over: what each has gained by a step (Luo et al. 2025).

The multi-power law sums over all steps k at which the rate changes. Neighbouring falls are taken together as one at
their centre, no more than 1/128 of the peak and 1/64 of the summed rate at a time; a larger fall of one step stays
alone. What is summed, 1 - (1 + C eta^-g S)^-b, rises from 0 to 1: a group is wrong by less than its own size, and to
second order in its width.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.typing import Steps, Vector

FALL = 1 / 128
"""Of the peak; most that is taken together."""
STRETCH = 1 / 64
"""Of the summed rate of the whole run, likewise."""
MOST = 1024
"""Groups of a rate that goes up and down all the time; each is then a larger part of its changes."""
ROUNDING = 1e-12
"""Of the peak; a smaller change is none."""
LEAST = 1e-9
"""Rates and sums, in units of the peak, count as no less."""


class Falls(NamedTuple):
    """Pairs of a step t and an earlier group of falls; rates in units of the peak.

    Attributes
    ----------
    row : ndarray, shape (p,), int64
        Index of t.
    weight : ndarray, shape (p,)
        Sum of eta_{k-1} - eta_k over the group's steps k <= t; negative where the rate rises.
    log_rate, log_sum : ndarray, shape (p,)
        Logarithms of eta_k, and of S_k(t), the sum of the rates from k to t.
    size : int
        How many t there are.
    """

    row: NDArray[np.int64]
    weight: Vector
    log_rate: Vector
    log_sum: Vector
    size: int


def summed(schedule: Schedule, steps: Steps) -> Vector:
    """Return S1 + S_W in units of the peak: all rates summed, of warm-up as it rises along a line, positive."""
    warm_up, t = schedule.warm_up, steps.astype(np.float64)
    if not warm_up:
        return schedule.progress(steps)
    return np.where(t < warm_up, (t + 1) ** 2 / (2 * warm_up), schedule.progress(steps) - (warm_up + 1) / 2)


class _Grouped(NamedTuple):
    """The changes of a schedule's rate, in groups; sums over the changes before each."""

    places: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    size: Vector
    amount: Vector
    centre: Vector
    rate: Vector


_known: WeakKeyDictionary[Schedule, _Grouped] = WeakKeyDictionary()


def falls(schedule: Schedule, steps: Steps) -> Falls:
    """Return the falls that each of some steps has behind it."""
    if schedule not in _known:
        _known[schedule] = _grouped(schedule)
    of = _known[schedule]
    reached = np.searchsorted(of.places, steps, side="right")
    last = np.minimum(of.ends, reached[:, None])
    row, group = np.nonzero(last > of.begins)
    i, j = of.begins[group], last[row, group]
    amount = of.amount[j] - of.amount[i]
    sums = schedule.progress(steps)[row] - (of.centre[j] - of.centre[i]) / amount
    rate = (of.rate[j] - of.rate[i]) / amount
    weight = of.size[j] - of.size[i]
    return Falls(row, weight, np.log(np.maximum(rate, LEAST)), np.log(np.maximum(sums, LEAST)), len(steps))


def _grouped(schedule: Schedule) -> _Grouped:
    rates = schedule.rates / schedule.peak
    places = np.flatnonzero(np.abs(np.diff(rates)) > ROUNDING) + 1
    drops = rates[places - 1] - rates[places]
    before = schedule.progress(places - 1)
    begins, ends = _groups(drops, before / schedule.progress(np.array([schedule.last_step])))
    sums = (np.cumsum(np.abs(drops) * of) for of in (np.sign(drops), 1.0, before, rates[places]))
    return _Grouped(places, begins, ends, *(np.concatenate([[0.0], values]) for values in sums))


def _groups(drops: Vector, share: Vector) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where groups begin and end; all falls of a group have one sign, unless it changes very often."""
    if not len(drops):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    size = np.abs(drops)
    most = max(FALL, float(size.sum()) / MOST)
    large = size > most
    fallen = np.floor(np.cumsum(np.where(large, 0, size)) / most)
    new = (np.diff(fallen) != 0) | (np.diff(np.floor(share / STRETCH)) != 0) | large[1:] | large[:-1]
    turns = np.diff(np.sign(drops)) != 0
    if turns.sum() <= MOST:
        new |= turns
    begins = np.concatenate([[0], np.flatnonzero(new) + 1])
    return begins, np.append(begins[1:], len(drops))


class Gains(NamedTuple):
    """What falls have gained, and its derivatives by the logarithms of C, b and g; shape (size,) each."""

    values: Vector
    by_c: Vector
    by_b: Vector
    by_g: Vector


def gained(of: Falls, C: float, b: float, g: float) -> Vector:
    """Return sum_k (eta_{k-1} - eta_k) [1 - (1 + C eta_k^-g S_k)^-b], rates in units of the peak; shape (size,)."""
    return _by_row(of, of.weight * (1 - np.exp(-b * np.log1p(_clock(of, C, g)))))


def gains(of: Falls, C: float, b: float, g: float) -> Gains:
    """Return what falls have gained, and how that changes with the parameters."""
    x = _clock(of, C, g)
    log = np.log1p(x)
    left = np.exp(-b * log)
    steep = of.weight * b * left * x / (1 + x)
    return Gains(
        _by_row(of, of.weight * (1 - left)),
        _by_row(of, steep),
        _by_row(of, of.weight * b * log * left),
        _by_row(of, -g * of.log_rate * steep),
    )


def _clock(of: Falls, C: float, g: float) -> Vector:
    """Return C eta_k^-g S_k."""
    clock: Vector = np.exp(np.minimum(np.log(C) - g * of.log_rate + of.log_sum, 700))
    return clock


def _by_row(of: Falls, terms: Vector) -> Vector:
    sums: Vector = np.bincount(of.row, terms, minlength=of.size).astype(np.float64)
    return sums
