"""A log that nobody monitors, kept as a monitor would have stored it: rows, forecasts, and how the run is."""

import json
import math
import shlex
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from toposcope.analysis.health import Health, health
from toposcope.analysis.health.check import DIVERGED, FINISHED
from toposcope.analysis.health.monitored import silent_at
from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.headline import kind_of
from toposcope.forecasting.siblings import siblings_nearby, without_itself
from toposcope.logs import LogTable, Run
from toposcope.logs.schedules.schedule import UnknownEndError, planned
from toposcope.logs.watched import Watched
from toposcope.monitor import tuning
from toposcope.monitor.events import Forecasted
from toposcope.monitor.recording import put_event
from toposcope.monitor.sibling_logs import thinned
from toposcope.study.store import Store

KIND = "log"
STATUS = {FINISHED: "complete", DIVERGED: "diverged"}
COMPARED = ("loss", "learning_rate", "grad_norm", "weight_norm")  # columns by which a log is known to be continued
FORECAST_SHARE = 0.01  # of the planned steps, by which the log grows from one stored forecast to the next
MAX_FORECAST_ROWS = 1000  # of a log; a longer one is averaged over blocks: 0.1 s in place of 6 s for 100,000 rows
MIN_SEEN = 0.05  # of the planned steps, before which an interval holds nearly everything
N_TIMES = 32  # writes by which the time of a step is known
SILENT_SECONDS = 60.0  # after which it is said anew how long nothing was written


@dataclass
class MirroredRun:
    """One run: the log as it was last read, and what was noticed so far."""

    log: Run
    path: Path
    times: "deque[tuple[float, int]]" = field(default_factory=lambda: deque(maxlen=N_TIMES))  # of writes, and steps
    health: Health | None = None
    judge_at: float = 0.0  # time from which on the run may be silent
    forecast_at: int = -1  # step of the last stored forecast
    last_step: int | None = None  # that is planned
    no_forecast: str = ""
    borrowed: str = ""  # what the last forecast took from siblings, a clause

    def read(self, log: Run, written: float) -> bool:
        """Take the log as it is now; return whether it is another one: rows that were stored have changed."""
        is_other = not _is_continued(self.log.table, log.table)
        if is_other:
            self.forecast_at = -1
            self.times.clear()
        if not self.times or log.last_seen > self.times[-1][1]:
            self.times.append((written, log.last_seen))
        self.log, self.last_step = log, log.last_step
        if log.diverged is None:
            with suppress(ToposcopeError):  # the forecast says why there is none
                self.last_step = planned(log).last_step
        return is_other

    def judge(self, written: float) -> Health:
        """Return the health of the run with the plan that its own log gives."""
        now, watched = time.time(), Watched(updated=written, step_seconds=self.step_seconds())
        run = replace(self.log, last_step=self.last_step, watched=watched)
        self.health, self.judge_at = health(run, now), max(silent_at(run), now + SILENT_SECONDS)
        return self.health

    def step_seconds(self) -> float | None:
        """Return the usual time of a step between the writes that were seen; None before there are two."""
        rates = [(b - a) / (last - first) for (a, first), (b, last) in pairwise(self.times) if b > a]
        return median(rates) if rates else None

    def forecast(self, siblings: Sequence[Run]) -> Forecasted | None:
        """Return a forecast where the log has grown enough since the last; remember why there is none."""
        log = self.log
        assert self.health is not None
        if self.health.word in STATUS or not self._forecast_is_due():
            return None
        self.no_forecast = self.borrowed = ""
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
        last_step = report.schedule.last_step
        if log.last_seen < MIN_SEEN * last_step:
            self.no_forecast = f"No forecast yet: the first comes when {MIN_SEEN:.0%} of the run is logged."
            return None
        if report.default is None:
            self.no_forecast = f"No forecast: by the plan of other runs it ended at step {last_step:,}."
            return None
        if log.unit != "nats":
            self.no_forecast = f"No forecast here: the loss is in {log.unit}. See `toposcope forecast {self.path}`."
            return None
        self.forecast_at, self.borrowed = log.last_seen, report.borrowed
        return Forecasted(log.last_seen, last_step, report.loss, *report.interval, target=f"{kind_of(log)} loss")

    def _forecast_is_due(self) -> bool:
        """Return whether there is none, the log has grown, or it may have come to its end."""
        every = FORECAST_SHARE * (self.last_step or 0)
        is_near_end = self.last_step is not None and self.log.last_seen > self.last_step - every
        return is_near_end or self.forecast_at < 0 or self.log.last_seen >= self.forecast_at + every


def _is_continued(old: LogTable | None, new: LogTable | None) -> bool:
    """Return whether a table begins with the rows of another, but for the last one, which may have grown."""
    assert old is not None
    assert new is not None
    n = len(old.steps) - 1
    return np.array_equal(old.steps[:n], new.steps[:n]) and all(
        np.array_equal(old.values[name][:n], new.values[name][:n], equal_nan=True) for name in COMPARED
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
            run = self.runs.setdefault(log.name, MirroredRun(log, self.path))
            size = int(log.parameters) if math.isfinite(log.parameters) else None
            self._store.put_run(log.name, position, KIND, size, str(self.path))
            if run.read(log, written):
                self._store.cut(log.name, -1)
            self._put_health(run)
            self._store.put_log(log.name, log.table)
            if (made := run.forecast(siblings)) is not None:
                put_event(self._store, log.name, made)
            self._put_status(run)

    def judge(self) -> None:
        """Judge again the runs that may have fallen silent."""
        for run in self.runs.values():
            if time.time() > run.judge_at:
                self._put_health(run)

    def _put_health(self, run: MirroredRun) -> None:
        text = json.dumps(run.judge(self.written).to_dict())
        if self._store.meta(f"health {run.log.name}") != text:
            self._store.set_meta(f"health {run.log.name}", text)

    def _put_status(self, run: MirroredRun) -> None:
        name = run.log.name
        assert run.health is not None
        status = STATUS.get(run.health.word)
        self._store.set_status(name, status or "running", run.log.last_seen if status else None)
        facts = {
            "last_step": run.last_step,
            "no_forecast": run.no_forecast,
            "borrowed": run.borrowed,
            "axis": run.log.axis,
            "unit": run.log.unit,
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
