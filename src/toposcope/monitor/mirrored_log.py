"""A log that nobody monitors, kept as a monitor would have stored it: rows, alerts, forecasts, and how the run is."""

import json
import math
import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.headline import kind_of
from toposcope.forecasting.siblings import siblings_nearby, without_itself
from toposcope.logs import LogTable, Run
from toposcope.logs.schedules.schedule import UnknownEndError
from toposcope.monitor import tuning
from toposcope.monitor.alerts import Alerts
from toposcope.monitor.events import DIVERGED, Alert, Forecasted, Logged
from toposcope.monitor.recording import put_event
from toposcope.monitor.sibling_logs import thinned
from toposcope.study.store import Store

KIND = "log"
RUNNING, COMPLETE = "running", "complete"
WATCHED = ("loss", "learning_rate", "grad_norm", "weight_norm")  # columns of a log that alerts are raised on
FORECAST_SHARE = 0.01  # of the planned steps, by which the log grows from one stored forecast to the next
MAX_FORECAST_ROWS = 1000  # of a log; a longer one is averaged over blocks: 0.1 s in place of 6 s for 100,000 rows
MIN_SEEN = 0.05  # of the planned steps, before which an interval holds nearly everything
N_TIMES = 32  # writes by which the time of a step is known


@dataclass
class MirroredRun:
    """One run: the log as it was last read, and what was noticed so far."""

    log: Run
    path: Path
    alerts: Alerts
    n_checked: int = 0  # rows that alerts were raised on
    times: "deque[tuple[float, int]]" = field(default_factory=lambda: deque(maxlen=N_TIMES))  # of writes, and steps
    forecast_at: int = -1  # step of the last stored forecast
    last_step: int | None = None
    no_forecast: str = ""
    is_complete: bool = False
    has_diverged: bool = False  # whether an alert says so

    def read(self, log: Run, written: float) -> bool:
        """Take the log as it is now; return whether it is another one: rows that were looked at have changed."""
        is_other = not _is_continued(self.log.table, log.table, self.n_checked)
        if is_other:
            self.alerts, self.n_checked, self.forecast_at = Alerts(log.last_step), 0, -1
            self.has_diverged = False
            self.times.clear()
        if not self.times or log.last_seen > self.times[-1][1]:
            self.times.append((written, log.last_seen))
            self.is_complete = False
        self.log = log
        return is_other

    def step_seconds(self) -> float | None:
        """Return the usual time of a step between the writes that were seen; None before there are two."""
        rates = [(b - a) / (last - first) for (a, first), (b, last) in pairwise(self.times) if b > a]
        return median(rates) if rates else None

    def status(self) -> str:
        """Return how the run is, by what the log says; how long nothing was written is for the reader to see."""
        if self.is_complete:
            return COMPLETE
        return DIVERGED if self.log.diverged is not None and self.log.finished else RUNNING

    def new_alerts(self, *, is_over: bool) -> list[Alert]:
        """Return the alerts of rows that were not looked at; the last row of a run in training may still grow."""
        table = self.log.table
        assert table is not None
        columns = {name: table.values[name] for name in (*WATCHED, *table.further_targets)}
        nan = {name: set(steps.tolist()) for name, steps in table.nan_steps.items()}
        alerts: list[Alert] = []
        until = len(table.steps) if is_over else len(table.steps) - 1
        for row in range(self.n_checked, until):
            step = int(table.steps[row])
            values = {
                name: float(column[row])
                for name, column in columns.items()
                if not math.isnan(column[row]) or step in nan.get(name, ())
            }
            alerts += map(self.alerts.explained, self.alerts.logged(Logged(step, values)))
        self.n_checked = max(self.n_checked, until)
        return alerts

    def forecast(self, siblings: Sequence[Run]) -> Forecasted | None:
        """Return a forecast where the log has grown enough since the last; remember why there is none."""
        log = self.log
        if self.is_complete or not self._forecast_is_due():
            return None
        self.no_forecast, self.last_step = "", log.last_step
        if log.diverged is not None:
            return None
        try:
            others = without_itself(log, siblings_nearby(log, siblings))
            report = forecast(thinned(log, MAX_FORECAST_ROWS), siblings=others)
        except UnknownEndError:
            self.no_forecast = (
                "No forecast: the number of planned steps is unknown. "
                f"`toposcope forecast {shlex.quote(str(self.path))} --steps N` makes one."
            )
            return None
        except ToposcopeError as error:
            self.no_forecast = f"No forecast: {str(error).removeprefix(f'{log.name}: ').rstrip('.')}."
            return None
        self.last_step = report.schedule.last_step
        if log.last_seen < MIN_SEEN * self.last_step:
            self.no_forecast = f"No forecast yet: the first comes when {MIN_SEEN:.0%} of the run is logged."
            return None
        self.is_complete = report.default is None
        if report.default is None:
            return None
        if log.unit != "nats":
            self.no_forecast = f"No forecast here: the loss is in {log.unit}. See `toposcope forecast {self.path}`."
            return None
        self.forecast_at = log.last_seen
        return Forecasted(log.last_seen, self.last_step, report.loss, *report.interval, target=f"{kind_of(log)} loss")

    def _forecast_is_due(self) -> bool:
        """Return whether there is none, the log has grown, or it may have come to its end."""
        every = FORECAST_SHARE * (self.last_step or 0)
        is_near_end = self.last_step is not None and self.log.last_seen > self.last_step - every
        return (
            is_near_end or self.log.finished or self.forecast_at < 0 or self.log.last_seen >= self.forecast_at + every
        )


def _is_continued(old: LogTable | None, new: LogTable | None, n: int) -> bool:
    """Return whether the first `n` rows of two tables are the same, by what alerts are raised on."""
    assert old is not None
    assert new is not None
    return np.array_equal(old.steps[:n], new.steps[:n]) and all(
        np.array_equal(old.values[name][:n], new.values[name][:n], equal_nan=True) for name in WATCHED
    )


class MirroredLog:
    """The runs of one log, in a database of their own."""

    def __init__(self, folder: Path, path: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, path
        self.written = 0.0
        self.runs: dict[str, MirroredRun] = {}
        self._store = Store(folder / "study.db")

    def update(self, logs: Sequence[Run], written: float, siblings: Sequence[Run]) -> None:
        """Store the log as it is now."""
        self.written = written
        for position, log in enumerate(logs):
            run = self.runs.setdefault(log.name, MirroredRun(log, self.path, Alerts(log.last_step)))
            size = int(log.parameters) if math.isfinite(log.parameters) else None
            self._store.put_run(log.name, position, KIND, size, str(self.path))
            if run.read(log, written):
                self._store.cut(log.name, -1)
            self._store.put_log(log.name, log.table)
            self._notice(run, siblings)
            self._put_status(run)

    def _notice(self, run: MirroredRun, siblings: Sequence[Run]) -> None:
        """Store the forecast and the alerts of what is new."""
        made = run.forecast(siblings)
        alerts = run.new_alerts(is_over=run.is_complete or run.log.finished or run.log.diverged is not None)
        alerts += run.alerts.check(made) if made is not None else []
        diverged = run.log.diverged
        if diverged is not None and not run.has_diverged:
            run.has_diverged = True
            message = f"diverged at step {diverged.step:,}: {diverged.reason}."
            alerts.append(run.alerts.explained(Alert(DIVERGED, diverged.step, diverged.step, "loss", message)))
        events: list[Alert | Forecasted] = [made, *alerts] if made is not None else [*alerts]
        for event in events:
            put_event(self._store, run.log.name, event)

    def _put_status(self, run: MirroredRun) -> None:
        name, status = run.log.name, run.status()
        self._store.set_status(name, status, None if status == RUNNING else run.log.last_seen)
        facts = {
            "last_step": run.last_step,
            "diverged": None if run.log.diverged is None else str(run.log.diverged),
            "forecast_target": f"{kind_of(run.log)} loss",
            "no_forecast": run.no_forecast,
            "step_seconds": run.step_seconds(),
            "updated": round(self.written, 1),
        }
        if self._store.meta(f"monitor {name}") != (text := json.dumps(facts)):
            self._store.set_meta(f"monitor {name}", text)

    def complete(self) -> list[Run]:
        """Return the runs that came to their end, thinned."""
        return [thinned(run.log, tuning.MAX_SIBLING_ROWS) for run in self.runs.values() if run.log.is_complete]

    def close(self) -> None:
        """Close the database."""
        self._store.close()
