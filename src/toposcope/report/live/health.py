"""Whether a run is healthy: a word, the reason for it, and a line for everything that was checked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toposcope.checks import CHECKS
from toposcope.logs import tuning
from toposcope.report.live import facts
from toposcope.wording import capitalised, counted, examples, loss_words, sentence

STALLED = "A reason to stop, unless the learning rate is about to change."
GOOD, BAD, OPEN = "good", "bad", "open"
STOPPING = {name for name, check in CHECKS.items() if check.stops}


@dataclass(frozen=True)
class Check:
    """A line of the list of checks: what was checked, and its number."""

    mark: str  # good, bad, or open: neither
    text: str


@dataclass(frozen=True)
class Health:
    """The answer on a run: a word, what it rests on, and all checks that were made."""

    word: str
    tone: str  # good, warn, bad or plain
    rank: int  # the lower, the more urgent
    reason: str = ""  # a sentence, where the word does not say all
    detail: str = ""  # further sentences
    checks: Sequence[Check] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether everything that was checked is well."""
        return self.word == "Healthy"


def health(run: facts.Facts, now: float) -> Health:
    """Return the answer on a run at a time; "Healthy" only if something was checked and nothing stands against it."""
    checks = list(_checks(run))
    word, tone, rank, reason, detail = _verdict(run, now)
    if word == "Healthy" and any(check.mark == BAD for check in checks):
        bad = next(check.text for check in checks if check.mark == BAD)
        word, tone, rank, reason = "Look at this", "warn", 4, f"{bad}."
        detail = STALLED if any(text in bad for text in ("no longer falls", " rises:")) else ""
    return Health(word, tone, rank, reason, detail, checks)


def _verdict(run: facts.Facts, now: float) -> tuple[str, str, int, str, str]:
    """Return word, tone, rank, reason and detail; the checks of a healthy run may still say otherwise."""
    if run.status == facts.DIVERGED or run.diverged.startswith(facts.HAS_DIVERGED):
        return "Diverged", "bad", 0, sentence(run.diverged.removeprefix(facts.HAS_DIVERGED)), ""
    if run.diverged or not run.is_finite:
        return "Look at this", "bad", 1, sentence(run.diverged or "the loss is NaN or infinite"), ""
    if run.status == facts.FAILED:
        at = f" at step {run.step:,}" if run.step is not None else ""
        return "Failed", "bad", 2, f"Training ended with an error{at}.", ""
    if run.status != facts.TRAINING:
        return ("Finished" if run.status == facts.COMPLETE else capitalised(run.status)), "plain", 9, "", ""
    if (age := facts.silence(run, now)) is not None:
        usual = facts.row_seconds(run)
        before = f", where a row came every {facts.duration(usual)}" if usual else ""
        detail = "Training may have been stopped, or it evaluates."
        return "Silent", "warn", 3, f"Nothing was written for {facts.duration(age)}{before}.", detail
    if standing := facts.standing_alerts(run):
        named = [f"{capitalised(a['check'])} {_when(a)}" for a in standing]
        more = f", and {len(named) - 2} more alerts" if len(named) > 2 else ""
        return "Look at this", "warn", 4, f"{', '.join(named[:2])}{more}.", sentence(standing[0]["message"])
    if turned := facts.past_best(run):
        step, value, rise = turned
        ago = f", {run.step - step:,} steps ago" if run.step else ""
        reason = f"Best validation loss {loss_words(value)} at step {step:,}{ago}."
        detail = f"A reason to stop: it has risen by {loss_words(rise)} since, beyond its noise."
        return "Past its best", "warn", 5, reason, detail
    if run.n_rows < tuning.MIN_SPIKE_VALUES and _course_word(run) in ("", "unclear"):
        detail = f"The checks need {tuning.MIN_TREND_ROWS} logged losses; {run.n_rows} so far."
        return "Too early to say", "plain", 7, "", detail
    return "Healthy", "good", 8, "", ""


def _checks(run: facts.Facts) -> Iterator[Check]:
    """Yield a line for everything that was really checked."""
    if not run.diverged:  # of the losses before, it would say what no longer holds
        yield from _course(run)
    yield from _forecast_check(run)
    if run.kind in facts.WATCHED:
        yield from _alert_checks(run)
    yield from _finite_check(run)
    yield from _layer_checks(run)
    if run.n_examined:
        found = counted(run.n_faults, "fault") if run.n_faults else "sound"
        yield Check(BAD if run.n_faults else GOOD, f"{counted(run.n_examined, 'saved checkpoint')} examined, {found}")


def _course(run: facts.Facts) -> Iterator[Check]:
    """Yield whether the loss still falls, and where the best validation loss lies."""
    if turned := facts.past_best(run):
        yield Check(BAD, f"Validation loss rises: {loss_words(turned[2])} above its best, at step {turned[0]:,}")
        return
    if (n := facts.since_best(run)) >= facts.MIN_SINCE_BEST:
        yield Check(OPEN, f"The last {n:,} evaluations are above the best; whether it has turned cannot be told yet")
    word = _course_word(run)
    if not word:
        return
    name, rows = facts.judged_loss(run)
    moved, steps = facts.recent_change(rows)
    if word in ("rises", "stalls"):
        verb = "rises" if word == "rises" else "no longer falls"
        yield Check(BAD, f"{name} {verb}: no lower in the last quarter of the steps than in the second")
    elif word == "unclear":
        yield Check(OPEN, f"{name} falls by less than its noise")
    elif moved < 0:
        yield Check(GOOD, f"{name} still falls: {loss_words(-moved)} in the last {steps:,} steps")
    else:
        yield Check(OPEN, f"{name} fell, but not in the last {steps:,} steps")


def _course_word(run: facts.Facts) -> str:
    """Return whether the loss falls, rises or stalls; empty where nothing is said of it."""
    found = facts.course(facts.judged_loss(run)[1]) if run.is_finite else None
    return found.word if found else ""


def _forecast_check(run: facts.Facts) -> Iterator[Check]:
    """Yield whether the forecasts agree with each other."""
    if len(run.forecasts) < 2 or run.diverged:
        return
    last = run.forecasts[-1]
    inside = [f for f in run.forecasts[:-1] if f["low"] <= last["loss"] <= f["high"]]
    n = len(run.forecasts) - 1
    mark = GOOD if 2 * len(inside) >= n else OPEN
    earlier = "the earlier forecast" if n == 1 else f"{len(inside)} of {n} earlier forecasts"
    text = f"The forecast is steady: {earlier} held the present one" if inside else f"The forecast left {earlier}"
    yield Check(mark, text)


LOG_CHECKS = {
    "loss spike": ("No loss spike in {n:,} losses after the first {least}", "loss", tuning.MIN_SPIKE_VALUES),
    "gradient spike": ("Gradient norm within its noise", "grad_norm", tuning.MIN_SPIKE_VALUES),
    "learning rate jump": ("Learning rate without a jump", "learning_rate", tuning.MIN_RATES),
}
"""Checks of the log: what it shows if there is no alert, the column that it needs, and the rows before the first."""
WARNINGS = {"gradient spike": "rising gradients"}  # check -> its early warning


def _alert_checks(run: facts.Facts) -> Iterator[Check]:
    """Yield what the monitor's checks of the log show, and every kind of alert once."""
    standing, by_check = facts.standing_alerts(run), dict[str, list[Mapping[str, Any]]]()
    for alert in run.alerts:
        by_check.setdefault(alert["check"], []).append(alert)
    for check, (text, column, least) in LOG_CHECKS.items():
        is_judged = column in run.judged and not (column == "loss" and run.diverged)
        if is_judged and not {check, WARNINGS.get(check)} & by_check.keys():
            yield Check(GOOD, text.format(n=run.n_rows - least, least=least))
    for check, alerts in by_check.items():
        stands = any(alert in standing for alert in alerts)
        n = f"{len(alerts)} times, the last " if len(alerts) > 1 else ""
        yield Check(BAD if stands else OPEN, f"{capitalised(check)} {n}{_when(alerts[0])}{'' if stands else '; over'}")


def _finite_check(run: facts.Facts) -> Iterator[Check]:
    if not run.is_finite:
        yield Check(BAD, "The loss is NaN or infinite")
    elif run.layers.n_nonfinite:
        yield Check(BAD, f"{run.layers.n_nonfinite:,} weights or gradients are NaN or infinite")
    elif run.n_nan:
        yield Check(OPEN, f"{run.n_nan:,} logged losses are NaN; the last ones are numbers")
    elif run.n_rows:
        weights = ", none in the weights and gradients that were measured" if run.layers.n_measured else ""
        yield Check(GOOD, f"No NaN in {run.n_rows:,} logged losses{weights}")


def _layer_checks(run: facts.Facts) -> Iterator[Check]:
    """Yield whether all layers learn, and whether their gradients and updates stay within their noise."""
    layers = run.layers
    if not layers.n_layers:
        return
    if layers.idle:
        yield Check(OPEN, f"{len(layers.idle)} of {layers.n_layers} layers do not change: {examples(layers.idle)}")
    elif not any(a["check"] in STOPPING for a in run.alerts):
        learn = (
            "learn; none dead, none stalled" if layers.n_updated == layers.n_layers else "have a gradient; none dead"
        )
        yield Check(GOOD, f"All {layers.n_layers} measured layers {learn}")
    if layers.n_measured >= tuning.MIN_LAYER_VALUES and not any(
        a["place"] and a["check"] not in LOG_CHECKS for a in run.alerts
    ):
        yield Check(GOOD, f"Gradients, norms and ranks of layers within their noise, {layers.n_measured:,} times")


def _when(alert: Mapping[str, Any]) -> str:
    place = f" of {alert['place']}" if alert["place"] else ""
    return f"at step {alert['step']:,}{place}"
