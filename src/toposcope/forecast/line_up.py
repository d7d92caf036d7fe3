"""All forecasters side by side, and the one that is believed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from toposcope.forecast.annealing import ANNEALING
from toposcope.forecast.cooldown import COOLDOWN
from toposcope.forecast.forecast import Forecast, Forecaster, RefusedError, Run
from toposcope.forecast.intervals import with_interval
from toposcope.forecast.last import Last
from toposcope.forecast.median import Median
from toposcope.forecast.multi_power import MultiPower
from toposcope.forecast.power_law import PowerLaw
from toposcope.forecast.s1 import S1
from toposcope.forecast.s1_anneal import S1_ANNEAL
from toposcope.forecast.schedule import Schedule
from toposcope.forecast.stack import Stack
from toposcope.forecast.template import Template
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
)
PREFERRED = (Stack.name, Median.name, Template.name)
"""The default is the first of these that does not refuse."""


@dataclass(frozen=True, eq=False)
class LineUp:
    """What every forecaster says of a run.

    Attributes
    ----------
    forecasts : dict of Forecast
        By name, the default first.
    refused : dict of str
        Name -> why there is none.
    """

    forecasts: dict[str, Forecast]
    refused: dict[str, str]


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
    return LineUp({DEFAULT: _default(forecasts), **forecasts}, refused)


def _default(forecasts: dict[str, Forecast]) -> Forecast:
    """Return the stack, where the family has siblings for it; else the median of three laws; else what there is."""
    name = next(name for name in (*PREFERRED, *forecasts) if name in forecasts)
    chosen = forecasts[name]
    return replace(chosen, forecaster=DEFAULT, remarks=(f"the default is {name}", *chosen.remarks))
