"""``s1``: L0 + A S1^-a, a power law of the learning rate summed so far."""

from collections.abc import Sequence

from toposcope.forecasting.forecast import Run
from toposcope.forecasting.forecasters.law_forecaster import FittedLaw, LawForecaster
from toposcope.forecasting.forecasters.variable_projection import fit_power_law
from toposcope.forecasting.forecasters.window import LATE, window
from toposcope.forecasting.memory import remembered
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log


class S1(LawForecaster):
    """A power law of progress; it knows no gain from a falling learning rate."""

    name = "s1"

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> FittedLaw:
        """Fit L0, A and a."""

        def make() -> FittedLaw:
            late = window(log, schedule, LATE)
            found = fit_power_law(schedule.progress(late.steps), late.loss, late.weight)
            return FittedLaw(lambda t: found(schedule.progress(t)), schedule, found.told(), found.warnings())

        return remembered(log, schedule, self.name, make)
