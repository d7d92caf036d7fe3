"""The rule for cool-downs, against runs whose cool-down is known: noise about a minimum that falls by a power law."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.checkpoints import Series
from toposcope.checkpoints.decay import decay_weights
from toposcope.forecasting.cooldown import (
    CoolDown,
    Course,
    Decay,
    Merged,
    check_course,
    cool_down_forecast,
    windows,
)
from toposcope.forecasting.cooldown_report import CoolDownReport
from toposcope.forecasting.forecaster import RefusedError
from toposcope.logs.table import ByStep
from toposcope.typing import Vector

RATE, CURVATURE, NOISE, N_WEIGHTS = 0.1, 0.5, 0.02, 4000
"""Of a sum of squares by `CURVATURE`; the distance to its minimum is forgotten in 20 steps."""


def floor(progress: Vector | float) -> Vector:
    """The loss at the minimum, after some steps at the full rate."""
    return np.asarray(2.5 + 1.5 * (np.asarray(progress) / 100) ** -0.4)


def updated(weights: Vector, rate: float, generator: np.random.Generator) -> Vector:
    gradient = CURVATURE * weights + NOISE * generator.standard_normal(N_WEIGHTS)
    return weights - rate * gradient


def excess(weights: Vector) -> float:
    return CURVATURE / 2 * float(weights @ weights)


def decayed(share: float, decay: Decay) -> float:
    """The rate of a decay, as a share of that before it."""
    return {"linear": 1 - share, "1-sqrt": 1 - math.sqrt(share), "cosine": (1 + math.cos(math.pi * share)) / 2}[decay]


Averages = tuple[Merged, tuple[Merged, Merged]]


class Planted:
    """A run of 2,000 steps with a checkpoint every `spacing`, and the loss after a cool-down of it."""

    def __init__(self, spacing: int = 20, now: int = 2000, seed: int = 0) -> None:
        self.generator = np.random.default_rng(seed)
        self.now, self.kept = now, {}
        weights = np.zeros(N_WEIGHTS)
        for step in range(1, now + 1):
            weights = updated(weights, RATE, self.generator)
            if step % spacing == 0:
                self.kept[step] = weights
        steps = np.arange(1, now + 1)
        raw = np.array([float(floor(step)) + excess(each) for step, each in self.kept.items()])
        self.course = Course(ByStep(np.array([*self.kept]), raw), 10**6, ByStep(steps, np.full(now, RATE)))

    def merged(self, length: int) -> Averages:
        """The averages over the windows of a cool-down."""
        last, earlier, later = (self.average(steps) for steps in windows([*self.kept], length))
        return last, (earlier, later)

    def average(self, steps: list[int]) -> Merged:
        weights = np.diff(steps, prepend=steps[0]) + np.diff(steps, append=steps[-1])
        weights = weights / weights.sum()
        mean = sum(weight * self.kept[step] for weight, step in zip(weights, steps, strict=True))
        return Merged(tuple(steps), float(floor(weights @ steps)) + excess(np.asarray(mean)), tuple(weights.tolist()))

    def cooled(self, length: int, decay: Decay) -> float:
        """The loss after a real cool-down."""
        weights, progress = self.kept[self.now], float(self.now)
        for step in range(1, length + 1):
            rate = decayed(step / length, decay)
            weights, progress = updated(weights, rate * RATE, self.generator), progress + rate
        return float(floor(progress)) + excess(weights)


@pytest.fixture(scope="module")
def planted() -> Planted:
    return Planted()


@pytest.mark.parametrize("decay", ["linear", "1-sqrt", "cosine"])
@pytest.mark.parametrize("length", [60, 100, 200])
def test_a_planted_cool_down_is_predicted(planted: Planted, length: int, decay: Decay) -> None:
    found = cool_down_forecast(planted.course, *planted.merged(length), length, decay)
    truth = planted.cooled(length, decay)
    assert found.low < truth < found.high
    assert found.loss == pytest.approx(truth, abs=0.012)
    assert found.held == pytest.approx(
        float(floor(planted.now + length)) + found.now - float(floor(planted.now)), abs=0.01
    )
    assert 0.5 < found.in_hand <= 1
    assert any("along a cosine" in note for note in found.notes) == (decay == "cosine")
    assert found.loss < found.merged.loss  # steps of progress are missing in it
    progress = sum(decayed(step / length, decay) for step in range(1, length + 1))
    as_far = found.now - float(floor(planted.now)) + float(floor(planted.now + progress))
    assert found.beyond == pytest.approx(as_far - found.loss, abs=0.01)


def test_rare_checkpoints_are_enough() -> None:
    rare = Planted(spacing=50)
    found = cool_down_forecast(rare.course, *rare.merged(200), 200)
    assert found.low < rare.cooled(200, "linear") < found.high


@given(fall=st.floats(0.01, 1), shift=st.floats(-1, 1), length=st.integers(1, 300))
def test_averages_that_fall_along_ln_step_are_carried_on(fall: float, shift: float, length: int) -> None:
    """Without noise the loss at the end is that of half the steps, by the same line; another text shifts it."""
    steps = list(range(100, 2001, 10))

    def loss(step: float) -> float:
        return 3 + shift - fall * math.log(step)

    def average(chosen: list[int]) -> Merged:
        weights = decay_weights(chosen).tolist()
        return Merged(tuple(chosen), loss(float(np.dot(weights, chosen))), tuple(weights))

    course = Course(ByStep(np.array(steps), np.array([loss(step) for step in steps])), 10**6)
    try:
        last, earlier, later = (average(each) for each in windows(steps, length))
    except RefusedError:
        assert length < 20
        return
    found = cool_down_forecast(course, last, (earlier, later), length)
    assert found.loss == pytest.approx(loss(2000 + length / 2))
    assert found.now == pytest.approx(loss(2000))
    assert found.held == pytest.approx(loss(2000 + length))
    assert found.beyond == pytest.approx(0, abs=1e-9)


def test_the_interval_widens_with_the_progress_to_come_and_with_a_short_text(planted: Planted) -> None:
    last, (earlier, later) = planted.merged(200)
    usual = cool_down_forecast(planted.course, last, (earlier, later), 200)
    faster = cool_down_forecast(planted.course, last, (replace(earlier, loss=earlier.loss + 0.1), later), 200)
    shorter = cool_down_forecast(replace(planted.course, tokens=1000), last, (earlier, later), 200)
    assert faster.high - faster.low > usual.high - usual.low + 0.02
    assert shorter.high - shorter.low > usual.high - usual.low + 0.04


@given(st.sets(st.integers(0, 1000), min_size=1), st.integers(1, 500))
def test_windows_end_now_and_follow_each_other(chosen: set[int], length: int) -> None:
    steps = sorted(chosen)
    try:
        last, earlier, later = windows(steps, length)
    except RefusedError as error:
        assert "3 are needed to merge" in str(error)  # noqa: PT017
        return
    for each in (last, earlier, later):
        assert len(each) >= 3
        assert each == [step for step in steps if each[0] <= step <= each[-1]]
    assert last[-1] == later[-1] == steps[-1]
    assert last[0] >= steps[-1] - length
    size = min(steps[-1] / 10, (steps[-1] - steps[0]) / 3)
    assert later[0] >= steps[-1] - size >= earlier[-1] + size - 1e-9 >= earlier[0] + size - 1e-9
    assert earlier[0] >= steps[-1] - 3 * size - 1e-9


def test_refusals_say_what_to_do(planted: Planted) -> None:
    course, (last, fall) = planted.course, planted.merged(200)
    assert course.rates is not None
    steps = course.rates.steps

    def refused(changed: Course, length: int = 200, fall: tuple[Merged, Merged] = fall) -> str:
        with pytest.raises(RefusedError) as error:
            cool_down_forecast(changed, last, fall, length)
        return str(error.value)

    def with_rates(rates: Vector) -> Course:
        return replace(course, rates=ByStep(steps, RATE * rates))

    assert "ask for at most 400 steps" in refused(course, 500)
    with pytest.raises(RefusedError, match="2 checkpoints in the last 200 steps, and 3 are needed"):
        windows(range(200, 2001, 200), 200)
    with pytest.raises(RefusedError, match="1 checkpoint from step 1,400 to 1,600, and 3 are"):
        windows([1400, *range(1700, 2001, 10)], 200)
    falling = np.where(steps < 1900, 1.0, 1 - (steps - 1900) / 1000)
    assert "the learning rate falls over the last 600 steps, from 0.1 to 0.09" in refused(with_rates(falling))
    assert "until step 300" in refused(with_rates(np.minimum(1, steps / 300)))
    assert "ask again at step 3,000" in refused(with_rates(np.minimum(1, steps / 300)))
    assert "ask again at step" in refused(with_rates(np.minimum(1, steps / 2000)))
    rising = refused(course, fall=(replace(fall[0], loss=2.5), fall[1]))
    assert "the loss of averages on the text has risen, from 2.5 at step 1,600" in rising
    assert "the run overfits or diverges" in rising
    check_course(with_rates(np.where(steps < 1900, 1.0, 0.97)), 200)
    check_course(replace(course, rates=None), 200)


def test_few_checkpoints_are_said_to_be_few(planted: Planted) -> None:
    found = cool_down_forecast(planted.course, *planted.merged(60), 60)
    assert any("only 4 checkpoints are merged" in note for note in found.notes)


def test_what_gains_nothing_has_no_share_in_hand(planted: Planted) -> None:
    found = cool_down_forecast(planted.course, *planted.merged(200), 200)
    worse = replace(found, loss=found.held + 0.01)
    assert worse.gain < 0
    assert np.isnan(worse.in_hand)


def report_of(planted: Planted, found: CoolDown, **changes: Any) -> CoolDownReport:
    series = Series("r", "r", ())
    whole = CoolDownReport(series, "the held-out part of a text", (found,), {}, found.length, planted.course, ())
    return replace(whole, **changes)


def test_the_first_sentence(planted: Planted) -> None:
    found = replace(
        cool_down_forecast(planted.course, *planted.merged(200), 200),
        loss=3.02, low=2.99, high=3.05, held=3.11, now=3.12,
        merged=Merged((1800, 1900, 2000), 3.039, (0.25, 0.5, 0.25)),
    )  # fmt: skip
    assert report_of(planted, found).headline() == (
        "Cooling down over the next 200 steps would bring the validation loss to 3.020 (2.990 to 3.050): 0.090 below "
        "holding the rate; 90% of that is in hand now as a merged model, written with --save."
    )
    worse = replace(found, held=3.01)
    assert report_of(planted, worse, text="other.txt").headline() == (
        "Cooling down over the next 200 steps would bring the loss on other.txt to 3.020 (2.990 to 3.050), no lower "
        "than holding the rate: 3.010."
    )
    assert report_of(planted, found, asked=900, refused={900: "too long"}).headline() == "No answer: too long."
