import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.forecasters.power_law_fit import MAX_BINS, MIN_POINTS, window
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule


def log_of(steps: list[int], seed: int = 0) -> Run:
    at = np.array(sorted(steps), dtype=np.int64)
    return Run("log", at, np.random.default_rng(seed).uniform(1, 5, len(at)), np.full(len(at), np.nan))


CONSTANT = Schedule([1.0])
"""No window looks at the schedule."""


@examples(100)
@given(st.sets(st.integers(0, 3000), min_size=6, max_size=500), st.sampled_from([0.3, 0.5, 0.7, 0.9, 1.0]))
def test_it_is_the_late_share_in_bins(steps: set[int], share: float) -> None:
    log = log_of(list(steps))
    last = int(log.steps[-1])
    late = [i for i, step in enumerate(log.steps) if step >= (1 - share) * last and step > 0]
    if len(late) < MIN_POINTS:
        late = list(range(len(log.steps)))[-MIN_POINTS:]
    found = window(log, CONSTANT, share)
    if len(late) <= MAX_BINS:
        np.testing.assert_array_equal(found.steps, log.steps[late])
        np.testing.assert_array_equal(found.loss, log.loss[late])
        np.testing.assert_array_equal(found.weight, 1)
        return
    bins: dict[int, list[int]] = {}
    first = int(log.steps[late[0]])
    for i in late:
        bins.setdefault(int((log.steps[i] - first) / (last + 1 - first) * MAX_BINS), []).append(i)
    assert len(found.steps) <= MAX_BINS
    assert found.weight.mean() == pytest.approx(1)
    # which of two bins a step at their edge is in is a matter of rounding
    if len(bins) == len(found.steps):
        np.testing.assert_allclose(
            found.weight * len(late) / len(bins), [len(part) for part in bins.values()], atol=1.01
        )
    assert found.weight @ found.loss / found.weight.sum() == pytest.approx(log.loss[late].mean())
    assert (np.diff(found.steps) > 0).all()
    assert found.steps[0] >= first
    assert found.steps[-1] <= last


def test_means_of_a_long_log() -> None:
    log = log_of(list(range(1, 10_001)))
    found = window(log, CONSTANT, 1.0)
    np.testing.assert_allclose(found.loss, log.loss.reshape(MAX_BINS, -1).mean(axis=1))
    np.testing.assert_array_equal(found.steps, np.arange(1, 10_001).reshape(MAX_BINS, -1).mean(axis=1).round())
    np.testing.assert_array_equal(found.weight, 1)


@pytest.mark.parametrize("steps", [[0], [1, 2, 3, 4], [0, 1, 2, 3, 4]])
def test_too_few_points_are_refused(steps: list[int]) -> None:
    with pytest.raises(RefusedError, match=rf"{sum(step > 0 for step in steps)} logged steps so far"):
        window(log_of(steps), CONSTANT, 0.7)


def test_step_0_is_before_training() -> None:
    assert window(log_of([0, 1, 2, 3, 4, 5]), CONSTANT, 1.0).steps.tolist() == [1, 2, 3, 4, 5]


def test_a_log_that_begins_late_is_whole() -> None:
    log = log_of(list(range(900, 1000)))
    assert window(log, CONSTANT, 0.5).steps.tolist() == list(range(900, 1000))
