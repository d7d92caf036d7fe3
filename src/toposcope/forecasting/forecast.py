"""What a forecaster is given and what it returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.forecasting.memory import remembered
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.logs.log import FINAL_SHARE
from toposcope.typing import Steps, Vector

ROUNDING = 1e-6
"""Steps; a fraction of a whole number of steps may fall just short of it."""
LEAST_SHARE = 1e-6
END_STEPS = 5
CURVE_STEPS = 200


class RefusedError(ToposcopeError):
    """A forecaster cannot say anything honest here; the message says why and what would mend it."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run: its log and the schedule it follows."""

    log: Log
    schedule: Schedule

    @property
    def size(self) -> tuple[str, float | str]:
        """Family and parameters of the run; runs of unknown size are each a size of their own."""
        known = np.isfinite(self.log.parameters)
        return self.log.family, self.log.parameters if known else self.log.name

    def final(self) -> float:
        """Return the final loss of a complete run."""
        return remembered(self.log, self.schedule, "final", lambda: self.log.final_loss()[0])

    def seen(self, fraction: float) -> Log | None:
        """Return what was logged in the first part of the planned steps; None if nothing was."""
        step = fraction * self.schedule.last_step + ROUNDING
        return remembered(self.log, self.schedule, ("seen", fraction), lambda: self.log.until(step))


@dataclass(frozen=True, eq=False)
class Forecast:
    """The final loss of a run, foretold.

    Attributes
    ----------
    forecaster : str
    loss : float
        The final loss, in the log's unit.
    low, high : float
        Ends of its interval; NaN until `toposcope.forecasting.intervals` sets them.
    steps, curve : ndarray, shape (m,)
        Steps from the last one seen to the end, and the loss foretold there.
    errors : ndarray, shape (k,)
        log(foretold / final) of sibling runs at the same fraction, each foretold without the runs of its own size.
    relatives : ndarray, shape (k,), bool
        Which of these are of the run's family.
    diagnostics : dict of float
        Fitted parameters and how well they fit, by name.
    remarks : tuple of str
        Warnings, a sentence each.
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
    """Foretells the final loss of a run from the part of it that was seen."""

    name: str

    def fit(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> Forecast:
        """Return the forecast.

        Parameters
        ----------
        log : Log
            What was seen.
        schedule : Schedule
            Planned, to the end.
        siblings : list of Run
            Complete runs that coefficients may be borrowed from; none of them is the run to forecast.

        Raises
        ------
        RefusedError
            If the forecaster cannot say anything honest here.
        """
        ...


def fraction_seen(log: Log, schedule: Schedule) -> float:
    """Return the share of the planned steps that was seen, to a hundredth; below 10% to two digits.

    Siblings are cut there. Rounded, so that runs logged at different steps ask for the same parts of them.
    """
    share = max(float(log.steps[-1]) / max(schedule.last_step, 1), LEAST_SHARE)
    return float(f"{share:.2g}") if share < 0.1 else round(share, 2)


def end_steps(schedule: Schedule) -> Steps:
    """Return steps over the last 2% of the plan; the final loss is the mean over them (METHODS 7)."""
    last = schedule.last_step
    return np.unique(np.linspace((1 - FINAL_SHARE) * last, last, END_STEPS).round().astype(np.int64))


def curve_steps(log: Log, schedule: Schedule) -> Steps:
    """Return steps from the last one seen to the end of the plan."""
    first = int(log.steps[-1])
    return np.unique(np.linspace(first, schedule.last_step, CURVE_STEPS).round().astype(np.int64))
