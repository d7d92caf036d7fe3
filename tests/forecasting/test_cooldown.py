"""The rule for cool-downs, against runs whose cool-down is known: noise about a minimum that falls by a power law."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.checkpoints import Series
from toposcope.forecasting.cooldown import CoolDown, Course, Decay, Merged, check_course, cool_down_forecast, windows
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


class Planted:
    """A run of 2,000 steps with a checkpoint every `spacing`, and the loss after a cool-down of it."""

    def __init__(self, spacing: int = 20, now: int = 2000, seed: int = 0) -> None:
        self.generator = np.random.default_rng(seed)
        self.now, self.kept = now, {}
        weights, losses = np.zeros(N_WEIGHTS), []
        for step in range(1, now + 1):
            weights = updated(weights, RATE, self.generator)
            losses.append(float(floor(step)) + excess(weights))
            if step % spacing == 0:
                self.kept[step] = weights
        steps = np.arange(1, now + 1)
        noisy: Vector = np.array(losses) + 0.03 * self.generator.standard_normal(now)
        raw = np.array([float(floor(step)) + excess(each) for step, each in self.kept.items()])
        self.course = Course(
            ByStep(steps, noisy), ByStep(np.array([*self.kept]), raw), 10**6, ByStep(steps, np.full(now, RATE))
        )

    def merged(self, length: int) -> list[Merged]:
        """The averages over the windows of a cool-down."""
        found = []
        for steps in windows([*self.kept], length):
            weights = np.diff(steps, prepend=steps[0]) + np.diff(steps, append=steps[-1])
            weights = weights / weights.sum()
            mean = sum(weight * self.kept[step] for weight, step in zip(weights, steps, strict=True))
            middle = float(floor(self.now - (steps[-1] - steps[0]) / 2))
            found.append(Merged(steps[-1] - steps[0], middle + excess(np.asarray(mean)), tuple(weights)))
        return found

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
    found = cool_down_forecast(planted.course, planted.merged(length), length, decay)
    truth = planted.cooled(length, decay)
    assert found.low < truth < found.high
    assert found.loss == pytest.approx(truth, abs=0.012)
    assert found.held == pytest.approx(
        float(floor(planted.now + length)) + found.now - float(floor(planted.now)), abs=0.01
    )
    assert 0.5 < found.in_hand <= 1
    assert any("along a cosine" in note for note in found.notes) == (decay == "cosine")
    assert found.loss < found.merged.loss  # steps of progress are missing in it


def test_rare_checkpoints_are_corrected_for() -> None:
    rare = Planted(spacing=50)
    found = cool_down_forecast(rare.course, rare.merged(200), 200)
    assert found.low < rare.cooled(200, "linear") < found.high


@given(shift=st.floats(-1, 1))
def test_the_answer_moves_with_the_text(planted: Planted, shift: float) -> None:
    steps, losses = planted.course.held_out
    course = replace(planted.course, held_out=ByStep(steps, losses + shift))
    merged = planted.merged(200)
    moved = [replace(each, loss=each.loss + shift) for each in merged]
    before, after = cool_down_forecast(planted.course, merged, 200), cool_down_forecast(course, moved, 200)
    assert after.loss - shift == pytest.approx(before.loss)
    assert after.gain == pytest.approx(before.gain)


@given(st.sets(st.integers(0, 1000), min_size=1), st.integers(1, 500))
def test_windows_are_nested_and_end_now(chosen: set[int], length: int) -> None:
    steps = sorted(chosen)
    found = windows(steps, length)
    for longer, shorter in pairwise(found):
        assert len(shorter) < len(longer)
        assert longer[-len(shorter) :] == shorter
    for each in found:
        assert len(each) >= 3
        assert each[-1] == steps[-1]
        assert each[0] >= steps[-1] - length
    assert bool(found) == (sum(step >= steps[-1] - length for step in steps) >= 3)


def test_a_window_that_has_drifted_counts_less(planted: Planted) -> None:
    merged = planted.merged(200)
    drifted = [replace(merged[0], loss=merged[0].loss + 0.05), *merged[1:]]
    usual, found = (cool_down_forecast(planted.course, each, 200) for each in (merged, drifted))
    assert found.high - found.low > 1.5 * (usual.high - usual.low)
    assert any("the shorter window counts" in note for note in found.notes)


def test_refusals_say_what_to_do(planted: Planted) -> None:
    course, merged = planted.course, planted.merged(200)
    steps = course.training.steps

    def refused(changed: Course, length: int = 200, given: list[Merged] = merged) -> str:
        with pytest.raises(RefusedError) as error:
            cool_down_forecast(changed, given, length)
        return str(error.value)

    def with_rates(rates: Vector) -> Course:
        return replace(course, rates=ByStep(steps, RATE * rates))

    assert "ask for at most 400 steps" in refused(course, 500)
    assert "0 checkpoints in the last 200 steps" in refused(course, given=[])
    falling = np.where(steps < 1900, 1.0, 1 - (steps - 1900) / 1000)
    assert "the learning rate falls over the last 200 steps, from 0.1 to 0.09" in refused(with_rates(falling))
    assert "until step 300" in refused(with_rates(np.minimum(1, steps / 300)))
    assert "ask again at step 3,000" in refused(with_rates(np.minimum(1, steps / 300)))
    assert "ask again at step" in refused(with_rates(np.minimum(1, steps / 2000)))
    assert "within the noise of 0.0500 of a text of 100 tokens" in refused(
        replace(course, tokens=100), given=[replace(each, loss=each.loss + 0.3) for each in merged]
    )
    at, raw = course.held_out
    rising = replace(course, held_out=ByStep(at, np.where(at < 1500, raw, raw + (at - 1500) / 2000)))
    assert "the loss on the text has risen, from 3.0" in refused(rising)
    assert "the run overfits or diverges" in refused(rising)
    check_course(with_rates(np.where(steps < 1900, 1.0, 0.97)), 10, 200)
    check_course(replace(course, rates=None), 10, 200)


def test_few_checkpoints_are_said_to_be_few(planted: Planted) -> None:
    found = cool_down_forecast(planted.course, planted.merged(60), 60)
    assert any("only 4 checkpoints" in note for note in found.notes)


def test_what_gains_nothing_has_no_share_in_hand(planted: Planted) -> None:
    found = cool_down_forecast(planted.course, planted.merged(200), 200)
    worse = replace(found, loss=found.held + 0.01)
    assert worse.gain < 0
    assert np.isnan(worse.in_hand)


def report_of(planted: Planted, found: CoolDown, **changes: Any) -> CoolDownReport:
    series = Series("r", "r", ())
    whole = CoolDownReport(series, "the held-out part of a text", (found,), {}, found.length, planted.course, ())
    return replace(whole, **changes)


def test_the_first_sentence(planted: Planted) -> None:
    found = replace(
        cool_down_forecast(planted.course, planted.merged(200), 200),
        loss=3.02, low=2.99, high=3.05, held=3.11, now=3.12, merged=Merged(200, 3.039, (0.25, 0.5, 0.25)),
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


def test_with_sgd_the_gain_is_at_least_this(planted: Planted) -> None:
    merged = planted.merged(200)
    usual = cool_down_forecast(planted.course, merged, 200)
    found = cool_down_forecast(replace(planted.course, sgd=True), merged, 200)
    assert (found.loss, found.high) == (usual.loss, usual.high)
    assert found.low < usual.low
    sentence = report_of(planted, found).headline()
    assert " or less (" in sentence
    assert ": at least 0." in sentence
    assert "below holding the rate, as its optimizer is SGD; " in sentence
