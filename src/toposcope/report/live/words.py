"""What the served page says first: where the loss is and will end, what is wrong, what the monitor costs."""

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report.live.status import Status

TRAINING = "running"
COLUMNS = ("run", "step", "loss", "forecast (90%)", "alerts", "cost")
MAX_ALERTS = 20
"""On the page; the database has all."""
KNOWN = {"complete": "finished", "running": "running"}


def words(
    statuses: Sequence[Status], faults: Mapping[str, str], left_out: int, now: float, hrefs: Mapping[str, str]
) -> dict[str, Any]:
    """Return the first screen's texts.

    Parameters
    ----------
    statuses : sequence of Status
        Of the runs on the page.
    faults : mapping of str to str
        Studies that cannot be read now, and why.
    left_out : int
        Studies of the folder that are too many for one page.
    now : float
        Seconds since 1970.
    hrefs : mapping of str to str
        Where a run's study has a page of its own.

    Returns
    -------
    dict
        ``first``, ``second``: sentences. ``chips``: number, text, tone. ``columns`` and ``rows`` of the table of runs.
        ``alerts``: of all runs, the newest first; ``is_watched``: whether a monitor would notice any.
        ``age``: seconds since something was written.
    """
    alerts = sorted(
        ({"run": s.name, **alert} for s in statuses for alert in s.alerts), key=lambda a: a["step"], reverse=True
    )
    return {
        "first": _first(statuses),
        "second": " ".join(_second(statuses, alerts, faults, left_out)),
        "chips": list(_chips(statuses)),
        "columns": COLUMNS,
        "rows": [{"cells": _row(status), "href": hrefs.get(status.name, "")} for status in statuses],
        "alerts": alerts[:MAX_ALERTS],
        "is_watched": any(s.kind == "live" for s in statuses),
        "age": max(0.0, now - max((s.written for s in statuses), default=now)),
    }


def _first(statuses: Sequence[Status]) -> str:
    if not statuses:
        return "No run here yet. Rows appear when one begins."
    if len(statuses) == 1:
        return _of_one(statuses[0])
    training = sum(s.status == TRAINING for s in statuses)
    known = [s for s in statuses if s.loss is not None]
    start = f"{len(statuses)} runs, {training or 'none'} in training"
    if not known:
        return f"{start}; no loss is logged yet."
    best = min(known, key=lambda s: s.loss or 0.0)
    return f"{start}; the lowest loss is {_number(best.loss)}, of {best.name}."


def _of_one(status: Status) -> str:
    if status.step is None:
        return f"{status.name} has begun; nothing is logged yet."
    until = f" of {status.last_step:,}" if status.last_step and status.last_step > status.step else ""
    text = f"{status.name}: step {status.step:,}{until}"
    if not status.is_finite:
        return f"{text}; the loss is not a number any more."
    text += f", loss {_number(status.loss)}" if status.loss is not None else ""
    if status.status not in KNOWN:
        return f"{text}; the run is {status.status}."
    forecast = status.forecast
    if forecast is None or status.status != TRAINING:
        return f"{text}; {KNOWN[status.status]}."
    return f"{text}; forecast to end at {_range(forecast)}."


def _second(
    statuses: Sequence[Status], alerts: Sequence[Mapping[str, Any]], faults: Mapping[str, str], left_out: int
) -> list[str]:
    sentences = []
    n = sum(s.n_alerts for s in statuses)
    if n:
        run = f"{alerts[0]['run']}: " if len(statuses) > 1 else ""
        sentences.append(
            f"{n} {'alert' if n == 1 else 'alerts'}; the last: {run}{alerts[0]['message'].strip().rstrip('.')}."
        )
    elif any(s.kind == "live" for s in statuses):
        sentences.append("No alert.")
    if len(statuses) == 1 and statuses[0].forecast and statuses[0].forecast["advice"]:
        sentences.append(_sentence(statuses[0].forecast["advice"]))
    elif any(s.kind == "live" and s.status == TRAINING and s.forecast is None for s in statuses):
        sentences.append("No forecast yet: it needs more of the log.")
    skipped = [text for s in statuses for text in s.skipped]
    if skipped:
        sentences.append(f"Left out at the last measurement, for the budget: {'; '.join(dict.fromkeys(skipped))}.")
    sentences += [_sentence(fault) for fault in faults.values()]
    if left_out:
        sentences.append(f"{left_out} more studies of the folder are left out: open them one by one.")
    return sentences


def _chips(statuses: Sequence[Status]) -> list[dict[str, str]]:
    if not statuses:
        return []
    chips = []
    if len(statuses) == 1:
        only = statuses[0]
        if only.step is not None and only.last_step:
            chips.append(_chip(f"{min(1.0, only.step / only.last_step):.0%}", "of the steps"))
        if only.forecast is not None and only.status == TRAINING:
            chips.append(_chip(_range(only.forecast), "final loss"))
    n = sum(s.n_alerts for s in statuses)
    if n or any(s.kind == "live" for s in statuses):
        chips.append(_chip(f"{n}", "alert" if n == 1 else "alerts", "bad" if n else "good"))
    costs = [s.cost for s in statuses if s.cost is not None]
    if costs:
        over = any(s.cost > s.budget for s in statuses if s.cost is not None and s.budget)
        chips.append(_chip(f"{max(costs):.2%}", "of the time is the monitor's", "warn" if over else "plain"))
    measured, skipped = sum(s.n_measured for s in statuses), sum(s.n_skipped for s in statuses)
    chips.append(_chip(f"{measured:,}", "measured step" if measured == 1 else "measured steps"))
    if skipped:
        chips.append(_chip(f"{skipped:,}", "measurement left out" if skipped == 1 else "measurements left out"))
    return chips


def _row(status: Status) -> list[tuple[str, str]]:
    """Return the cells of a run: what is in them, and what is set small below it."""
    until = f"of {status.last_step:,}" if status.last_step and status.step and status.last_step > status.step else ""
    state = "" if status.status == TRAINING else KNOWN.get(status.status, status.status)
    forecast = status.forecast
    return [
        (status.name, state),
        ("–" if status.step is None else f"{status.step:,}", until),
        (_number(status.loss) if status.is_finite else "not finite", ""),
        (_number(forecast["loss"]), _interval(forecast)) if forecast else ("–", ""),
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
