"""What the first screen says of several runs: those to look at first, how the others are, and the best."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.analysis.health import check as words
from toposcope.logs.columns import compares_validation
from toposcope.report.live.status import TRAINING_LOSS, VALIDATION_LOSS, Status
from toposcope.wording import examples, loss_words

PHRASES = {
    words.HEALTHY: ("is healthy", "are healthy"),
    words.FINISHED: ("finished", "finished"),
    words.DIVERGED: ("diverged", "diverged"),
    words.FAILED: ("failed", "failed"),
    words.SILENT: ("is silent", "are silent"),
    words.RESTARTED: ("is back at its start", "are back at their start"),
    words.STEPPED_UP: ("has a loss that stepped up", "have a loss that stepped up"),
    words.SPIKED: ("has a loss that spiked", "have a loss that spiked"),
    words.RISING: ("has a loss that rises", "have a loss that rises"),
    words.OFF_SCHEDULE: ("is off its schedule", "are off their schedule"),
    words.NOT_LEARNING: ("has a part that does not learn", "have a part that does not learn"),
    words.ALERTED: ("needs a look", "need a look"),
    words.STALLED: ("has stalled", "have stalled"),
    words.PAST_BEST: ("is past its best", "are past their best"),
    words.UNJUDGED: ("is not judged", "are not judged"),
    words.EARLY: ("has begun", "have begun"),
}
"""What a fleet's headline says of one run and of several, in its order."""


def fleet_answer(statuses: Sequence[Status]) -> tuple[str, str, str]:
    """Return the answer on several runs: that on the worst ones first."""
    if not statuses:
        return "No run here yet.", "plain", "This page updates when one starts."
    worst_rank = min(status.health.rank for status in statuses)
    worst = [s for s in statuses if s.health.rank == worst_rank and s.health.needs_person]
    others = [s for s in statuses if s.health.rank != worst_rank or not s.health.needs_person]
    counts = Counter(status.health.word for status in others)
    first, tone = _of_worst(worst, len(statuses)), worst[0].health.tone if worst else "plain"
    if not worst and counts[words.HEALTHY] == len(statuses):
        tone = "good"
    what = "others" if worst else "runs"
    parts = []
    for word, (one, several) in PHRASES.items():
        if not (n := counts[word]):
            continue
        if n == len(others):
            parts.append(f"The {what[:-1]} {one}" if n == 1 else f"{'Both' if n == 2 else f'All {n}'} {what} {several}")
        else:
            parts.append(f"{n}{'' if parts else f' of {len(others)} {what}'} {one if n == 1 else several}")
    best = _best(others, statuses)
    found = f"{', '.join(parts)}{';' if best else '.'}" if parts else ""
    rest = f"{best}." if best else ""
    return (first, tone, f"{found} {rest}".strip()) if first else (found, tone, rest)


def _of_worst(worst: Sequence[Status], n_runs: int) -> str:
    """Return what is said of the runs that need a look most; empty if there are none."""
    if not worst:
        return ""
    names = [status.name for status in worst]
    one, several = PHRASES[worst[0].health.word]
    if len(worst) == 1:
        return f"{names[0]} {one}{_where(worst[0].health)}"
    if len(worst) == 2:
        return f"{' and '.join(names)} {several}."
    last = max(worst, key=lambda status: status.step or 0)
    return f"{len(worst):,} of {n_runs:,} runs {several}, {last.name} among them."


def _where(health: words.Health) -> str:
    """Return at which step a run diverged, or what stands out in it, up to the full stop."""
    if not health.reason:
        return "."
    reason = f"{health.reason[0].lower()}{health.reason[1:]}"
    if health.word == words.DIVERGED:
        return f" {reason.partition(':')[0]}."
    first, more, _ = reason.partition("; and ")  # other checks that failed
    return f": {first}{'.' if more and not first.endswith('?') else ''}"


def fleet_kind(statuses: Sequence[Status]) -> str:
    """Return the kind of loss that runs are ranked by: of validation where at least half of them log it."""
    return VALIDATION_LOSS if compares_validation([s.validation is not None for s in statuses]) else TRAINING_LOSS


def ends(statuses: Sequence[Status]) -> dict[str, float]:
    """Return where runs end, or are, by name: of those that log the loss that runs are ranked by, in one unit."""
    kind, unit = fleet_kind(statuses), _unit(statuses)
    found = {s.name: s.end_of(kind) for s in statuses if s.unit == unit}
    return {name: end for name, end in found.items() if end is not None}


def _unit(statuses: Sequence[Status]) -> str:
    return Counter(status.unit for status in statuses).most_common(1)[0][0] if statuses else ""


def unranked(statuses: Sequence[Status]) -> str:
    """Name the runs that do not log the loss that runs are ranked by."""
    ranked = ends(statuses)
    lacking = [status.name for status in statuses if status.name not in ranked and status.step is not None]
    if not lacking:
        return ""
    unit = f" in {_unit(statuses)}" if len({status.unit for status in statuses}) > 1 else ""
    return f"Ranked by {fleet_kind(statuses)}{unit}, which is not logged by {examples(lacking)}."


def _best(others: Sequence[Status], statuses: Sequence[Status]) -> str:
    """Return which of the other runs ends lowest, of those that are sound."""
    kind, ranked = fleet_kind(statuses), ends(statuses)
    sound = [s for s in others if s.health.word in (words.HEALTHY, words.FINISHED) and s.name in ranked]
    if not sound:
        return ""
    best = min(sound, key=lambda status: ranked[status.name])
    who = "it" if len(others) == 1 else f"the best, {best.name},"
    if best.forecast is not None and best.target == kind:
        return f"{who} ends at {range_words(best.forecast)}, {kind}"
    return f"{who} {'is at' if best.is_training else 'ended at'} {loss_words(ranked[best.name])}, {kind}"


def range_words(forecast: Mapping[str, Any]) -> str:
    """Write a forecast with its interval."""
    return f"{loss_words(forecast['loss'])} ({interval_words(forecast)})"


def interval_words(forecast: Mapping[str, Any]) -> str:
    """Write the interval of a forecast."""
    return f"{loss_words(forecast['low'])} to {loss_words(forecast['high'])}"
