"""What the first screen says of several runs: those to look at first, how the others are, and the best."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report.live.facts import HAS_DIVERGED, TRAINING, past_best
from toposcope.report.live.health import Health
from toposcope.report.live.status import Status
from toposcope.wording import loss_words

PHRASES = {
    "Healthy": ("is healthy", "are healthy"),
    "Finished": ("finished", "finished"),
    "Diverged": ("diverged", "diverged"),
    "Failed": ("failed", "failed"),
    "Silent": ("is silent", "are silent"),
    "Look at this": ("needs a look", "need a look"),
    "Past its best": ("is past its best", "are past their best"),
    "Too early to say": ("has begun", "have begun"),
}
"""What a fleet's headline says of one run and of several, in its order."""
SOUND = ("Healthy", "Finished", "Too early to say")

Judged = tuple[Status, Health]


def fleet_answer(judged: Sequence[Judged]) -> tuple[str, str, str]:
    """Return the answer on several runs: that on the worst ones first."""
    if not judged:
        return "No run here yet.", "plain", "This page updates when one starts."
    worst_rank = min(of.rank for _, of in judged)
    worst = [
        each for each in judged if each[1].word in PHRASES and each[1].word not in SOUND and each[1].rank == worst_rank
    ]
    others = [each for each in judged if each not in worst]
    counts = Counter(of.word for _, of in others)
    first, tone = _of_worst(worst, len(judged)), worst[0][1].tone if worst else "plain"
    if not worst and counts["Healthy"] == len(judged):
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
    best = _best(others)
    found = f"{', '.join(parts)}{';' if best else '.'}" if parts else ""
    rest = f"{best}." if best else ""
    return (first, tone, f"{found} {rest}".strip()) if first else (found, tone, rest)


def _of_worst(worst: Sequence[Judged], n_runs: int) -> str:
    """Return what is said of the runs that need a look most; empty if there are none."""
    if not worst:
        return ""
    names = [status.name for status, _ in worst]
    one, several = PHRASES[worst[0][1].word]
    if len(worst) == 1:
        return f"{names[0]} {one}{_where(worst[0])}."
    if len(worst) == 2:
        return f"{' and '.join(names)} {several}."
    last = max(worst, key=lambda each: each[0].facts.step or 0)
    return f"{len(worst)} of {n_runs} runs {several}, {last[0].name} among them."


def _where(each: Judged) -> str:
    """Return at which step a run diverged, or what stands out in it."""
    status, of = each
    if of.word == "Diverged":
        found = status.facts.diverged.removeprefix(HAS_DIVERGED).partition(":")[0]
        return found if found.startswith(" at step") else ""
    if turned := past_best(status.facts):
        return f" since step {turned[0]:,}"
    reason = of.reason.rstrip(".")
    return f": {reason[:1].lower()}{reason[1:]}" if reason else ""


def _best(judged: Sequence[Judged]) -> str:
    """Return which run ends lowest, of those that are sound and whose loss is of the most frequent kind."""
    ends = [(end, s) for s, of in judged if of.word in ("Healthy", "Finished") and (end := end_of(s)) is not None]
    if not ends:
        return ""
    target = Counter(s.target for _, s in ends).most_common(1)[0][0]
    value, best = min(((end, s) for end, s in ends if s.target == target), key=lambda each: each[0])
    who = "it" if len(judged) == 1 else f"the best, {best.name},"
    if best.forecast is not None:
        return f"{who} ends at {range_words(best.forecast)}, {best.target}"
    verb = "is at" if best.facts.status == TRAINING else "ended at"
    return f"{who} {verb} {loss_words(value)}, {best.loss_name}"


def end_of(status: Status) -> float | None:
    """Return the loss at which a run ends, or the last one."""
    return status.forecast["loss"] if status.forecast is not None else status.last_loss


def range_words(forecast: Mapping[str, Any]) -> str:
    """Write a forecast with its interval."""
    return f"{loss_words(forecast['loss'])} ({interval_words(forecast)})"


def interval_words(forecast: Mapping[str, Any]) -> str:
    """Write the interval of a forecast."""
    return f"{loss_words(forecast['low'])} to {loss_words(forecast['high'])}"
