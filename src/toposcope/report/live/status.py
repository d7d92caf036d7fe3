"""Reads the status of each run: last step and loss, forecasts, alerts, cost of the monitor."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toposcope.logs.stored_nan import nan_steps
from toposcope.report.live import database as db
from toposcope.report.live.facts import TRAINING, Facts, LayerFacts
from toposcope.report.live.health import LOG_CHECKS

MAX_LOSS_ROWS, MAX_LOSS_SHARE = 100, 0.05
"""The reported loss is the mean of this many logged steps, or of this share of the run if that is less."""
MAX_SKIPPED = 20  # messages on skipped measurements that are shown
TARGETS = {"loss": "training loss", "validation_loss": "validation loss"}
"""Names of the losses of a log; any other has its own."""


@dataclass(frozen=True)
class Status:
    """Status of a run."""

    name: str
    facts: Facts = field(default_factory=Facts)
    loss: float | None = None  # mean of the last logged steps
    # the last forecast of a run in training: ``step``, ``last_step``, ``loss``, ``low``, ``high``, ``advice``
    forecast: Mapping[str, Any] | None = None
    target: str = TARGETS["loss"]  # the loss that is forecast
    no_forecast: str = ""  # why there is no forecast, in sentences
    seconds_left: float | None = None  # of training, when the monitor last wrote
    n_measured: int = 0
    cost: float | None = None  # seconds that the monitor took per second of training
    budget: float | None = None
    n_skipped: int = 0  # measurements that the monitor skipped
    # measurements that it skipped at the last measured step, with reasons
    skipped: Sequence[str] = ()
    written: float = 0.0  # time of the last write, in seconds since 1970
    cool_down: str = ""  # where a cool-down started now would end, as it was measured
    to_measure: tuple[str, str] = ("", "")  # else how to measure it: a sentence, and a command

    @property
    def loss_name(self) -> str:
        """The loss that is reported: that which is forecast, if it was logged."""
        is_training = self.target == TARGETS["loss"] or not self.facts.validation
        return TARGETS["loss" if is_training else "validation_loss"]

    @property
    def last_loss(self) -> float | None:
        """The last value of that loss; of the training loss it is a mean."""
        return self.loss if self.loss_name == TARGETS["loss"] else self.facts.validation[-1].value


def status_of(
    c: sqlite3.Connection,
    row: db.RunRow,
    shown: str,
    written: float,
    curves: Mapping[str, Sequence[db.Row]],
    layers: LayerFacts,
) -> Status:
    """Return the status of a run; facts that its writer did not store are missing."""
    recent = c.execute(
        "SELECT step, loss FROM log WHERE run = ? ORDER BY step DESC LIMIT ?", (row.run, MAX_LOSS_ROWS)
    ).fetchall()
    first = recent[0][0] * (1 - MAX_LOSS_SHARE) if recent else 0
    n_nan, lost = _lost_steps(c, row.run, any(loss is None for _, loss in recent))
    losses = [math.nan if step in lost else loss for step, loss in recent if step >= first]
    losses = [loss for loss in losses if loss is not None]
    finite = [loss for loss in losses if math.isfinite(loss)]
    (last_measured, n_measured) = c.execute(
        "SELECT MAX(step), COUNT(*) FROM checkpoints WHERE run = ?", (row.run,)
    ).fetchone()
    steps = [step for step in (recent[0][0] if recent else None, last_measured) if step is not None]
    alerts, n_alerts = _alerts(c, row.run)
    monitor = db.meta(c, f"monitor {row.run}")
    is_finite = not losses or math.isfinite(losses[0])
    diverged = str(monitor.get("diverged") or "") or ("" if is_finite else _lost(c, row, sorted(lost)))
    forecasts = _forecasts(c, row.run)
    last = forecasts[-1] if forecasts else None
    n_examined, n_faults = _examined(c, row.run)
    training = curves.get("loss", ())
    facts = Facts(
        kind=row.kind,
        status=row.status,
        step=max(steps, default=None),
        last_step=_number(monitor.get("last_step"), int) or (last and last["last_step"]) or row.last_step,
        training=training,
        validation=curves.get("validation_loss", ()),
        n_rows=sum(each.n for each in training),
        is_finite=is_finite,
        n_nan=n_nan,
        diverged=diverged,
        alerts=alerts,
        n_alerts=n_alerts,
        forecasts=forecasts,
        judged=[name for _, name, least in LOG_CHECKS.values() if db.has_more(c, row.run, name, least)],
        layers=layers,
        n_examined=n_examined,
        n_faults=n_faults,
        step_seconds=_number(monitor.get("step_seconds"), float),
        updated=_number(monitor.get("updated"), float),
    )
    target = str(monitor.get("forecast_target") or "loss")
    if facts.validation and not (forecasts and row.status == TRAINING):
        target = "validation_loss"
    return Status(
        name=shown,
        facts=facts,
        loss=sum(finite) / len(finite) if finite else None,
        forecast=last if row.status == TRAINING and not diverged else None,
        target=TARGETS.get(target, target),
        no_forecast=str(monitor.get("no_forecast") or ""),
        seconds_left=_seconds_left(monitor, facts),
        n_measured=n_measured,
        cost=_share(monitor.get("cost_seconds"), monitor.get("trained_seconds")),
        budget=_number(monitor.get("budget"), float),
        n_skipped=_count(monitor.get("skipped")),
        skipped=_sentences(monitor.get("last_skipped")),
        written=written,
    )


def _lost_steps(c: sqlite3.Connection, run: str, is_suspect: bool) -> tuple[int, set[int]]:
    """Return how many logged losses are NaN, and their steps; without reading most logs."""
    if not is_suspect:
        is_suspect = c.execute("SELECT 1 FROM log_nan WHERE run = ? LIMIT 1", (run,)).fetchone() is not None
    lost = nan_steps(c, run).get("loss", []) if is_suspect else []
    return len(lost), set(lost)


def _lost(c: sqlite3.Connection, row: db.RunRow, nan: Sequence[int]) -> str:
    """Say since when the loss is not finite; in training it may recover."""
    finite = f"loss BETWEEN -{db.MAX_VALUE} AND {db.MAX_VALUE}"
    query = f"SELECT COALESCE(MAX(step), -1) FROM log WHERE run = ? AND {finite}"
    (last,) = c.execute(query, (row.run,)).fetchone()
    infinite = c.execute("SELECT MIN(step) FROM log WHERE run = ? AND step > ? AND loss IS NOT NULL", (row.run, last))
    since = min(step for step in (*nan, *infinite.fetchone()) if step is not None and step > last)
    is_over = row.status != TRAINING
    return f"the run diverged at step {since:,}" if is_over else f"the loss is NaN or infinite since step {since:,}"


def _forecasts(c: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    """Return the forecasts of a run's final loss whose numbers are finite."""
    names = ("step", "last_step", "loss", "low", "high", "advice")
    query = f"SELECT {', '.join(names)} FROM forecasts WHERE run = ? ORDER BY step"
    rows = [dict(zip(names, row, strict=True)) for row in c.execute(query, (run,))]
    return [row for row in rows if all(math.isfinite(row[name]) for name in ("loss", "low", "high"))]


def _alerts(c: sqlite3.Connection, run: str) -> tuple[list[dict[str, Any]], int]:
    names = ("step", "since", "check", "place", "message")
    rows = c.execute(
        "SELECT step, since, check_name, place, message FROM alerts WHERE run = ? ORDER BY position DESC LIMIT ?",
        (run, db.MAX_ALERTS),
    )
    alerts = [dict(zip(names, row, strict=True)) for row in rows]
    (n,) = c.execute("SELECT COUNT(*) FROM alerts WHERE run = ?", (run,)).fetchone()
    return alerts, int(n)


def _examined(c: sqlite3.Connection, run: str) -> tuple[int, int]:
    """Return how many saved checkpoints were examined, and how many faults were found."""
    row = c.execute("SELECT value FROM meta WHERE key = ?", (f"examined {run}",)).fetchone()
    query = "SELECT COUNT(*) FROM findings WHERE run = ? AND severity = 'fault'"
    return int(row[0]) if row and row[0].isdigit() else 0, c.execute(query, (run,)).fetchone()[0]


def _seconds_left(monitor: Mapping[str, Any], facts: Facts) -> float | None:
    """Return the time that a run still needs, as its writer says or by the time of a step."""
    if (left := _number(monitor.get("seconds_left"), float)) is not None:
        return float(left)
    if not facts.step_seconds or not facts.last_step or facts.step is None:
        return None
    return facts.step_seconds * max(0, facts.last_step - facts.step)


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
