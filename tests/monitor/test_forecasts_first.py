"""Forecasts come first: no measurement spends what is set aside for them; where there is none, the status says why."""

import json
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monitored import FakeClock, model_of, wait_until_measured
from property_examples import examples

from toposcope.monitor.budget import FORECAST_SHARE, Budget, Meter
from toposcope.monitor.events import Forecasted
from toposcope.monitor.measuring import Measurer
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.monitored_run import MonitoredRun
from toposcope.monitor.recording import RunInfo
from toposcope.monitor.running_forecast import MIN_FORECAST_ROWS, RunningForecast
from toposcope.study import Study


def costly(budget: Budget, clock: FakeClock, seconds: float) -> None:
    """Measure something, whatever it costs."""
    with budget.meter.during("blocked"):
        clock.now += seconds
    budget.charge("training", "", seconds)


@examples(60)
@given(
    step_seconds=st.floats(1e-3, 10),
    forecast_seconds=st.floats(1e-3, 100),
    measured=st.lists(st.floats(0, 1e4), min_size=1, max_size=5),
    share=st.sampled_from([0.001, 0.01, 0.1]),
)
def test_no_measurement_spends_what_is_set_aside(
    step_seconds: float, forecast_seconds: float, measured: list[float], share: float
) -> None:
    clock = FakeClock()
    budget = Budget(share, ["training", "controls"], Meter(clock))
    budget.begin()
    budget.reserve_for_forecast(forecast_seconds)
    paid, income = 0.0, FORECAST_SHARE * share
    for step in range(300):
        clock.now += step_seconds
        budget.step()
        costly(budget, clock, measured[step % len(measured)])
        budget.redistribute()
        earned = income * budget.trained - paid
        assert budget.reserve == pytest.approx(min(forecast_seconds, earned), rel=1e-6, abs=1e-9)
        assert budget.credit <= share * budget.trained - budget.cost - max(0.0, budget.reserve) + 1e-9
        assert budget.available("training") <= budget.credit
        if budget.reserve >= forecast_seconds * (1 - 1e-9):
            budget.pay_forecast(forecast_seconds)
            paid = income * budget.trained - budget.reserve  # beyond its price, what was earned flowed back


def test_what_forecasts_do_not_need_flows_back() -> None:
    measured = []
    for seconds in (0.0, 1e-3, 1e9):
        clock = FakeClock()
        budget = Budget(0.01, ["training"], Meter(clock))
        budget.begin()
        budget.reserve_for_forecast(seconds)
        for _ in range(1000):
            clock.now += 1
            budget.step()
        measured.append(budget.available("training"))
    assert measured == pytest.approx([10.0, 10 - 1e-3, 10 * (1 - FORECAST_SHARE)])


def loss(step: int) -> float:
    return 1.8 + 20 / math.sqrt(step + 20) + 0.01 * math.sin(step * 1.7)


def train(
    monitor: Monitor, steps: int, log: Callable[[int], dict[str, float]], before: Callable[[], None] = lambda: None
) -> None:
    """Train, letting the monitor's thread go idle after each step."""
    model = model_of()
    monitor.watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor.attach(optimizer)
    run = monitor._run
    assert isinstance(run, MonitoredRun)
    for step in range(1, steps + 1):
        value = model(torch.ones(4, 8)).square().mean()
        optimizer.zero_grad()
        value.backward()
        before()
        optimizer.step()
        if values := log(step):
            monitor.log(None, **values)
        for _ in range(2):
            run._worker.put(lambda: None)
        wait_until_measured(monitor)


@pytest.mark.usefixtures("compiled_probes")
def test_where_measurements_are_dear_forecasts_are_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, last = FakeClock(), 100
    measure = Measurer.measure

    def dear(self: Measurer, *arguments: object) -> None:
        measure(self, *arguments)  # type: ignore[arg-type]
        clock.now += 40.0 if clock.now > 2 else 1e-4  # far more than the first measurement promised

    monkeypatch.setattr(Measurer, "measure", dear)
    # However slow this machine is: a forecast takes a millisecond.
    monkeypatch.setattr("toposcope.monitor.running_forecast.time.thread_time", partial(next, count(0.0, 1e-3)))

    def pass_time() -> None:
        clock.now += 2.0

    with Monitor(directory=tmp_path / "run", every=5, quiet=True, last_step=last, clock=clock) as monitor:
        train(monitor, last, lambda step: {"loss": loss(step), "lr": 1e-2}, pass_time)
    study = Study.load(tmp_path / "run")
    status = json.loads(study.meta("monitor run"))
    steps = study.forecasts()["step"].to_list()
    assert steps[0] <= 0.1 * last
    assert max(b - a for a, b in pairwise([*steps, last])) <= 0.05 * last + 1
    assert status["cost_seconds"] > 40 > 0.01 * status["trained_seconds"]  # and nothing but forecasts was affordable
    assert sum(status["skipped"].values()) > 15
    assert (status["forecast_target"], status["no_forecast"]) == ("training loss", "")


@pytest.mark.usefixtures("compiled_probes")
def test_the_last_status_has_no_cost_of_closing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    measure = Measurer.measure

    def dear(self: Measurer, *arguments: object) -> None:
        measure(self, *arguments)  # type: ignore[arg-type]
        clock.now += 0.1

    monkeypatch.setattr(Measurer, "measure", dear)

    def pass_time() -> None:
        clock.now += 1.0

    with Monitor(directory=tmp_path / "run", quiet=True, last_step=50, clock=clock) as monitor:
        train(monitor, 20, lambda _: {}, pass_time)
    status = json.loads(Study.load(tmp_path / "run").meta("monitor run"))
    assert status["start_seconds"] >= 0.3  # two layers, at the beginning and at the end
    assert status["cost_seconds"] <= 0.01 * status["trained_seconds"] + 0.05


def forecast_of(
    folder: Path, last: int | None, losses: dict[int, dict[str, float]], step_seconds: float = 1.0
) -> tuple[RunningForecast, list[Forecasted]]:
    """Log some rows, and ask for a forecast after each."""
    clock = FakeClock()
    budget = Budget(0.01, ["training"], Meter(clock))
    budget.begin()
    forecast = RunningForecast(RunInfo(folder / "mine", "mine", 0, last_step=last))
    made: list[Forecasted] = []
    for step, values in losses.items():
        clock.now += step_seconds
        budget.step()
        forecast.add(step, values)
        made += [event for event in forecast.update(budget) if isinstance(event, Forecasted)]
    return forecast, made


def rows(n: int, column: str = "loss", every: int = 1) -> dict[int, dict[str, float]]:
    return {step: {"loss": loss(step), **({column: loss(step)} if step % every == 0 else {})} for step in range(1, n)}


def validated(n: int) -> dict[int, dict[str, float]]:
    """Log validation losses alone, and a learning rate at every step."""
    return {s: {"learning_rate": 1e-3, **({"validation_loss": loss(s)} if s % 20 == 0 else {})} for s in range(1, n)}


LOST = {step: {"loss": loss(step) if step < 100 else math.nan} for step in range(1, 150)}
FEW = MIN_FORECAST_ROWS


@pytest.mark.parametrize(
    ("last", "logged", "words"),
    [
        (1000, {}, "No forecast yet: nothing is logged; call `monitor.log(loss=..., lr=...)`"),
        (1000, rows(4), f"No forecast yet: 3 rows are logged, {FEW} are needed."),
        (1000, rows(2), f"No forecast yet: 1 row is logged, {FEW} are needed."),
        (1000, rows(40), "No forecast yet: the first is made by step 100 of 1,000."),
        (400, validated(45), f"No forecast yet: 2 validation losses are logged, {FEW} are needed."),
        (None, rows(200), "No forecast: the planned number of steps is unknown; `Monitor(last_step=...)`, or now"),
        (None, rows(200), "mine --steps ...`"),
        (1000, LOST, "No forecast: the run diverged at step 100"),
        (200, {step: {"loss": -loss(step)} for step in range(1, 99)}, "No forecast: 'loss' need not fall"),
        (1000, rows(101), ""),
    ],
)
def test_why_there_is_no_forecast(
    last: int | None, logged: dict[int, dict[str, float]], words: str, tmp_path: Path
) -> None:
    forecast, _ = forecast_of(tmp_path, last, logged)
    reason = forecast.no_forecast()
    assert words in reason
    assert bool(words) == bool(reason)


@pytest.mark.parametrize(("step_seconds", "last"), [(1e-3, 900), (0.1, 200), (2.0, 100)])
def test_the_first_is_made_by_a_tenth_of_the_run_and_the_rest_are_paid(
    tmp_path: Path, step_seconds: float, last: int
) -> None:
    logged = {step: {"loss": loss(step)} for step in range(1, last + 1)}
    _, made = forecast_of(tmp_path, last, logged, step_seconds)
    assert made[0].step <= math.ceil(0.1 * last)
    assert len(made) <= 20
    assert len(made) == 1 or step_seconds > 1e-3  # one costs more than half a percent of a run of a second


@pytest.mark.parametrize(("every", "target"), [(10, "validation loss"), (100, "training loss")])
def test_it_is_of_the_loss_that_the_command_forecasts(every: int, target: str, tmp_path: Path) -> None:
    forecast, made = forecast_of(tmp_path, 400, rows(300, "validation_loss", every))
    assert {forecast.target, *(one.target for one in made)} == {target}
    assert made[0].step <= (40 if target == "training loss" else 80)


def test_preparing_leaves_what_is_random_alone(tmp_path: Path) -> None:
    before = repr(np.random.get_state())  # noqa: NPY002
    clock = FakeClock()
    started = time.thread_time()
    forecast = RunningForecast(RunInfo(tmp_path / "mine", "mine", 0, last_step=10))
    forecast.prepare(Budget(0.01, ["training"], Meter(clock)))
    assert 0 < forecast.seconds <= time.thread_time() - started
    assert repr(np.random.get_state()) == before  # noqa: NPY002
