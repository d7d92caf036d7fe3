"""What the loss would be after a cool-down that starts now, from averages of the checkpoints of a constant rate.

An average of the checkpoints of a stretch at constant learning rate is nearly the model that a cool-down over that
stretch would have given (WSM, arXiv:2507.17634). It lacks the progress of the steps that a cool-down from now on still
makes: this is added by the power law of the run. docs/methods/cool-down.md has the rule, its refusals and its errors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.forecasters.power_law_fit import PowerLawFit, fit_power_law, window
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule
from toposcope.logs.table import ByStep
from toposcope.typing import Vector
from toposcope.wording import counted

# Cool-downs from checkpoints: docs/methods/cool-down.md; on real cool-downs of small GPTs (benchmarks/cooldowns.py)
MAX_COOL_DOWN = 0.2  # share of the steps so far; longer ones were not measured
MAX_RATE_CHANGE = 0.05  # of the learning rate over the window that is merged
TEXT_NOISE = 0.5  # nats times the root of the tokens: of the difference of two models on one text
RISE_ERRORS = 2.0  # standard errors by which a line through losses on the text rises where the run overfits
MAX_WINDOW_LOSS = 0.002  # nats; a window that gains less than its half by more has drifted
COOL_DOWN_LATE_SHARE = 0.5  # of the training losses that the law is fitted to
GAIN_GROWTH = {"linear": 1.0, "1-sqrt": 1.25, "cosine": 1.0}
"""Of the gain over that of merging, times the length over the steps so far; that of a cosine was not measured."""
GAIN_OF_FEW = 0.6  # over the effective checkpoints less one: what merging few of them misses of the gain
COOL_DOWN_ERROR, COOL_DOWN_ERROR_SHARE = 0.008, 0.16  # nats, and share of the merged gain: the half width
AT_LEAST_SHARE = 0.4  # of the merged gain, by which the loss may end lower still where the gain is "at least" this

Decay = Literal["linear", "1-sqrt", "cosine"]
DECAYS: tuple[Decay, ...] = get_args(Decay)
MEAN_RATES: Mapping[Decay, float] = {"linear": 1 / 2, "1-sqrt": 1 / 3, "cosine": 1 / 2}
"""Mean of the rate over a cool-down, as a share of the rate before it."""
MIN_MERGED, FEW_MERGED = 3, 5  # checkpoints in the window: fewer are refused, or said to be few
SHORTER = (1, 2, 4)  # parts of the length of the cool-down over which checkpoints are merged
MIN_LINE = 5  # raw checkpoints of the last half of the steps, for a slope of their own
MIN_WARM_UPS = 10  # steps seen, in warm-ups


@dataclass(frozen=True)
class Merged:
    """The average of the checkpoints of the last `window` steps, weighted as a linear decay over them weights them."""

    window: int  # steps from the first checkpoint in it to the last, which is now
    loss: float  # nats per token, on the text on which raw checkpoints are measured
    weights: tuple[float, ...]  # of the checkpoints, with sum 1

    @property
    def effective(self) -> float:
        """The number of checkpoints that it counts for, 1 / sum c^2."""
        return float(1 / np.square(self.weights).sum())


@dataclass(frozen=True)
class CoolDown:
    """What a cool-down of some steps would bring.

    Attributes
    ----------
    step : int
        At which it would start: now.
    length : int
        Its steps.
    decay : "linear", "1-sqrt" or "cosine"
        Of the rate, to zero.
    loss, low, high : float
        On the text after it, with the ends of its 90% interval.
    held : float
        On the text after as many steps at the rate of now.
    now : float
        On the text, of the last checkpoint; read off a line through several.
    beyond : float
        By how much the loss is below that of as much progress, the sum of the rates, at the rate of now.
    merged : Merged
        The best average of checkpoints, as a model at hand.
    at_least : tuple of str
        Why the gain is at least this one, and may be larger; empty where it is an estimate to both sides.
    notes : tuple of str
        What else there is to know, a sentence each.
    """

    step: int
    length: int
    decay: Decay
    loss: float
    low: float
    high: float
    held: float
    now: float
    beyond: float
    merged: Merged
    at_least: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """By how much the loss is below that of holding the rate for as many steps."""
        return self.held - self.loss

    @property
    def in_hand(self) -> float:
        """Share of the gain that the merged checkpoints have now, at most 1; NaN where nothing is gained."""
        return float(np.clip((self.now - self.merged.loss) / self.gain, 0, 1)) if self.gain > 0 else np.nan


@dataclass(frozen=True, eq=False)
class Course:
    """A run at constant learning rate, up to now.

    Attributes
    ----------
    training : ByStep
        Its logged losses. Of a run without a log those of `held_out`.
    held_out : ByStep
        Losses of raw checkpoints on the text, in nats per token; the last is of now, and half of the way to it is what
        counts.
    tokens : int
        Predicted tokens of the text.
    rates : ByStep or None
        Logged learning rates; None where the rate is declared to be constant.
    sgd : bool
        Whether its optimizer is SGD, with or without momentum.
    """

    training: ByStep
    held_out: ByStep
    tokens: int
    rates: ByStep | None = None
    sgd: bool = False

    @property
    def now(self) -> int:
        """The step of the last checkpoint."""
        return int(self.held_out.steps[-1])

    @cached_property
    def schedule(self) -> Schedule:
        """The rates up to now; what was logged later says nothing of a rate before."""
        steps = np.arange(self.now + 1)
        if self.rates is None:
            return Schedule(np.ones(len(steps)))
        seen = self.rates.steps <= self.now
        return Schedule(np.interp(steps, self.rates.steps[seen], self.rates.values[seen]))

    @cached_property
    def law(self) -> PowerLawFit:
        """The power law in S1 of the late part of the training loss."""
        seen = self.training.steps <= self.now
        steps, losses = self.training.steps[seen], self.training.values[seen]
        log = Run("training loss", steps, losses, np.full(len(steps), np.nan))
        late = window(log, self.schedule, COOL_DOWN_LATE_SHARE)
        return fit_power_law(self.schedule.progress(late.steps), late.loss, late.weight)

    @cached_property
    def _level(self) -> tuple[float, float]:
        """The loss on the text now, and its change over that of the training loss, by a line through the late ones."""
        steps, losses = self.held_out
        late = steps >= self.now / 2
        training = self.law(self.schedule.progress(steps[late])) - self.law(self._progress)[0]
        if late.sum() < MIN_LINE or not np.ptp(training) > 0:
            return float((losses[late] - training).mean()), 1.0
        slope, level = np.polyfit(training, losses[late], 1)
        return float(level), float(slope)

    @property
    def _progress(self) -> Vector:
        return self.schedule.progress(np.array([self.now]))

    def held(self, ahead: float) -> float:
        """Return the loss on the text after so many more steps at the rate of now; before now where negative.

        It changes as the law of the training loss does, times the mean of 1 and of what raw checkpoints show.
        """
        level, slope = self._level
        rate = self.schedule.rates[-1] / self.schedule.peak
        change = float(self.law(self._progress + ahead * rate)[0] - self.law(self._progress)[0])
        return level + (1 + slope) / 2 * change


def text_noise(tokens: int) -> float:
    """Return the standard error of the difference of two models' losses on one text, in nats."""
    return float(TEXT_NOISE / np.sqrt(tokens))


def windows(steps: Sequence[int], length: int) -> list[list[int]]:
    """Return the steps of the checkpoints to merge, for a cool-down of some steps after the last: longest first.

    Those of the last `length` steps, of half and of a quarter of them, where there are 3; each list once.
    """
    now = steps[-1]
    found = [[step for step in steps if step >= now - length / part] for part in SHORTER]
    return [each for i, each in enumerate(found) if len(each) >= MIN_MERGED and each not in found[:i]]


def check_course(course: Course, inside: int, length: int) -> None:
    """Refuse (`RefusedError`) a cool-down of which a run cannot tell with so many checkpoints in its last steps."""
    now, schedule = course.now, course.schedule
    if length > MAX_COOL_DOWN * now:
        raise RefusedError(
            f"a cool-down of {length:,} steps from step {now:,} is longer than {MAX_COOL_DOWN:.0%} of the steps "
            f"so far, beyond which the rule was not measured; ask for at most {int(MAX_COOL_DOWN * now):,} steps"
        )
    if course.rates is not None:
        _check_rates(schedule, now, length)
    if inside < MIN_MERGED:
        raise RefusedError(
            f"{counted(inside, 'checkpoint')} in the last {length:,} steps, and {MIN_MERGED} are needed to merge; "
            "save them more often, or ask for a longer cool-down"
        )


def _check_rates(schedule: Schedule, now: int, length: int) -> None:
    """Refuse rates that were not constant over the last steps, or for too short a time."""
    if schedule.warm_up > now - length or now < MIN_WARM_UPS * schedule.warm_up:
        raise RefusedError(
            f"the learning rate warmed up until step {schedule.warm_up:,}, and the last checkpoint is of step {now:,}: "
            f"a cool-down is predicted from {MIN_WARM_UPS} warm-ups on; ask again at step "
            f"{max(MIN_WARM_UPS * schedule.warm_up, schedule.warm_up + length):,}"
        )
    rates = schedule.rates[max(now - length, 0) :]
    if np.ptp(rates) > MAX_RATE_CHANGE * rates.max():
        how = "falls" if rates[-1] < rates[0] else "changes"
        raise RefusedError(
            f"the learning rate {how} over the last {length:,} steps, from {rates[0]:.3g} to {rates[-1]:.3g}: averages "
            f"of checkpoints predict a cool-down where it is constant to {MAX_RATE_CHANGE:.0%}; ask at a step "
            "before, or for a shorter cool-down"
        )


def cool_down_forecast(course: Course, merged: Sequence[Merged], length: int, decay: Decay = "linear") -> CoolDown:
    """Return what a cool-down that starts now would bring.

    Parameters
    ----------
    course : Course
    merged : sequence of Merged
        Averages over the `windows` of this length, longest first.
    length : int
        Steps of the cool-down.
    decay : "linear", "1-sqrt" or "cosine"
        Of the rate, to zero.

    Returns
    -------
    CoolDown

    Raises
    ------
    RefusedError
        If the run does not tell (see `check_course`), its loss on the text rises, or what merging gains is within the
        noise of the text.
    """
    check_course(course, len(merged[0].weights) if merged else 0, length)
    _check_fall(course)
    gains = [course.held(-each.window / 2) - each.loss for each in merged]
    gain = max(gains)
    noise = text_noise(course.tokens)
    if gain < noise:
        raise RefusedError(
            f"merging the checkpoints of the last {length:,} steps gains {max(gain, 0):.4f} nats, within the noise of "
            f"{noise:.4f} of a text of {course.tokens:,} tokens: give a longer text, or ask for a longer cool-down"
        )
    best = merged[int(np.argmax(gains))]
    longer = 1 + GAIN_GROWTH[decay] * length / course.now
    factor = longer * (1 + GAIN_OF_FEW / (best.effective - 1))
    loss = course.held(MEAN_RATES[decay] * length) - factor * gain
    half_width = COOL_DOWN_ERROR + COOL_DOWN_ERROR_SHARE * gain
    at_least = ("its optimizer is SGD",) if course.sgd else ()
    notes = []
    if len(gains) > 1 and gains[0] < gains[1] - MAX_WINDOW_LOSS:
        half_width *= 2
        notes.append(
            f"merging {merged[0].window:,} steps gains less than merging {merged[1].window:,}: the shorter window "
            "counts, and the interval is twice as wide"
        )
    if decay == "cosine":
        notes.append("no cool-down along a cosine was measured: it is taken to gain as one along a line does")
    if len(merged[0].weights) < FEW_MERGED:
        notes.append(
            f"only {len(merged[0].weights)} checkpoints in the last {length:,} steps: with more of them the answer is "
            "surer, and more of the gain is at hand"
        )
    return CoolDown(
        step=course.now,
        length=length,
        decay=decay,
        loss=loss,
        low=loss - half_width - (AT_LEAST_SHARE * gain if at_least else 0),
        high=loss + half_width,
        held=course.held(length),
        now=course.held(0),
        beyond=factor * gain,
        merged=min(merged, key=lambda each: each.loss),
        at_least=at_least,
        notes=tuple(notes),
    )


def _check_fall(course: Course) -> None:
    """Refuse a run whose losses on the text rise along ln(step), by more than their scatter about the line explains."""
    steps, losses = course.held_out
    late = steps >= course.now / 2
    if late.sum() < MIN_LINE:
        return
    (slope, _), covariance = np.polyfit(np.log(steps[late]), losses[late], 1, cov=True)
    if slope > RISE_ERRORS * np.sqrt(covariance[0, 0]):
        lowest = int(np.argmin(losses))
        raise RefusedError(
            f"the loss on the text has risen, from {losses[lowest]:.4g} at step {steps[lowest]:,} to {losses[-1]:.4g}: "
            "the run overfits or diverges, and a cool-down would not undo that; take an earlier checkpoint"
        )
