"""Derives alerts and forecasts from the events of a run."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from toposcope.logs.columns import identify_columns
from toposcope.logs.table import COLUMNS, LogTable, sources
from toposcope.monitor.alerts import Alerts
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import Event, Forecasted, Logged, Measured
from toposcope.monitor.running_forecast import RunningForecast

FORECAST = "forecast"
"""Name of the forecast in the budget."""
FIRST_FORECAST_SECONDS = 0.5
"""Expected duration of the first forecast."""
MAX_ROWS = 4096
"""Rows of the log in memory; beyond that, neighbouring rows are merged."""


class Watch:
    """Checks every event of a run, and forecasts its final loss.

    Parameters
    ----------
    forecast : RunningForecast
    budget : Budget
    last_step : int, optional
        Planned last step.
    """

    def __init__(self, forecast: RunningForecast, budget: Budget, last_step: int | None) -> None:
        self._alerts, self._forecast, self._budget = Alerts(last_step), forecast, budget
        budget.expect(FORECAST, "", FIRST_FORECAST_SECONDS)
        self._log = ShortLog()

    def remember(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Add rows that were logged before the run was resumed, by step, under stored names."""
        for step, values in rows.items():
            self._log.add(step, values)

    def __call__(self, event: Event) -> Sequence[Event]:
        """Return the alerts that an event raises."""
        if isinstance(event, Logged):
            self._log.add(event.step, stored_names(event.values))
            return self._alerts.logged(event)
        if isinstance(event, Measured):
            return self._alerts.measured(event)
        return self._alerts.forecasted(event) if isinstance(event, Forecasted) else ()

    def ranks(self, step: int, ranks: Mapping[int, Mapping[str, float]]) -> Sequence[Event]:
        """Return the alerts that quantities common to all ranks raise."""
        return self._alerts.ranks(step, ranks)

    def forecast(self, *, final: bool = False) -> Sequence[Event]:
        """Return a forecast if it is due and affordable; a final one is made whatever it costs."""
        steps = self._log.steps
        if not steps or not self._forecast.due(steps[-1], self._log.n_added):
            return ()
        if not final and not self._budget.affords(FORECAST, [""]):
            return ()
        made = self._forecast.make(self._log.table())
        self._budget.charge(FORECAST, "", self._forecast.seconds)
        return () if made is None else (made,)


class ShortLog:
    """A log of bounded length: neighbouring rows are merged when it has grown to `MAX_ROWS` rows.

    Attributes
    ----------
    steps : list of int
    n_added : int
        Rows added so far.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._rows: list[dict[str, float]] = []
        self.n_added = 0
        self._block = 1
        self._waiting: list[dict[str, float]] = []

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row, or values to the last row if it has the same step."""
        if self.steps and step <= self.steps[-1] and not self._waiting:
            if step == self.steps[-1]:
                self._rows[-1] = {**self._rows[-1], **values}
            return
        self.n_added += 1
        self._waiting.append(dict(values))
        if len(self._waiting) >= self._block:
            self.steps.append(step)
            self._rows.append(_mean(self._waiting))
            self._waiting.clear()
        if len(self.steps) >= MAX_ROWS:
            self.steps = self.steps[1::2]
            self._rows = [_mean(self._rows[i : i + 2]) for i in range(0, len(self._rows) - 1, 2)]
            self._block *= 2

    def table(self) -> LogTable:
        """Return the log as a table."""
        names = dict.fromkeys([*COLUMNS, *(name for row in self._rows for name in row)])
        columns = {name: np.array([row.get(name, np.nan) for row in self._rows]) for name in names}
        return LogTable(np.array(self.steps, np.int64), columns)


def stored_names(values: Mapping[str, float]) -> dict[str, float]:
    """Return logged values under the names of stored columns; further losses and accuracies keep their names."""
    return {column: values[name] for column, name in _columns(tuple(values)).items()}


@lru_cache(maxsize=256)
def _columns(names: tuple[str, ...]) -> dict[str, str]:
    return sources(identify_columns(names))


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each column over the rows that have it."""
    if len(rows) == 1:
        return dict(rows[0])
    names = dict.fromkeys(name for row in rows for name in row)
    of_names = ([row[name] for row in rows if name in row] for name in names)
    return {name: sum(values) / len(values) for name, values in zip(names, of_names, strict=True)}
