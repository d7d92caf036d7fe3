"""All forecasters side by side, and the default among them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from toposcope.forecasting.forecaster import Forecast, Forecaster, LoggedRun, RefusedError
from toposcope.forecasting.forecasters import forecasters as all_forecasters
from toposcope.forecasting.intervals import MIN_ERRORS, error_in_run, is_learning, with_interval
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.forecasting.stages import check_lawful, new_stage
from toposcope.logs import Log

DEFAULT = "default"
STACKS = ("stack", "stack_norms")
"""The default is the one of these that errs less on the siblings, each held out with its size."""
PREFERRED = ("median", "template")
"""Without them it is the first of these that does not refuse, else that of the narrowest interval; of a validation loss
that rises, or a loss that is constant, ``last``."""


@dataclass(frozen=True, eq=False)
class ForecastSet:
    """The forecasts of a run by all forecasters.

    Attributes
    ----------
    forecasts : dict of Forecast
        By name, the default first.
    refused : dict of str
        Name -> why the forecaster made none.
    chosen : str
        Name of the forecaster that is the default.
    """

    forecasts: dict[str, Forecast]
    refused: dict[str, str]
    chosen: str


def run_forecasters(
    log: Log, schedule: Schedule, siblings: Sequence[LoggedRun], forecasters: Sequence[Forecaster] | None = None
) -> ForecastSet:
    """Run every forecaster, give each forecast its interval, and choose the default.

    Parameters
    ----------
    log : Log
        The part of the run that was seen.
    schedule : Schedule
        Planned, to the end.
    siblings : sequence of LoggedRun
        Complete runs to borrow from; none of them is the run itself.
    forecasters : sequence of Forecaster, optional
        All that are installed, if left out.

    Raises
    ------
    RefusedError
        If all of them refuse, or no law of a learning run describes the loss.
    """
    stage = None
    if sum(run.log.family == log.family for run in siblings) < MIN_ERRORS:
        stage = new_stage(log, schedule)
        if stage is not None:
            log = log.since(stage.step)
        check_lawful(log, schedule)
    forecasts: dict[str, Forecast] = {}
    refused: dict[str, str] = {}
    for forecaster in all_forecasters() if forecasters is None else forecasters:
        try:
            forecast = forecaster.fit(log, schedule, siblings)
            few = forecast.relatives.sum() < MIN_ERRORS
            own_error = error_in_run(forecaster, log, schedule) if few else 0.0
            forecast = with_interval(forecast, log, schedule, own_error)
            if stage is not None:
                forecast = replace(forecast, remarks=(str(stage), *forecast.remarks))
            forecasts[forecaster.name] = forecast
        except RefusedError as error:
            refused[forecaster.name] = str(error)
    if not forecasts:
        raise RefusedError(next(iter(refused.values())))
    # no law of a run that learns holds for one that diverges or does not change
    stacks = sorted((name for name in STACKS if name in forecasts), key=lambda name: _sibling_error(forecasts[name]))
    narrowest = sorted(forecasts, key=lambda name: forecasts[name].high / forecasts[name].low)
    preferred = (*stacks, *PREFERRED) if is_learning(log) else ("last",)
    chosen = next(name for name in (*preferred, *narrowest) if name in forecasts)
    return ForecastSet({DEFAULT: replace(forecasts[chosen], forecaster=DEFAULT), **forecasts}, refused, chosen)


def _sibling_error(forecast: Forecast) -> float:
    """Return the median absolute error on the siblings, as large as is to be expected for a run like this."""
    return float(np.median(np.abs(forecast.errors)))
