"""The declaration of a run: its defaults, what is refused, its checkpoints and its learning rates."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from toposcope.checkpoints.steps import Selection
from toposcope.family import ModelSize, TrainingOptions
from toposcope.family.run import ScheduleName, learning_rate


def test_the_defaults_are_the_published_ones() -> None:
    published = TrainingOptions()
    assert (published.steps, published.batch_size, published.checkpoint_every) == (5000, 64, 100)
    assert (published.learning_rate, published.final_learning_rate) == (3e-3, 1e-5)
    assert (published.schedule, published.warmup_steps) == ("cosine", 200)
    assert (published.weight_decay, published.gradient_clip, published.seed) == (0.01, 1.0, 42)
    assert len(published.checkpoint_steps) == 51
    assert [published.rate(step) for step in (0, 1, 100, 200, 5000)] == [0, 3e-3 / 200, 0.0015, 3e-3, 1e-5]
    # Half way between warm-up and end, a cosine is half way between peak and final rate.
    assert published.rate(2600) == pytest.approx((3e-3 + 1e-5) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"hidden": 0}, ["hidden is 0", "at least 1"]),
        ({"layers": -1}, ["layers is -1", "at least 1"]),
        ({"heads": 0}, ["heads is 0", "at least 1"]),
        ({"vocabulary": 0}, ["vocabulary", "at least 1"]),
        ({"context": 0}, ["context", "at least 1"]),
        ({"heads": 3}, ["hidden = 8", "heads = 3"]),
    ],
)
def test_bad_dials_are_refused_by_name(dials: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ModelSize(**{"hidden": 8, "layers": 1, "heads": 1, **dials})
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("field", "refused", "taken"),
    [
        ("steps", 0, 2000),
        ("batch_size", 0, 1),
        ("checkpoint_every", 0, 1),
        ("learning_rate", 0.0, 1e-9),
        ("learning_rate", math.nan, 1.0),
        ("final_learning_rate", -1e-5, 0.0),
        ("final_learning_rate", math.nan, 0.0),
        ("gradient_clip", 0.0, 1e-9),
        ("weight_decay", -0.1, 0.0),
        ("weight_decay", math.nan, 0.0),
        ("warmup_steps", -1, 0),
        ("decay_steps", -1, 0),
        ("seed", -1, 0),
        # The validation set is what a final loss is measured on: fewer sequences would be noise.
        ("validation_sequences", 63, 64),
        ("initial_scale", 0.0, 1e-9),
        ("initial_scale", math.nan, 2.0),
        ("initial_scale", math.inf, 2.0),
        ("dropout", -0.1, 0.0),
        ("dropout", 1.0, 0.99),
        ("dropout", math.nan, 0.0),
        ("label_noise", -0.1, 0.0),
        ("label_noise", 1.1, 1.0),
        ("label_noise", math.nan, 0.0),
        ("data_share", 0.0, 1e-9),
        ("data_share", 1.01, 1.0),
        ("data_share", math.nan, 1.0),
        ("log_spaced", -1, 0),
        ("log_spaced", 1, 0),
        ("log_spaced", 2, 3),
        ("checkpoint_fractions", (0.5, 1.1), (0.0, 1.0)),
        ("checkpoint_fractions", (-0.1,), ()),
    ],
)
def test_bad_fields_are_refused_by_name(field: str, refused: Any, taken: Any) -> None:
    with pytest.raises(ValueError, match=field):
        TrainingOptions(**{field: refused})
    assert getattr(TrainingOptions(**{field: taken}), field) == taken


def test_fields_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="200 steps, more than steps = 100"):
        TrainingOptions(steps=100)
    with pytest.raises(ValueError, match="1200 steps, more than steps = 1100"):
        TrainingOptions(steps=1100, schedule="wsd")
    assert TrainingOptions(steps=1200, schedule="wsd").steps == 1200
    with pytest.raises(ValueError, match="both say which checkpoints are saved"):
        TrainingOptions(log_spaced=5, checkpoint_fractions=(0.5,))


@pytest.mark.parametrize(
    ("steps", "options", "expected"),
    [
        (40, {"checkpoint_every": 10}, [0, 10, 20, 30, 40]),
        (45, {"checkpoint_every": 10}, [0, 10, 20, 30, 40, 45]),
        (5, {"checkpoint_every": 10}, [0, 5]),
        (3, {"checkpoint_every": 1}, [0, 1, 2, 3]),
        (40, {"checkpoint_fractions": (0.5, 0.26)}, [0, 10, 20, 40]),
        (5000, {"log_spaced": 19},
         [0, 1, 2, 3, 5, 7, 12, 20, 33, 55, 91, 150, 247, 408, 674, 1112, 1836, 3030, 5000]),
        (4096, {"log_spaced": 14}, [0, *(2**k for k in range(13))]),
        (40, {"log_spaced": 3}, [0, 1, 40]),
        (3, {"log_spaced": 19}, [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_checkpoint_steps(steps: int, options: dict[str, Any], expected: list[int]) -> None:
    assert TrainingOptions(steps=steps, warmup_steps=0, **options).checkpoint_steps == expected
    if "log_spaced" in options:  # the rule of a series that has every step
        assert Selection(log_spaced=options["log_spaced"]).choose(range(steps + 1), "") == expected


SCHEDULES: list[ScheduleName] = ["cosine", "constant", "linear", "wsd"]


def rates(schedule: ScheduleName, **changed: int) -> list[float]:
    """A hundred steps, ten of them warm-up, from 1 to 0.1."""
    options = {"warmup_steps": 10, "decay_steps": 20, "total_steps": 100, **changed}
    steps = range(options["total_steps"] + 1)
    return [learning_rate(step, schedule=schedule, peak=1.0, final=0.1, **options) for step in steps]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_at_every_step(schedule: ScheduleName) -> None:
    formulas: dict[str, Callable[[int], float]] = {
        "cosine": lambda step: 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 10) / 90)) / 2,
        "constant": lambda step: 1.0,
        "linear": lambda step: 1 - 0.9 * (step - 10) / 90,
        "wsd": lambda step: 1 - 0.9 * max(0, step - 80) / 20,
    }
    found = rates(schedule)
    assert found[:11] == [step / 10 for step in range(11)]
    assert found[10:] == pytest.approx([formulas[schedule](step) for step in range(10, 101)], rel=1e-14)
    assert all(a >= b for a, b in pairwise(found[10:]))
    assert found[-1] == (1.0 if schedule == "constant" else 0.1)
    options = TrainingOptions(
        steps=100, learning_rate=1.0, final_learning_rate=0.1, warmup_steps=10, decay_steps=20, schedule=schedule
    )
    assert [options.rate(step) for step in range(101)] == found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_warm_up_and_with_nothing_else(schedule: ScheduleName) -> None:
    assert rates(schedule, warmup_steps=0)[0] == 1
    assert rates("linear", warmup_steps=0)[1] == pytest.approx(0.991)
    # The last step is the end of the warm-up and of the decay at once: no division by zero, no rate out of range.
    found = rates(schedule, warmup_steps=10, decay_steps=0, total_steps=10)
    assert found[-1] in (1.0, 0.1)
    assert found[9] == 0.9
