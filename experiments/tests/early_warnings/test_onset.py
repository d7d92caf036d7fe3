"""Onsets are where they were planted, whatever the level and the unit of the loss; noise and progress have none."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope_experiments.early_warnings.onset import find_onset

STEPS, NOISE = 1600, 0.12
EARLY = 40  # steps; of 24,000 planted, 99.3% are at most 10 early, the earliest was 24, and none is late
SEEDS, PLACES = st.integers(0, 2**32 - 1), st.integers(400, 1000)


def course(seed: int, steps: int = STEPS) -> np.ndarray:
    """A loss that falls as a power of the step, with the noise of batches."""
    noise = NOISE * np.random.default_rng(seed).normal(size=steps)
    return np.asarray(1.8 + 3 * np.arange(1, steps + 1) ** -0.35 + noise)


def planted(seed: int, place: int, rise: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    since = np.arange(STEPS) - place
    return np.asarray(course(seed) + np.where(since >= 0, rise(since), 0))


@given(SEEDS)
def test_a_falling_loss_has_none(seed: int) -> None:
    assert find_onset(course(seed, 5000)).seen == "none"


@given(SEEDS, PLACES, st.floats(1, 5))
def test_a_spike_begins_where_it_begins(seed: int, place: int, height: float) -> None:
    found = find_onset(planted(seed, place, lambda t: height * np.exp(-t / 30)))
    assert found.step is not None
    assert -EARLY <= found.step - place <= 3
    assert found.seen == "spike that recovers"


@given(SEEDS, PLACES, st.floats(1, 5))
def test_a_step_does_not_recover(seed: int, place: int, height: float) -> None:
    found = find_onset(planted(seed, place, lambda t: np.full(len(t), height)))
    assert found.step is not None
    assert -EARLY <= found.step - place <= 3
    assert found.seen == "spike that does not recover"


@given(SEEDS, PLACES)
def test_a_ramp_begins_early_and_is_slow(seed: int, place: int) -> None:
    found = find_onset(planted(seed, place, lambda t: 0.003 * t))
    assert found.step is not None
    assert -120 <= found.step - place <= 90  # of 6,000 98% lie between -28 and 29, all between -79 and 53
    assert found.seen == "slow divergence"


@given(SEEDS, PLACES, st.floats(-5, 5), st.floats(0.01, 100))
def test_neither_level_nor_unit_matters(seed: int, place: int, level: float, unit: float) -> None:
    loss = planted(seed, place, lambda t: 2 * np.exp(-t / 30))
    assert find_onset(loss).step == find_onset(unit * (loss + level)).step


@pytest.mark.parametrize("at", [50, 250, 900])
def test_a_loss_that_is_not_finite_is_trouble(at: int) -> None:
    loss = course(0)
    loss[at:] = np.nan
    assert find_onset(loss) == find_onset(loss[: at + 1])
    assert (find_onset(loss).step, find_onset(loss).seen) == (at, "spike that does not recover")


def test_one_bad_batch_and_the_first_steps_are_no_trouble() -> None:
    loss = course(1)
    loss[700] += 20 * NOISE
    loss[:150] += 3.0
    assert find_onset(loss).step is None
    assert find_onset(loss[:150]).step is None
