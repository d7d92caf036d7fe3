"""The forecast of a run in training, from its log so far and the complete runs next to it."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from toposcope.logs import COLUMNS, LogTable
from toposcope.monitor.events import Forecasted
from toposcope.monitor.recording import RunInfo
from toposcope.monitor.running_forecast import RunningForecast, SiblingLogs
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
    near = forecast_of(tmp_path).make(table(2000, 1e7, 0))
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


def test_forecasts_become_rarer_as_the_log_grows_and_take_little_of_the_time(tmp_path: Path) -> None:
    now = 0.0

    def clock() -> float:
        return now

    running = RunningForecast(RunInfo(tmp_path / "mine", "mine", 0, last_step=LAST), clock=clock)
    made = []
    for step in range(10, LAST, 10):
        now += 1
        if running.due(step, step // 10):
            made.append(step)
            running.make(table(step, 1e7, 0))
    assert made[0] == 500
    assert all(b >= 1.1 * a for a, b in pairwise(made))
    assert len(made) > 15


@pytest.mark.parametrize(
    ("log", "last_step", "words"),
    [
        (table(1000, 1e7, 0, schedule=False), None, "number of planned steps is unknown"),
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
