"""The learning rates that a run logged: without slips, and by how much they are rounded."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.logs.run import Run
from toposcope.typing import Vector

ROUNDING = 1e-6  # share of the peak; a learning rate this little below 0 counts as 0
DIGIT_ROUNDING = 1e-6  # of the last digit
MIN_SPIKE, SPIKE_SHARE = 1.2, 0.002
"""Times the median around it, in few rows: a slip of the log. On the schedules of 349 published runs."""


class LoggedRates(NamedTuple):
    """Steps and their learning rates, shape (n,) each, ascending; at least one rate is positive."""

    steps: Vector
    rates: Vector
    n_slips: int = 0  # rates that were left out

    @property
    def peak(self) -> float:
        """The largest rate so far."""
        return float(self.rates.max())


def known_rates(log: Run) -> LoggedRates:
    """Return the learning rates of all rows of a log, whichever loss they hold; without a table those at its losses."""
    if log.table is not None and (rates := log.table.values["learning_rate"])[np.isfinite(rates)].any():
        # reading has said of rates below 0 that they are ignored
        known = np.isfinite(rates) & (rates >= -ROUNDING * np.nanmax(rates))
        return LoggedRates(log.table.steps[known].astype(np.float64), rates[known])
    known = np.isfinite(log.learning_rate)
    return LoggedRates(log.steps[known].astype(np.float64), log.learning_rate[known])


def logged_rates(log: Run) -> LoggedRates | None:
    """Return the learning rates of a log, without slips; None if none was logged, or none above 0."""
    steps, rates, _ = known_rates(log)
    if not len(rates) or not rates.max() > 0:
        if len(rates) and rates.min() < 0:
            raise ToposcopeError(f"{log.name}: the learning rate is negative at step {steps[0]:.0f}")
        return None
    wrong = rates < -ROUNDING * rates.max()
    if wrong.any():
        raise ToposcopeError(f"{log.name}: the learning rate is negative at step {steps[np.argmax(wrong)]:.0f}")
    spikes = _spikes(np.maximum(rates, 0))
    return LoggedRates(steps[~spikes], np.maximum(rates, 0)[~spikes], int(spikes.sum()))


def rounding(rates: Vector) -> float:
    """Return by how much rates that were logged with few digits may be off: one of the last; else 0."""
    if len(np.unique(rates)) < 4:
        return 0.0
    top = np.floor(np.log10(rates.max()))
    places = np.floor(np.log10(np.where(rates > 0, rates, rates.max())))
    for digits in (3, 4):
        scaled = rates * 10.0 ** (digits - 1 - places)
        if np.abs(scaled - scaled.round()).max() < DIGIT_ROUNDING:
            return float(10.0 ** (top - digits + 1))
    return 0.0


def _spikes(rates: Vector) -> NDArray[np.bool_]:
    """Return which logged rates are spikes: a few rows above their neighbours."""
    few = max(2, round(SPIKE_SHARE * len(rates)))
    if len(rates) < 4 * few or rates.max() <= MIN_SPIKE * np.sort(rates)[-few - 1]:
        return np.zeros(len(rates), dtype=bool)
    from scipy.ndimage import median_filter  # slow to import

    return np.asarray(rates > MIN_SPIKE * median_filter(rates, 2 * min(few, 50) + 1, mode="nearest"))
