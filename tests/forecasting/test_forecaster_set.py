from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import copied, made_up_family, made_up_run, seen

from toposcope.forecasting.forecaster import Forecast, RefusedError
from toposcope.forecasting.forecaster_set import DEFAULT, PREFERRED, ForecastSet, run_forecasters
from toposcope.forecasting.forecasters import forecasters
from toposcope.forecasting.forecasters.baseline_laws import Last, StepPowerLaw
from toposcope.forecasting.forecasters.pool import Pool
from toposcope.forecasting.forecasters.sibling_template import Template

RUN = made_up_run("run", noise=0.003, size=1e10)
NAMES = [forecaster.name for forecaster in forecasters()]


def at(fraction: float, siblings: object = ()) -> ForecastSet:
    return run_forecasters(seen(RUN, fraction), RUN.schedule, tuple(siblings))  # type: ignore[arg-type]


def equal(one: Forecast, other: Forecast) -> bool:
    return (one.loss, one.low, one.high) == (other.loss, other.low, other.high)


def test_everyone_forecasts_or_refuses() -> None:
    for found in (at(0.3), at(0.3, made_up_family())):
        assert next(iter(found.forecasts)) == DEFAULT
        assert sorted([*found.forecasts, *found.refused]) == sorted([DEFAULT, *NAMES])
        assert not set(found.forecasts) & set(found.refused)
        for name, forecast in found.forecasts.items():
            assert forecast.forecaster == name
            assert forecast.low < forecast.loss < forecast.high


def test_names_differ_and_the_preferred_are_among_them() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert set(PREFERRED) <= set(NAMES)


def test_the_default_is_the_stack_where_the_family_has_siblings() -> None:
    found = at(0.3, made_up_family())
    assert found.chosen == "stack"
    assert equal(found.forecasts[DEFAULT], found.forecasts["stack"])


@pytest.mark.parametrize("n", [0, 5])
def test_else_the_default_is_the_pool(n: int) -> None:
    found = at(0.3, made_up_family()[:n])
    assert "stack" in found.refused
    assert found.chosen == "pool"
    assert equal(found.forecasts[DEFAULT], found.forecasts["pool"])


@pytest.mark.parametrize(("fraction", "n"), [(0.3, 0), (0.3, 12), (0.7, 0), (0.7, 5)])
def test_the_default_alone_is_the_same_default(fraction: float, n: int) -> None:
    siblings = tuple(made_up_family()[:n])
    alone = run_forecasters(seen(RUN, fraction), RUN.schedule, siblings, only_default=True)
    assert list(alone.forecasts) == [DEFAULT, at(fraction, siblings).chosen]
    assert equal(alone.forecasts[DEFAULT], at(fraction, siblings).forecasts[DEFAULT])


def test_with_too_few_points_for_a_law_the_last_value_is_left() -> None:
    found = run_forecasters(made_up_run(every=1000).log.until(1500), made_up_run(every=1000).schedule, ())  # type: ignore[arg-type]
    assert list(found.forecasts) == [DEFAULT, "last"]
    assert found.chosen == "last"


def test_none_is_a_refusal() -> None:
    log = seen(RUN, 0.001)
    with pytest.raises(RefusedError, match="a law needs at least 5"):
        run_forecasters(log, RUN.schedule, (), [StepPowerLaw(), Pool(), Template()])
    assert list(run_forecasters(log, RUN.schedule, (), [Last(), StepPowerLaw()]).refused) == ["power_law"]


def test_a_spike_at_the_end_is_no_divergence() -> None:
    log = seen(RUN, 0.3)
    spiked = log.loss.copy()
    spiked[-2:] *= 2
    assert run_forecasters(replace(log, loss=spiked), RUN.schedule, ()).chosen == "pool"
    risen = log.loss + np.maximum(log.steps - log.steps[-1] / 2, 0) * 0.01
    assert run_forecasters(replace(log, loss=risen), RUN.schedule, ()).chosen == "last"
    assert run_forecasters(replace(log, loss=np.full(len(log.loss), 3.0)), RUN.schedule, ()).chosen == "last"


@pytest.mark.parametrize(
    ("n", "n_after", "width"),  # any two of them meet
    [(12, 1, 1), (12, 2, 3), (12, 5, 4), (20, 1, 3), (20, 2, 4), (20, 5, 1), (60, 1, 4), (60, 2, 1), (60, 5, 3)],
)
def test_a_spike_that_the_run_recovered_from_is_no_divergence(n: int, n_after: int, width: int) -> None:
    run = made_up_run("run", every=500 // n, begin=500 // n, noise=0.003, size=1e10)
    log = seen(run, 0.25)
    spiked = log.loss.copy()
    spiked[len(spiked) - n_after - width : len(spiked) - n_after] *= 1.8
    found = run_forecasters(replace(log, loss=spiked), run.schedule, made_up_family())
    assert found.chosen == "stack"
    assert not any("has risen" in remark for remark in found.forecasts[DEFAULT].remarks)


def test_a_run_that_stays_high_after_a_jump_diverged() -> None:
    log = seen(RUN, 0.3)
    for n_after in (4, 10):
        jumped = log.loss.copy()
        jumped[-n_after:] *= 3
        assert run_forecasters(replace(log, loss=jumped), RUN.schedule, ()).chosen == "last"
    jumped[-30:] *= 3
    with pytest.raises(RefusedError, match=r"was above .* for 50% of what was seen"):
        run_forecasters(replace(log, loss=jumped), RUN.schedule, ())


def test_the_default_is_the_stack_that_errs_less_on_the_siblings() -> None:
    """Norms that tell the end beforehand are used; norms that are noise are not."""
    rng = np.random.default_rng(0)
    chosen = []
    for informative in (True, False):
        runs = []
        for i in range(6):
            for j in range(4):
                run = made_up_run(f"{i} {j}", "linear", size=1e7 * 3**i, end=1000 + 100 * j, noise=0.001)
                surprise, other = rng.normal(size=2)
                late = run.log.steps > 0.5 * run.schedule.last_step
                norm = np.full(len(run.log.steps), np.exp(surprise if informative else other))
                norms = {"weight_norm": norm, "grad_norm": np.ones(len(norm))}
                runs.append(copied(run, loss=run.log.loss * np.exp(np.where(late, 0.02 * surprise, 0.0)), norms=norms))
        run, siblings = runs[9], [other for other in runs if other.log.parameters != runs[9].log.parameters]
        chosen.append(run_forecasters(seen(run, 0.3), run.schedule, siblings).chosen)
        plain = copied(run, norms={})
        assert run_forecasters(seen(plain, 0.3), plain.schedule, siblings).chosen == "stack"
    assert chosen == ["stack_norms", "stack"]
