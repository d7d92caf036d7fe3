from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_runs import made_up_run, seen
from numpy.typing import NDArray

from toposcope.forecasting.forecaster import Forecast
from toposcope.forecasting.forecasters import forecasters
from toposcope.forecasting.intervals import band, quantile, shipped, with_interval

Vector = NDArray[np.float64]
RUN = made_up_run()
LOG = seen(RUN, 0.3)


def forecast(errors: Vector, relatives: bool | NDArray[np.bool_] = True, name: str = "median") -> Forecast:
    steps = np.array([600, 1000, 2000])
    mask = np.broadcast_to(np.asarray(relatives), errors.shape).copy()
    return Forecast(name, 3.0, steps=steps, curve=np.array([3.5, 3.2, 3.0]), errors=errors, relatives=mask)


def width(found: Forecast) -> float:
    return float(np.log(found.high / found.loss))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.sampled_from([(1, 2), (4, 5), (9, 10), (95, 100)]))
def test_quantile_is_the_smallest_that_enough_errors_are_within(errors: list[float], level: tuple[int, int]) -> None:
    """Vovk et al. 2005: at least (n + 1) level of n errors are no larger; counted with whole numbers."""
    share = Fraction(*level)
    found = quantile(np.array(errors), float(share))
    needed = ceil((len(errors) + 1) * share)
    if needed > len(errors):
        assert found == max(errors)
    else:
        assert sum(error <= found for error in errors) >= needed
        assert sum(error < found for error in errors) < needed


@pytest.mark.parametrize("n", [9, 20, 99])
def test_an_interval_covers_at_least_nine_in_ten_of_exchangeable_errors(n: int) -> None:
    rng = np.random.default_rng(n)
    covered = []
    for _ in range(4000):
        errors = np.abs(rng.standard_t(3, n + 1))
        covered.append(errors[-1] <= quantile(errors[:-1]))
    expected = ceil(Fraction(9, 10) * (n + 1)) / (n + 1)
    assert np.mean(covered) == pytest.approx(expected, abs=4 * np.sqrt(0.09 / 4000))


def test_relatives_tell_the_interval() -> None:
    errors = np.random.default_rng(0).normal(0, 0.02, 30)
    found = with_interval(forecast(errors), LOG, RUN.schedule)
    assert width(found) == pytest.approx(np.sort(np.abs(errors))[27])
    assert found.low * found.high == pytest.approx(found.loss**2)
    assert found.remarks[-1] == "interval: errors on 30 runs of the family"


@pytest.mark.parametrize(("n", "few"), [(8, True), (9, False), (10, False)])
def test_fewer_than_nine_errors_cannot_give_nine_tenths(n: int, few: bool) -> None:
    errors = np.linspace(0.01, 0.05, n)
    found = with_interval(forecast(errors), LOG, RUN.schedule)
    assert width(found) == pytest.approx(0.05)
    assert ("too few for 90%" in found.remarks[-1]) == few


def test_strangers_do_not_narrow_the_shipped_interval() -> None:
    table = shipped("median", 0.3)
    for errors, expected in (
        (np.full(7, 1e-3), table),
        (np.full(20, table / 10), table),
        (np.full(20, 3 * table), 3 * table),
    ):
        found = with_interval(forecast(errors, False), LOG, RUN.schedule)
        assert width(found) == pytest.approx(expected)
        assert "of other families' runs" in found.remarks[-1]
    mixed = np.concatenate([np.full(9, 0.02), np.full(20, 0.5)])
    found = with_interval(forecast(mixed, np.arange(29) < 9), LOG, RUN.schedule)
    assert width(found) == pytest.approx(0.02)


def test_signs_of_errors_do_not_matter() -> None:
    errors = np.random.default_rng(1).normal(0, 0.02, 30)
    found = [with_interval(forecast(each), LOG, RUN.schedule) for each in (errors, -errors, np.abs(errors))]
    assert len({each.low for each in found}) == 1


@pytest.mark.parametrize("name", [*(forecaster.name for forecaster in forecasters()), "unheard of"])
def test_the_shipped_table_narrows_as_more_is_seen(name: str) -> None:
    fractions = np.linspace(0.01, 1, 50)
    widths = np.array([shipped(name, fraction) for fraction in fractions])
    assert np.isfinite(widths).all()
    assert (widths > 0).all()
    assert shipped(name, 0.005) == shipped(name, 0.001) >= widths[0]
    assert widths[-1] <= widths[0]
    assert widths[-1] < 0.5


def test_a_forecaster_that_the_table_does_not_know_is_as_wide_as_the_last_value() -> None:
    assert shipped("unheard of", 0.3) == shipped("last", 0.3)


@settings(deadline=None)
@given(st.floats(1e-4, 0.5))
def test_the_band_widens_to_the_interval(spread: float) -> None:
    found = replace(forecast(np.empty(0)), low=3 * np.exp(-spread), high=3 * np.exp(spread))
    low, high = band(found)
    assert (low[0], high[0]) == (3.5, 3.5)
    assert low[-1] == pytest.approx(found.low)
    assert high[-1] == pytest.approx(found.high)
    np.testing.assert_allclose(low * high, found.curve**2)
    assert np.log(high[1] / 3.2) == pytest.approx(spread * np.sqrt(400 / 1400))
