"""The part of a log that a law is fitted to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.caching import cached
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Vector

LATE_SHARE = 0.7
"""Late share of what was seen that a law is fitted to, if it does not say otherwise."""
MAX_SPIKE = 5.0
"""Times the median of the window; a larger loss counts as this."""
MIN_POINTS = 5
"""Points that a law is fitted to."""
MAX_BINS = 200


@dataclass(frozen=True, eq=False)
class Window:
    """The late part of what was seen.

    Attributes
    ----------
    steps : ndarray, shape (n,), int64
    loss : ndarray, shape (n,)
    weight : ndarray, shape (n,)
        Number of logged steps that a point is the mean of, over the mean of that number.
    """

    steps: NDArray[np.int64]
    loss: Vector
    weight: Vector


def window(log: Log, schedule: Schedule, share: float) -> Window:
    """Return the late share of what was seen, at least 5 points; more than 200 as means over 200 bins of steps.

    Parameters
    ----------
    log : Log
    schedule : Schedule
    share : float
        Of the steps until the last one seen, in (0, 1].

    Raises
    ------
    RefusedError
        If fewer than 5 points were seen after step 0.
    """
    return cached(log, schedule, ("window", share), lambda: _window(log, share))


def _window(log: Log, share: float) -> Window:
    start = int(np.searchsorted(log.steps, 1))
    n = len(log.steps) - start
    if n < MIN_POINTS:
        raise RefusedError(f"{n} logged steps so far; a law needs at least {MIN_POINTS}")
    first = int(np.searchsorted(log.steps, (1 - share) * log.steps[-1]))
    first = max(start, min(first, len(log.steps) - MIN_POINTS))
    steps, loss = log.steps[first:], log.loss[first:]
    # the mean over a bin, unlike the fit, is not robust
    loss = np.minimum(loss, MAX_SPIKE * np.median(loss))
    if len(steps) <= MAX_BINS:
        return Window(steps, loss, np.ones(len(steps)))
    edges = np.linspace(steps[0], steps[-1] + 1, MAX_BINS + 1)
    bins = np.searchsorted(edges, steps, side="right") - 1
    count = np.bincount(bins, minlength=MAX_BINS)
    filled = count > 0

    def means(values: Vector) -> Vector:
        sums: Vector = np.bincount(bins, values, minlength=MAX_BINS)[filled] / count[filled]
        return sums

    weight = count[filled] / count[filled].mean()
    return Window(means(steps.astype(np.float64)).round().astype(np.int64), means(loss), weight)
