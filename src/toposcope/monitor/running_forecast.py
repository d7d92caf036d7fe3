"""Forecasts the final loss of a run in training from its log and those of complete runs next to it."""

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.advice import decide
from toposcope.forecasting.decision.decision import reasons
from toposcope.forecasting.forecast_report import planned_run
from toposcope.forecasting.forecaster import Forecast, LoggedRun
from toposcope.forecasting.forecaster_set import DEFAULT, run_forecasters
from toposcope.forecasting.headline import kind_of
from toposcope.forecasting.scaling.logged_points import points_of
from toposcope.forecasting.siblings import (
    CompleteRuns,
    borrowed_parts,
    is_same_run,
    is_sibling,
    siblings_nearby,
    with_family,
    without_itself,
)
from toposcope.forecasting.stages import check_falls
from toposcope.logs import LogTable, Run
from toposcope.logs.anomalies import Divergence, divergence
from toposcope.logs.cleaning import clean_log
from toposcope.logs.raw import RawLog
from toposcope.logs.schedules.schedule import UnknownEndError, planned
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import DIVERGED, Alert, Forecasted
from toposcope.monitor.recording import RunInfo
from toposcope.monitor.sibling_logs import MAX_SIBLINGS, SiblingLogs
from toposcope.monitor.sinks.terminal import shown_path

FORECAST_SECONDS, SIBLING_SECONDS = 0.02, 0.006  # expected CPU time of a forecast, and of each sibling in one
MIN_FORECAST_ROWS = 8  # losses that a forecast needs
FORECAST_SPACING = 0.05  # share of the planned steps from one forecast to the next; the first is made at it or twice it
RETRIES = 5  # attempts in that time while a forecast is refused, of a run whose end is planned
MAX_FORECAST_ROWS = 128  # rows of the log that are used; a longer log is averaged over blocks of rows
MAX_READING_SECONDS = 2.0  # time to read siblings' logs before each forecast
MIN_POINTS = 6  # complete runs that advice on whether to continue needs
RESAMPLES = 40  # bootstrap resamples of their scaling law

MAX_STORED_ROWS = 4096  # rows of the log in memory; beyond that, neighbouring rows are merged
MIN_LOST_ROWS = 10  # losses at the end of a log that are NaN or infinite in a run that diverged; fewer may be overflows


class RunningForecast:
    """Forecasts one run in training from what it logs; used from one thread."""

    def __init__(self, run: RunInfo) -> None:
        self._run, self._siblings, self._log = run, SiblingLogs(run.directory), ShortLog()
        self._complete: tuple[tuple[Run, ...], CompleteRuns] = (), CompleteRuns((), ())
        self._n_siblings = MAX_SIBLINGS
        self._next_step = 0.0
        self._next_lost = MIN_LOST_ROWS  # rows at which the lost ones are looked at again
        self.diverged: Divergence | None = None
        self.seconds = FORECAST_SECONDS  # of CPU time that a forecast takes
        self.refusal = ""  # why the last attempt made none
        self._need_not_fall = ""  # why the loss need not; remembered, since rows that are merged hide its signs
        self._n_losses: tuple[int, str] | None = None  # that the last attempt had, if too few
        self.target = ""  # the loss that the last forecast is of; empty before the first
        self.borrowed = ""  # what it takes from siblings, a clause

    def prepare(self, budget: Budget) -> None:
        """Load what forecasts need and read the siblings' logs, before the run begins."""
        steps = np.arange(1, MAX_FORECAST_ROWS + 1)
        loss, rate = (np.asarray(values, np.float64) for values in (2 + 3 * steps**-0.3, np.cos(steps / steps[-1])))
        log = Run("warm-up", steps, loss, rate, last_step=2 * int(steps[-1]))
        for _ in range(2):
            begin = time.thread_time()
            _forecast_of(replace(log), ())
            self.seconds = time.thread_time() - begin
        budget.reserve_for_forecast(self.seconds)
        self._siblings.logs(MAX_READING_SECONDS)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add what was logged at a step, under stored names."""
        self._log.add(step, values)

    def is_due(self, step: int, budget: Budget, *, final: bool = False) -> bool:
        """Return whether to forecast at a logged step.

        A forecast is paid for before it is made; from twice the first step of a plan on, by the time of the next one.
        """
        first = FORECAST_SPACING * (self._run.last_step or 0)
        if self._log.n_lost or step < max(self._next_step, first):
            return False
        return final or budget.reserve >= (0.0 if step >= 2 * first > 0 else self.seconds)

    def update(self, budget: Budget, *, final: bool = False) -> Sequence[Forecasted | Alert]:
        """Return a forecast if it is due and paid for, or an alert if the run diverged.

        A final one is made whatever it costs.
        """
        log = self._log
        budget.reserve_for_forecast(0.0 if log.n_lost else self.seconds)
        if log.n_lost:  # there is nothing to forecast
            if not final and log.n_lost < self._next_lost:
                return ()
            self._next_lost = 2 * log.n_lost
            return self._alert(log.divergence())
        if self._next_lost > MIN_LOST_ROWS:  # the loss has recovered
            self._next_lost, self.diverged = MIN_LOST_ROWS, None
        if log.n_added < MIN_FORECAST_ROWS or not self.is_due(log.steps[-1], budget, final=final):
            return ()
        if not self.target:
            self._n_siblings = self._affordable_siblings(log.steps[-1], budget)
        made = self.make(log.table())
        budget.pay_forecast(self.seconds)
        if isinstance(made, Forecasted):
            self.diverged = None
            return (made,)
        return self._alert(made)

    def _alert(self, diverged: Divergence | None) -> Sequence[Alert]:
        """Return an alert of a divergence, once."""
        is_known = self.diverged is not None
        self.diverged = diverged or self.diverged
        if diverged is None or is_known:
            return ()
        message = f"diverged at step {diverged.step:,}: {diverged.reason}."
        return (Alert(DIVERGED, self._log.steps[-1], diverged.step, "loss", message),)

    def _interval(self, step: int) -> float:
        """Return the steps between forecasts: a share of the planned ones, or of those made if these are unknown."""
        return FORECAST_SPACING * (self._run.last_step or 2 * step)

    def _affordable_siblings(self, step: int, budget: Budget) -> int:
        """Return with how many siblings a forecast is paid for by the time of the next one, as steps last now."""
        if math.isnan(budget.step_seconds):
            return MAX_SIBLINGS
        income = budget.forecast_income * self._interval(step) * budget.step_seconds
        return min(MAX_SIBLINGS, max(0, int((income - self.seconds) / SIBLING_SECONDS)))

    def make(self, table: LogTable) -> Forecasted | Divergence | None:
        """Return a forecast from the log so far, or how the run diverged; None if the run is complete or unsuitable."""
        begin, diverged, made = time.thread_time(), None, None
        self._n_losses = None
        try:
            log = self._cleaned(table)
            self._need_not_fall = log.need_not_fall or self._need_not_fall
            log = replace(log, need_not_fall=self._need_not_fall)
            diverged = log.diverged
            made, self.refusal = self._made(log, int(table.steps[-1]))
            return made or diverged
        except UnknownEndError:
            self.refusal = (
                "the planned number of steps is unknown; `Monitor(last_step=...)`, or now: "
                f"`toposcope forecast {shlex.quote(shown_path(self._run.directory))} --steps ...`"
            )
            return diverged
        except ToposcopeError as error:
            self.refusal = str(error).removeprefix(f"{self._run.name}: ")
            return diverged
        finally:
            self.seconds = time.thread_time() - begin
            if len(table.steps):
                step = int(table.steps[-1])
                again = 1 if made or self._run.last_step is None else RETRIES
                self._next_step = step + self._interval(step) / again

    def _made(self, log: Run, step: int) -> tuple[Forecasted | None, str]:
        """Return a forecast, or why there is none."""
        if log.unit != "nats":
            return None, f"the loss is in {log.unit}"
        if log.diverged is not None:
            return None, str(log.diverged)
        kind = kind_of(log)
        if len(log.steps) < MIN_FORECAST_ROWS:
            self._n_losses = len(log.steps), f"{kind} loss"
            return None, ""
        read = self._siblings.logs(MAX_READING_SECONDS).logs[: self._n_siblings]
        siblings = self._complete_siblings(log, read)
        log, _ = with_family(log.thinned(MAX_FORECAST_ROWS), siblings)
        found = _forecast_of(log, siblings, self._run.last_step)
        if found is None:
            return None, "the run is complete"
        last_step, made, self.borrowed = found
        self.target = f"{kind} loss"
        advice = self._advice(log, last_step, read)
        return Forecasted(step, last_step, made.loss, made.low, made.high, advice, self.target), ""

    def no_forecast(self) -> str:
        """Return why there is no forecast, and what to do; empty if there is one."""
        run, log = self._run, self._log
        if self.diverged is not None:
            return f"No forecast: {self.diverged}."
        if self.target:
            return ""
        if not log.steps:
            return "No forecast yet: nothing is logged; call `monitor.log(loss=..., lr=...)` after each step."
        if self.refusal:
            return f"No forecast: {self.refusal}."
        n, kind = self._n_losses or (log.n_added, "row")
        if n < MIN_FORECAST_ROWS:
            rows = f"{kind} is" if n == 1 else f"{kind}{'es' if kind.endswith('s') else 's'} are"
            return f"No forecast yet: {n} {rows} logged, {MIN_FORECAST_ROWS} are needed."
        if run.last_step is None:
            return "No forecast yet: the first is made as soon as the monitor's thread has time."
        return f"No forecast yet: the first is made by step {2 * self._interval(0):,.0f} of {run.last_step:,}."

    def _cleaned(self, table: LogTable) -> Run:
        """Return the log, of the loss that stands for the run: decided by what is logged how often, not by how much."""
        run = self._run
        known = {
            "max_steps": run.last_step,
            "n_parameters": run.n_parameters,
            "tokens_per_step": run.tokens_per_step,
        }
        facts: dict[str, object] = {name: value for name, value in known.items() if value}
        return clean_log(RawLog(run.directory, run.name, table.frame(), facts), {})

    def _complete_siblings(self, log: Run, read: Sequence[Run]) -> tuple[LoggedRun, ...]:
        """Return the complete runs of one configuration with this one."""
        logs = tuple(other for other in read if is_sibling(log, other))
        if logs != self._complete[0]:  # what was computed of a run is found again as long as it is one object
            self._complete = logs, siblings_nearby(log, logs)
        return without_itself(log, self._complete[1]).runs

    def _advice(self, log: Run, last_step: int, read: Sequence[Run]) -> str:
        """Return a sentence on whether to continue; empty if siblings of all sizes determine no scaling law."""
        siblings = [run for run in read if is_sibling(log, run, of_any_size=True) and not is_same_run(log, run)]
        tokens_left = log.tokens_per_step * (last_step - float(log.steps[-1]))
        if not (log.parameters > 0 and tokens_left > 0 and len(siblings) >= MIN_POINTS):
            return ""
        try:
            points = points_of(siblings)
            advice = decide(points, extra=6 * log.parameters * tokens_left, log=log, resamples=RESAMPLES)
        except ToposcopeError:
            return ""
        return reasons(advice.decision)[0] if advice.decision is not None else ""


def _forecast_of(
    log: Run, siblings: tuple[LoggedRun, ...], last_step: int | None = None
) -> tuple[int, Forecast, str] | None:
    """Return the last step, the default forecast, and what it takes from siblings; None of a complete run."""
    if not log.is_complete:
        check_falls(log)  # before its end is asked for
    schedule = planned(log, last_step=last_step, siblings=[each.log for each in siblings])
    if planned_run(log, schedule.last_step).is_complete:
        return None
    made = run_forecasters(log, schedule, siblings, only_default=True).forecasts[DEFAULT]
    return schedule.last_step, made, borrowed_parts(schedule, made, len(siblings))


class ShortLog:
    """A log of bounded length: neighbouring rows are merged when it has grown to `MAX_STORED_ROWS` rows."""

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
        if len(self.steps) >= MAX_STORED_ROWS:
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
