"""A measured gain in place of the prior of ``s1_anneal``, on runs whose gain is planted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import Truth, made_up_run
from property_examples import examples

from toposcope.forecasting.cooldown import CoolDown, Merged
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.forecaster import LoggedRun, end_steps
from toposcope.forecasting.forecaster_set import DEFAULT, run_forecasters
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL
from toposcope.forecasting.measured_gain import decay_of
from toposcope.logs import Run
from toposcope.logs.schedules.recognised import falling
from toposcope.logs.schedules.schedule import Schedule, planned

CURVES = Path(__file__).parents[3] / "shared" / "data" / "loss-curves" / "curves.parquet"
END = 4000


def held(share: float = 0.1, shape: str = "linear", c: float = 0.06, noise: float = 0.0) -> LoggedRun:
    """A run at constant rate to its last share, in which it cools down to 0 and gains c beyond its progress."""
    begin = round((1 - share) * END)
    planned = np.full(END + 1, 1e-3)
    planned[begin:] *= falling(shape, np.linspace(0, 1, END + 1 - begin))
    steps = np.arange(10, END + 1, 10)
    loss = Truth(c=c).losses(planned)[steps]
    loss *= np.exp(noise * np.random.default_rng(0).normal(size=len(steps)))
    return LoggedRun(Run("held", steps, loss, planned[steps], END), Schedule(planned))


def at(step: int, beyond: float, length: int = 100) -> CoolDown:
    """A linear cool-down of some steps, measured at a step."""
    merged = Merged((step - 100, step), 2.9, (0.5, 0.5))
    return CoolDown(step, length, "linear", 2.9, 2.88, 2.92, 3.0, 3.0, beyond, merged)


@examples(40)
@given(
    st.floats(0.005, 0.5),
    st.floats(0.05, 0.2),
    st.floats(0.92, 1.0),
    st.sampled_from(["linear", "sqrt", "cosine"]),
)
def test_a_planted_gain_is_predicted(c: float, share: float, part: float, shape: str) -> None:
    run = held(share, shape, c)
    log = run.log.until(part * (1 - share) * END)
    assert log is not None
    found = run_forecasters(log, run.schedule, (), measured=[at(int(log.steps[-1]), c)])
    assert found.chosen == "s1_anneal"
    assert found.measured.startswith("the cool-down from step")
    end = float(Truth(c=c).losses(run.schedule.rates)[end_steps(run.schedule)].mean())
    assert found.forecasts[DEFAULT].loss == pytest.approx(end, abs=2e-3 + 0.01 * c)
    assert found.forecasts[DEFAULT].low < end < found.forecasts[DEFAULT].high


@pytest.mark.parametrize("c", [0.02, 0.06, 0.35])
def test_it_errs_less_than_the_prior_and_its_interval_holds(c: float) -> None:
    run = held(c=c, noise=0.01)
    log = run.log.until(0.9 * END)
    assert log is not None
    truth = held(c=c).final()
    (with_it, without) = (
        run_forecasters(log, run.schedule, (), measured=each).forecasts[DEFAULT]
        for each in ([at(int(0.9 * END), c)], ())
    )
    assert abs(with_it.loss - truth) < max(0.008, abs(without.loss - truth) / 3)
    assert with_it.low < truth < with_it.high
    assert "measured at step 3,600 on merged checkpoints" in " ".join(with_it.remarks)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cut": 0.5 * END}, "the decay begins at step 3,600, too far from step 2,000"),
        ({"cut": 0.95 * END}, "the learning rate has fallen by 50% of its peak already"),
        ({"planned": Schedule(np.full(END + 1, 1e-3))}, "no decay is planned: declare it"),
        ({"planned": made_up_run(kind="linear", end=END).schedule}, "the learning rate has fallen by"),
        ({"planned": made_up_run(kind="wsd", end=END).schedule, "cut": 0.7 * END}, "is no cool-down over the last 20%"),
        ({"planned": Schedule([1e-3] * 3601 + [1e-4] * 400)}, "is no cool-down over the last 20%"),
        ({"step": 3000}, "the log ends at step 3,600; measure it there"),
        ({"step": 3700}, "the log ends at step 3,600; measure it there"),
        ({"unit": "bits"}, "the log's loss is in bits, the gain in nats"),
        ({"rising": True}, "the loss does not fall"),
        ({"siblings": True}, "siblings show what their decays gained"),
    ],
)
def test_elsewhere_it_is_not_used_and_nothing_changes(change: dict[str, object], reason: str) -> None:
    run = held(noise=0.01)
    log = run.log.until(float(change.get("cut", 0.9 * END)))  # type: ignore[arg-type]
    assert log is not None
    log = replace(log, unit=str(change.get("unit", "nats")))
    if change.get("rising"):
        log = replace(log, loss=log.loss + np.maximum(log.steps - 1800, 0) / 800)
    siblings = [replace_name(held(c=0.2 + 0.01 * i), f"s{i}") for i in range(3)] if change.get("siblings") else []
    schedule = change.get("planned", run.schedule)
    assert isinstance(schedule, Schedule)
    step = int(change.get("step", log.steps[-1]))  # type: ignore[call-overload]
    without = run_forecasters(log, schedule, siblings)
    found = run_forecasters(log, schedule, siblings, measured=[at(step, 0.05)])
    assert reason in found.measured
    assert found.measured.startswith(f"the gain of a cool-down measured at step {step:,} is not used: ")
    assert found.chosen == without.chosen
    for name, each in without.forecasts.items():
        assert (found.forecasts[name].loss, found.forecasts[name].low) == (each.loss, each.low)


def replace_name(run: LoggedRun, name: str) -> LoggedRun:
    return LoggedRun(replace(run.log, name=name), run.schedule)


def test_the_report_says_whether_it_was_used_and_numbers_without_it_stay() -> None:
    log = held(noise=0.01).log.until(0.9 * END)
    assert log is not None
    plain = forecast(log, schedule="wsd:decay=0.1")
    report = forecast(log, schedule="wsd:decay=0.1", measured=[at(3600, 0.055)])
    assert report.chosen == "s1_anneal"
    assert report.inputs()["cool-down"] == report.to_dict()["cool_down"]
    assert "cool-down" not in plain.inputs()
    again = forecast(replace(log), schedule="wsd:decay=0.1")
    assert (again.loss, again.interval) == (plain.loss, plain.interval)
    # the order in which one log is asked about changes nothing
    assert (forecast(log, schedule="wsd:decay=0.1").loss, plain.chosen) == (plain.loss, again.chosen)
    assert report.loss != plain.loss


@pytest.mark.skipif(not CURVES.exists(), reason="needs the published loss curves")
def test_real_runs_end_where_they_ended_by_the_gain_of_their_own_decay() -> None:
    """Plumbing alone: no merged checkpoint measured this gain, the decay itself did."""
    curves = pl.read_parquet(CURVES).filter(pl.col("sched") == "wsd", pl.col("family") == "mpl").sort("step")
    for name in curves["run"].unique():
        steps, loss, rate = (curves.filter(run=name)[column].to_numpy() for column in ("step", "loss", "lr"))
        log = Run(name, steps.astype(np.int64), loss, rate, int(steps[-1]))
        complete = LoggedRun(log, planned(log))
        begin, _ = decay_of(complete.schedule)
        seen = log.until(begin)
        assert seen is not None
        c = complete_gain(complete)
        found = run_forecasters(seen, complete.schedule, (), measured=[at(int(seen.steps[-1]), c)])
        assert found.chosen == "s1_anneal"
        assert found.forecasts[DEFAULT].loss == pytest.approx(complete.final(), abs=0.01)


def complete_gain(run: LoggedRun) -> float:
    """The coefficient that a complete run has by itself."""
    return S1_ANNEAL.prior(run.log, run.schedule, [replace_name(run, name) for name in "abc"]).centre
