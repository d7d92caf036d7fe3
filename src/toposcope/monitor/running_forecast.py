"""Forecasts the final loss of a run in training from its log and those of complete runs beside it."""

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
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
from toposcope.logs.anomalies import Divergence
from toposcope.logs.cleaning import clean_log
from toposcope.logs.formats import study
from toposcope.logs.raw import RawLog
from toposcope.monitor.events import Forecasted

MAX_NEIGHBOURS = 32  # most recent sibling folders that are read
MAX_NEIGHBOUR_ROWS = 1500  # rows of a log; a longer log is averaged over blocks of rows


class Neighbours:
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
        return [path for _, path in dated[:MAX_NEIGHBOURS]]


def _version(folder: Path) -> object:
    """Return a fingerprint of a folder that changes when one of its logs does."""
    try:
        with os.scandir(folder) as entries:
            # reading a database modifies these files beside it
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
    return tuple(replace(thinned(log), name=f"{folder.name}/{log.name}") for log in logs)


def _complete_runs(database: Path) -> set[str]:
    with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=1)) as store:
        return {run for (run,) in store.execute("SELECT run FROM runs WHERE status = 'complete'")}


def thinned(log: Log, max_rows: int = MAX_NEIGHBOUR_ROWS) -> Log:
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


MIN_ROWS = 50  # log rows with a loss that a forecast needs
MIN_SHARE_SEEN = 0.02  # share of the planned steps that a forecast needs, if the plan is known
MIN_GROWTH = 1.1  # factor by which the step must grow from one forecast to the next
MAX_SHARE = 0.02  # share of the time that forecasts may take, if each takes as long as the last one
MAX_READING_SECONDS = 2.0  # time to read siblings' logs before each forecast
MAX_ROWS = 1000  # rows of the log that are used; a longer log is averaged over blocks of rows
MIN_POINTS = 6  # complete runs that advice on whether to continue needs
RESAMPLES = 40  # bootstrap resamples of their scaling law


class RunningForecast:
    """Forecasts one run in training; used from one thread."""

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
        known = {
            "max_steps": self._last_step,
            "n_parameters": self._parameters,
            "tokens_per_step": self._tokens_per_step,
        }
        facts: dict[str, object] = {name: value for name, value in known.items() if value is not None and value > 0}
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
