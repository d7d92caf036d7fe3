"""``last``: the loss stays what it was."""

from collections.abc import Sequence

import numpy as np

from toposcope.forecasting.forecast import Run
from toposcope.forecasting.forecasters.law_forecaster import FittedLaw, LawForecaster
from toposcope.forecasting.forecasters.window import ABSURD
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log, final_losses


class Last(LawForecaster):
    """The mean of the last 2% of what was logged."""

    name = "last"

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> FittedLaw:
        """Take the mean."""
        recent = final_losses(log.loss)
        loss = np.minimum(recent, ABSURD * np.median(recent)).mean()
        return FittedLaw(lambda steps: np.full(len(steps), loss), schedule)
