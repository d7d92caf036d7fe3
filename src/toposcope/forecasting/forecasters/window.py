"""The part of a log that a law is fitted to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecast import RefusedError
from toposcope.forecasting.memory import remembered
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Vector

LATE = 0.7
"""Late share of what was seen that a law is fitted to, if it does not say otherwise (METHODS 9)."""
ABSURD = 5.0
"""Times the median of the window; a larger loss counts as this."""
FEWEST = 5
"""Points that a law is fitted to."""
MOST = 200


@dataclass(frozen=True, eq=False)
class Window:
    """The late part of what was seen.

    Attributes
    ----------
    steps : ndarray, shape (n,), int64
    loss : ndarray, shape (n,)
    weight : ndarray, shape (n,)
        How many logged steps a point is the mean of, over the mean of that.
    """

    steps: NDArray[np.int64]
    loss: Vector
    weight: Vector


def window(log: Log, schedule: Schedule, share: float) -> Window:
    """Return the late share of what was seen, at least 5 points; a long one as means over at most 200 bins of steps.

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
    return remembered(log, schedule, ("window", share), lambda: _window(log, share))


def _window(log: Log, share: float) -> Window:
    begun = int(np.searchsorted(log.steps, 1))
    n = len(log.steps) - begun
    if n < FEWEST:
        raise RefusedError(f"{n} logged steps so far; a law needs at least {FEWEST}")
    first = int(np.searchsorted(log.steps, (1 - share) * log.steps[-1]))
    first = max(begun, min(first, len(log.steps) - FEWEST))
    steps, loss = log.steps[first:], log.loss[first:]
    # a mean over a bin, unlike the fit, cannot bear what is absurd
    loss = np.minimum(loss, ABSURD * np.median(loss))
    if len(steps) <= MOST:
        return Window(steps, loss, np.ones(len(steps)))
    edges = np.linspace(steps[0], steps[-1] + 1, MOST + 1)
    place = np.searchsorted(edges, steps, side="right") - 1
    count = np.bincount(place, minlength=MOST)
    filled = count > 0

    def means(values: Vector) -> Vector:
        sums: Vector = np.bincount(place, values, minlength=MOST)[filled] / count[filled]
        return sums

    weight = count[filled] / count[filled].mean()
    return Window(means(steps.astype(np.float64)).round().astype(np.int64), means(loss), weight)
