"""Texts of the served page's first screen: current and final loss, alerts, cost of the monitor."""

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report.live.status import Status

TRAINING = "running"
STATUS_WORDS = {"complete": "finished"}
COLUMNS = ("run", "step", "loss", "forecast (90%)", "alerts", "cost")
MIN_SILENT_SECONDS = 900
"""Age of the last write from which a run that should be training is reported."""
MAX_ALERTS = 20
"""Alerts on the page; the database has all."""


def words(
    statuses: Sequence[Status], faults: Mapping[str, str], left_out: int, now: float, hrefs: Mapping[str, str]
) -> dict[str, Any]:
    """Return the first screen's texts.

    Parameters
    ----------
    statuses : sequence of Status
        Statuses of the runs on the page.
    faults : mapping of str to str
        Messages of studies that cannot be read now.
    left_out : int
        Number of studies of the folder that are not on the page.
    now : float
        Seconds since 1970.
    hrefs : mapping of str to str
        Links to the pages of the runs' studies.

    Returns
    -------
    dict
        ``first``, ``second``: sentences. ``chips``: number, text, tone. ``columns`` and ``rows`` of the table of runs.
        ``alerts`` of all runs, newest first; ``is_watched``: whether a monitor checks for them. ``age``: seconds since
        the last write.
    """
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
    return f"{start}; {best.name} has the lowest loss, {_number(best.loss)}."


def _of_one(status: Status) -> str:
    if status.step is None:
        return f"{status.name} has started; nothing is logged yet."
    until = f" of {status.last_step:,}" if status.last_step and status.last_step > status.step else ""
    text = f"{status.name}: step {status.step:,}{until}"
    if status.diverged or not status.is_finite:
        return f"{text}; {status.diverged or 'the loss is NaN or infinite'}."
    text += f", loss {_number(status.loss)}" if status.loss is not None else ""
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
        (_number(status.loss) if status.is_finite else "not finite", ""),
        (_number(forecast["loss"]), _interval(forecast)) if forecast and status.is_finite else ("–", ""),
        (f"{status.n_alerts:,}", ""),
        ("–" if status.cost is None else f"{status.cost:.2%}", ""),
    ]


def _range(forecast: Mapping[str, Any]) -> str:
    return f"{_number(forecast['loss'])} ({_interval(forecast)})"


def _interval(forecast: Mapping[str, Any]) -> str:
    return f"{_number(forecast['low'])} to {_number(forecast['high'])}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _chip(number: str, text: str, tone: str = "plain") -> dict[str, str]:
    return {"number": number, "text": text, "tone": tone}
