"""Losses that need not fall where training goes well: recognised by names, columns and signs, and never forecast."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import called
from numpy.typing import NDArray

from toposcope.analysis.health import health
from toposcope.analysis.health.check import UNJUDGED
from toposcope.errors import ToposcopeError
from toposcope.forecasting import forecast
from toposcope.forecasting.scaling.points import points_of
from toposcope.logs import COLUMNS, LogTable, Run, read_log
from toposcope.logs.columns import target_of
from toposcope.logs.descent import signed, why_need_not_fall
from toposcope.monitor.recording import RunInfo
from toposcope.monitor.running_forecast import RunningForecast
from toposcope.report.live.logs import LoggedRun

Loss = Callable[[np.random.Generator, NDArray[np.float64]], NDArray[np.float64]]
N = 1000


def fall(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(2 + 3 * np.exp(-4 * t) + 0.03 * rng.normal(size=len(t)))


def memorised(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.round(2.3 * np.exp(-14 * t + 0.5 * rng.normal(size=len(t))), 4)


def triplet(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(0.0, (0.2 + 0.8 * np.exp(-4 * t)) * (0.5 + 0.35 * rng.normal(size=len(t))))


def with_value(value: float, share: float) -> Loss:
    def made(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(rng.random(len(t)) < share, value, fall(rng, t))

    return made


def zeros_first(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(t < 0.3, 0.0, fall(rng, t))


def zeros_last(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(t > 0.8, 0.0, fall(rng, t))


def clipped_probability(_: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-np.log(1 - 0.9 * np.exp(-30 * t) + 1e-6), np.float64)


def group_relative(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.round(np.abs(rng.normal(size=len(t))) * 3e-4 * (rng.random(len(t)) < 0.06), 4)


def divergence_penalty(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.round(np.clip(0.0015 * t * (1 + 0.4 * rng.normal(size=len(t))), 0, None), 4), np.float64)


def policy_gradient(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.02 * rng.normal(size=len(t))


def evidence_bound(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return 100 * (np.exp(-8 * t) - 0.7) + rng.normal(size=len(t))


def critic(rng: np.random.Generator, t: NDArray[np.float64]) -> NDArray[np.float64]:
    return -3 * np.exp(-3 * t) + 0.5 * rng.normal(size=len(t))


FALLING = (
    fall,
    memorised,
    triplet,
    *(with_value(value, share) for value in (0.0, -1.0, -100.0) for share in (0.003, 0.4)),
    zeros_first,
    zeros_last,
    clipped_probability,
)
NOT_FALLING = (group_relative, divergence_penalty, policy_gradient, evidence_bound, critic)


@pytest.mark.parametrize("loss", FALLING)
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_a_loss_that_falls_is_none_for_a_few_zeros(loss: Loss, share: float) -> None:
    for seed in range(10):
        losses = loss(np.random.default_rng(seed), np.arange(N) / N)
        assert signed(losses[: int(share * N)]) == ""


@pytest.mark.parametrize("loss", NOT_FALLING)
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_signs_show_a_loss_that_need_not_fall(loss: Loss, share: float) -> None:
    for seed in range(10):
        losses = loss(np.random.default_rng(seed), np.arange(N) / N)[: int(share * N)]
        assert ("is 0 in" if losses.min() == 0 else "is below 0 in") in signed(losses)


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


def written(path: Path, losses: NDArray[np.float64]) -> Path:
    path.write_text("step,loss,lr\n" + "".join(f"{10 * i + 10},{x:.6g},1e-5\n" for i, x in enumerate(losses)))
    return path


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    t = np.arange(N) / N
    made = {loss.__name__: loss(np.random.default_rng(0), t) for loss in (group_relative, evidence_bound)}
    return [written(tmp_path / f"{name}.csv", losses) for name, losses in made.items()]


def test_every_surface_refuses_and_the_log_is_read_whole(logs: list[Path]) -> None:
    for path in logs:
        log = read_log(path)
        assert len(log.steps) == N
        assert log.diverged is None
        assert not any("ignored" in remark for remark in log.remarks)
        assert health(log).word == UNJUDGED
        with pytest.raises(ToposcopeError, match=r"'loss' need not fall .* no law describes where it ends$"):
            forecast(log, last_step=4 * 10 * N)
        done = called("forecast", path)
        assert done.code == 2
        assert "Not judged: its loss need not fall" in done.out
        assert done.err.strip().count("\n") == 0
        assert done.err.strip().endswith("no law describes where it ends")
        followed = LoggedRun(log, path)
        followed.predict([])
        assert followed.forecast is None
        assert "need not fall" in followed.no_forecast
        with pytest.raises(ToposcopeError, match="left out, its loss need not fall"):
            points_of([log_with_sizes(log)])


def log_with_sizes(log: Run) -> Run:
    return Run(**{**vars(log), "parameters": 1e6, "tokens_per_step": 100.0})


def test_the_monitor_refuses_and_remembers_what_merged_rows_hide(tmp_path: Path) -> None:
    running = RunningForecast(RunInfo(tmp_path / "mine", "mine", 0, 0, 4 * N))
    steps = np.arange(1, N + 1)
    rows = {name: np.full(N, np.nan) for name in COLUMNS}
    rows["loss"] = policy_gradient(np.random.default_rng(0), steps / N)
    assert running.make(LogTable(steps, rows)) is None
    rows["loss"] = np.abs(rows["loss"]) + 0.1
    assert running.make(LogTable(steps, rows)) is None
    assert "'loss' need not fall where training goes well" in running.refusal
