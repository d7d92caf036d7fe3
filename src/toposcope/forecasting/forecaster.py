"""The input and the output of a forecaster."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.logs import Run
from toposcope.logs.caching import cached
from toposcope.logs.run import FINAL_SHARE
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Steps, Vector

ROUNDING = 1e-6  # steps; a fraction of the last step may fall just short of a whole number


class RefusedError(ToposcopeError):
    """The final loss is not identifiable from this log by this forecaster; the message says why, and the fix."""


@dataclass(frozen=True, eq=False)
class LoggedRun:
    """A run as forecasters see it: its log and the schedule that it follows."""

    log: Run
    schedule: Schedule

    @property
    def size(self) -> tuple[str, float | str]:
        """Family and number of parameters; a run of unknown size has its name in place of the number."""
        parameters = self.log.parameters
        return self.log.family, parameters if np.isfinite(parameters) else self.log.name

    def final(self) -> float:
        """Return the final loss of a complete run."""
        return cached(self.log, self.schedule, "final", lambda: self.log.final_loss()[0])

    def seen(self, fraction: float) -> Run | None:
        """Return the log of the first part of the planned steps; None if it is empty."""
        step = fraction * self.schedule.last_step + ROUNDING
        return cached(self.log, self.schedule, ("seen", fraction), lambda: self.log.until(step))


@dataclass(frozen=True, eq=False)
class Forecast:
    """The predicted final loss of a run.

    Attributes
    ----------
    forecaster : str
    loss : float
        The final loss, in the log's unit.
    low, high : float
        Ends of its 90% interval; NaN until `toposcope.forecasting.intervals` sets them.
    steps, curve : ndarray, shape (m,)
        Steps from the last one seen to the end, and the predicted loss there.
    errors : ndarray, shape (k,)
        log(predicted / final) of sibling runs at the same fraction, each predicted without the runs of its size.
    relatives : ndarray, shape (k,), bool
        Whether each of these is of the run's family.
    diagnostics : dict of float
        Fitted parameters and how well they fit, by name.
    remarks : tuple of str
        Warnings and where the interval is from, a sentence each.
    """

    forecaster: str
    loss: float
    low: float = np.nan
    high: float = np.nan
    steps: Steps = field(default_factory=lambda: np.empty(0, np.int64))
    curve: Vector = field(default_factory=lambda: np.empty(0))
    errors: Vector = field(default_factory=lambda: np.empty(0))
    relatives: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    diagnostics: dict[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class Forecaster(Protocol):
    """Predicts the final loss of a run from its beginning."""

    name: str

    def fit(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Forecast:
        """Return the forecast.

        Parameters
        ----------
        log : Run
            Of the beginning.
        schedule : Schedule
            Planned, to the end.
        siblings : list of LoggedRun
            Complete runs to borrow coefficients from; none of them is the run itself.

        Raises
        ------
        RefusedError
            If the final loss is not identifiable from this log.
        """
        ...


def fraction_seen(log: Run, schedule: Schedule) -> float:
    """Return the share of the planned steps that was seen, to a hundredth; below 10% to two digits.

    It is rounded so that runs logged at different steps use the same beginnings of their siblings.
    """
    share = max(min(float(log.last_seen) / max(schedule.last_step, 1), 1.0), 1e-6)
    return float(f"{share:.2g}") if share < 0.1 else round(share, 2)


def end_steps(schedule: Schedule) -> Steps:
    """Return steps over the last 2% of the plan; the final loss is the mean over them."""
    last = schedule.last_step
    return np.unique(np.linspace((1 - FINAL_SHARE) * last, last, 5).round().astype(np.int64))


def curve_steps(log: Run, schedule: Schedule) -> Steps:
    """Return steps from the last one seen to the end of the plan."""
    return np.unique(np.linspace(int(log.steps[-1]), schedule.last_step, 200).round().astype(np.int64))


def from_present_level(forecast: Forecast, log: Run) -> Forecast:
    """Return a forecast whose curve begins at the present level of the loss.

    A law is fitted to many rows and passes beside the last ones. Its residual there, in the logarithm, fades with the
    square of the share of steps that is left: at the last step the curve is the law's.
    """
    if not len(forecast.curve):
        return forecast
    steps = forecast.steps.astype(np.float64)
    left = (steps[-1] - steps) / max(steps[-1] - steps[0], 1.0)
    return replace(forecast, curve=forecast.curve * (log.final_loss()[0] / forecast.curve[0]) ** left**2)
