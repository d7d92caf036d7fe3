"""Reads the status of each run: last step and loss, forecast, alerts, cost of the monitor."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toposcope.logs.formats.study import nan_steps
from toposcope.report.live import database as db

MAX_LOSS_ROWS, MAX_LOSS_SHARE = 100, 0.05
"""The reported loss is the mean of this many logged steps, or of this share of the run if that is less."""
MAX_SKIPPED = 20
"""Messages on skipped measurements that are shown."""


@dataclass(frozen=True)
class Status:
    """Status of a run.

    Attributes
    ----------
    name, status, kind : str
    step, last_step : int, optional
        Last logged or measured step, and the planned last step.
    loss : float, optional
        Mean of the last logged steps.
    is_finite : bool
        Whether the last logged loss is finite.
    forecast : mapping, optional
        The last forecast: ``step``, ``last_step``, ``loss``, ``low``, ``high``, ``advice``.
    alerts : list of mapping
        The last alerts, newest first: ``step``, ``since``, ``check``, ``place``, ``message``.
    n_alerts, n_measured : int
    cost : float, optional
        Seconds that the monitor took per second of training.
    budget : float, optional
    n_skipped : int
        Measurements that the monitor skipped.
    skipped : list of str
        Measurements that it skipped at the last measured step, with reasons.
    diverged : str
        How the run diverged, or since when its loss is lost: it then has no forecast. Else empty.
    updated : float, optional
        Time at which its monitor last wrote, in seconds since 1970.
    written : float
        Time of the last write, in seconds since 1970.
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
    diverged: str = ""
    updated: float | None = None
    written: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the status as a JSON object."""
        return asdict(self)


def status_of(c: sqlite3.Connection, row: db.RunRow, shown: str, written: float) -> Status:
    """Return the status of a run; facts that its writer did not store are missing."""
    recent = c.execute(
        "SELECT step, loss FROM log WHERE run = ? ORDER BY step DESC LIMIT ?", (row.run, MAX_LOSS_ROWS)
    ).fetchall()
    first = recent[0][0] * (1 - MAX_LOSS_SHARE) if recent else 0
    lost = nan_steps(c, row.run).get("loss", []) if any(loss is None for _, loss in recent) else []
    recent = [(step, math.nan if step in lost else loss) for step, loss in recent]
    losses = [loss for step, loss in recent if loss is not None and step >= first]
    finite = [loss for loss in losses if math.isfinite(loss)]
    measured = c.execute("SELECT MAX(step), COUNT(*) FROM checkpoints WHERE run = ?", (row.run,)).fetchone()
    steps = [step for step in (recent[0][0] if recent else None, measured[0]) if step is not None]
    alerts, n_alerts = _alerts(c, row.run)
    monitor = db.meta(c, f"monitor {row.run}")
    is_finite = not losses or math.isfinite(losses[0])
    diverged = str(monitor.get("diverged") or "") or ("" if is_finite else _lost(c, row, lost))
    forecast = _forecast(c, row.run)
    return Status(
        name=shown,
        status=row.status,
        kind=row.kind,
        step=max(steps, default=None),
        last_step=_number(monitor.get("last_step"), int) or (forecast and forecast["last_step"]) or row.last_step,
        loss=sum(finite) / len(finite) if finite else None,
        is_finite=is_finite,
        diverged=diverged,
        forecast=None if diverged else forecast,
        alerts=alerts,
        n_alerts=n_alerts,
        n_measured=measured[1],
        cost=_share(monitor.get("cost_seconds"), monitor.get("trained_seconds")),
        budget=_number(monitor.get("budget"), float),
        n_skipped=_count(monitor.get("skipped")),
        skipped=_sentences(monitor.get("last_skipped")),
        updated=_number(monitor.get("updated"), float),
        written=written,
    )


def _lost(c: sqlite3.Connection, row: db.RunRow, nan: Sequence[int]) -> str:
    """Say since when the loss is not finite; in training it may recover."""
    finite = f"loss BETWEEN -{db.MAX_VALUE} AND {db.MAX_VALUE}"
    query = f"SELECT COALESCE(MAX(step), -1) FROM log WHERE run = ? AND {finite}"
    (last,) = c.execute(query, (row.run,)).fetchone()
    infinite = c.execute("SELECT MIN(step) FROM log WHERE run = ? AND step > ? AND loss IS NOT NULL", (row.run, last))
    since = min(step for step in (*nan, *infinite.fetchone()) if step is not None and step > last)
    is_over = row.status != "running"
    return f"the run diverged at step {since:,}" if is_over else f"the loss is NaN or infinite since step {since:,}"


def forecasts(c: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    """Return the forecasts of a run's final loss, in order."""
    names = ("step", "last_step", "loss", "low", "high", "advice")
    query = f"SELECT {', '.join(names)} FROM forecasts WHERE run = ? ORDER BY step"
    return [dict(zip(names, row, strict=True)) for row in c.execute(query, (run,))]


def _forecast(c: sqlite3.Connection, run: str) -> dict[str, Any] | None:
    made = [each for each in forecasts(c, run) if all(map(math.isfinite, (each["loss"], each["low"], each["high"])))]
    return made[-1] if made else None


def _alerts(c: sqlite3.Connection, run: str) -> tuple[list[dict[str, Any]], int]:
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


def forecast_rows(statuses: Sequence[Status]) -> list[dict[str, Any]]:
    """Return rows for the chart of the loss: the last forecast of each run in training."""
    return [
        {"run": s.name, "step": s.forecast["last_step"], "value": None, "forecast": s.forecast["loss"],
         "low": s.forecast["low"], "high": s.forecast["high"]}
        for s in statuses
        if s.forecast is not None and s.status == "running"
    ]  # fmt: skip
