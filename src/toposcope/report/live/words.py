"""The first screen's texts: the answer, what supports it, and the table of runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.analysis.health.check import FINISHED, SILENT
from toposcope.checks import FALSE_ALARM_RATE
from toposcope.forecasting.headline import end_words
from toposcope.logs.watched import MONITORED
from toposcope.report.live.fleet import ends, fleet_answer, fleet_kind, interval_words, range_words, unranked
from toposcope.report.live.status import LOGGED, TRAINING_LOSS, Status
from toposcope.report.run_columns import N_COLOURS, run_columns
from toposcope.wording import COVERAGE, counted, duration, examples, loss_words, sentence

COLUMNS = ("run", "step", "loss", f"ends at ({COVERAGE:.0%})", "alerts")  # the last one where any run is monitored
MAX_ALERTS = 20  # alerts on the page; the database has all
MAX_GREY = 6  # runs whose other kind of loss is drawn too, in grey


def forecast_rows(statuses: Sequence[Status]) -> list[dict[str, Any]]:
    """Return the end of each forecast of the loss that the chart is of; a single run has the interval."""
    bounds, kind = len(statuses) == 1, drawn_kind(statuses)
    predicted = [(s, s.forecast) for s in statuses if s.forecast is not None and s.target == kind]
    return [
        {
            "run": s.name, "step": forecast["last_step"], "value": forecast["loss"], "forecast": forecast["loss"],
            "series": "forecast", "label": range_words(forecast) if bounds else "",
            **{name: forecast[name] if bounds else None for name in ("low", "high")},
        }
        for s, forecast in (predicted if len(predicted) <= N_COLOURS else ())
    ]  # fmt: skip


def drawn_kind(statuses: Sequence[Status]) -> str:
    """Return the kind of loss that the chart is of: of a single run that which the answer is about."""
    return statuses[0].target if len(statuses) == 1 else fleet_kind(statuses)


def loss_key(statuses: Sequence[Status]) -> str:
    """Say which lines the chart of the loss has."""
    kinds = ("validation", "training") if any(s.validation is not None for s in statuses) else ("training",)
    main = drawn_kind(statuses).partition(" ")[0]
    lines = [main, *(f"{kind} in grey" for kind in kinds if kind != main and len(statuses) <= MAX_GREY)]
    return ", ".join([*lines, *(["forecast dashed"] if forecast_rows(statuses) else [])])


def words(
    statuses: Sequence[Status],
    faults: Mapping[str, str],
    left_out: int,
    now: float,
    hrefs: Mapping[str, str],
    not_shown: str = "",
    stoppable: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the first screen's texts; `not_shown` says which logs were refused, `stoppable` which runs can stop."""
    alerts = sorted(
        ({"run": s.name, **alert} for s in statuses for alert in s.alerts), key=lambda a: a["step"], reverse=True
    )
    only = statuses[0] if len(statuses) == 1 else None
    answer, tone, rest = answer_of(only) if only else fleet_answer(statuses)
    sentences = _support(only, now) if only else _fleet_support(statuses, alerts, stoppable)
    sentences += [sentence(fault) for fault in faults.values()]
    if left_out:
        sentences.append(f"{left_out} more studies in this folder are not shown; serve them one by one.")
    kind, ranked = fleet_kind(statuses), ends(statuses)
    rows = sorted(
        statuses,
        key=lambda s: (
            *(not s.health.needs_person, s.name not in stoppable, s.health.rank),
            *(ranked.get(s.name, float("inf")), s.name),
        ),
    )
    n = None if any(s.kind == MONITORED for s in statuses) else -1
    heads, parts = run_columns(tuple(s.name for s in rows))
    return {
        "answer": answer,
        "tone": tone,
        "rest": f"{not_shown} {rest}".strip(),
        "second": " ".join(sentences),
        "chips": list(_chips(statuses)),
        "checks": only.health.checks if only else (),
        "skipped": _skipped(statuses),
        "to_measure": only.to_measure if only and only.is_training else ("", ""),
        "false_alarms": round(1 / FALSE_ALARM_RATE),
        "states_rate": only is not None and only.kind == MONITORED and only.step is not None,
        "columns": (*(heads or COLUMNS[:1]), *COLUMNS[1:n]),
        "n_names": len(heads) or 1,  # columns that the name of a run is split into
        "rows": [
            {"cells": cells[:n], "name": s.name, "href": hrefs.get(s.name, ""), "tone": s.health.tone}
            for s, of in zip(rows, parts or ((s.name,) for s in rows), strict=True)
            for cells in [_row(s, kind, of, stoppable)]
        ],
        "alerts": alerts[:MAX_ALERTS],
        "names_runs": len(statuses) > 1,
        "age": max(0.0, now - max((s.updated or s.written for s in statuses), default=now)),
    }


def answer_of(status: Status) -> tuple[str, str, str]:
    """Return the answer on one run: a word, its tone, and what follows it."""
    of, loss, unit = status.health, status.last_loss, "" if status.unit == "nats" else f" {status.unit}"
    if of.word == FINISHED:
        ended = f"Ended at {loss_words(loss)}{unit}, {status.loss_name}." if loss is not None else ""
        rest = f"{of.reason} {ended}".strip()
    elif of.reason:
        rest = of.reason
    elif status.step is None:
        rest = "The run has started; nothing is logged yet."
    elif status.forecast is not None:
        borrowed = f" ({status.borrowed})" if status.borrowed else ""
        last_step, loss, low, high = (status.forecast[name] for name in ("last_step", "loss", "low", "high"))
        ends = end_words(status.target, loss, low, high, status.unit)
        rest = f"{ends} at {status.axis} {last_step:,}{borrowed}."
    else:
        at = status.step if status.loss_name == TRAINING_LOSS or status.validated is None else status.validated
        rest = f"{status.loss_name.capitalize()} {loss_words(loss)}{unit} at {status.axis} {at:,}."
    if status.axis == "row":
        rest = f"{rest} Rows are counted, since no steps are logged."
    return f"{of.words}.", of.tone, rest


def _support(status: Status, now: float) -> list[str]:
    """Return the sentences under the answer on one run."""
    of = status.health
    sentences = [progress_of(status, now), of.detail]
    if status.n_alerts:
        sentences.append(f"{counted(status.n_alerts, 'alert')}, the last at step {status.alerts[0]['step']:,}.")
    elif of.is_healthy and status.kind == MONITORED:
        sentences.append(f"No alert in {status.step or 0:,} steps.")
    if of.reason and status.forecast is not None:
        sentences.append(f"Forecast: {range_words(status.forecast)}, {status.target}.")
    if of.is_healthy:
        advice = status.forecast["advice"] if status.forecast is not None else ""
        sentences.append(sentence(advice) or "No reason to stop.")
    if status.is_training:
        sentences.append(status.cool_down)
        if status.kind in (MONITORED, LOGGED) and status.forecast is None:
            sentences.append(sentence(status.no_forecast or "No forecast yet; it needs a longer log"))
    return [sentence for sentence in sentences if sentence]


def progress_of(status: Status, now: float) -> str:
    """Return how far a run is, and how long it still takes."""
    if not status.is_training or not status.last_step or not status.step or status.step >= status.last_step:
        return ""
    percent = int(100 * status.step / status.last_step)
    done = f"{percent}% done" if percent else "Less than 1% done"
    left = seconds_left(status, now)
    return f"{done}." if left is None else f"{done}, about {duration(left)} left."


def seconds_left(status: Status, now: float) -> float | None:
    """Return how long a run still takes; None where that is unknown, or it does not go on."""
    if not status.is_training or status.seconds_left is None or status.health.word == SILENT:
        return None
    return max(1.0, status.seconds_left - (now - status.updated if status.updated else 0.0))


def _fleet_support(
    statuses: Sequence[Status], alerts: Sequence[Mapping[str, Any]], stoppable: Sequence[str]
) -> list[str]:
    if not statuses:
        return []
    sentences = [f"{sum(s.is_training for s in statuses) or 'None'} in training."]
    if stoppable:
        said = f"{examples(stoppable)} can stop, if these are a sweep: `toposcope sweep` says why and at what risk."
        sentences.append(said)
    if n := sum(s.n_alerts for s in statuses):
        latest = f"{'' if n == 1 else 'the latest '}in {alerts[0]['run']} at step {alerts[0]['step']:,}"
        sentences.append(f"{counted(n, 'alert')}, {latest}.")
    elif any(s.kind == MONITORED for s in statuses):
        sentences.append("No alerts.")
    return [*sentences, *([lacking] if (lacking := unranked(statuses)) else [])]


def _skipped(statuses: Sequence[Status]) -> str:
    """Say what the monitor did not measure at the last measured step."""
    skipped = [text.partition(": ")[::2] for s in statuses if s.is_training for text in s.skipped]
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
        (status,) = statuses
        if status.step is not None:
            until = (
                f"of {status.last_step:,} {status.axis}s"
                if (status.last_step or 0) > status.step
                else f"{status.axis}s"
            )
            chips.append(_chip(f"{status.step:,}", until))
        if status.best is not None:
            step, best = status.best
            chips.append(_chip(loss_words(best), f"best validation loss, step {step:,}"))
    n = sum(s.n_alerts for s in statuses)
    if n or any(s.kind == MONITORED for s in statuses):
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


def _row(status: Status, kind: str, parts: Sequence[str], stoppable: Sequence[str]) -> list[tuple[str, str]]:
    """Return the cells of a run: a value, and small print below it, which names a loss that is not ranked by."""
    forecast = status.forecast
    until = f"of {status.last_step:,}" if status.last_step and status.last_step > (status.step or 0) > 0 else ""
    until += "" if status.axis == "step" else f" {status.axis}s"
    other = "" if status.target == kind else f", {status.target.removesuffix(' loss')}"
    loss, name = status.loss_of(kind), kind
    if loss is None:
        loss, name = status.last_loss, status.loss_name
    unit = "" if status.unit == "nats" else f", {status.unit}"
    health = f"{status.health.words}, can stop" if status.name in stoppable else status.health.words
    return [
        *zip(parts, (health, *("" for _ in parts[1:])), strict=True),
        ("–" if status.step is None else f"{status.step:,}", until),
        ("NaN", "") if loss is not None and loss != loss else (loss_words(loss), f"{name.removesuffix(' loss')}{unit}"),
        (loss_words(forecast["loss"]), f"{interval_words(forecast)}{other}") if forecast else ("–", ""),
        (f"{status.n_alerts:,}" if status.kind == MONITORED else "–", ""),
    ]


def _chip(number: str, text: str, tone: str = "plain") -> dict[str, str]:
    return {"number": number, "text": text, "tone": tone}
