"""The forecast of a run in training, from its log and the complete runs next to it; one that diverges has none."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monitored import model_of

from toposcope.logs import COLUMNS, LogTable, read_log
from toposcope.monitor.budget import Budget, Meter
from toposcope.monitor.events import DIVERGED, Alert, Forecasted
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.recording import RunInfo
from toposcope.monitor.running_forecast import MAX_STORED_ROWS, MIN_LOST_ROWS, RunningForecast, ShortLog
from toposcope.monitor.sibling_logs import SiblingLogs
from toposcope.study import Study
from toposcope.study.store import Store

LAST = 4000
TOKENS = 1e5


def table(n: int, parameters: float, seed: int, every: int = 10, schedule: bool = True) -> LogTable:
    """A law of Chinchilla's form at a constant rate."""
    steps = np.arange(every, n + 1, every)
    values = {name: np.full(len(steps), np.nan) for name in COLUMNS}
    noise = 0.02 * np.random.default_rng(seed).normal(size=len(steps))
    values["loss"] = 1.8 + 400 / parameters**0.34 + 2000 / (steps * TOKENS) ** 0.36 + noise
    values["tokens"] = steps * TOKENS
    if schedule:
        values["learning_rate"] = np.full(len(steps), 3e-4)
    return LogTable(steps, values)


def forecast_of(folder: Path, n_parameters: int = 0, tokens: int = 0, last: int | None = LAST) -> RunningForecast:
    return RunningForecast(RunInfo(folder / "mine", "mine", n_parameters, tokens, last))


def write_run(folder: Path, parameters: float, seed: int, *, last: int = LAST, status: str = "complete") -> None:
    folder.mkdir()
    name = folder.name
    (folder / "study.toml").write_text(f'name = "{name}"\n[[series]]\nname = "{name}"\npath = "."\nlive = true\n')
    store = Store(folder / "study.db")
    store.put_run(name, 0, "live", int(parameters), "")
    store.put_log(name, table(last, parameters, seed))
    store.set_status(name, status, last)
    store.close()


def test_a_forecast_of_the_end_with_its_interval(tmp_path: Path) -> None:
    made = forecast_of(tmp_path).make(table(2000, 1e7, 0))
    assert isinstance(made, Forecasted)
    assert (made.step, made.last_step) == (2000, LAST)
    end = float(np.mean(table(LAST, 1e7, 1).values["loss"][-8:]))
    assert made.low < end < made.high
    assert made.low < made.loss < made.high
    assert made.advice == ""


def test_complete_siblings_narrow_the_interval(tmp_path: Path) -> None:
    alone = forecast_of(tmp_path).make(table(2000, 1e7, 0))
    for k in range(10):
        write_run(tmp_path / f"run{k}", 10 ** (6.6 + 0.1 * k), k + 1)
    running = forecast_of(tmp_path)
    near = running.make(table(2000, 1e7, 0))
    assert running.borrowed == "its learning rate and coefficients are taken from 10 siblings"
    assert isinstance(alone, Forecasted)
    assert isinstance(near, Forecasted)
    assert near.high - near.low < alone.high - alone.low


def test_only_complete_runs_near_it_count_and_not_the_run_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", 1e7, 1)
    write_run(tmp_path / "running", 1e7, 2, last=500, status="running")
    write_run(tmp_path / "mine", 1e7, 3)
    (tmp_path / "notes").mkdir()
    (tmp_path / "broken").mkdir()
    for name in ("study.toml", "study.db"):
        (tmp_path / "broken" / name).write_text("not a study")
    logs = SiblingLogs(tmp_path / "mine").logs(60).logs
    assert [log.name for log in logs] == ["whole/whole"]


def test_what_there_is_no_time_to_read_is_read_the_next_time(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", 1e7, 1)
    siblings = SiblingLogs(tmp_path / "mine")
    assert len(siblings.logs(0).logs) == 0
    assert len(siblings.logs(60).logs) == 1
    assert len(siblings.logs(0).logs) == 1


def test_advice_where_siblings_determine_a_law(tmp_path: Path) -> None:
    for k in range(12):
        write_run(tmp_path / f"run{k:02}", 10 ** (6 + 0.5 * (k % 4)), k + 1, last=LAST // 4 * (1 + k // 4))
    running = forecast_of(tmp_path, 10_000_000, int(TOKENS))
    made = running.make(table(2000, 1e7, 99))
    assert isinstance(made, Forecasted)
    assert made.advice.startswith(("Continue", "Scale", "Start afresh", "Undecided"))
    assert made.advice.endswith(".")


@pytest.mark.parametrize(
    ("log", "last_step", "words"),
    [
        (table(1000, 1e7, 0, schedule=False), None, "planned number of steps is unknown"),
        (table(LAST, 1e7, 0), LAST, "complete"),
        (LogTable.from_rows({}), LAST, "nothing was logged"),
    ],
)
def test_without_a_plan_or_a_future_there_is_none(
    tmp_path: Path, log: LogTable, last_step: int | None, words: str
) -> None:
    running = forecast_of(tmp_path, last=last_step)
    assert running.make(log) is None
    assert words in running.refusal


def loss(step: int) -> float:
    return 1.8 + 20 / math.sqrt(step + 20) + 0.01 * math.sin(step * 1.7)


BUDGET = Budget(0.5, ["training"], Meter(lambda: 0.0))
BUDGET.trained = 1e9


def watched(tmp_path: Path, losses: list[float]) -> tuple[RunningForecast, list[Alert | Forecasted]]:
    """Log some losses, and ask for a forecast after each."""
    forecast = RunningForecast(RunInfo(tmp_path / "mine", "mine", 0, last_step=LAST))
    events: list[Alert | Forecasted] = []
    for step, value in enumerate(losses, 1):
        BUDGET.trained += 1000
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
