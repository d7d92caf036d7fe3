"""Derives alerts and forecasts from the events of a run."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from toposcope.logs.anomalies import Divergence, divergence
from toposcope.logs.columns import identify_columns
from toposcope.logs.table import LogTable, sources
from toposcope.monitor.alerts import Alerts
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import DIVERGED, Alert, Event, Forecasted, Logged, Measured, Note
from toposcope.monitor.running_forecast import RunningForecast

FORECAST = "forecast"  # name of the forecast in the budget
FIRST_FORECAST_SECONDS = 0.5  # expected duration of the first forecast
MAX_ROWS = 4096  # rows of the log in memory; beyond that, neighbouring rows are merged

MIN_LOST_ROWS = 10
"""Losses that are NaN or infinite, at the end of a log, of a run that diverged; fewer may be overflows."""


class Watch:
    """Checks every event of a run, and forecasts its final loss."""

    def __init__(self, forecast: RunningForecast, budget: Budget, last_step: int | None) -> None:
        self._alerts, self._forecast, self._budget = Alerts(last_step), forecast, budget
        budget.expect(FORECAST, "", FIRST_FORECAST_SECONDS)
        self._log = ShortLog()
        self.diverged: Divergence | None = None
        self._next_lost = MIN_LOST_ROWS  # rows at which the lost ones are looked at again

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
        if isinstance(event, Note):
            self._alerts.noted(event)
        return self._alerts.forecasted(event) if isinstance(event, Forecasted) else ()

    def ranks(self, step: int, ranks: Mapping[int, Mapping[str, float]]) -> Sequence[Event]:
        """Return the alerts that quantities common to all ranks raise."""
        return self._alerts.ranks(step, ranks)

    def forecast(self, *, final: bool = False) -> Sequence[Event]:
        """Return a forecast if it is due and affordable, or an alert if the run diverged.

        A final one is made whatever it costs.
        """
        if self._log.n_lost:  # there is nothing to forecast
            if not final and self._log.n_lost < self._next_lost:
                return ()
            self._next_lost = 2 * self._log.n_lost
            return self._alert(self._log.divergence())
        if self._next_lost > MIN_LOST_ROWS:  # the loss has recovered
            self._next_lost, self.diverged = MIN_LOST_ROWS, None
        steps = self._log.steps
        if not steps or not self._forecast.due(steps[-1], self._log.n_added):
            return ()
        if not final and not self._budget.affords(FORECAST, [""]):
            return ()
        made = self._forecast.make(self._log.table())
        self._budget.charge(FORECAST, "", self._forecast.seconds)
        if made is not None:
            self.diverged = None
            return (made,)
        return self._alert(self._forecast.diverged)

    def _alert(self, diverged: Divergence | None) -> Sequence[Event]:
        """Return an alert of a divergence, once."""
        is_known = self.diverged is not None
        self.diverged = diverged or self.diverged
        if diverged is None or is_known:
            return ()
        message = f"diverged at step {diverged.step:,}: {diverged.reason}."
        return (Alert(DIVERGED, self._log.steps[-1], diverged.step, "loss", message),)


class ShortLog:
    """A log of bounded length: neighbouring rows are merged when it has grown to `MAX_ROWS` rows."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._rows: list[dict[str, float]] = []
        self.n_added = self.n_lost = 0
        self._block, self._first_lost = 1, 0
        self._waiting: list[tuple[int, dict[str, float]]] = []

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row, or values to the last row if it has the same step."""
        is_same = bool(self.steps) and step <= self.steps[-1] and not self._waiting
        if is_same and step < self.steps[-1]:
            return
        is_first_lost = self._count_lost(values)
        if is_same:
            self._rows[-1] = {**self._rows[-1], **values}
        else:
            self.n_added += 1
            if is_first_lost:
                self._merge_waiting()
            self._waiting.append((step, dict(values)))
            if is_first_lost or len(self._waiting) >= self._block:
                self._merge_waiting()
        if is_first_lost:
            self._first_lost = len(self.steps) - 1
        if len(self.steps) >= MAX_ROWS:
            self._halve()

    def _count_lost(self, values: Mapping[str, float]) -> bool:
        """Count a loss that is NaN or infinite; return whether it is the first after one that is not."""
        if "loss" not in values:
            return False
        self.n_lost = 0 if math.isfinite(values["loss"]) else self.n_lost + 1
        return self.n_lost == 1

    def _merge_waiting(self) -> None:
        if self._waiting:
            self.steps.append(self._waiting[-1][0])
            self._rows.append(_mean([row for _, row in self._waiting]))
            self._waiting.clear()

    def _halve(self) -> None:
        """Merge neighbouring rows, but the first lost one."""
        n, place = len(self.steps), self._first_lost if self.n_lost else len(self.steps)
        starts = [*range(0, place, 2), *range(place, n)[:1], *range(place + 1, n, 2)]
        groups = [slice(*ends) for ends in pairwise([*starts, n])]
        self.steps, self._rows = [self.steps[g][-1] for g in groups], [_mean(self._rows[g]) for g in groups]
        self._first_lost = -(-place // 2)
        self._block *= 2

    def table(self) -> LogTable:
        """Return the log as a table."""
        return LogTable.from_rows(dict(zip(self.steps, self._rows, strict=True)))

    def divergence(self) -> Divergence | None:
        """Return how the run diverged if its last losses are lost; as many rows are counted as were added."""
        rows = [(step, row["loss"]) for step, row in zip(self.steps, self._rows, strict=True) if "loss" in row]
        before = [row for row in rows if row[0] < self.steps[self._first_lost]]
        lost = np.resize([loss for _, loss in rows[len(before) :]], self.n_lost)
        later = self.steps[self._first_lost] + np.arange(self.n_lost)
        steps = np.concatenate([np.array([step for step, _ in before], np.int64), later])
        return divergence(steps, np.concatenate([[loss for _, loss in before], lost]), "training")


def stored_names(values: Mapping[str, float]) -> dict[str, float]:
    """Return logged values under the names of stored columns; further losses and accuracies keep their names."""
    return {column: values[name] for column, name in _columns(tuple(values)).items()}


@lru_cache(maxsize=256)
def _columns(names: tuple[str, ...]) -> dict[str, str]:
    return sources(identify_columns(names))


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each column over the rows that have it, of finite values if there are any."""
    if len(rows) == 1:
        return dict(rows[0])
    means = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        finite = [value for value in values if math.isfinite(value)] or values
        means[name] = sum(finite) / len(finite)
    return means
