"""One detector for every quantity: how improbable its value is, by the noise model of the monitor's alerts.

A value is measured from the median of the values before it, in units of their noise, as the alerts measure a logged
loss. The peaks of the excursions above that median fill a `Tail`, which says how probable as high a peak is. The score
of a step is minus the logarithm of that probability, per step, to base 10, so that a threshold has one meaning for all.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.ndimage import rank_filter

from toposcope.extend import Indices, Matrix, Tail, Vector
from toposcope_experiments.early_warnings.traces import NETWORK, Quantity

N_LEVEL, RATE_STEPS, MEAN_STEPS, TREND_STEPS = 7, 64, 16, 256
MIN_MEAN, MIN_WINDOW = 2, 16  # values of windows of steps that would have fewer
LARGEST, MEDIAN = "largest layer", "median layer"
UP, DOWN, BOTH = "rises", "falls", "either"
N_NOISE = 64  # differences between consecutive values whose median absolute value is the unit of noise
MIN_TYPICAL = 0.05  # least unit of noise as a share of the mean difference
MIN_CHANGES = 10  # nonzero differences from which the smallest is known as the rounding of the series
MAX_ROUNDING = 2.0**-8  # relative rounding of a series with fewer: that of bfloat16
MAX_UNITS = 1e6
MAX_EXCURSION = 16  # values after which an excursion counts as several, so that a trend has a tail too
FIRST_STEP, MIN_STEP = 100, 200  # from which peaks count, after the warm-up; and from which values are judged
MIN_VALUES = 16  # values before the first that is judged
REFIT_GROWTH, MAX_KEPT_FIT = 1.25, 1024  # growth in values after which the tail is fitted again; at most so many
MIN_SCORE = 3.0  # scores below this are not kept: a chance of one in 1,000 steps


class Choice(NamedTuple):
    """What is chosen for each quantity on some kinds of trouble, before it is tried on others."""

    transform: str
    aggregation: str
    side: str

    def __str__(self) -> str:
        return f"{self.transform} {self.side}, {self.aggregation}"


class Alarms(NamedTuple):
    """The steps of a run with a high score: what is needed to know the alarms at any threshold."""

    steps: Indices
    scores: Vector
    places: Indices  # the layer furthest from its level, as a column of the quantity


def windows(cadence: int) -> dict[str, tuple[int, int]]:
    """Return how many values' mean is measured, and from the median of how many before: a jump, a move and a slow one.

    Windows are of steps, so that what is measured rarely is judged at the same pace.
    """
    return {
        "level": (1, N_LEVEL),
        "rate": (1, max(MIN_WINDOW, RATE_STEPS // cadence)),
        "trend": (max(MIN_MEAN, MEAN_STEPS // cadence), max(MIN_WINDOW, TREND_STEPS // cadence)),
    }


def previous_median(values: Vector, window: int) -> Vector:
    """Return the median of the values before each value, at most `window` of them; of two middle ones the upper."""
    n = len(values)
    medians = np.empty(n)
    medians[: min(n, 1)] = values[:1]
    for k in range(1, min(n, window)):
        medians[k] = np.partition(values[:k], k // 2)[k // 2]
    if n > window:
        origin = (window - 1) // 2  # so that a window ends at its value
        medians[window:] = rank_filter(values, window // 2, size=window, origin=origin)[window - 1 : -1]
    return medians


def moving_mean(values: Vector, width: int) -> Vector:
    """Return the mean of the last `width` values, of fewer at the beginning."""
    n = np.minimum(np.arange(1, len(values) + 1), width)
    sums = np.cumsum(np.append(0.0, values))
    return np.asarray((sums[1:] - sums[np.arange(1, len(values) + 1) - n]) / n)


def noise_units(values: Vector, window: int) -> Vector:
    """Return how far each value is above the median of those before it, in units of their noise."""
    n = len(values)
    if n < 3:
        return np.zeros(n)
    level = previous_median(values, window)
    differences = np.abs(np.diff(values))[:-1]  # the last one known to value k is that of value k - 1
    known = np.append(differences, 0.0)
    typical = np.cumsum(differences) / np.arange(1, n - 1)
    smallest = np.minimum.accumulate(np.where(differences > 0, differences, np.inf))
    enough = np.cumsum(differences > 0) >= MIN_CHANGES
    floor = np.where(enough, smallest, MAX_ROUNDING * np.abs(values[1:-1]))
    noise = np.maximum(np.maximum(previous_median(known, N_NOISE)[1:], MIN_TYPICAL * typical), floor)
    units = np.zeros(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        units[2:] = (values[2:] - level[2:]) / noise
    return np.clip(np.nan_to_num(units), -MAX_UNITS, MAX_UNITS)


def excursions(units: Vector) -> tuple[Vector, Indices]:
    """Return the peak of each excursion above 0, and the place of the first value after it."""
    above = units > 0
    starts = above & ~np.append(False, above[:-1])
    places = np.arange(len(units))
    since = places - np.maximum.accumulate(np.where(starts, places, 0))
    first = np.flatnonzero(above & (since % MAX_EXCURSION == 0))
    if not len(first):
        return np.empty(0), np.empty(0, np.int64)
    return np.maximum.reduceat(units, first), first + np.add.reduceat(above.astype(np.int64), first)


def scores(units: Vector, cadence: int) -> Vector:
    """Return the score of each value of a series in units of its noise, measured every `cadence` steps."""
    first = -(-FIRST_STEP // cadence)
    peaks, ends = excursions(units[first:])
    found, tail, used = np.zeros(len(units)), Tail(), 0
    k = max(first + MIN_VALUES, -(-MIN_STEP // cadence))
    while k < len(units):
        last = min(max(int(k * REFIT_GROWTH), k + 1), k + MAX_KEPT_FIT, len(units))
        known = int(np.searchsorted(ends, k - first))
        for peak in peaks[used:known].tolist():
            tail.add(peak)
        used = known
        chance = np.where(units[k:last] > 0, tail.exceedance(units[k:last]) * max(used, 1) / (k - first), 1.0)
        found[k:last] = -np.log10(np.maximum(chance / cadence, 1e-300))
        k = last
    return found


def aggregations(quantity: Quantity) -> dict[str, Indices]:
    """Return the columns of each way to make one series of the network and the layers."""
    layers = np.array([k for k, place in enumerate(quantity.places) if place != NETWORK], np.int64)
    network = np.array([k for k, place in enumerate(quantity.places) if place == NETWORK], np.int64)
    ways = {NETWORK: network, LARGEST: layers, MEDIAN: layers}
    return {name: columns for name, columns in ways.items() if len(columns) > (name == MEDIAN)}


def quantity_alarms(quantity: Quantity) -> Iterator[tuple[Choice, Alarms]]:
    """Yield what each choice makes of a quantity; its first value that is not finite is an alarm, and its last."""
    values = quantity.values.astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    n = len(values) if finite.all() else int(np.argmin(finite))
    for transform, (width, window) in windows(quantity.cadence).items():
        units = np.stack([noise_units(moving_mean(column, width), window) for column in values[:n].T], axis=1)
        for aggregation, columns in aggregations(quantity).items():
            each = {UP: units[:, columns], DOWN: -units[:, columns]}
            one = np.median if aggregation == MEDIAN else np.max
            scored = {side: scores(np.asarray(one(of, axis=1)), quantity.cadence) for side, of in each.items()}
            places = {side: columns[of.argmax(axis=1)] for side, of in each.items()}
            scored[BOTH] = np.maximum(scored[UP], scored[DOWN])
            places[BOTH] = np.where(scored[UP] >= scored[DOWN], places[UP], places[DOWN])
            for side in (UP, DOWN, BOTH):
                yield (
                    Choice(transform, aggregation, side),
                    _alarms(scored[side], places[side], quantity.cadence, values, MIN_SCORE),
                )


def _alarms(found: Vector, places: Indices, cadence: int, values: Matrix, least: float) -> Alarms:
    kept = np.flatnonzero((found > least) & (np.arange(len(found)) * cadence >= MIN_STEP))
    steps, high, where = kept * cadence, found[kept], places[kept]
    if len(found) < len(values):
        broken = int(np.argmin(np.isfinite(values[len(found)])))
        steps, high, where = (
            np.append(a, b) for a, b in ((steps, len(found) * cadence), (high, np.inf), (where, broken))
        )
    return Alarms(steps.astype(np.int64), high.astype(np.float64), where.astype(np.int64))


def rule_alarms(statistic: Matrix, values: Matrix, cadence: int, threshold: float) -> Alarms:
    """Return the steps at which a statistic of any layer's finite values exceeds a threshold; it is the score."""
    return _alarms(statistic.max(axis=1), statistic.argmax(axis=1), cadence, values, threshold)
