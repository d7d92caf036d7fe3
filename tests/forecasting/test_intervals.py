from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import Truth, copied, made_up_run, rates, seen
from numpy.typing import NDArray
from property_examples import examples

from toposcope.forecasting.forecaster import Forecast, LoggedRun
from toposcope.forecasting.forecasters import forecasters
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL
from toposcope.forecasting.held_out import known_schedule, quantile
from toposcope.forecasting.intervals import (
    FALLBACK,
    HELD,
    LANGUAGE,
    SLOPE,
    band,
    error_part,
    error_unit,
    share_past_warm_up,
    shipped_width,
    with_interval,
)
from toposcope.logs.schedules.schedule import Schedule

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
    table = shipped_width(forecast(np.empty(0)), LOG, RUN.schedule)
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


NAMES = [*(forecaster.name for forecaster in forecasters()), "unheard of"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("held", [False, True])
def test_the_shipped_width_narrows_as_more_is_seen(name: str, held: bool) -> None:
    run = made_up_run(kind="constant" if held else "cosine", every=5)
    widths = [
        shipped_width(forecast(np.empty(0), name=name), seen(run, fraction), run.schedule)
        for fraction in np.linspace(0.06, 1, 30)
    ]
    assert error_part(seen(run, 0.3), run.schedule) == LANGUAGE + (HELD if held else "")
    assert np.isfinite(widths).all()
    assert (np.diff(widths) <= 0).all()
    assert 0 < widths[-1] < 0.5


def test_a_forecaster_that_the_table_does_not_know_is_as_wide_as_the_last_value() -> None:
    known, unknown = (shipped_width(forecast(np.empty(0), name=name), LOG, RUN.schedule) for name in (FALLBACK, "new"))
    assert unknown == known


def long_warm_up() -> LoggedRun:
    """A run whose warm-up is 30% of its steps."""
    schedule = Schedule(rates("cosine", 2000, warm_up=600))
    return LoggedRun(replace(RUN.log, learning_rate=schedule.rates[RUN.log.steps]), schedule)


def test_a_warm_up_is_not_progress() -> None:
    """With 30% seen of a run whose warm-up is as long, nothing is known yet; with 40% little."""
    run = long_warm_up()
    shares = [share_past_warm_up(seen(run, fraction), run.schedule) for fraction in (0.1, 0.3, 0.4, 0.6, 1.0)]
    assert shares[:2] == [0, 0]
    assert shares[2] == pytest.approx(1 / 7 / 3, rel=0.01)
    assert shares[3:] == pytest.approx([3 / 7, 1], rel=0.01)
    within, usual = (
        with_interval(forecast(np.empty(0)), seen(each, 0.29), each.schedule) for each in (long_warm_up(), RUN)
    )
    assert width(within) > 5 * width(usual)
    assert "runs within their warm-up" in within.remarks[-1]


def test_widths_of_other_losses_follow_their_own_scale() -> None:
    """A loss of another scale, offset and noise has a slope and a residual of its own, whatever its value in nats."""
    run = made_up_run(truth=Truth(L0=0.02, A=0.004, c=0.001), noise=0.002)
    found = forecast(np.empty(0))
    widths = []
    for scale, offset in ((1.0, 0.0), (10.0, 0.0), (1.0, 1.0)):
        log = seen(copied(run, loss=offset + scale * run.log.loss), 0.3)
        assert error_part(log, run.schedule) == SLOPE
        widths.append(shipped_width(replace(found, loss=float(log.loss[-1])), log, run.schedule) * log.loss[-1] / scale)
        assert error_unit(log, run.schedule) > 0
    assert widths[1] == pytest.approx(widths[0], rel=1e-3)
    assert widths[2] == pytest.approx(widths[0], rel=0.05)


@examples(100)
@given(st.floats(1e-4, 0.5))
def test_the_band_widens_to_the_interval(spread: float) -> None:
    found = replace(forecast(np.empty(0)), low=3 * np.exp(-spread), high=3 * np.exp(spread))
    low, high = band(found)
    assert (low[0], high[0]) == (3.5, 3.5)
    assert low[-1] == pytest.approx(found.low)
    assert high[-1] == pytest.approx(found.high)
    np.testing.assert_allclose(low * high, found.curve**2)
    assert np.log(high[1] / 3.2) == pytest.approx(spread * np.sqrt(400 / 1400))


def test_errors_of_siblings_hold_what_comes_of_assumed_schedules() -> None:
    """Half of the runs cool down and half do not, which nothing shows before: true schedules would leave no error."""
    runs = [
        made_up_run(f"{size:g} {kind}", kind, Truth(c=0.3), size=size, noise=0.001)
        for size in (1e7, 3e7, 1e8, 3e8, 1e9)
        for kind in ("wsd", "constant")
    ]
    runs = [LoggedRun(replace(run.log, schedule=""), run.schedule) for run in runs]
    siblings, (run, _) = runs[:-2], runs[-2:]
    log = run.seen(0.3)
    assert log is not None
    assumed = known_schedule(run, log, siblings)
    assert assumed.assumed
    assert not run.schedule.assumed
    beside_assumed = S1_ANNEAL.fit(log, assumed, siblings).errors
    beside_declared = S1_ANNEAL.fit(log, run.schedule, siblings).errors
    assert np.abs(beside_declared).max() < 0.03
    assert np.abs(beside_assumed).max() > 0.08
