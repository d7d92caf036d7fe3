"""``last``, ``power_law`` and ``s1``: laws that know no gain from a falling learning rate."""

from collections.abc import Sequence

import numpy as np

from toposcope.forecasting.caching import cached
from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.forecasters.law_forecaster import FittedLossCurve, LawForecaster
from toposcope.forecasting.forecasters.power_law_fit import fit_power_law
from toposcope.forecasting.forecasters.window import LATE_SHARE, MAX_SPIKE, window
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log, final_losses
from toposcope.typing import Steps, Vector


class Last(LawForecaster):
    """The loss stays at the mean of the last 2% of what was logged."""

    name = "last"

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Take the mean."""
        recent = final_losses(log.loss)
        loss = np.minimum(recent, MAX_SPIKE * np.median(recent)).mean()
        return FittedLossCurve(lambda steps: np.full(len(steps), loss), schedule)


class StepPowerLaw(LawForecaster):
    """L0 + A t^-a in the steps t, fitted to the late 70% of what was seen; it knows no learning rate."""

    name = "power_law"

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Fit L0, A and a."""
        return cached(log, schedule, self.name, lambda: self._fit(log, schedule))

    def _fit(self, log: Log, schedule: Schedule) -> FittedLossCurve:
        late = window(log, schedule, LATE_SHARE)
        fit = fit_power_law(self._clock(schedule, late.steps), late.loss, late.weight)
        return FittedLossCurve(
            lambda steps: fit(self._clock(schedule, steps)), schedule, fit.diagnostics(), fit.warnings()
        )

    def _clock(self, schedule: Schedule, steps: Steps) -> Vector:
        """Return what the loss is a power law of."""
        return steps.astype(np.float64)


class ProgressPowerLaw(StepPowerLaw):
    """L0 + A S1^-a, a power law of the learning rate summed so far."""

    name = "s1"

    def _clock(self, schedule: Schedule, steps: Steps) -> Vector:
        return schedule.progress(steps)


_S1 = ProgressPowerLaw()


def present_slope(log: Log, schedule: Schedule) -> float:
    """Return -dL/d ln S1 at the last step seen, by the law of ``s1``, in the unit of the loss; at least 0.

    Raises
    ------
    RefusedError
        If fewer than 5 points were seen.
    """
    fitted = _S1.law(log, schedule, ()).diagnostics
    return fitted["A"] * fitted["a"]


def residual(log: Log, schedule: Schedule) -> float:
    """Return the scale of the residuals of the law of ``s1``, in the unit of the loss; errors as of `present_slope`."""
    return _S1.law(log, schedule, ()).diagnostics["residual"]


FORECASTERS = (Last(), StepPowerLaw(), _S1)
