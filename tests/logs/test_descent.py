"""Losses that need not fall where training goes well: recognised by names, columns and signs, and never forecast."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import called
from numpy.typing import NDArray

from toposcope.analysis.health import health
from toposcope.analysis.health.check import UNJUDGED
from toposcope.errors import ToposcopeError
from toposcope.forecasting import forecast
from toposcope.forecasting.scaling.logged_points import points_of
from toposcope.logs import COLUMNS, LogTable, read_log
from toposcope.logs.columns import target_of
from toposcope.logs.descent import signed, why_need_not_fall
from toposcope.monitor.recording import RunInfo
from toposcope.monitor.running_forecast import RunningForecast
from toposcope.report.live.logs import LoggedRun

N = 1000
T = np.arange(N) / N
Vector = NDArray[np.float64]


def losses_that_fall(rng: np.random.Generator) -> dict[str, Vector]:
    noise, fall = rng.normal(size=N), 2 + 3 * np.exp(-4 * T) + 0.03 * rng.normal(size=N)
    stray = {f"{value} in {q:.1%}": np.where(rng.random(N) < q, value, fall) for value in (0, -1) for q in (0.003, 0.4)}
    return stray | {
        "plain": fall,
        "memorised": np.round(2.3 * np.exp(-14 * T + 0.5 * noise), 4),
        "triplet": np.maximum(0, (0.2 + 0.8 * np.exp(-4 * T)) * (0.5 + 0.35 * noise)),
        "zeros first": np.where(T < 0.3, 0.0, fall),
        "zeros last": np.where(T > 0.8, 0.0, fall),
        "-log(p + 1e-6)": -np.log(1 - 0.9 * np.exp(-30 * T) + 1e-6),
    }


def losses_that_need_not(rng: np.random.Generator) -> dict[str, Vector]:
    noise = rng.normal(size=N)
    return {
        "group-relative": np.round(np.abs(noise) * 3e-4 * (rng.random(N) < 0.06), 4),
        "divergence from a reference": np.maximum(0.0, (0.0015 * T * (1 + 0.4 * noise)).round(4)),
        "policy gradient": 0.02 * noise,
        "evidence bound": 100 * (np.exp(-8 * T) - 0.7) + noise,
        "critic": -3 * np.exp(-3 * T) + 0.5 * noise,
    }


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_signs_tell_losses_that_need_not_fall_from_stray_values(seed: int, share: float) -> None:
    for name, losses in losses_that_fall(np.random.default_rng(seed)).items():
        assert signed(losses[: int(share * N)]) == "", name
    for name, losses in losses_that_need_not(np.random.default_rng(seed)).items():
        assert ("is 0 in" if losses.min() == 0 else "is below 0 in") in signed(losses[: int(share * N)]), name


@pytest.mark.parametrize(
    ("columns", "target", "falls"),
    [
        (["step", "loss", "grad_norm"], "loss", True),
        (["step", "loss", "entropy", "num_tokens"], "loss", True),
        (["step", "loss", "rewards/chosen", "rewards/rejected"], "loss", True),
        (["step", "loss", "reward", "kl"], "loss", False),
        (["rollout/ep_rew_mean", "train/loss"], "train/loss", False),
        (["loss/policy", "loss/total"], "loss/total", False),
        (["step", "g_loss"], "g_loss", False),
    ],
)
def test_names_decide_whatever_is_seen(columns: list[str], target: str, *, falls: bool) -> None:
    assert (why_need_not_fall(columns, target_of(target), np.array([2.0, 1.5])) == "") is falls


@pytest.mark.parametrize("name", ["group-relative", "evidence bound"])
def test_every_surface_refuses_and_the_log_is_read_whole(name: str, tmp_path: Path) -> None:
    losses = losses_that_need_not(np.random.default_rng(0))[name]
    path = tmp_path / "log.csv"
    path.write_text("step,loss,lr\n" + "".join(f"{10 * i + 10},{x:.6g},1e-5\n" for i, x in enumerate(losses)))
    log = read_log(path)
    assert (len(log.steps), log.diverged, health(log).word) == (N, None, UNJUDGED)
    assert not any("ignored" in remark for remark in log.remarks)
    with pytest.raises(ToposcopeError, match=r"'loss' need not fall .* no law describes where it ends$"):
        forecast(log, last_step=4 * 10 * N)
    done = called("forecast", path)
    assert (done.code, done.err.strip().count("\n")) == (2, 0)
    assert done.err.strip().endswith("no law describes where it ends")
    followed = LoggedRun(log, path)
    followed.predict([])
    assert followed.forecast is None
    assert "need not fall" in followed.no_forecast
    with pytest.raises(ToposcopeError, match="left out, its loss need not fall"):
        points_of([replace(log, parameters=1e6, tokens_per_step=100.0)])


def test_the_monitor_refuses_and_remembers_what_merged_rows_hide(tmp_path: Path) -> None:
    running = RunningForecast(RunInfo(tmp_path / "mine", "mine", 0, 0, 4 * N))
    steps = np.arange(1, N + 1)
    rows = {name: np.full(N, np.nan) for name in COLUMNS}
    rows["loss"] = losses_that_need_not(np.random.default_rng(0))["policy gradient"]
    assert running.make(LogTable(steps, rows)) is None
    rows["loss"] = np.abs(rows["loss"]) + 0.1
    assert running.make(LogTable(steps, rows)) is None
    assert "'loss' need not fall where training goes well" in running.refusal
