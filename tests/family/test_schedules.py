"""Learning-rate schedules at steps whose value is known."""

import math
from itertools import pairwise
from typing import Any

import pytest

from toposcope.family import TrainingOptions
from toposcope.family.run import ScheduleName, learning_rate


def rate(step: int, **changed: Any) -> float:
    """A hundred steps, ten of them warm-up, from 1 to 0.1."""
    options: dict[str, Any] = {
        "schedule": "cosine",
        "peak": 1.0,
        "final": 0.1,
        "warmup_steps": 10,
        "decay_steps": 20,
        "total_steps": 100,
    }
    return learning_rate(step, **{**options, **changed})


def test_the_published_schedule_at_known_steps() -> None:
    training = TrainingOptions()
    assert training.rate(0) == 0
    assert training.rate(1) == pytest.approx(3e-3 / 200, rel=1e-15)
    assert training.rate(100) == 0.0015
    assert training.rate(200) == 3e-3
    # Half way between warm-up and end, a cosine is half way between peak and final rate.
    assert training.rate(2600) == pytest.approx((3e-3 + 1e-5) / 2, rel=1e-12)
    assert training.rate(5000) == 1e-5


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    schedules: list[ScheduleName] = ["cosine", "constant", "linear", "wsd"]
    for schedule in schedules:
        assert [rate(step, schedule=schedule) for step in (0, 1, 5, 10)] == [0, 0.1, 0.5, 1], schedule


def test_without_warm_up_the_first_update_is_at_or_near_the_peak() -> None:
    assert rate(0, warmup_steps=0, schedule="constant") == 1
    assert rate(1, warmup_steps=0, schedule="wsd") == 1
    assert rate(0, warmup_steps=0) == 1
    assert rate(1, warmup_steps=0, schedule="linear") == pytest.approx(0.991)


@pytest.mark.parametrize("step", [10, 11, 37, 55, 99, 100])
def test_cosine(step: int) -> None:
    expected = 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 10) / 90)) / 2
    assert rate(step) == pytest.approx(expected, rel=1e-14)


def test_constant() -> None:
    assert {rate(step, schedule="constant") for step in range(10, 101)} == {1.0}


def test_linear() -> None:
    assert [rate(step, schedule="linear") for step in (10, 55, 100)] == pytest.approx([1, 0.55, 0.1], rel=1e-14)
    assert rate(19, schedule="linear") == pytest.approx(0.91, rel=1e-14)


def test_wsd_stays_then_falls_linearly() -> None:
    assert {rate(step, schedule="wsd") for step in range(10, 81)} == {1.0}
    assert [rate(step, schedule="wsd") for step in (90, 100)] == pytest.approx([0.55, 0.1], rel=1e-14)
    assert rate(81, schedule="wsd") == pytest.approx(0.955, rel=1e-14)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_decaying_schedules_never_rise_after_warm_up_and_end_exactly(schedule: str) -> None:
    rates = [rate(step, schedule=schedule) for step in range(10, 101)]
    assert all(a >= b for a, b in pairwise(rates))
    assert rates[-1] == 0.1


@pytest.mark.parametrize("schedule", ["cosine", "constant", "linear", "wsd"])
def test_a_run_that_is_all_warm_up_ends_at_its_peak_or_final_rate(schedule: str) -> None:
    # The last step is the end of the warm-up and of the decay at once: no division by zero, no rate out of range.
    last = rate(10, schedule=schedule, warmup_steps=10, decay_steps=0, total_steps=10)
    assert last in (1.0, 0.1)
    assert rate(9, schedule=schedule, warmup_steps=10, decay_steps=0, total_steps=10) == 0.9


def test_training_hands_every_field_on() -> None:
    training = TrainingOptions(
        steps=100, learning_rate=1.0, final_learning_rate=0.1, warmup_steps=10, decay_steps=20, schedule="wsd"
    )
    assert [training.rate(step) for step in range(101)] == [rate(step, schedule="wsd") for step in range(101)]
