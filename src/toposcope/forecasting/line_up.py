"""All forecasters side by side, and the one that is believed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from toposcope.forecasting.forecast import Forecast, Forecaster, RefusedError, Run
from toposcope.forecasting.forecasters.annealing import ANNEALING
from toposcope.forecasting.forecasters.cooldown import COOLDOWN
from toposcope.forecasting.forecasters.last import Last
from toposcope.forecasting.forecasters.median import Median
from toposcope.forecasting.forecasters.multi_power import MultiPower
from toposcope.forecasting.forecasters.power_law import PowerLaw
from toposcope.forecasting.forecasters.s1 import S1
from toposcope.forecasting.forecasters.s1_anneal import S1_ANNEAL
from toposcope.forecasting.forecasters.stack import Stack
from toposcope.forecasting.forecasters.stack_norms import StackNorms
from toposcope.forecasting.forecasters.template import Template
from toposcope.forecasting.intervals import learns, with_interval
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log

DEFAULT = "default"
FORECASTERS: tuple[Forecaster, ...] = (
    Last(),
    PowerLaw(),
    S1(),
    S1_ANNEAL,
    ANNEALING,
    COOLDOWN,
    Median(),
    MultiPower(),
    Template(),
    Stack(),
    StackNorms(),
)
PREFERRED = (Stack.name, Median.name, Template.name)
"""The default is the first of these that does not refuse; of a run whose loss rises or stands still it is ``last``."""


@dataclass(frozen=True, eq=False)
class LineUp:
    """What every forecaster says of a run.

    Attributes
    ----------
    forecasts : dict of Forecast
        By name, the default first.
    refused : dict of str
        Name -> why there is none.
    chosen : str
        Name of the forecaster that the default is.
    """

    forecasts: dict[str, Forecast]
    refused: dict[str, str]
    chosen: str


def line_up(
    log: Log, schedule: Schedule, siblings: Sequence[Run], forecasters: Sequence[Forecaster] = FORECASTERS
) -> LineUp:
    """Ask every forecaster, give each its interval, and choose the default.

    Raises
    ------
    RefusedError
        If none can say anything.
    """
    forecasts: dict[str, Forecast] = {}
    refused: dict[str, str] = {}
    for forecaster in forecasters:
        try:
            forecasts[forecaster.name] = with_interval(forecaster.fit(log, schedule, siblings), log, schedule)
        except RefusedError as error:
            refused[forecaster.name] = str(error)
    if not forecasts:
        raise RefusedError(next(iter(refused.values())))
    # no law of a run that learns holds for one that diverges or stands still
    preferred = PREFERRED if learns(log) else (Last.name,)
    chosen = next(name for name in (*preferred, *forecasts) if name in forecasts)
    return LineUp({DEFAULT: replace(forecasts[chosen], forecaster=DEFAULT), **forecasts}, refused, chosen)
