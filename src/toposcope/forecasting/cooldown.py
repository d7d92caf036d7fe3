"""What the loss would be after a cool-down that starts now, from averages of the checkpoints of a constant rate.

The average of the checkpoints of a stretch at constant learning rate is nearly the model that a cool-down would have
given half a stretch earlier (WSM, arXiv:2507.17634). How averages fall from one stretch to the next is the progress of
the run without its noise; carried on to the end of a cool-down from now on, it gives the loss there.
docs/methods/cool-down.md has the rule, its refusals and its errors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.held_out import NORMAL_WIDTH
from toposcope.logs.schedules.schedule import Schedule
from toposcope.logs.table import ByStep
from toposcope.wording import counted

# Cool-downs from checkpoints: docs/methods/cool-down.md; on real cool-downs of small models (benchmarks/cooldowns.py)
MAX_COOL_DOWN = 0.2  # share of the steps so far; longer ones were not measured
MAX_RATE_CHANGE = 0.05  # of the learning rate over the windows that are merged
TEXT_NOISE = 0.5  # nats times the root of the tokens: of the difference of two models on one text
RISE_ERRORS = 2.0  # standard errors of the text by which averages rise where the run overfits
COOL_DOWN_ERROR = 0.008  # nats of the half width, beside the noise of the text
PROGRESS_ERROR, GAIN_ERROR = 0.3, 0.05  # its shares of the progress to come, and of what is gained beyond progress

Decay = Literal["linear", "1-sqrt", "cosine"]
DECAYS: tuple[Decay, ...] = get_args(Decay)
MEAN_RATES: Mapping[Decay, float] = {"linear": 1 / 2, "1-sqrt": 1 / 3, "cosine": 1 / 2}
"""Mean of the rate over a cool-down, as a share of the rate before it."""
MIN_MERGED, FEW_MERGED = 3, 5  # checkpoints in a window: fewer are refused, or said to be few
FALL = 0.1  # of the steps so far: each of the two windows that show how averages fall, with as many between them
MIN_WARM_UPS = 10  # steps seen, in warm-ups


@dataclass(frozen=True)
class Merged:
    """An average of checkpoints, weighted as a linear decay over their steps weights them."""

    steps: tuple[int, ...]
    loss: float  # nats per token, on the text on which raw checkpoints are measured
    weights: tuple[float, ...]  # of the checkpoints, with sum 1

    @property
    def window(self) -> int:
        """Steps from the first checkpoint in it to the last."""
        return self.steps[-1] - self.steps[0]

    @property
    def centre(self) -> float:
        """The mean of its steps."""
        return float(np.dot(self.weights, self.steps))


def best_of(merged: Iterable[Merged], now: int) -> Merged:
    """Return the average with the lowest loss of those that end now."""
    return min((each for each in merged if each.steps[-1:] == (now,)), key=lambda each: each.loss)


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
        On the text, of the last checkpoint; a mean over several.
    beyond : float
        By how much the loss is below that of as much progress, the sum of the rates, at the rate of now.
    merged : Merged
        The best average of checkpoints, as a model at hand.
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
    held_out : ByStep
        Losses of raw checkpoints on the text, in nats per token; the last is of now.
    tokens : int
        Predicted tokens of the text.
    rates : ByStep or None
        Logged learning rates; None where the rate is declared to be constant.
    """

    held_out: ByStep
    tokens: int
    rates: ByStep | None = None

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


def text_noise(tokens: int) -> float:
    """Return the standard error of the difference of two models' losses on one text, in nats."""
    return float(TEXT_NOISE / np.sqrt(tokens))


def windows(steps: Sequence[int], length: int) -> tuple[list[int], list[int], list[int]]:
    """Return the steps of the checkpoints to merge: of the last `length`, and of two windows that show their fall.

    These are the tenth of the steps so far that ends now, and the last but two. They are shorter where checkpoints do
    not reach back so far.

    Raises
    ------
    RefusedError
        If there are fewer than 3 in any.
    """
    now = steps[-1]
    size = min(FALL * now, (now - steps[0]) / 3)
    last, later = ([step for step in steps if step >= now - each] for each in (length, size))
    begin, end = now - 3 * size, now - 2 * size
    earlier = [step for step in steps if begin <= step <= end]
    places = f"in the last {length:,} steps", f"in the last {size:,.0f} steps", f"from step {begin:,.0f} to {end:,.0f}"
    for place, found in zip(places, (last, later, earlier), strict=True):
        if len(found) < MIN_MERGED:
            raise RefusedError(
                f"{counted(len(found), 'checkpoint')} {place}, and {MIN_MERGED} are needed to merge; save them more "
                "often, or ask for a longer cool-down"
            )
    return last, earlier, later


def check_course(course: Course, length: int) -> None:
    """Refuse (`RefusedError`) a cool-down that is too long, or of a rate that was not constant while averages fell."""
    now, schedule = course.now, course.schedule
    if length > MAX_COOL_DOWN * now:
        raise RefusedError(
            f"a cool-down of {length:,} steps from step {now:,} is longer than {MAX_COOL_DOWN:.0%} of the steps "
            f"so far, beyond which the rule was not measured; ask for at most {int(MAX_COOL_DOWN * now):,} steps"
        )
    if course.rates is None:
        return
    if now < MIN_WARM_UPS * schedule.warm_up:
        raise RefusedError(
            f"the learning rate warmed up until step {schedule.warm_up:,}, and the last checkpoint is of step {now:,}: "
            f"a cool-down is predicted from {MIN_WARM_UPS} warm-ups on; ask again at step "
            f"{MIN_WARM_UPS * schedule.warm_up:,}"
        )
    seen = round(3 * FALL * now)
    rates = schedule.rates[now - seen :]
    if np.ptp(rates) > MAX_RATE_CHANGE * rates.max():
        how = "falls" if rates[-1] < rates[0] else "changes"
        raise RefusedError(
            f"the learning rate {how} over the last {seen:,} steps, from {rates[0]:.3g} to {rates[-1]:.3g}: averages "
            f"of checkpoints predict a cool-down where it is constant to {MAX_RATE_CHANGE:.0%}; ask at a step before"
        )


def cool_down_forecast(
    course: Course, last: Merged, fall: tuple[Merged, Merged], length: int, decay: Decay = "linear"
) -> CoolDown:
    """Return what a cool-down that starts now would bring.

    Parameters
    ----------
    course : Course
    last, fall : Merged, pair of Merged
        The averages over the `windows` of this length.
    length : int
        Steps of the cool-down.
    decay : "linear", "1-sqrt" or "cosine"
        Of the rate, to zero. The loss at its end is taken to be the same.

    Returns
    -------
    CoolDown

    Raises
    ------
    RefusedError
        If the rate does not allow it (see `check_course`), or the averages rise.
    """
    check_course(course, length)
    now, noise, (earlier, later) = course.now, text_noise(course.tokens), fall
    if later.loss > earlier.loss + RISE_ERRORS * noise:
        raise RefusedError(
            f"the loss of averages on the text has risen, from {earlier.loss:.4g} at step {earlier.steps[-1]:,} to "
            f"{later.loss:.4g}: the run overfits or diverges, and a cool-down would not undo that; take an earlier "
            "checkpoint"
        )
    slope = (earlier.loss - later.loss) / np.log(later.centre / earlier.centre)  # nats per unit of ln(step)

    def progress(begin: float, end: float) -> float:
        return float(slope * np.log(end / begin))

    to_come = progress(last.centre, now + length / 2)
    loss = last.loss - to_come
    steps, losses = course.held_out
    merged = steps >= earlier.steps[0]
    level = float(np.mean(losses[merged] - slope * np.log(now / steps[merged])))
    beyond = level - progress(now, now + MEAN_RATES[decay] * length) - loss
    half_width = COOL_DOWN_ERROR + NORMAL_WIDTH * noise + PROGRESS_ERROR * abs(to_come) + GAIN_ERROR * max(beyond, 0)
    notes = []
    if decay == "cosine":
        notes.append("no cool-down along a cosine was measured: it is taken to end as one along a line does")
    if len(last.steps) < FEW_MERGED:
        notes.append(f"only {len(last.steps)} checkpoints are merged: with more of them more of the gain is at hand")
    return CoolDown(
        step=now,
        length=length,
        decay=decay,
        loss=loss,
        low=loss - half_width,
        high=loss + half_width,
        held=level - progress(now, now + length),
        now=level,
        beyond=beyond,
        merged=last,
        notes=tuple(notes),
    )
