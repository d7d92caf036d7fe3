"""``power_law``: E + A t^-a in the steps t, on the late 70% of what was seen."""

from collections.abc import Sequence

import numpy as np

from toposcope.forecasting.forecast import Run
from toposcope.forecasting.forecasters.law_forecaster import FittedLaw, LawForecaster
from toposcope.forecasting.forecasters.variable_projection import fit_power_law
from toposcope.forecasting.forecasters.window import LATE, window
from toposcope.forecasting.memory import remembered
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log


class PowerLaw(LawForecaster):
    """A power law of the steps with an offset; it knows no learning rate."""

    name = "power_law"

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> FittedLaw:
        """Fit E, A and a."""

        def make() -> FittedLaw:
            late = window(log, schedule, LATE)
            found = fit_power_law(late.steps.astype(np.float64), late.loss, late.weight)
            return FittedLaw(lambda t: found(t.astype(np.float64)), schedule, found.told(), found.warnings())

        return remembered(log, schedule, self.name, make)
