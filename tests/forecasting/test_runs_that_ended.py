"""What becomes of runs that diverged, ended early or log another loss than the one that is forecast."""

import json
from pathlib import Path

import numpy as np
import pytest

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.advice import decide
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.forecaster import fraction_seen
from toposcope.forecasting.scaling.logged_points import points_of
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.siblings import complete_runs
from toposcope.logs import Run, read_log
from toposcope.logs.anomalies import Divergence
from toposcope.logs.schedules.schedule import planned

STEPS = np.arange(10, 1001, 10)
DIVERGED = Divergence(700, "the training loss is NaN in all 30 rows from there on, after 2.3 at step 690")


def made(name: str, diverged: Divergence | None = None) -> Run:
    loss = np.asarray(2 + int(name) / 10 + 3 * STEPS**-0.4)
    return Run(
        name, STEPS, loss, np.full(100, 1e-3), 1000, 1e8 * (1 + int(name)), tokens_per_step=1e6, diverged=diverged
    )


def test_a_diverged_run_is_no_sibling_and_no_point() -> None:
    logs = [made("0"), made("1", DIVERGED), made("2")]
    complete = complete_runs(logs)
    assert [run.log.name for run in complete.runs] == ["0", "2"]
    assert complete.remarks == (f"1: left out, {DIVERGED}",)
    points = points_of(logs)
    assert points.run.tolist() == ["0", "2"]
    assert points.remarks == (f"1: left out, {DIVERGED}",)


def test_a_diverged_run_is_not_advised_on() -> None:
    N, D = (axis.ravel() for axis in np.meshgrid([5e7, 1e8, 2e8, 4e8], [5e9, 2e10, 8e10]))
    points = Points(N, D, 1.8 + 400 / N**0.34 + 2000 / D**0.36)
    with pytest.raises(ToposcopeError, match=r"1: the run diverged at step 700: .* nothing to continue but"):
        decide(points, extra=1e20, log=made("1", DIVERGED), resamples=20)


def test_the_part_before_a_divergence_is_healthy() -> None:
    before = made("1", DIVERGED).until(690)
    assert before is not None
    assert before.diverged is None
    assert forecast(before).default is not None


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The log of a Trainer that evaluated every 400 steps and wrote rates in the other rows; 900 of 1,200 steps."""
    rate = 1e-3 * (1 - STEPS / 1200)
    rows = [
        {"step": int(s), "loss": 2 + 3 * s**-0.4, "learning_rate": r}
        for s, r in zip(STEPS, rate, strict=True)
        if s <= 900
    ]
    rows += [{"step": s, "eval_loss": 2.1 + 3 * s**-0.4} for s in (5, 205, 405, 605, 805)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": sorted(rows, key=lambda row: row["step"]), "max_steps": 1200}))
    return path


def test_rates_and_the_last_step_are_of_all_rows(trained: Path) -> None:
    log = read_log(trained, columns={"loss": "eval_loss"})
    assert (log.steps[-1], log.last_seen) == (805, 900)
    schedule = planned(log)
    assert schedule.rates[600] == pytest.approx(5e-4)
    assert schedule.rates[-1] == pytest.approx(0, abs=1e-8)
    assert fraction_seen(log, schedule) == 0.75
    report = forecast(log)
    assert report.inputs()["plan"].startswith("1,200 steps, 75% seen; learning rate at its peak, 0.000992, ")
    assert not any("no learning rate" in remark for remark in report.remarks)


def test_a_finished_run_is_complete_wherever_its_last_loss_is(trained: Path) -> None:
    state = json.loads(trained.read_text())
    trained.write_text(json.dumps({**state, "global_step": 1200}))
    report = forecast(trained)
    assert report.default is None
    assert report.headline().startswith(
        "Finished. The run is complete, at step 900 of 1,200: validation loss ended at 2.3"
    )
    assert "at step 805; training loss ended at 2.1" in report.headline()
    # early stopping: the Trainer wrote its summary
    state["log_history"].append({"step": 905, "train_runtime": 3.0})
    trained.write_text(json.dumps(state))
    report = forecast(read_log(trained, columns={"loss": "eval_loss"}))
    assert "complete, at step 905 of 1,200: validation loss ended at 2.3" in report.headline()
    assert ", that of the last evaluation, at step 805." in report.headline()
    # whoever plans more steps gets a forecast
    assert forecast(trained, last_step=2000).default is not None


@pytest.mark.parametrize(("last", "complete"), [(2999, True), (2990, False), (3000, True)])
def test_steps_counted_from_0(last: int, complete: bool) -> None:
    steps = np.arange(last % 2, last + 1, 2) if last != 2990 else np.arange(0, last + 1, 2)
    log = Run("run", steps, np.asarray(2 + 3 * (steps + 1.0) ** -0.4), np.full(len(steps), 1e-3), 3000)
    assert (forecast(log).default is None) == complete


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_what_a_trainer_logged_after_its_last_checkpoint_counts_if_it_is_the_same_run(
    shift: float, tmp_path: Path
) -> None:
    losses = {step: 2 + 3 * step**-0.4 + 0.01 * np.sin(step) for step in range(10, 601, 10)}
    state = {"log_history": [{"step": s, "loss": x} for s, x in losses.items() if s <= 300], "max_steps": 1000}
    (tmp_path / "checkpoint-300").mkdir()
    (tmp_path / "checkpoint-300" / "trainer_state.json").write_text(json.dumps(state))
    rows = [f"{step},{loss + shift}" for step, loss in losses.items()]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "log.csv").write_text("\n".join(["step,train/loss", *rows, ""]))
    report = forecast(tmp_path)
    assert report.log.last_seen == (300 if shift else 600)
    assert report.schedule.last_step == 1000
    said = f"what follows the last checkpoint, at step 300, is read from {tmp_path / 'runs'}"
    assert any(remark.startswith(said) for remark in report.remarks) == (not shift)


def test_events_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    state = {"log_history": [{"step": s, "loss": 2 + 3 * s**-0.4} for s in range(10, 301, 10)], "max_steps": 1000}
    (tmp_path / "checkpoint-300").mkdir()
    (tmp_path / "checkpoint-300" / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "events.out.tfevents.1.host").write_bytes(b"garbage")
    report = forecast(tmp_path)
    assert report.log.last_seen == 300
    assert any(remark.startswith(f"not used: {tmp_path / 'runs'}") for remark in report.remarks)
