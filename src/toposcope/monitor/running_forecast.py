"""Forecasts the final loss of a run in training from its log and its siblings, again and again as the log grows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.advice import decide
from toposcope.forecasting.decision.decision import reasons
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.scaling.points import points_of
from toposcope.forecasting.siblings import CompleteRuns, siblings_among, without_itself
from toposcope.logs import Log, LogTable
from toposcope.logs.anomalies import Divergence
from toposcope.logs.cleaning import clean_log
from toposcope.logs.raw import RawLog
from toposcope.monitor.events import Forecasted
from toposcope.monitor.neighbours import Neighbours, thinned

MIN_ROWS = 50
"""Log rows with a loss that a forecast needs."""
MIN_SHARE_SEEN = 0.02
"""Share of the planned steps that a forecast needs, if the plan is known."""
MIN_GROWTH = 1.1
"""Factor by which the step must grow from one forecast to the next."""
MAX_SHARE = 0.02
"""Share of the time that forecasts may take, if each takes as long as the last one."""
MAX_READING_SECONDS = 2.0
"""Time to read siblings' logs before each forecast."""
MAX_ROWS = 1000
"""Rows of the log that are used; a longer log is averaged over blocks of rows."""
MIN_POINTS = 6
"""Complete runs that advice on whether to continue needs."""
RESAMPLES = 40
"""Bootstrap resamples of their scaling law."""


class RunningForecast:
    """Forecasts one run in training; used from one thread.

    Parameters
    ----------
    directory : Path
        Directory of the run; its siblings are the folders beside it.
    name : str
        Name of the run.
    last_step : int, optional
        Planned last step; without it, a forecast needs a schedule whose end can be recognised, or siblings.
    parameters, tokens_per_step : float, optional
        Size of the model and of a step, for advice on whether to continue.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    seconds : float
        Duration of the last forecast.
    refusal : str
        Why the last attempt made no forecast; empty if it made one.
    diverged : Divergence or None
        How the run diverged, by the last attempt.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        last_step: int | None = None,
        parameters: float = np.nan,
        tokens_per_step: float = np.nan,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._directory, self._name, self._last_step = directory, name, last_step
        self._parameters, self._tokens_per_step = parameters, tokens_per_step
        self._clock = clock
        self._neighbours = Neighbours(directory, clock)
        self._next_step = 0.0
        self._next_time = -np.inf
        self.seconds = 0.0
        self.refusal = ""
        self.diverged: Divergence | None = None

    def due(self, step: int, n_rows: int) -> bool:
        """Return whether the log has grown enough for another forecast, and enough time has passed."""
        seen = self._last_step is None or step >= MIN_SHARE_SEEN * self._last_step
        return n_rows >= MIN_ROWS and seen and step >= self._next_step and self._clock() >= self._next_time

    def make(self, table: LogTable) -> Forecasted | None:
        """Return a forecast from the log so far; None if none can be made, or the run is complete."""
        begin = self._clock()
        self.refusal, self.diverged = "", None
        try:
            return self._made(table)
        except ToposcopeError as error:
            self.refusal = str(error)
            return None
        finally:
            now = self._clock()
            self.seconds = now - begin
            self._next_time = now + self.seconds / MAX_SHARE
            if len(table.steps):
                self._next_step = MIN_GROWTH * float(table.steps[-1])

    def _made(self, table: LogTable) -> Forecasted | None:
        log = thinned(self._log(table), MAX_ROWS)
        self.diverged = log.diverged
        if log.unit != "nats":
            self.refusal = f"the loss is in {log.unit}"
            return None
        siblings = self._siblings(log)
        report = forecast(log, siblings=siblings, last_step=self._last_step)
        if report.default is None:
            self.refusal = str(log.diverged or "the run is complete")
            return None
        low, high = report.interval
        last_step = report.schedule.last_step
        advice = self._advice(log, last_step, [run.log for run in report.siblings])
        return Forecasted(int(table.steps[-1]), last_step, report.loss, low, high, advice)

    def _log(self, table: LogTable) -> Log:
        facts: dict[str, object] = {}
        if self._last_step is not None:
            facts["max_steps"] = self._last_step
        if self._parameters > 0:
            facts["n_parameters"] = self._parameters
        if self._tokens_per_step > 0:
            facts["tokens_per_step"] = self._tokens_per_step
        return clean_log(RawLog(self._directory, self._name, table.frame(), facts), {})

    def _siblings(self, log: Log) -> CompleteRuns | None:
        logs = self._neighbours.logs(MAX_READING_SECONDS)
        if not logs.logs:
            return None
        try:
            siblings = without_itself(log, siblings_among(log, logs))
        except ToposcopeError:
            return None  # no sibling has a loss in the unit of this run
        return siblings if siblings.runs else None

    def _advice(self, log: Log, last_step: int, siblings: Sequence[Log]) -> str:
        """Return a sentence on whether to continue; empty if the siblings do not determine a scaling law."""
        tokens_left = log.tokens_per_step * (last_step - float(log.steps[-1]))
        if not (log.parameters > 0 and tokens_left > 0 and len(siblings) >= MIN_POINTS):
            return ""
        try:
            points = points_of(siblings)
            advice = decide(points, extra=6 * log.parameters * tokens_left, log=log, resamples=RESAMPLES)
        except ToposcopeError:
            return ""
        return reasons(advice.decision)[0] if advice.decision is not None else ""
