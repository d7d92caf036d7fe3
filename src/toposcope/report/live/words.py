"""The first screen's texts: the answer, what supports it, and the table of runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.logs import tuning
from toposcope.report.live.facts import (
    MIN_SINCE_BEST,
    TRAINING,
    WATCHED,
    Facts,
    duration,
    past_best,
    silence,
    since_best,
)
from toposcope.report.live.fleet import end_of, fleet_answer, interval_words, range_words
from toposcope.report.live.health import Health, health
from toposcope.report.live.status import Status
from toposcope.wording import counted, loss_words, sentence

COLUMNS = ("run", "step", "loss", "ends at (90%)", "alerts")
MAX_ALERTS = 20  # alerts on the page; the database has all
MAX_PATHS = 6  # forecasts that are drawn; that of a single run has its interval


def forecast_rows(statuses: Sequence[Status]) -> list[dict[str, Any]]:
    """Return rows for the chart of the loss: each forecast's path to its end; that of a single run has its interval."""
    predicted = [(s, s.forecast) for s in statuses if s.forecast is not None]
    places: list[tuple[str, int, float, float, float]] = []
    for s, forecast in predicted if len(predicted) <= MAX_PATHS else ():
        now, value = s.facts.step, s.last_loss
        if now is not None and value is not None and now < forecast["last_step"]:
            places.append((s.name, now, value, value, value))
        places.append((s.name, *(forecast[name] for name in ("last_step", "loss", "low", "high"))))
    bounds = len(statuses) == 1
    return [
        {
            "run": run, "step": step, "value": loss, "series": "forecast", "low": low if bounds else None,
            "high": high if bounds else None, "forecast": loss,
        }
        for run, step, loss, low, high in places
    ]  # fmt: skip


def loss_key(statuses: Sequence[Status]) -> str:
    """Say which lines the chart of the loss has."""
    behind = ["training in grey"] if len(statuses) <= MAX_PATHS else []
    lines = ["validation", *behind] if any(s.facts.validation for s in statuses) else ["training"]
    return ", ".join([*lines, *(["forecast dashed"] if forecast_rows(statuses) else [])])


def words(
    statuses: Sequence[Status], faults: Mapping[str, str], left_out: int, now: float, hrefs: Mapping[str, str]
) -> dict[str, Any]:
    """Return the first screen's texts."""
    judged = [(status, health(status.facts, now)) for status in statuses]
    alerts = sorted(
        ({"run": s.name, **alert} for s in statuses for alert in s.facts.alerts), key=lambda a: a["step"], reverse=True
    )
    only = judged[0] if len(judged) == 1 else None
    answer, tone, rest = _of_one(*only) if only else fleet_answer(judged)
    sentences = _support(*only, now) if only else _fleet_support(statuses, alerts)
    sentences += [sentence(fault) for fault in faults.values()]
    if left_out:
        sentences.append(f"{left_out} more studies in this folder are not shown; serve them one by one.")
    rows = sorted(judged, key=lambda each: (each[1].rank, end_of(each[0]) or float("inf"), each[0].name))
    return {
        "answer": answer,
        "tone": tone,
        "rest": rest,
        "second": " ".join(sentences),
        "chips": list(_chips(statuses)),
        "checks": only[1].checks if only else (),
        "skipped": _skipped(statuses),
        "to_measure": only[0].to_measure if only and only[0].facts.status == TRAINING else ("", ""),
        "false_alarms": round(1 / tuning.FALSE_ALARM_RATE),
        "states_rate": only is not None and _states_rate(only[0]),
        "columns": COLUMNS,
        "rows": [{"cells": _row(*each), "href": hrefs.get(each[0].name, ""), "tone": each[1].tone} for each in rows],
        "alerts": alerts[:MAX_ALERTS],
        "names_runs": len(statuses) > 1,
        "age": max(0.0, now - max((s.facts.updated or s.written for s in statuses), default=now)),
    }


def _states_rate(status: Status) -> bool:
    """Return whether the rate of false alarms can be stated: the alerts were checked."""
    return status.facts.kind in WATCHED and status.facts.n_rows >= tuning.MIN_SPIKE_VALUES


def _of_one(status: Status, of: Health) -> tuple[str, str, str]:
    """Return the answer on one run: a word, its tone, and what follows it."""
    if of.reason:
        return f"{of.word}.", of.tone, of.reason
    facts, loss = status.facts, status.last_loss
    if facts.step is None:
        return f"{of.word}.", of.tone, "The run has started; nothing is logged yet."
    if facts.status != TRAINING:
        ended = f"Ended at {loss_words(loss)}, {status.loss_name}." if loss is not None else f"Step {facts.step:,}."
        if turned := past_best(facts):
            ended = f"{ended[:-1]}; its best, {loss_words(turned[1])}, was at step {turned[0]:,}."
        return f"{of.word}.", of.tone, ended
    if status.forecast is not None:
        return f"{of.word}.", of.tone, f"Ends at {range_words(status.forecast)}, {status.target}."
    return f"{of.word}.", of.tone, f"{status.loss_name.capitalize()} {loss_words(loss)} at step {facts.step:,}."


def _support(status: Status, of: Health, now: float) -> list[str]:
    """Return the sentences under the answer on one run."""
    facts = status.facts
    sentences = [_progress(status, now), of.detail]
    if of.is_healthy or of.word == "Finished":
        last = facts.alerts[0]["step"] if facts.alerts else 0
        n = f"{counted(facts.n_alerts, 'alert')}, the last at step {last:,}; none since."
        stands = "stands" if of.is_healthy else "stood"
        is_unchecked = past_best(facts) is not None or facts.kind not in WATCHED
        nothing = "" if is_unchecked else f"Nothing {stands} out in {facts.step:,} steps."
        sentences.append(n if facts.n_alerts else nothing)
    elif of.reason and status.forecast is not None:
        sentences.append(f"Forecast: {range_words(status.forecast)}, {status.target}.")
    if of.is_healthy:
        advice = status.forecast["advice"] if status.forecast is not None else ""
        sentences.append(sentence(advice) or _best_behind(facts) or "No reason to stop.")
    if facts.status == TRAINING:
        sentences.append(status.cool_down)
    if facts.kind in WATCHED and facts.status == TRAINING and not (status.forecast or facts.diverged):
        sentences.append(sentence(status.no_forecast or "No forecast yet; it needs a longer log"))
    return [sentence for sentence in sentences if sentence]


def _best_behind(facts: Facts) -> str:
    """Say where the best validation loss lies, if the last evaluations are above it."""
    if (n := since_best(facts)) < MIN_SINCE_BEST:
        return ""
    best = min(facts.validation, key=lambda row: row.value)
    ago = "" if facts.step is None else f", {facts.step - best.step:,} steps ago"
    where = f"Best validation loss {loss_words(best.value)} at step {best.step:,}{ago}"
    return f"{where}; {n:,} evaluations since are above it."


def _progress(status: Status, now: float) -> str:
    """Return how far a run is, and how long it still takes."""
    facts = status.facts
    if facts.status != TRAINING or not facts.last_step or not facts.step or facts.step >= facts.last_step:
        return ""
    percent = int(100 * facts.step / facts.last_step)
    done = f"{percent}% done" if percent else "Less than 1% done"
    if status.seconds_left is None or silence(facts, now) is not None or facts.diverged:
        return f"{done}."
    left = status.seconds_left - (now - facts.updated if facts.updated else 0.0)
    return f"{done}, about {duration(max(1.0, left))} left."


def _fleet_support(statuses: Sequence[Status], alerts: Sequence[Mapping[str, Any]]) -> list[str]:
    sentences = []
    n = sum(s.facts.n_alerts for s in statuses)
    if n:
        latest = f"{'' if n == 1 else 'the latest '}in {alerts[0]['run']} at step {alerts[0]['step']:,}"
        sentences.append(f"{counted(n, 'alert')}, {latest}.")
    elif any(s.facts.kind in WATCHED for s in statuses):
        sentences.append("No alerts.")
    training = sum(s.facts.status == TRAINING for s in statuses)
    return [f"{training or 'None'} in training.", *sentences] if statuses else []


def _skipped(statuses: Sequence[Status]) -> str:
    """Say what the monitor did not measure at the last measured step."""
    skipped = [text.partition(": ")[::2] for s in statuses if s.facts.status == TRAINING for text in s.skipped]
    if not skipped:
        return ""
    probes, reasons = (list(dict.fromkeys(column)) for column in zip(*skipped, strict=True))
    why = f" ({reasons[0]})" if len(reasons) == 1 else ""
    return f"Not measured last time: {', '.join(probes)}{why}."


def _chips(statuses: Sequence[Status]) -> list[dict[str, str]]:
    if not statuses:
        return []
    chips = []
    if len(statuses) == 1:
        facts = statuses[0].facts
        if facts.step is not None:
            until = f"of {facts.last_step:,} steps" if facts.last_step and facts.last_step > facts.step else "steps"
            chips.append(_chip(f"{facts.step:,}", until))
        if facts.validation:
            best = min(facts.validation, key=lambda row: row.low)
            chips.append(_chip(loss_words(best.low), f"best validation loss, step {best.step:,}"))
    n = sum(s.facts.n_alerts for s in statuses)
    if n or any(s.facts.kind in WATCHED for s in statuses):
        chips.append(_chip(f"{n:,}", "alert" if n == 1 else "alerts", "bad" if n else "good"))
    measured, skipped = sum(s.n_measured for s in statuses), sum(s.n_skipped for s in statuses)
    for count, what in ((measured, "measured step"), (skipped, "skipped measurement")):
        if count:
            number, _, text = counted(count, what).partition(" ")
            chips.append(_chip(number, text))
    costs = [s.cost for s in statuses if s.cost is not None]
    if costs:
        over = any(s.cost > s.budget for s in statuses if s.cost is not None and s.budget)
        chips.append(_chip(f"{max(costs):.2%}", "of the time for the monitor", "warn" if over else "plain"))
    return chips


def _row(status: Status, of: Health) -> list[tuple[str, str]]:
    """Return the cells of a run: a value, and small print below it."""
    facts, forecast = status.facts, status.forecast
    until = f"of {facts.last_step:,}" if facts.last_step and facts.step and facts.last_step > facts.step else ""
    return [
        (status.name, of.word),
        ("–" if facts.step is None else f"{facts.step:,}", until),
        (loss_words(status.last_loss), status.loss_name.removesuffix(" loss")) if facts.is_finite else ("NaN", ""),
        (loss_words(forecast["loss"]), interval_words(forecast)) if forecast else ("–", ""),
        (f"{facts.n_alerts:,}", ""),
    ]


def _chip(number: str, text: str, tone: str = "plain") -> dict[str, str]:
    return {"number": number, "text": text, "tone": tone}
