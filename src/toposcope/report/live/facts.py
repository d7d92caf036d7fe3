"""What is stored of a run, and what follows from it: silence, standing alerts, the course of a loss. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from toposcope.checks import CHECKS
from toposcope.logs.overfitting import overfits
from toposcope.logs.tuning import MIN_TREND_ROWS
from toposcope.report.live.database import Row

TRAINING, COMPLETE, DIVERGED, FAILED = "running", "complete", "diverged", "failed"
WATCHED = ("live", "log")  # kinds of runs whose log is checked while it grows, as alerts say
STRETCH, STRETCH_ROWS = 0.1, 20
"""An alert on something that may pass stands for this share of the steps so far, at least for so many rows."""
PASSING = {name for name, check in CHECKS.items() if check.passes}
"""Alerts on what may pass by itself. All others stand until the run ends, since no recovery is reported."""
MIN_SILENT_SECONDS, SILENT_ROWS = 120.0, 5
"""A run is silent after this time, and this many times the usual time between two rows; an evaluation takes a few."""
MIN_UNKNOWN_SILENT_SECONDS = 900.0  # the same where the time between rows is unknown
HAS_DIVERGED = "the run diverged"  # with which a divergence begins; a loss that is NaN may still recover
MIN_SINCE_BEST = 3  # evaluations since the best one from which the best is said to lie behind
N_BLOCKS = 5  # blocks of a quarter of a run, whose means show the noise
MIN_FALL_ERRORS, MIN_RISE_ERRORS = 2.0, 5.0  # standard errors by which a loss must change to count as falling, rising
MIN_RISE, MAX_STALL = 0.01, 0.005  # least relative rise, and the largest fall in half of a run that is none


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
    judged: Sequence[str] = ()  # columns of the log with as many values as its checks need
    layers: LayerFacts = field(default_factory=LayerFacts)
    n_examined: int = 0  # saved checkpoints that the doctor examined
    n_faults: int = 0  # faults that it found
    step_seconds: float | None = None
    updated: float | None = None  # time at which its writer last wrote, in seconds since 1970


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
    usual = row_seconds(run)
    least = max(MIN_SILENT_SECONDS, SILENT_ROWS * usual) if usual else MIN_UNKNOWN_SILENT_SECONDS
    return run.updated + least


def row_seconds(run: Facts) -> float:
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


def since_best(run: Facts) -> int:
    """Return how many evaluations there were since the best validation loss."""
    values = [row.value for row in run.validation]
    return len(values) - 1 - values.index(min(values)) if values else 0


class Course(NamedTuple):
    """Levels of a loss in the second and in the last quarter of the steps so far."""

    before: float
    after: float
    error: float  # standard error of their difference

    @property
    def word(self) -> str:
        """Whether the loss falls, rises or stalls; ``unclear`` where its noise hides it."""
        fall = self.before - self.after
        if fall > MIN_FALL_ERRORS * self.error:
            return "falls"
        if -fall > max(MIN_RISE_ERRORS * self.error, MIN_RISE * self.before):
            return "rises"
        noise = MIN_FALL_ERRORS * self.error
        return "stalls" if noise + max(0.0, fall) < MAX_STALL * self.before else "unclear"


def course(rows: Sequence[Row]) -> Course | None:
    """Return the course of a loss; None of too few rows, or of one that is not positive, and need not fall."""
    if sum(row.n for row in rows) < MIN_TREND_ROWS or len(rows) < MIN_TREND_ROWS // 2:
        return None
    first, span = rows[0].step, rows[-1].step - rows[0].step
    before = [row.value for row in rows if span <= 4 * (row.step - first) < 2 * span]
    after = [row.value for row in rows if 4 * (row.step - first) >= 3 * span]
    if min(len(before), len(after)) < 2 or min(row.low for row in rows) <= 0:
        return None
    (a, error_a), (b, error_b) = _level(before), _level(after)
    return Course(a, b, math.hypot(error_a, error_b))


def _level(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values, and its standard error by the means of blocks around their trend."""
    n = min(N_BLOCKS, len(values))
    bounds = [len(values) * k // n for k in range(n + 1)]
    blocks = [fmean(values[a:b]) for a, b in pairwise(bounds)]
    places = [k - (n - 1) / 2 for k in range(n)]
    slope = sumprod(places, blocks) / sumprod(places, places) if n > 2 else 0.0
    mean = fmean(blocks)
    rest = [block - mean - slope * place for place, block in zip(places, blocks, strict=True)]
    return fmean(values), math.sqrt(sumprod(rest, rest) / (n - 2 if n > 2 else 1) / n)


def sumprod(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the scalar product."""
    return sum(x * y for x, y in zip(a, b, strict=True))


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


def judged_loss(run: Facts) -> tuple[str, Sequence[Row]]:
    """Return the loss whose course is judged: the validation loss if there is enough of it."""
    if len(run.validation) >= MIN_TREND_ROWS // 2 and course(run.validation) is not None:
        return "Validation", run.validation
    return "Training loss", run.training


def duration(seconds: float) -> str:
    """Write a time in words."""
    for unit, size, until in (("second", 1, 90), ("minute", 60, 5400), ("hour", 3600, 172800), ("day", 86400, 0)):
        if seconds < until or not until:
            n = round(seconds / size) if seconds >= size or size > 1 else round(seconds, 1)
            return f"{n:,} {unit}{'' if n == 1 else 's'}"
    raise AssertionError
