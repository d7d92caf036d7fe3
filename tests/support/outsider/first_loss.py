"""A forecaster: the loss ends where it began."""

from collections.abc import Sequence

import numpy as np

from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.forecasters.baseline_laws import FittedLossCurve, LawForecaster
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log


class First(LawForecaster):
    """The loss of the first step."""

    name = "first"

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Take it."""
        loss = float(log.loss[0])
        return FittedLossCurve(lambda steps: np.full(len(steps), loss), schedule)


FORECASTERS = (First(),)
