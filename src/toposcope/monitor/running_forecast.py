"""Forecasts the final loss of a run in training from its log and those of complete runs next to it."""

import math
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.advice import decide
from toposcope.forecasting.decision.decision import reasons
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.scaling.points import points_of
from toposcope.forecasting.siblings import CompleteRuns, siblings_among, without_itself
from toposcope.logs import Log, Logs, LogTable, read_logs
from toposcope.logs.anomalies import Divergence, divergence
from toposcope.logs.cleaning import clean_log
from toposcope.logs.formats import study
from toposcope.logs.raw import RawLog
from toposcope.monitor import tuning
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import DIVERGED, Alert, Forecasted
from toposcope.monitor.recording import RunInfo

FORECAST = "forecast"  # name of the forecast in the budget
MAX_STORED_ROWS = 4096  # rows of the log in memory; beyond that, neighbouring rows are merged
MIN_LOST_ROWS = 10  # losses at the end of a log that are NaN or infinite in a run that diverged; fewer may be overflows


class RunningForecast:
    """Forecasts one run in training from what it logs; used from one thread."""

    def __init__(self, run: RunInfo, clock: Callable[[], float] = monotonic) -> None:
        self._run, self._clock = run, clock
        self._siblings = SiblingLogs(run.directory, clock)
        self._log = ShortLog()
        self._next_step, self._next_time = 0.0, -math.inf
        self._next_lost = MIN_LOST_ROWS  # rows at which the lost ones are looked at again
        self.diverged: Divergence | None = None
        self.seconds = 0.0  # that the last forecast took
        self.refusal = ""  # why there is no last forecast

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add what was logged at a step, under stored names."""
        self._log.add(step, values)

    def update(self, budget: Budget, *, final: bool = False) -> Sequence[Forecasted | Alert]:
        """Return a forecast if it is due and affordable, or an alert if the run diverged.

        A final one is made whatever it costs.
        """
        budget.expect(FORECAST, "", tuning.FIRST_FORECAST_SECONDS)
        log = self._log
        if log.n_lost:  # there is nothing to forecast
            if not final and log.n_lost < self._next_lost:
                return ()
            self._next_lost = 2 * log.n_lost
            return self._alert(log.divergence())
        if self._next_lost > MIN_LOST_ROWS:  # the loss has recovered
            self._next_lost, self.diverged = MIN_LOST_ROWS, None
        if not log.steps or not self.due(log.steps[-1], log.n_added):
            return ()
        if not final and not budget.affords(FORECAST, [""]):
            return ()
        made = self.make(log.table())
        budget.charge(FORECAST, "", self.seconds)
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

    def due(self, step: int, n_rows: int) -> bool:
        """Return whether the log has grown enough for another forecast, and enough time has passed."""
        seen = self._run.last_step is None or step >= tuning.MIN_SHARE_SEEN * self._run.last_step
        return (
            n_rows >= tuning.MIN_FORECAST_ROWS and seen and step >= self._next_step and self._clock() >= self._next_time
        )

    def make(self, table: LogTable) -> Forecasted | Divergence | None:
        """Return a forecast from the log so far, or how the run diverged; None if the run is complete or unsuitable."""
        begin, diverged = self._clock(), None
        try:
            log = thinned(self._cleaned(table), tuning.MAX_FORECAST_ROWS)
            diverged = log.diverged
            made, self.refusal = self._made(log, int(table.steps[-1]))
            return made or diverged
        except ToposcopeError as error:
            self.refusal = str(error)
            return diverged
        finally:
            now = self._clock()
            self.seconds = now - begin
            self._next_time = now + self.seconds / tuning.MAX_FORECAST_SHARE
            if len(table.steps):
                self._next_step = tuning.MIN_STEP_GROWTH * float(table.steps[-1])

    def _made(self, log: Log, step: int) -> tuple[Forecasted | None, str]:
        """Return a forecast, or why there is none."""
        if log.unit != "nats":
            return None, f"the loss is in {log.unit}"
        report = forecast(log, siblings=self._complete_siblings(log), last_step=self._run.last_step)
        if report.default is None:
            return None, str(log.diverged or "the run is complete")
        last_step = report.schedule.last_step
        advice = self._advice(log, last_step, [run.log for run in report.siblings])
        return Forecasted(step, last_step, report.loss, *report.interval, advice), ""

    def _cleaned(self, table: LogTable) -> Log:
        run = self._run
        known = {
            "max_steps": run.last_step,
            "n_parameters": run.n_parameters,
            "tokens_per_step": run.tokens_per_step,
        }
        facts: dict[str, object] = {name: value for name, value in known.items() if value}
        return clean_log(RawLog(run.directory, run.name, table.frame(), facts), {})

    def _complete_siblings(self, log: Log) -> CompleteRuns | None:
        logs = self._siblings.logs(tuning.MAX_READING_SECONDS)
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
        if not (log.parameters > 0 and tokens_left > 0 and len(siblings) >= tuning.MIN_POINTS):
            return ""
        try:
            points = points_of(siblings)
            advice = decide(points, extra=6 * log.parameters * tokens_left, log=log, resamples=tuning.RESAMPLES)
        except ToposcopeError:
            return ""
        return reasons(advice.decision)[0] if advice.decision is not None else ""


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


class SiblingLogs:
    """Logs of complete runs in sibling folders, cached until the folder changes."""

    def __init__(self, directory: Path, clock: Callable[[], float] = monotonic) -> None:
        self._directory = Path(os.path.abspath(directory))  # noqa: PTH100 - Path.resolve follows links
        self._clock = clock
        self._known: dict[Path, tuple[object, tuple[Log, ...]]] = {}

    def logs(self, max_seconds: float) -> Logs:
        """Return the logs; folders that cannot be read within `max_seconds` are left for the next call."""
        deadline = self._clock() + max_seconds
        found: list[Log] = []
        for folder in self._folders():
            version = _version(folder)
            if folder not in self._known or self._known[folder][0] != version:
                if self._clock() >= deadline:
                    continue
                self._known[folder] = version, _complete_logs(folder)
            found += self._known[folder][1]
        return Logs(tuple(found), ())

    def _folders(self) -> list[Path]:
        """Return the sibling folders, most recent first."""
        try:
            paths = [p for p in self._directory.parent.iterdir() if not p.name.startswith(".") and p.is_dir()]
            dated = sorted(((p.stat().st_mtime, p) for p in paths if p != self._directory), reverse=True)
        except OSError:
            return []  # the forecast then does without siblings
        return [path for _, path in dated[: tuning.MAX_SIBLINGS]]


def _version(folder: Path) -> object:
    """Return a fingerprint of a folder that changes when one of its logs does."""
    try:
        with os.scandir(folder) as entries:
            # reading a database modifies these files next to it
            files = [entry for entry in entries if entry.is_file() and not entry.name.endswith(("-shm", "-wal"))]
        return sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in files)
    except OSError:
        return None


def _complete_logs(folder: Path) -> tuple[Log, ...]:
    """Return the logs in a folder, those of complete runs only if it is a study; none if it has no readable log."""
    try:
        complete = _complete_runs(folder / "study.db") if study.claims(folder) else None
        if complete == set():
            return ()
        logs = read_logs(folder).logs
    except (ToposcopeError, OSError, sqlite3.Error):
        return ()
    if complete is not None:
        # the log of a single run is named after its folder
        logs = tuple(log for log in logs if log.name in complete or len(logs) == 1)
    return tuple(replace(thinned(log, tuning.MAX_SIBLING_ROWS), name=f"{folder.name}/{log.name}") for log in logs)


def _complete_runs(database: Path) -> set[str]:
    with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=1)) as store:
        return {run for (run,) in store.execute("SELECT run FROM runs WHERE status = 'complete'")}


def thinned(log: Log, max_rows: int) -> Log:
    """Return a log of at most `max_rows` rows: the loss is averaged over blocks of neighbouring rows."""
    n_block = -(-len(log.steps) // max_rows)
    if n_block == 1:
        return log
    # an incomplete block is dropped at the start, so that the last row stays the end of the log
    starts = np.arange(len(log.steps) % n_block, len(log.steps), n_block)
    ends = starts + n_block - 1
    return replace(
        log,
        steps=log.steps[ends],
        loss=np.add.reduceat(log.loss[starts[0] :], starts - starts[0]) / n_block,
        learning_rate=log.learning_rate[ends],
        norms={name: values[ends] for name, values in log.norms.items()},
        table=None,
    )
