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
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL
from toposcope.forecasting.forecasters.pool import fit_pool, horizon_of
from toposcope.forecasting.held_out import known_schedule, quantile
from toposcope.forecasting.intervals import LANGUAGE, OTHER, band, evidence_of, widths_alone, with_interval
from toposcope.logs.schedules.schedule import Schedule, planned

Vector = NDArray[np.float64]
RUN = made_up_run()
LOG = seen(RUN, 0.3)


def forecast(errors: Vector, relatives: bool | NDArray[np.bool_] = True, name: str = "pool") -> Forecast:
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


def test_strangers_do_not_narrow_the_interval_of_a_run_alone() -> None:
    down, up = widths_alone(forecast(np.empty(0)), evidence_of(LOG, RUN.schedule))
    for errors, expected in (
        (np.full(7, 1e-3), up),
        (np.full(20, up / 10), up),
        (np.full(20, 3 * max(down, up)), 3 * max(down, up)),
    ):
        found = with_interval(forecast(errors, False), LOG, RUN.schedule)
        assert width(found) == pytest.approx(expected)
        assert "siblings would narrow it" in found.remarks[-1]
    mixed = np.concatenate([np.full(9, 0.02), np.full(20, 0.5)])
    found = with_interval(forecast(mixed, np.arange(29) < 9), LOG, RUN.schedule)
    assert width(found) == pytest.approx(0.02)


def test_signs_of_errors_do_not_matter() -> None:
    errors = np.random.default_rng(1).normal(0, 0.02, 30)
    found = [with_interval(forecast(each), LOG, RUN.schedule) for each in (errors, -errors, np.abs(errors))]
    assert len({each.low for each in found}) == 1


def widths(run: LoggedRun, fraction: float) -> tuple[float, float]:
    log = seen(run, fraction)
    known = evidence_of(log, run.schedule)
    return widths_alone(Forecast("pool", known.loss), known)


@pytest.mark.parametrize("kind", ["cosine", "constant"])
def test_widths_narrow_as_more_is_seen(kind: str) -> None:
    run = made_up_run(kind=kind, every=5, noise=0.005)
    found = np.array([widths(run, fraction) for fraction in (0.1, 0.3, 0.6, 0.95)])
    assert (np.diff(found, axis=0) < 0).all()
    assert (found > 0).all()
    assert (found[-1] < 0.1).all()


def test_a_run_whose_end_was_missed_from_earlier_steps_has_a_wider_interval() -> None:
    """Both have the noise, the rows and the schedule of the other; one falls again where laws have levelled out."""
    run = made_up_run(every=5, noise=0.002)
    steps = run.log.steps
    bent = copied(run, loss=run.log.loss * np.exp(-0.3 / (1 + np.exp((450 - steps) / 30.0))))
    for (down, up), (wider_down, wider_up) in zip([widths(run, 0.3)], [widths(bent, 0.3)], strict=True):
        assert wider_down > 1.5 * down
        assert wider_up > 1.5 * up


def test_a_forecaster_is_as_much_wider_as_it_is_apart_from_the_pool() -> None:
    known = evidence_of(LOG, RUN.schedule)
    down, up = widths_alone(Forecast("pool", known.loss), known)
    for apart in (-0.3, 0.02, 0.5):
        found = widths_alone(Forecast("new", known.loss * np.exp(apart)), known)
        assert found == pytest.approx((np.hypot(down, apart), np.hypot(up, apart)))


def test_a_rate_that_nobody_logged_is_not_taken_to_be_constant() -> None:
    """The usual schedules are weighed, and the interval is wider than that of a rate known to be constant."""
    run = made_up_run(kind="cosine", every=5, noise=0.002)
    log = seen(run, 0.3)
    blind = replace(log, learning_rate=np.full(len(log.steps), np.nan), table=None)
    unknown = planned(blind, last_step=run.schedule.last_step)
    constant = Schedule(np.ones(run.schedule.last_step + 1))
    assert unknown.origin == "unknown"
    assert any("are weighed alike" in remark for remark in unknown.remarks)
    found = fit_pool(blind, unknown, ())
    assert len(found.plans) == 4
    assert found.plans.min() < found.final < found.plans.max()
    assert found.spread > fit_pool(blind, constant, ()).spread


def test_a_warm_up_is_not_progress() -> None:
    """With 30% seen of a run whose warm-up is as long, next to nothing is known."""
    schedule = Schedule(rates("cosine", 2000, warm_up=600))
    long = LoggedRun(replace(RUN.log, learning_rate=schedule.rates[RUN.log.steps]), schedule)
    horizons = [horizon_of(seen(long, fraction), schedule) for fraction in (0.1, 0.3, 0.4, 0.6, 1.0)]
    assert horizons[:2] == [pytest.approx(np.log(100))] * 2
    assert horizons[2:] == pytest.approx([np.log(7), np.log(7 / 3), 0], abs=0.01)
    assert widths(long, 0.29) > widths(RUN, 0.29)


def test_before_any_law_can_be_fitted_the_interval_is_a_factor_of_a_few() -> None:
    log = seen(made_up_run(every=40, begin=40), 0.05)
    assert len(log.steps) < 5
    known = evidence_of(log, RUN.schedule)
    assert np.isnan(known.loss)
    assert 0.2 < min(widths_alone(Forecast("last", 3.0), known)) < max(widths_alone(Forecast("last", 3.0), known)) < 1.6


@pytest.mark.parametrize("scale", [0.01, 10.0])
def test_widths_do_not_depend_on_the_unit_of_a_loss(scale: float) -> None:
    run = made_up_run(truth=Truth(L0=0.02, A=0.004, c=0.001), noise=0.002)
    assert evidence_of(seen(run, 0.3), run.schedule).part == OTHER
    assert widths(copied(run, loss=scale * run.log.loss), 0.3) == pytest.approx(widths(run, 0.3), rel=0.05)


def test_a_language_model_is_known_by_its_beginning_and_its_fall() -> None:
    run = made_up_run(every=5, begin=5, truth=Truth(A=2.0, a=0.4))
    high = copied(run, loss=run.log.loss + 8 * np.exp(-run.log.steps / 20.0))
    assert evidence_of(seen(high, 0.5), run.schedule).part == LANGUAGE
    assert evidence_of(seen(copied(run, loss=run.log.loss / 10), 0.5), run.schedule).part == OTHER


def test_the_noise_of_one_evaluation_is_part_of_the_interval() -> None:
    """Shortly before the end nothing else is left."""
    run = made_up_run(every=20, noise=0.03)
    log = replace(seen(run, 0.97), target="val_loss")
    known = evidence_of(log, run.schedule)
    assert known.noise == pytest.approx(0.03, rel=0.5)
    assert min(widths_alone(Forecast("pool", known.loss), known)) >= 1.6 * known.noise


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
