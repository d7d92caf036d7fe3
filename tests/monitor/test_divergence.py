"""A monitored run whose loss becomes NaN has no forecast: it diverged."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monitored import model_of

from toposcope.logs import LogTable, read_log
from toposcope.monitor.budget import Budget, Meter
from toposcope.monitor.events import DIVERGED, Alert, Forecasted
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.recording import RunInfo
from toposcope.monitor.running_forecast import FORECAST, MAX_STORED_ROWS, MIN_LOST_ROWS, RunningForecast, ShortLog
from toposcope.study import Study

LAST = 2000


def loss(step: int) -> float:
    return 1.8 + 20 / math.sqrt(step + 20) + 0.01 * math.sin(step * 1.7)


BUDGET = Budget(0.5, [FORECAST], Meter(lambda: 0.0))
BUDGET.affords = lambda *_: True  # type: ignore[method-assign]


def watched(tmp_path: Path, losses: list[float]) -> tuple[RunningForecast, list[Alert | Forecasted]]:
    """Log some losses, and ask for a forecast after each."""
    now = [0.0]
    forecast = RunningForecast(RunInfo(tmp_path / "mine", "mine", 0, last_step=LAST), clock=lambda: now[0])
    events: list[Alert | Forecasted] = []
    for step, value in enumerate(losses, 1):
        now[0] += 100
        forecast.add(step, {"loss": value, "learning_rate": 1e-3})
        events += forecast.update(BUDGET)
    return forecast, events


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_it_diverged_and_has_no_forecast(tmp_path: Path, lost: float) -> None:
    forecast, events = watched(tmp_path, [*map(loss, range(1, 201)), *[lost] * 400])
    (alert,) = [e for e in events if isinstance(e, Alert) and e.kind == DIVERGED]
    assert (alert.since, alert.step) == (201, 200 + MIN_LOST_ROWS)
    assert alert.message.startswith("diverged at step 201: the training loss is")
    forecasts = [e.step for e in events if isinstance(e, Forecasted)]
    assert forecasts
    assert max(forecasts) <= 200
    assert forecast.update(BUDGET, final=True) == ()
    assert forecast.diverged is not None
    assert forecast.diverged.step == 201


def test_a_loss_that_recovers(tmp_path: Path) -> None:
    losses = [*map(loss, range(1, 101)), *[math.nan] * 20, *map(loss, range(121, 601))]
    forecast, events = watched(tmp_path, losses)
    assert forecast.diverged is None
    assert sum(isinstance(e, Alert) and e.kind == DIVERGED for e in events) == 1
    assert max(e.step for e in events if isinstance(e, Forecasted)) > 300


def test_a_single_overflow_is_no_divergence(tmp_path: Path) -> None:
    losses = [math.inf if step % 40 == 0 else loss(step) for step in range(1, 400)]
    _, events = watched(tmp_path, losses)
    assert not [e for e in events if isinstance(e, Alert) and e.kind == DIVERGED]
    assert [e for e in events if isinstance(e, Forecasted)]


@given(n=st.integers(20, 3 * MAX_STORED_ROWS), n_lost=st.integers(MIN_LOST_ROWS, 2 * MAX_STORED_ROWS))
def test_the_first_lost_step_of_a_long_log_is_exact(n: int, n_lost: int) -> None:
    log = ShortLog()
    for step in range(1, n + 1):
        log.add(step, {"loss": loss(step)})
    for step in range(n + 1, n + n_lost + 1):
        log.add(step, {"loss": math.nan, "lr": 1e-3})
    found = log.divergence()
    assert found is not None
    assert found.step == n + 1
    assert f"NaN in all {n_lost:,} rows" in found.reason
    assert f"at step {n:,}" in found.reason
    assert len(log.steps) <= MAX_STORED_ROWS
    assert np.isnan(log.table().values["loss"][log.table().steps > n]).all()


def test_a_forecast_of_a_table_with_nan(tmp_path: Path) -> None:
    rows = {step: {"loss": loss(step) if step < 300 else math.nan} for step in range(1, 500)}
    running = RunningForecast(RunInfo(tmp_path / "mine", "mine", 0, last_step=LAST))
    assert not isinstance(running.make(LogTable.from_rows(rows)), Forecasted)
    assert "diverged at step 300" in running.refusal


def test_a_run_is_recorded_as_diverged(tmp_path: Path) -> None:
    with Monitor(model := model_of(), tmp_path / "run", every=20, budget=0.5, quiet=True, last_step=400) as monitor:
        monitor.attach(optimizer := torch.optim.SGD(model.parameters(), lr=1e-2))
        for step in range(1, 101):
            value = model(torch.ones(4, 8)).square().mean()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            monitor.log(loss=loss(step) if step < 61 else math.nan, lr=1e-2)
    study = Study.load(tmp_path / "run")
    assert study.runs()["status"].to_list() == ["diverged"]
    assert study.log()["loss"].is_nan().sum() == 40
    assert study.forecasts().filter(study.forecasts()["step"] > 60).is_empty()
    assert "diverged at step 61" in json.loads(study.meta("monitor run"))["diverged"]
    assert "diverged at step 61" in study.alerts().filter(check=DIVERGED)["message"][0]
    found = read_log(tmp_path / "run").diverged
    assert found is not None
    assert found.step == 61
