"""Reads the status of each run: last step and loss, its forecast, alerts, cost of the monitor."""

import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toposcope.analysis.health.check import DIVERGED, FAILED, FINISHED, Health
from toposcope.logs.watched import MONITORED, monitor_facts

if TYPE_CHECKING:
    from toposcope.logs import Run
    from toposcope.logs.watched import Watched

MAX_LOSS_ROWS, MAX_LOSS_SHARE = 100, 0.05
"""The reported loss is the mean of this many logged steps, or of this share of the run if that is less."""
MAX_SKIPPED = 20  # messages on skipped measurements that are shown
TRAINING = "running"  # status of a run in training, as its writer stores it
LOGGED = "log"  # kind of the runs that nobody monitors
MAX_ALERTS = 50
TRAINING_LOSS, VALIDATION_LOSS = "training loss", "validation loss"


@dataclass(frozen=True)
class RunRow:
    """A row of the table ``runs``."""

    run: str
    kind: str
    status: str
    last_step: int | None


@dataclass(frozen=True)
class Status:
    """Status of a run."""

    name: str
    health: Health
    kind: str = MONITORED
    status: str = TRAINING
    step: int | None = None  # the last one
    last_step: int | None = None  # the planned one
    axis: str = "step"  # what both count
    unit: str = "nats"  # of losses
    loss: float | None = None  # mean of the last logged training losses; NaN if the last one is
    validation: float | None = None  # the last validation loss
    best: tuple[int, float] | None = None  # step and value of the lowest one
    alerts: Sequence[Mapping[str, Any]] = ()  # newest first: ``step``, ``since``, ``check``, ``place``, ``message``
    n_alerts: int = 0
    # the last one of a run in training: ``step``, ``last_step``, ``loss``, ``low``, ``high``, ``advice``, ``target``
    forecast: Mapping[str, Any] | None = None
    borrowed: str = ""  # what it took from siblings, a clause
    no_forecast: str = ""  # why there is no forecast, in sentences
    seconds_left: float | None = None  # of training, when the monitor last wrote
    n_measured: int = 0
    cost: float | None = None  # seconds that the monitor took per second of training
    budget: float | None = None
    n_skipped: int = 0  # measurements that the monitor skipped
    # measurements that it skipped at the last measured step, with reasons
    skipped: Sequence[str] = ()
    validated: int | None = None  # step of the last validation loss
    updated: float | None = None  # time at which its writer last wrote, in seconds since 1970
    written: float = 0.0  # the same of the file
    cool_down: str = ""  # where a cool-down started now would end, as it was measured
    to_measure: tuple[str, str] = ("", "")  # else how to measure it: a sentence, and a command

    @property
    def is_training(self) -> bool:
        """Whether the run goes on."""
        return goes_on(self.status, self.health)

    @property
    def target(self) -> str:
        """The loss that is reported: that which is forecast, else of validation if there is one."""
        if self.forecast is not None and self.forecast["target"]:
            return str(self.forecast["target"])
        return VALIDATION_LOSS if self.validation is not None else TRAINING_LOSS

    @property
    def loss_name(self) -> str:
        """The loss whose last value is reported: `target`, if it was logged."""
        return VALIDATION_LOSS if self.target != TRAINING_LOSS and self.validation is not None else TRAINING_LOSS

    @property
    def last_loss(self) -> float | None:
        """The last value of that loss; of the training loss it is a mean."""
        return self.loss_of(self.loss_name)

    def loss_of(self, kind: str) -> float | None:
        """Return the last value of one kind of loss; None if it was not logged."""
        return self.loss if kind == TRAINING_LOSS else self.validation

    def end_of(self, kind: str) -> float | None:
        """Return where one kind of loss ends, by the forecast, else its last value."""
        if self.forecast is not None and self.target == kind:
            return float(self.forecast["loss"])
        return self.loss_of(kind)


def goes_on(status: str, health: Health) -> bool:
    """Return whether a run is in training, as its writer says and its log shows."""
    return status == TRAINING and health.word not in (FINISHED, DIVERGED, FAILED)


def in_sweep(run: "Run", health: Health, watched: "Watched | None", last_step: int | None) -> "tuple[Run, bool]":
    """Return a run, of a given length if its log states none, and whether it goes on.

    That is where it has not ended and is not silent; that it diverged, or whatever else is said of it, does not count.
    """
    from toposcope.analysis.health.monitored import silent_at  # with NumPy, after the server has started

    has_ended = run.is_complete or health.word in (FINISHED, FAILED)
    has_ended |= watched is not None and watched.status != TRAINING
    if run.last_step is None and last_step is not None:
        run = replace(run, last_step=last_step)
        has_ended |= run.is_complete and run.last_seen <= last_step
    return run, not has_ended and time.time() < silent_at(replace(run, watched=watched))


def ended_at(run: "Run | None", health: Health) -> float | None:
    """Return the final training loss of a run that finished, as its forecast says it; None of any other."""
    from toposcope.logs.run import final_training_loss

    training = run.training if run is not None and health.word == FINISHED else None
    return None if training is None else final_training_loss(training.steps, training.values)[0]


def recent_loss(recent: Sequence[tuple[int, float | None]]) -> float | None:
    """Return the mean of the last logged losses, newest first; NaN if the last one is, None if none was logged."""
    first = recent[0][0] * (1 - MAX_LOSS_SHARE) if recent else 0
    losses = [loss for step, loss in recent[:MAX_LOSS_ROWS] if step >= first and loss is not None]
    finite = [loss for loss in losses if math.isfinite(loss)]
    return (sum(finite) / len(finite) if math.isfinite(losses[0]) else math.nan) if losses else None


def status_of(
    c: sqlite3.Connection, row: RunRow, shown: str, written: float, health: Health, ended: float | None
) -> Status:
    """Return the status of a run in a store; facts that its writer did not store are missing.

    Of a run that finished, its final training loss is given.
    """
    recent = c.execute(
        "SELECT step, CASE WHEN loss IS NULL AND EXISTS (SELECT 1 FROM log_nan n WHERE "
        "(n.run, n.step, n.name) = (l.run, l.step, 'loss')) THEN 'nan' ELSE loss END "
        "FROM log l WHERE run = ? ORDER BY step DESC LIMIT ?",
        (row.run, MAX_LOSS_ROWS),
    ).fetchall()
    (last_measured, n_measured) = c.execute(
        "SELECT MAX(step), COUNT(*) FROM checkpoints WHERE run = ?", (row.run,)
    ).fetchone()
    step = max((step for step in (recent[0][0] if recent else None, last_measured) if step is not None), default=None)
    validated = (
        "SELECT step, validation_loss FROM log WHERE run = ? AND validation_loss IS NOT NULL ORDER BY {} LIMIT 1"
    )
    last, best = (c.execute(validated.format(by), (row.run,)).fetchone() for by in ("step DESC", "validation_loss"))
    alerts, n_alerts = _alerts(c, row.run)
    monitor = monitor_facts(c, row.run)
    forecast = _forecast(c, row.run)
    last_step = _number(monitor.get("last_step"), int) or (forecast and forecast["last_step"]) or row.last_step
    return Status(
        name=shown,
        health=health,
        kind=row.kind,
        status=row.status,
        step=step,
        last_step=last_step,
        axis=str(monitor.get("axis") or "step"),
        unit=str(monitor.get("unit") or "nats"),
        loss=recent_loss([(at, None if loss is None else float(loss)) for at, loss in recent])
        if ended is None
        else ended,
        validation=last and last[1],
        validated=last and last[0],
        best=best,
        alerts=alerts,
        n_alerts=n_alerts,
        forecast=forecast if goes_on(row.status, health) else None,
        borrowed=str(monitor.get("borrowed") or ""),
        no_forecast=str(monitor.get("no_forecast") or ""),
        seconds_left=_seconds_left(monitor, step, last_step),
        n_measured=n_measured,
        cost=_share(monitor.get("cost_seconds"), monitor.get("trained_seconds")),
        budget=_number(monitor.get("budget"), float),
        n_skipped=_count(monitor.get("skipped")),
        skipped=_sentences(monitor.get("last_skipped")),
        updated=_number(monitor.get("updated"), float),
        written=written,
    )


def _forecast(c: sqlite3.Connection, run: str) -> dict[str, Any] | None:
    """Return the last forecast of a run's final loss whose numbers are finite."""
    names = ("step", "last_step", "loss", "low", "high", "advice", "target")
    finite = " AND ".join(f"ABS({name}) < 9e999" for name in ("loss", "low", "high"))
    query = f"SELECT {', '.join(names)} FROM forecasts WHERE run = ? AND {finite} ORDER BY step DESC LIMIT 1"
    row = c.execute(query, (run,)).fetchone()
    return dict(zip(names, row, strict=True)) if row else None


def _alerts(c: sqlite3.Connection, run: str) -> tuple[list[dict[str, Any]], int]:
    names = ("step", "since", "check", "place", "message")
    rows = c.execute(
        "SELECT step, since, check_name, place, message FROM alerts WHERE run = ? ORDER BY seq DESC LIMIT ?",
        (run, MAX_ALERTS),
    )
    alerts = [dict(zip(names, row, strict=True)) for row in rows]
    (n,) = c.execute("SELECT COUNT(*) FROM alerts WHERE run = ?", (run,)).fetchone()
    return alerts, int(n)


def _seconds_left(monitor: Mapping[str, Any], step: int | None, last_step: int | None) -> float | None:
    """Return the time that a run still needs, as its writer says or by the time of a step."""
    if (left := _number(monitor.get("seconds_left"), float)) is not None:
        return float(left)
    step_seconds = _number(monitor.get("step_seconds"), float)
    if not step_seconds or not last_step or step is None:
        return None
    return float(step_seconds * max(0, last_step - step))


def _share(part: Any, whole: Any) -> float | None:
    part, whole = _number(part, float), _number(whole, float)
    return max(0.0, part) / whole if part is not None and whole else None


def _number(value: Any, kind: type[int] | type[float]) -> Any:
    """Return a finite number as int or float; None for anything else that was stored."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return kind(value)


def _count(value: Any) -> int:
    """Return the sum of counts by probe."""
    return sum(_number(n, int) or 0 for n in value.values()) if isinstance(value, Mapping) else 0


def _sentences(value: Any) -> list[str]:
    return [str(each) for each in value][:MAX_SKIPPED] if isinstance(value, list) else []
