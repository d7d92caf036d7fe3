"""How each run stands: its last step and loss, where it will end, what is wrong, what the monitor costs."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toposcope.report.live import database as db

RECENT, RECENT_SHARE = 100, 0.05
"""The loss that is named is the mean of so many logged steps, or of the last twentieth of the run if that is less."""
MAX_SKIPPED = 3
"""Sentences on what was left out."""


@dataclass(frozen=True)
class Status:
    """How a run stands.

    Attributes
    ----------
    name, status, kind : str
    step, last_step : int, optional
        Last logged or measured step, and the planned last one.
    loss : float, optional
        Mean of the last logged steps.
    is_finite : bool
        Whether the last logged loss is a number.
    forecast : mapping, optional
        The last one: ``step``, ``last_step``, ``loss``, ``low``, ``high``, ``advice``.
    alerts : list of mapping
        The last ones: ``step``, ``since``, ``check``, ``place``, ``message``; newest first.
    n_alerts, n_measured : int
    cost : float, optional
        Seconds of the monitor for each second of training.
    budget : float, optional
    n_skipped : int
        Measurements that the monitor left out to stay within its budget.
    skipped : list of str
        What it left out at its last measurement, a sentence each.
    written : float
        When something was stored last, in seconds since 1970.
    """

    name: str
    status: str
    kind: str
    step: int | None
    last_step: int | None
    loss: float | None
    is_finite: bool
    forecast: Mapping[str, Any] | None
    alerts: list[dict[str, Any]]
    n_alerts: int
    n_measured: int
    cost: float | None
    budget: float | None
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)
    written: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the status as JSON holds it."""
        return asdict(self)


def status_of(c: sqlite3.Connection, row: db.RunRow, shown: str, written: float) -> Status:
    """Return how a run stands; facts that an older or another writer does not store are left out."""
    recent = c.execute(
        "SELECT step, loss FROM log WHERE run = ? ORDER BY step DESC LIMIT ?", (row.run, RECENT)
    ).fetchall()
    first = recent[0][0] * (1 - RECENT_SHARE) if recent else 0
    losses = [loss for step, loss in recent if loss is not None and step >= first]
    finite = [loss for loss in losses if math.isfinite(loss)]
    measured = c.execute("SELECT MAX(step), COUNT(*) FROM checkpoints WHERE run = ?", (row.run,)).fetchone()
    steps = [step for step in (recent[0][0] if recent else None, measured[0]) if step is not None]
    forecast = _forecast(c, row.run)
    alerts, n_alerts = _alerts(c, row.run)
    monitor = db.meta(c, f"monitor {row.run}")
    return Status(
        name=shown,
        status=row.status,
        kind=row.kind,
        step=max(steps, default=None),
        last_step=_number(monitor.get("last_step"), int) or (forecast and forecast["last_step"]) or row.last_step,
        loss=sum(finite) / len(finite) if finite else None,
        is_finite=not losses or math.isfinite(losses[0]),
        forecast=forecast,
        alerts=alerts,
        n_alerts=n_alerts,
        n_measured=measured[1],
        cost=_share(monitor.get("cost_seconds"), monitor.get("trained_seconds")),
        budget=_number(monitor.get("budget"), float),
        n_skipped=_count(monitor.get("skipped")),
        skipped=_sentences(monitor.get("last_skipped")),
        written=written,
    )


def forecasts(c: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    """Return the forecasts of a run's final loss in the order they were made."""
    names = ("step", "last_step", "loss", "low", "high", "advice")
    if not db.has_table(c, "forecasts"):
        return []
    query = f"SELECT {', '.join(names)} FROM forecasts WHERE run = ? ORDER BY step"
    return [dict(zip(names, row, strict=True)) for row in c.execute(query, (run,))]


def _forecast(c: sqlite3.Connection, run: str) -> dict[str, Any] | None:
    made = [each for each in forecasts(c, run) if all(map(math.isfinite, (each["loss"], each["low"], each["high"])))]
    return made[-1] if made else None


def _alerts(c: sqlite3.Connection, run: str) -> tuple[list[dict[str, Any]], int]:
    if not db.has_table(c, "alerts"):
        return [], 0
    names = ("step", "since", "check", "place", "message")
    rows = c.execute(
        "SELECT step, since, check_name, place, message FROM alerts WHERE run = ? ORDER BY position DESC LIMIT ?",
        (run, db.MAX_ALERTS),
    )
    alerts = [dict(zip(names, row, strict=True)) for row in rows]
    (n,) = c.execute("SELECT COUNT(*) FROM alerts WHERE run = ?", (run,)).fetchone()
    return alerts, int(n)


def _share(part: Any, whole: Any) -> float | None:
    part, whole = _number(part, float), _number(whole, float)
    return part / whole if part is not None and whole else None


def _number(value: Any, kind: type[int] | type[float]) -> Any:
    """Return a number that another process stored; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return kind(value)


def _count(value: Any) -> int:
    """Return the sum of counts by probe."""
    return sum(_number(n, int) or 0 for n in value.values()) if isinstance(value, Mapping) else 0


def _sentences(value: Any) -> list[str]:
    return [str(each) for each in value][:MAX_SKIPPED] if isinstance(value, list) else []


def forecast_rows(statuses: Sequence[Status]) -> list[dict[str, Any]]:
    """Return rows of the chart of the loss: where runs in training end by their last forecast."""
    return [
        {"run": s.name, "step": s.forecast["last_step"], "value": None, "forecast": s.forecast["loss"],
         "low": s.forecast["low"], "high": s.forecast["high"]}
        for s in statuses
        if s.forecast is not None and s.status == "running"
    ]  # fmt: skip
