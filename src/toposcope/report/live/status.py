"""Reads the status of each run: last step and loss, forecast, alerts, cost of the monitor."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toposcope.logs.stored_nan import nan_steps
from toposcope.report.live import database as db

MAX_LOSS_ROWS, MAX_LOSS_SHARE = 100, 0.05
"""The reported loss is the mean of this many logged steps, or of this share of the run if that is less."""
MAX_SKIPPED = 20  # messages on skipped measurements that are shown


@dataclass(frozen=True)
class Status:
    """Status of a run."""

    name: str
    status: str
    kind: str
    step: int | None  # last logged or measured one
    last_step: int | None  # the planned last one
    loss: float | None  # mean of the last logged steps
    is_finite: bool  # whether the last logged loss is finite
    # the last forecast: ``step``, ``last_step``, ``loss``, ``low``, ``high``, ``advice``
    forecast: Mapping[str, Any] | None
    # the last alerts, newest first: ``step``, ``since``, ``check``, ``place``, ``message``
    alerts: list[dict[str, Any]]
    n_alerts: int
    n_measured: int
    cost: float | None  # seconds that the monitor took per second of training
    budget: float | None
    n_skipped: int = 0  # measurements that the monitor skipped
    # measurements that it skipped at the last measured step, with reasons
    skipped: list[str] = field(default_factory=list)
    diverged: str = ""  # how the run diverged, or since when its loss is lost: it then has no forecast. Else empty
    updated: float | None = None  # time at which its monitor last wrote, in seconds since 1970
    written: float = 0.0  # time of the last write, in seconds since 1970


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


def _forecast(c: sqlite3.Connection, run: str) -> dict[str, Any] | None:
    """Return the last forecast of a run's final loss whose numbers are finite."""
    names = ("step", "last_step", "loss", "low", "high", "advice")
    query = f"SELECT {', '.join(names)} FROM forecasts WHERE run = ? ORDER BY step"
    rows = [dict(zip(names, row, strict=True)) for row in c.execute(query, (run,))]
    finite = [row for row in rows if all(math.isfinite(row[name]) for name in ("loss", "low", "high"))]
    return finite[-1] if finite else None


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


TRAINING = "running"
STATUS_WORDS = {"complete": "finished"}
COLUMNS = ("run", "step", "loss", "forecast (90%)", "alerts", "cost")
MIN_SILENT_SECONDS = 900  # age of the last write from which a run that should be training is reported
MAX_ALERTS = 20  # alerts on the page; the database has all


def words(
    statuses: Sequence[Status], faults: Mapping[str, str], left_out: int, now: float, hrefs: Mapping[str, str]
) -> dict[str, Any]:
    """Return the first screen's texts."""
    alerts = sorted(
        ({"run": s.name, **alert} for s in statuses for alert in s.alerts), key=lambda a: a["step"], reverse=True
    )
    return {
        "first": _first(statuses),
        "second": " ".join([*_silent(statuses, now), *_second(statuses, alerts, faults, left_out)]),
        "chips": list(_chips(statuses)),
        "columns": COLUMNS,
        "rows": [{"cells": _row(status), "href": hrefs.get(status.name, "")} for status in statuses],
        "alerts": alerts[:MAX_ALERTS],
        "is_watched": any(s.kind == "live" for s in statuses),
        "age": max(0.0, now - max((s.written for s in statuses), default=now)),
    }


def _first(statuses: Sequence[Status]) -> str:
    if not statuses:
        return "There is no run here yet. This page updates when one starts."
    if len(statuses) == 1:
        return _of_one(statuses[0])
    training = sum(s.status == TRAINING for s in statuses)
    known = [s for s in statuses if s.loss is not None and s.is_finite and not s.diverged]
    start = f"{len(statuses)} runs, {training or 'none'} in training"
    if not known:
        return f"{start}; no loss is logged yet."
    best = min(known, key=lambda s: s.loss or 0.0)
    return f"{start}; {best.name} has the lowest loss, {_loss_words(best.loss)}."


def _of_one(status: Status) -> str:
    if status.step is None:
        return f"{status.name} has started; nothing is logged yet."
    until = f" of {status.last_step:,}" if status.last_step and status.last_step > status.step else ""
    text = f"{status.name}: step {status.step:,}{until}"
    if status.diverged or not status.is_finite:
        return f"{text}; {status.diverged or 'the loss is NaN or infinite'}."
    text += f", loss {_loss_words(status.loss)}" if status.loss is not None else ""
    forecast = status.forecast
    if forecast is None or status.status != TRAINING:
        return f"{text}; {STATUS_WORDS.get(status.status, status.status)}."
    return f"{text}; predicted final loss {_range(forecast)}."


def _silent(statuses: Sequence[Status], now: float) -> list[str]:
    silent = [
        s for s in statuses if s.status == TRAINING and s.updated is not None and now - s.updated > MIN_SILENT_SECONDS
    ]
    if not silent:
        return []
    who = f" by {', '.join(s.name for s in silent)}" if len(statuses) > 1 else ""
    minutes = MIN_SILENT_SECONDS // 60
    return [f"Nothing was written{who} for more than {minutes} minutes; training may have been interrupted."]


def _second(
    statuses: Sequence[Status], alerts: Sequence[Mapping[str, Any]], faults: Mapping[str, str], left_out: int
) -> list[str]:
    sentences = []
    n = sum(s.n_alerts for s in statuses)
    if n:
        run = f"{alerts[0]['run']}: " if len(statuses) > 1 else ""
        sentences.append(
            f"{n} {'alert' if n == 1 else 'alerts'}; the latest: {run}{alerts[0]['message'].strip().rstrip('.')}."
        )
    elif any(s.kind == "live" for s in statuses):
        sentences.append("No alerts.")
    if len(statuses) == 1 and statuses[0].forecast and statuses[0].forecast["advice"]:
        sentences.append(_sentence(statuses[0].forecast["advice"]))
    elif any(s.kind == "live" and s.status == TRAINING and not (s.forecast or s.diverged) for s in statuses):
        sentences.append("No forecast yet; it needs a longer log, or more time within the budget.")
    skipped = [text.partition(": ")[::2] for s in statuses if s.status == TRAINING for text in s.skipped]
    if skipped:
        probes, reasons = (list(dict.fromkeys(column)) for column in zip(*skipped, strict=True))
        why = f" ({reasons[0]})" if len(reasons) == 1 else ""
        sentences.append(f"Not measured last time: {', '.join(probes)}{why}.")
    sentences += [_sentence(fault) for fault in faults.values()]
    if left_out:
        sentences.append(f"{left_out} more studies in this folder are not shown; serve them one by one.")
    return sentences


def _chips(statuses: Sequence[Status]) -> list[dict[str, str]]:
    if not statuses:
        return []
    chips = []
    if len(statuses) == 1:
        only = statuses[0]
        if only.step is not None and only.last_step:
            chips.append(_chip(f"{min(1.0, only.step / only.last_step):.0%}", "of the planned steps"))
        if only.forecast is not None and only.status == TRAINING:
            chips.append(_chip(_range(only.forecast), "final loss"))
    n = sum(s.n_alerts for s in statuses)
    if n or any(s.kind == "live" for s in statuses):
        chips.append(_chip(f"{n}", "alert" if n == 1 else "alerts", "bad" if n else "good"))
    costs = [s.cost for s in statuses if s.cost is not None]
    if costs:
        over = any(s.cost > s.budget for s in statuses if s.cost is not None and s.budget)
        chips.append(_chip(f"{max(costs):.2%}", "of the training time for the monitor", "warn" if over else "plain"))
    measured, skipped = sum(s.n_measured for s in statuses), sum(s.n_skipped for s in statuses)
    chips.append(_chip(f"{measured:,}", "measured step" if measured == 1 else "measured steps"))
    if skipped:
        chips.append(_chip(f"{skipped:,}", "measurement skipped" if skipped == 1 else "measurements skipped"))
    return chips


def _row(status: Status) -> list[tuple[str, str]]:
    """Return the cells of a run: a value, and small print below it."""
    until = f"of {status.last_step:,}" if status.last_step and status.step and status.last_step > status.step else ""
    state = "" if status.status == TRAINING else STATUS_WORDS.get(status.status, status.status)
    forecast = status.forecast
    return [
        (status.name, state),
        ("–" if status.step is None else f"{status.step:,}", until),
        (_loss_words(status.loss) if status.is_finite else "not finite", ""),
        (_loss_words(forecast["loss"]), _interval(forecast)) if forecast and status.is_finite else ("–", ""),
        (f"{status.n_alerts:,}", ""),
        ("–" if status.cost is None else f"{status.cost:.2%}", ""),
    ]


def _range(forecast: Mapping[str, Any]) -> str:
    return f"{_loss_words(forecast['loss'])} ({_interval(forecast)})"


def _interval(forecast: Mapping[str, Any]) -> str:
    return f"{_loss_words(forecast['low'])} to {_loss_words(forecast['high'])}"


def _loss_words(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _chip(number: str, text: str, tone: str = "plain") -> dict[str, str]:
    return {"number": number, "text": text, "tone": tone}
