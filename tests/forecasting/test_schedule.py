import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.logs.schedules.schedule import Schedule

rates_lists = st.lists(st.floats(0, 1e-2), min_size=1, max_size=60).filter(lambda rates: max(rates) > 1e-9)


def double_sum(rates: NDArray[np.float64], t: int, decay: float) -> float:
    """S2 as it is defined."""
    peak = rates.max()
    total = 0.0
    for i in range(1, t + 1):
        for k in range(1, i + 1):
            total += (rates[k - 1] - rates[k]) / peak * decay ** (i - k)
    return float((1 - decay) * total)


@examples(100)
@given(rates_lists, st.sampled_from([0.0, 0.5, 0.9, 0.999]))
def test_momentum_is_the_double_sum(rates: list[float], decay: float) -> None:
    schedule = Schedule(rates)
    steps = np.arange(len(rates))
    expected = [double_sum(schedule.rates, int(t), decay) for t in steps]
    np.testing.assert_allclose(schedule.momentum(steps, decay), expected, atol=1e-12)


def test_warm_up_adds_no_momentum() -> None:
    warm = Schedule([*np.linspace(0, 1, 50), *np.linspace(1, 0, 50)])
    cold = Schedule([*[1.0] * 50, *np.linspace(1, 0, 50)])
    steps = np.arange(100)
    np.testing.assert_array_equal(warm.momentum(steps), cold.momentum(steps))


def test_decays_do_not_share_a_cache() -> None:
    schedule = Schedule([1, 1, 0.5, 0.1])
    first, other = schedule.momentum(np.array([3])), schedule.momentum(np.array([3]), 0.5)
    assert first != other
    assert schedule.momentum(np.array([3])) == first


@given(rates_lists)
def test_clocks(rates: list[float]) -> None:
    schedule = Schedule(rates)
    steps = np.arange(schedule.last_step + 1)
    progress, cooled = schedule.progress(steps), schedule.cooled(steps)
    assert progress[0] == pytest.approx(1 - cooled[0])
    np.testing.assert_allclose(np.diff(progress), 1 - cooled[1:], atol=1e-9)
    assert (cooled >= 0).all()
    assert (cooled <= 1).all()
    seen = [schedule.decay_seen(int(step)) for step in steps]
    assert (np.diff(seen) >= -1e-12).all()
    assert seen[-1] == pytest.approx(1)


@pytest.mark.parametrize("rates", [[], [0.0, 0.0], [1.0, np.nan], [1.0, -1e-3], [[1.0, 2.0]]])
def test_refused(rates: list[float]) -> None:
    with pytest.raises(ToposcopeError, match="schedule: "):
        Schedule(rates)
