"""What every forecaster does on every log: a sound forecast, or a refusal in one clear line."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pytest
from made_up_runs import KINDS, Truth, copied, made_up_family, made_up_run, rates, seen

from toposcope.forecasting.forecaster import Forecast, Forecaster, LoggedRun, RefusedError
from toposcope.forecasting.forecasters import forecasters
from toposcope.forecasting.intervals import band, with_interval
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule, planned


@dataclass(frozen=True)
class Case:
    log: Run
    schedule: Schedule
    siblings: tuple[LoggedRun, ...] = ()


def of_losses(losses: np.ndarray, unit: str = "nats", every: int = 10, share: float = 0.5) -> Case:
    """A case of a log of given losses at steps 10, 20 ..."""
    steps = every * np.arange(1, len(losses) + 1)
    end = int(steps[-1] / share)
    planned_rates = rates("cosine", end)
    log = Run("log", steps, losses, planned_rates[steps], end, 1e8, 1e5, "made up", unit=unit)
    return Case(log, Schedule(planned_rates))


def points(n: int) -> Case:
    run = made_up_run(every=100, begin=100)
    return Case(seen(run, 100 * n / 2000), run.schedule)


@cache
def relatives() -> tuple[LoggedRun, ...]:
    return (*made_up_family(), made_up_run("constant", "constant"), made_up_run("linear", "linear"))


def with_siblings(siblings: tuple[LoggedRun, ...], fraction: float = 0.3) -> Case:
    run = made_up_run("run to forecast", noise=0.003, size=1e10)
    return Case(seen(run, fraction), run.schedule, siblings)


def in_warm_up() -> Case:
    planned_rates = rates("cosine", 2000, warm_up=1000)
    steps = np.arange(10, 600, 10)
    log = Run("log", steps, 3 + 3 / np.sqrt(steps), planned_rates[steps], 2000)
    return Case(log, Schedule(planned_rates))


def at_its_end(kind: str = "cosine") -> Case:
    run = made_up_run(kind=kind, noise=0.003)
    return Case(run.log, run.schedule, relatives())


def of_unknown_size() -> Case:
    case = with_siblings(relatives())
    return Case(replace(case.log, parameters=np.nan), case.schedule, case.siblings)


def without_sizes() -> Case:
    case = with_siblings(tuple(copied(run, parameters=np.nan) for run in relatives()))
    return Case(replace(case.log, parameters=np.nan), case.schedule, case.siblings)


def half_of_the_sizes() -> Case:
    return with_siblings(tuple(copied(run, parameters=np.nan) if i % 2 else run for i, run in enumerate(relatives())))


def equal_sibling() -> Case:
    run = made_up_run("run to forecast", noise=0.003, size=1e10)
    return Case(seen(run, 0.3), run.schedule, (*relatives(), run))


def late_siblings() -> Case:
    """Siblings that were not logged yet at the fraction, or hardly."""
    late = tuple(made_up_run(f"late {i}", begin=begin, size=1e7 * (i + 1)) for i, begin in enumerate((590, 700, 1900)))
    return with_siblings((*late, *relatives()[:5]))


def noisy(n: int = 100) -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.asarray(2.5 + 2 / np.sqrt(np.arange(1, n + 1)) + 0.02 * rng.normal(size=n))


def spiky() -> np.ndarray:
    losses = noisy()
    losses[::9] *= 1e4
    return losses


def rates_of_nothing() -> Case:
    """The rate is 0 for the late half of the log."""
    planned_rates = np.where(np.arange(2001) < 200, 1e-3, 0.0)
    steps = np.arange(10, 1001, 10)
    log = Run("log", steps, noisy(), planned_rates[steps], 2000, 1e8, 1e5, "made up")
    stopped = [
        made_up_run(f"stopped {i}", truth=Truth(L0=2 + i / 10), size=1e8 * (i + 2), noise=0.01) for i in range(8)
    ]
    siblings = [
        LoggedRun(replace(run.log, learning_rate=planned_rates[run.log.steps]), Schedule(planned_rates))
        for run in stopped
    ]
    return Case(log, Schedule(planned_rates), tuple(siblings))


def unlogged_rates() -> Case:
    case = with_siblings(relatives())
    log = replace(case.log, learning_rate=np.full(len(case.log.steps), np.nan))
    return Case(log, planned(log), case.siblings)


def of_kind(kind: str, fraction: float) -> Case:
    run = made_up_run(kind=kind, noise=0.01, spikes=0.02, missing=0.2)
    return Case(seen(run, fraction), run.schedule)


CASES: dict[str, Callable[[], Case]] = {
    "1 point": lambda: points(1),
    "2 points": lambda: points(2),
    "4 points": lambda: points(4),
    "5 points": lambda: points(5),
    "5 points and siblings": lambda: replace(points(5), siblings=relatives()),
    "1 point and siblings": lambda: replace(points(1), siblings=relatives()),
    "step 0 alone": lambda: Case(seen(made_up_run(), 0.001), made_up_run().schedule, relatives()),
    "a schedule of step 0": lambda: Case(
        Run("log", np.array([0]), np.array([3.0]), np.array([1.0]), 0), Schedule([1.0])
    ),
    "constant loss": lambda: of_losses(np.full(60, 3.0)),
    "constant loss, late": lambda: of_losses(np.full(60, 3.0), share=0.9),
    "rising loss": lambda: of_losses(3 + np.arange(60) / 10),
    "rising loss, late": lambda: of_losses(3 + np.arange(60) / 10, share=0.9),
    "exploding loss": lambda: of_losses(3 * 1.2 ** np.arange(90.0), share=0.7),
    "falling line": lambda: of_losses(3 - 0.028 * np.arange(100), share=0.6),
    "collapsing loss": lambda: of_losses(3 * 0.7 ** np.arange(60), share=0.6),
    "spikes": lambda: of_losses(spiky()),
    "spikes, late": lambda: of_losses(spiky(), share=0.9),
    "losses near 0": lambda: of_losses(1e-8 * noisy()),
    "losses near 0, late": lambda: of_losses(1e-8 * noisy(), share=0.8),
    "small losses": lambda: of_losses(1e-2 * noisy(), share=0.8),
    "losses of 1e6": lambda: of_losses(1e6 * noisy()),
    "losses of 1e6, late": lambda: of_losses(1e6 * noisy(), share=0.8),
    "losses of 1e60": lambda: of_losses(1e60 * noisy(), share=0.8),
    "losses of 1e-60": lambda: of_losses(1e-60 * noisy(), share=0.8),
    "bits": lambda: of_losses(noisy() / np.log(2), "bits"),
    "bits per byte, late": lambda: of_losses(noisy() / 4, "bits per byte", share=0.9),
    "long log": lambda: of_losses(noisy(30_000), every=1),
    "in warm-up": in_warm_up,
    "a rate of 0": rates_of_nothing,
    "no learning rate": unlogged_rates,
    "at its end": at_its_end,
    "constant rate at its end": lambda: at_its_end("constant"),
    "siblings": lambda: with_siblings(relatives()),
    "siblings, late": lambda: with_siblings(relatives(), 0.8),
    "siblings, early": lambda: with_siblings(relatives(), 0.03),
    "3 siblings": lambda: with_siblings(relatives()[:3]),
    "siblings of one size": lambda: with_siblings(tuple(made_up_run(f"{i}", end=1000 + 100 * i) for i in range(9))),
    "another family": lambda: with_siblings(tuple(copied(run, family="others") for run in relatives())),
    "other units": lambda: with_siblings(tuple(copied(run, unit="bits") for run in relatives())),
    "flat siblings": lambda: with_siblings(
        tuple(copied(run, loss=np.full(len(run.log.loss), 3.0)) for run in relatives())
    ),
    "huge siblings": lambda: with_siblings(tuple(copied(run, loss=1e6 * run.log.loss) for run in relatives())),
    "equal sibling": equal_sibling,
    "late siblings": late_siblings,
    "unknown parameters": of_unknown_size,
    "no size is known": without_sizes,
    "half of the sizes are known": half_of_the_sizes,
    **{f"{kind} at {fraction}": partial(of_kind, kind, fraction) for kind in KINDS for fraction in (0.2, 0.6)},
}


def checked(forecaster: Forecaster, case: Case) -> Forecast | None:
    """Forecast, with every warning an error; None if the forecaster refuses, as it should."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return with_interval(forecaster.fit(case.log, case.schedule, case.siblings), case.log, case.schedule)
        except RefusedError as error:
            said = str(error)
    assert said.strip()
    assert "\n" not in said
    assert "nan" not in said.lower()
    return None


def assert_sound(forecast: Forecast, case: Case) -> None:
    assert np.isfinite(forecast.loss)
    assert forecast.loss > 0
    assert forecast.low <= forecast.loss <= forecast.high
    assert forecast.low > 0
    assert np.isfinite(forecast.high)
    assert forecast.steps.dtype == np.int64
    assert (forecast.steps[0], forecast.steps[-1]) == (case.log.steps[-1], case.schedule.last_step)
    assert (np.diff(forecast.steps) > 0).all() or len(forecast.steps) == 2
    assert forecast.curve.shape == forecast.steps.shape
    assert np.isfinite(forecast.curve).all()
    assert (forecast.curve > 0).all()
    below, above = band(forecast)
    assert (below <= forecast.curve * (1 + 1e-12)).all()
    assert (above >= forecast.curve * (1 - 1e-12)).all()
    assert np.isfinite(forecast.errors).all()
    assert forecast.errors.shape == forecast.relatives.shape
    assert not any(np.isnan(value) for value in forecast.diagnostics.values()), forecast.diagnostics
    assert forecast.remarks
    for remark in forecast.remarks:
        assert remark.strip() == remark
        assert len(remark.split()) > 3
        assert "\n" not in remark
        assert "nan" not in remark.split()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("forecaster", forecasters(), ids=lambda forecaster: forecaster.name)
def test_a_sound_forecast_or_a_refusal(forecaster: Forecaster, name: str) -> None:
    case = CASES[name]()
    forecast = checked(forecaster, case)
    if forecast is not None:
        assert forecast.forecaster == forecaster.name
        assert_sound(forecast, case)
    if forecaster.name == "last":
        assert forecast is not None


@pytest.mark.parametrize("forecaster", forecasters(), ids=lambda forecaster: forecaster.name)
def test_the_future_the_order_of_siblings_and_what_is_cached_change_nothing(forecaster: Forecaster) -> None:
    run, siblings = made_up_run("run to forecast", noise=0.003, size=1e10), relatives()
    later = replace(run.log, loss=np.where(run.log.steps > 600, 9.0, run.log.loss))
    fresh = tuple(LoggedRun(replace(sibling.log), sibling.schedule) for sibling in siblings)
    found = []
    for log, several in ((run.log, siblings), (later, fresh), (run.log, siblings[::-1])):
        again = LoggedRun(replace(log), Schedule(run.schedule.rates))
        case = Case(seen(again, 0.3), again.schedule, several)
        found.append(checked(forecaster, case))
    one, two, three = found
    if one is None or two is None or three is None:
        assert found == [None] * 3
        return
    for name in ("loss", "low", "high", "curve", "errors", "remarks"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert [one.loss, one.low, one.high] == pytest.approx([three.loss, three.low, three.high], rel=1e-9)
    np.testing.assert_allclose(np.sort(one.errors), np.sort(three.errors), rtol=1e-9)
