"""Whether a run is healthy: rules on its log, its alerts and its measurements. Pure functions of what is stored."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

from toposcope.logs.overfitting import overfits
from toposcope.monitor import tuning
from toposcope.report.live.database import Row

TRAINING, COMPLETE, DIVERGED, FAILED = "running", "complete", "diverged", "failed"
WATCHED = ("live", "log")  # kinds of runs whose log is checked while it grows, as alerts say
STRETCH, STRETCH_ROWS = 0.1, 20
"""An alert on something that may pass stands for this share of the steps so far, at least for so many rows."""
PASSING = ("loss spike", "gradient spike", "layer gradient spike", "learning rate jump", "non-finite", "forecast worse")
"""Alerts on what may pass by itself. All others stand until the run ends, since no recovery is reported."""
MIN_SILENT_SECONDS, SILENT_ROWS = 120.0, 5
"""A run is silent after this time, and this many times the usual time between two rows; an evaluation takes a few."""
MIN_UNKNOWN_SILENT_SECONDS = 900.0  # the same where the time between rows is unknown
MIN_TREND_ROWS = 16  # rows of a loss of which something is said about its course
HAS_DIVERGED = "the run diverged"  # with which a divergence begins; a loss that is NaN may still recover
N_BLOCKS = 5  # blocks of a quarter of a run, whose means show the noise
MIN_CHANGE_ERRORS = 2.0  # standard errors by which a loss must change to count as falling or rising
STALLED = "A reason to stop, unless the learning rate is about to change."
GOOD, BAD, OPEN = "good", "bad", "open"


@dataclass(frozen=True)
class LayerFacts:
    """What the last measurement of the layers shows, and how many there were."""

    n_layers: int = 0  # with a measured gradient
    n_updated: int = 0  # with a measured update
    n_measured: int = 0  # measurements after training steps
    idle: Sequence[str] = ()  # layers without an update, or without a gradient
    n_nonfinite: int = 0  # weights and gradients that are NaN or infinite


@dataclass(frozen=True)
class Facts:
    """What is stored of a run, as far as its health depends on it."""

    kind: str = "live"
    status: str = TRAINING
    step: int | None = None  # the last one
    last_step: int | None = None  # the planned one
    training: Sequence[Row] = ()  # the training loss; a row may stand for several steps
    validation: Sequence[Row] = ()
    n_rows: int = 0  # logged training losses
    is_finite: bool = True  # whether the last logged loss is finite
    n_nan: int = 0  # logged losses that are NaN
    diverged: str = ""  # how the run diverged, or since when its loss is lost
    alerts: Sequence[Mapping[str, Any]] = ()  # newest first: ``step``, ``since``, ``check``, ``place``, ``message``
    n_alerts: int = 0
    forecasts: Sequence[Mapping[str, Any]] = ()  # ``step``, ``last_step``, ``loss``, ``low``, ``high``, ``advice``
    columns: Sequence[str] = ()  # of the log
    layers: LayerFacts = field(default_factory=LayerFacts)
    n_examined: int = 0  # saved checkpoints that the doctor examined
    n_faults: int = 0  # faults that it found
    step_seconds: float | None = None
    updated: float | None = None  # time at which its writer last wrote, in seconds since 1970


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


def health(run: Facts, now: float) -> Health:
    """Return the answer on a run at a time; "Healthy" only if something was checked and nothing stands against it."""
    checks = list(_checks(run))
    word, tone, rank, reason, detail = _verdict(run, now)
    if word == "Healthy" and any(check.mark == BAD for check in checks):
        bad = next(check.text for check in checks if check.mark == BAD)
        word, tone, rank, reason = "Look at this", "warn", 4, f"{bad}."
        detail = STALLED if any(text in bad for text in ("no longer falls", " rises:")) else ""
    return Health(word, tone, rank, reason, detail, checks)


def _verdict(run: Facts, now: float) -> tuple[str, str, int, str, str]:
    """Return word, tone, rank, reason and detail; the checks of a healthy run may still say otherwise."""
    if run.status == DIVERGED or run.diverged.startswith(HAS_DIVERGED):
        return "Diverged", "bad", 0, _capital(run.diverged.removeprefix(HAS_DIVERGED)), ""
    if run.diverged or not run.is_finite:
        return "Look at this", "bad", 1, _capital(run.diverged or "the loss is NaN or infinite"), ""
    if run.status == FAILED:
        at = f" at step {run.step:,}" if run.step is not None else ""
        return "Failed", "bad", 2, f"Training ended with an error{at}.", ""
    if run.status != TRAINING:
        return ("Finished" if run.status == COMPLETE else _capital(run.status, "")), "plain", 9, "", ""
    if (age := silence(run, now)) is not None:
        usual = _row_seconds(run)
        before = f", where a row came every {duration(usual)}" if usual else ""
        detail = "Training may have been stopped, or it evaluates."
        return "Silent", "warn", 3, f"Nothing was written for {duration(age)}{before}.", detail
    if standing := standing_alerts(run):
        named = [f"{_capital(a['check'], '')} {_when(a)}" for a in standing]
        more = f", and {len(named) - 2} more alerts" if len(named) > 2 else ""
        return "Look at this", "warn", 4, f"{', '.join(named[:2])}{more}.", _capital(standing[0]["message"])
    if turned := past_best(run):
        step, value, rise = turned
        ago = f", {run.step - step:,} steps ago" if run.step else ""
        reason = f"Best validation loss {loss_words(value)} at step {step:,}{ago}."
        detail = f"A reason to stop: it has risen by {loss_words(rise)} since, beyond its noise."
        return "Past its best", "warn", 5, reason, detail
    if run.n_rows < tuning.MIN_SPIKE_VALUES and trend(_judged(run)[1]) is None:
        return (
            "Too early to say",
            "plain",
            7,
            "",
            f"The checks need {MIN_TREND_ROWS} logged losses; {run.n_rows} so far.",
        )
    return "Healthy", "good", 8, "", ""


def standing_alerts(run: Facts) -> list[Mapping[str, Any]]:
    """Return the alerts that still stand: of the last stretch, and those on what does not pass by itself."""
    step = run.step or 0
    interval = (run.training[-1].step - run.training[0].step) / max(1, run.n_rows - 1) if run.training else 0.0
    since = step - max(STRETCH * step, STRETCH_ROWS * interval)
    return [a for a in run.alerts if a["step"] >= since or a["check"] not in PASSING]


def silence(run: Facts, now: float) -> float | None:
    """Return the seconds since a run in training last wrote, if they are unusually many."""
    return now - run.updated if run.updated is not None and now > silent_at(run) else None


def silent_at(run: Facts) -> float:
    """Return the time from which a run in training is silent unless it writes; infinite for others."""
    if run.status != TRAINING or run.updated is None:
        return math.inf
    usual = _row_seconds(run)
    least = max(MIN_SILENT_SECONDS, SILENT_ROWS * usual) if usual else MIN_UNKNOWN_SILENT_SECONDS
    return run.updated + least


def _row_seconds(run: Facts) -> float:
    """Return the usual time between two logged rows; 0 if it is unknown."""
    if not run.step_seconds or run.n_rows < 2 or not run.training:
        return 0.0
    return run.step_seconds * (run.training[-1].step - run.training[0].step) / (run.n_rows - 1)


def past_best(run: Facts) -> tuple[int, float, float] | None:
    """Return step and value of the best validation loss, and the rise since, if it has turned."""
    values = [row.value for row in run.validation]
    if not values or not overfits(values):
        return None
    best = min(run.validation, key=lambda row: row.low)
    return best.step, best.low, values[-1] - best.low


def trend(rows: Sequence[Row]) -> float | None:
    """Return the change of a loss from its second to its last quarter, in standard errors; None of too few rows."""
    if sum(row.n for row in rows) < MIN_TREND_ROWS or len(rows) < MIN_TREND_ROWS // 2:
        return None
    first, last = rows[0].step, rows[-1].step
    quarter = (last - first) / 4
    before = [row.value for row in rows if quarter <= row.step - first < 2 * quarter]
    after = [row.value for row in rows if row.step - first >= 3 * quarter]
    if min(len(before), len(after)) < 2:
        return None
    (a, error_a), (b, error_b) = _level(before), _level(after)
    error = (error_a**2 + error_b**2) ** 0.5
    return (b - a) / error if error else float("inf") * (b > a) - float("inf") * (b < a) if a != b else 0.0


def _level(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values, and its standard error by the means of blocks."""
    n = min(N_BLOCKS, len(values))
    bounds = [len(values) * k // n for k in range(n + 1)]
    blocks = [fmean(values[a:b]) for a, b in pairwise(bounds)]
    mean = fmean(blocks)
    variance = sum((block - mean) ** 2 for block in blocks) / (n - 1)
    return fmean(values), (variance / n) ** 0.5


def recent_change(rows: Sequence[Row]) -> tuple[float, int]:
    """Return by how much a loss changed over the last stretch, and over how many steps."""
    first, last = rows[0].step, rows[-1].step
    span = last - first
    after = [row for row in rows if row.step >= last - 0.1 * span]
    before = [row for row in rows if last - 0.3 * span <= row.step < last - 0.2 * span] or [
        row for row in rows if row.step < after[0].step
    ][-1:]
    if not before:
        return 0.0, 0
    steps = fmean(row.step for row in after) - fmean(row.step for row in before)
    return fmean(row.value for row in after) - fmean(row.value for row in before), round(steps)


def _judged(run: Facts) -> tuple[str, Sequence[Row]]:
    """Return the loss whose course is judged: the validation loss if there is enough of it."""
    if len(run.validation) >= MIN_TREND_ROWS // 2 and trend(run.validation) is not None:
        return "Validation", run.validation
    return "Training loss", run.training


def _checks(run: Facts) -> Iterator[Check]:
    """Yield a line for everything that was really checked."""
    yield from _course(run)
    yield from _forecast_check(run)
    if run.kind in WATCHED:
        standing = standing_alerts(run)
        yield from _alert_checks(run, standing)
    yield from _finite_check(run)
    yield from _layer_checks(run)
    if run.n_examined:
        n, faults = run.n_examined, run.n_faults
        text = f"{n:,} saved {'checkpoint' if n == 1 else 'checkpoints'} examined"
        yield Check(BAD if faults else GOOD, f"{text}, {f'{faults:,} faults' if faults else 'sound'}")


def _course(run: Facts) -> Iterator[Check]:
    """Yield whether the loss still falls, and where the best validation loss lies."""
    name, rows = _judged(run)
    change = trend(rows) if run.is_finite else None
    if turned := past_best(run):
        yield Check(BAD, f"Validation loss rises: {loss_words(turned[2])} above its best, at step {turned[0]:,}")
    if change is None or (turned and name == "Validation"):
        return
    moved, steps = recent_change(rows)
    recent = f"{loss_words(abs(moved))} in the last {steps:,} steps"
    if change >= -MIN_CHANGE_ERRORS:
        verb = "rises" if change > MIN_CHANGE_ERRORS else "no longer falls"
        yield Check(BAD, f"{name} {verb}: no lower in the last quarter of the steps than in the second")
    elif moved < 0:
        yield Check(GOOD, f"{name} still falls: {recent}")
    else:
        yield Check(OPEN, f"{name} fell, but not in the last {steps:,} steps")


def _forecast_check(run: Facts) -> Iterator[Check]:
    """Yield whether the forecasts agree with each other."""
    if len(run.forecasts) < 2 or run.diverged:
        return
    last = run.forecasts[-1]
    inside = [f for f in run.forecasts[:-1] if f["low"] <= last["loss"] <= f["high"]]
    n = len(run.forecasts) - 1
    mark = GOOD if 2 * len(inside) >= n else OPEN
    earlier = "the earlier forecast" if n == 1 else f"{len(inside)} of {n} earlier forecasts"
    text = f"Loss falls as forecast: {earlier} held" if inside else f"The forecast moved outside {earlier}"
    yield Check(mark, text)


ALERT_LINES = (
    (("loss spike",), "No loss spike in {n:,} logged losses", "loss", tuning.MIN_SPIKE_VALUES),
    (("gradient spike",), "Gradient norm within its noise", "grad_norm", tuning.MIN_SPIKE_VALUES),
    (("learning rate jump",), "Learning rate without a jump", "learning_rate", tuning.MIN_RATES),
)
"""Checks of the log: alerts, what their absence shows, the column that they need, and the least number of rows."""
_NAMED = {check for checks, *_ in ALERT_LINES for check in checks}


def _alert_checks(run: Facts, standing: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Yield what the monitor's checks of the log show, and every kind of alert once."""
    by_check: dict[str, list[Mapping[str, Any]]] = {}
    for alert in run.alerts:
        by_check.setdefault(alert["check"], []).append(alert)
    for checks, text, column, least in ALERT_LINES:
        if not any(check in by_check for check in checks) and column in run.columns and run.n_rows >= least:
            yield Check(GOOD, text.format(n=run.n_rows))
    for check, alerts in by_check.items():
        stands = any(alert in standing for alert in alerts)
        n = f"{len(alerts)} times, the last " if len(alerts) > 1 else ""
        yield Check(BAD if stands else OPEN, f"{_capital(check, '')} {n}{_when(alerts[0])}{'' if stands else '; over'}")


def _finite_check(run: Facts) -> Iterator[Check]:
    if not run.is_finite or run.layers.n_nonfinite:
        yield Check(
            BAD,
            "The loss is NaN or infinite"
            if not run.is_finite
            else f"{run.layers.n_nonfinite:,} weights or gradients are NaN or infinite",
        )
    elif run.n_nan:
        yield Check(OPEN, f"{run.n_nan:,} logged losses are NaN; the last ones are numbers")
    elif run.n_rows:
        weights = ", none in weights and gradients" if run.layers.n_measured else ""
        yield Check(GOOD, f"No NaN in {run.n_rows:,} logged losses{weights}")


def _layer_checks(run: Facts) -> Iterator[Check]:
    """Yield whether all layers learn, and whether their gradients and updates stay within their noise."""
    layers = run.layers
    if not layers.n_layers:
        return
    if layers.idle:
        yield Check(OPEN, f"{len(layers.idle)} of {layers.n_layers} layers do not change: {', '.join(layers.idle[:3])}")
    elif not any(a["check"] in ("dead layer", "frozen layer", "dead units") for a in run.alerts):
        stalled = ", none stalled" if layers.n_updated == layers.n_layers else ""
        yield Check(GOOD, f"All {layers.n_layers} layers learn; none dead{stalled}")
    if layers.n_measured >= tuning.MIN_VALUES and not any(a["place"] and a["check"] not in _NAMED for a in run.alerts):
        yield Check(GOOD, f"Gradients, norms and ranks of layers within their noise, {layers.n_measured:,} times")


def _when(alert: Mapping[str, Any]) -> str:
    place = f" of {alert['place']}" if alert["place"] else ""
    return f"at step {alert['step']:,}{place}"


def _capital(text: str, end: str = ".") -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}{end}" if text else ""


def loss_words(value: float | None) -> str:
    """Write a loss with as many digits as a reader needs."""
    if value is None:
        return "–"
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Write a time in words."""
    for unit, size, until in (("second", 1, 90), ("minute", 60, 5400), ("hour", 3600, 172800), ("day", 86400, 0)):
        if seconds < until or not until:
            n = round(seconds / size) if seconds >= size or size > 1 else round(seconds, 1)
            return f"{n:,} {unit}{'' if n == 1 else 's'}"
    raise AssertionError
