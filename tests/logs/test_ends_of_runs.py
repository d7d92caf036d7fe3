"""How a run ended: badly, overfitted, finished. Healthy runs are never said to have diverged."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples

from toposcope.analysis.health.evaluations import evaluations, is_past_best
from toposcope.logs import Run, read_log
from toposcope.logs.anomalies import divergence
from toposcope.logs.cleaning import clean_log
from toposcope.logs.raw import RawLog

CURVES = Path(__file__).parents[3] / "shared" / "data" / "loss-curves" / "curves.parquet"
Losses = NDArray[np.float64]
shapes = st.fixed_dictionaries(
    {
        "n": st.integers(20, 400),
        "level": st.floats(0.05, 5).map(lambda level: level + 0.0123),  # whole numbers do not show their rounding
        "size": st.floats(0.5, 8),
        "exponent": st.floats(0.1, 1),
        "noise": st.floats(0, 0.1),
        "seed": st.integers(0, 1000),
    }
)


def learning(n: int, level: float, size: float, exponent: float, noise: float, seed: int) -> Losses:
    """Return losses of a run that learns."""
    t = np.arange(1, n + 1)
    return np.asarray((level + size * t**-exponent) * np.exp(noise * np.random.default_rng(seed).normal(size=n)))


def log_of(**columns: list[float | None] | Losses) -> Run:
    return clean_log(RawLog(Path("here"), "run", pl.DataFrame(columns, strict=False)), {})


@examples(60)
@given(
    shape=shapes,
    share=st.floats(0.05, 0.99),
    value=st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0]),
    every=st.sampled_from([1, 10, 500]),
)
@example({"n": 32, "level": 0.51, "size": 1.0, "exponent": 1.0, "noise": 0.0, "seed": 0}, 0.0625, 0.0, 1)  # two rows
def test_a_loss_that_is_lost_to_the_end(shape: dict[str, float], share: float, value: float, every: int) -> None:
    losses = learning(**shape)  # type: ignore[arg-type]
    at = min(max(1, int(share * len(losses))), len(losses) - 2)
    losses[at:] = value
    log = log_of(step=every * np.arange(1.0, len(losses) + 1), loss=losses)
    assert log.diverged is not None
    assert log.diverged.step == every * (at + 1)
    assert f"after {losses[at - 1]:.4g} at step {every * at:,}" in log.diverged.reason


@examples(60)
@given(shape=shapes, share=st.floats(0.1, 0.9), rise=st.floats(1.2, 100), noise=st.floats(0, 0.3))
def test_a_loss_that_explodes(shape: dict[str, float], share: float, rise: float, noise: float) -> None:
    losses = learning(**{**shape, "n": 20 + shape["n"], "noise": 0.3 * shape["noise"]})  # type: ignore[arg-type]
    at = max(1, int(share * len(losses)))
    first, fallen = float(losses[:20].max()), float(np.ptp(losses))
    scatter = np.exp(noise * np.abs(np.random.default_rng(1).normal(size=len(losses) - at)))
    losses[at:] = (first + rise * (fallen + 0.4 * first)) * scatter + 3 * noise * first
    found = divergence(np.arange(len(losses)), losses, "training")
    has_learned = first - np.median(losses[max(at - 5, 0) : at]) > 0.1 * first  # else only one at its peak counts
    if len(losses) - at >= max(11, 0.06 * len(losses)) and noise < (0.05 if has_learned else 0.01):
        assert found is not None
        assert int(losses[:at].argmin()) < found.step <= at
        assert (losses[found.step : at] > losses[0]).all()  # by noise, rows before it may lie above the first one too
        assert f"ends at {losses[-1]:.4g}" in found.reason


@examples(150)
@given(
    shape=shapes,
    bump=st.floats(0, 0.5),
    spikes=st.lists(st.tuples(st.floats(0.05, 1), st.floats(1.2, 30), st.integers(1, 2)), max_size=2),
    restart=st.floats(0, 0.6),
    lost=st.lists(st.floats(0.05, 0.9), max_size=2),
    share=st.sampled_from([0.2, 0.3, 0.5, 0.7, 1.0]),
)
def test_a_healthy_run_never_diverges(
    shape: dict[str, float],
    bump: float,
    spikes: list[tuple[float, float, int]],
    restart: float,
    lost: list[float],
    share: float,
) -> None:
    """Neither warm-up bumps, spikes, restarts of the rate and rows of NaN nor noise, whole or cut."""
    losses = learning(**shape)  # type: ignore[arg-type]
    n = len(losses)
    t = np.arange(n)
    losses *= 1 + bump * np.exp(-((t - 0.03 * n) ** 2) / (2 * (0.01 * n) ** 2))
    losses += restart * (losses[0] - losses) * np.exp(-np.maximum(t - 0.4 * n, 0) / (0.2 * n)) * (t > 0.4 * n)
    calm = losses.copy()
    for place, height, width in spikes:
        losses[min(int(place * n), n - 1) :][:width] *= height
    for place in lost:
        losses[int(place * n)] = np.nan
    seen = max(int(share * n), 4)
    while seen > 1 and np.isnan(losses[seen - 1]):
        seen -= 1
    last = np.flatnonzero(np.isfinite(losses[:seen]))[-5:]
    assume((losses > calm)[last].sum() < 3)  # three of the last five rows: no spike, but where it stands
    assert divergence(t[:seen], losses[:seen], "training") is None


@examples(50)
@given(shape=shapes, every=st.integers(2, 7), at=st.integers(0, 9), share=st.floats(0.1, 1))
def test_rows_of_nan_between_numbers_were_not_logged(
    shape: dict[str, float], every: int, at: int, share: float
) -> None:
    losses = learning(**shape)  # type: ignore[arg-type]
    losses[np.arange(len(losses)) % every != at % every] = np.nan
    seen = min(max(int(share * len(losses)), 3 * every), len(losses))
    assert divergence(np.arange(seen), losses[:seen], "training") is None
    died = np.append(losses[:seen], np.full(2 * every, np.nan))
    assert divergence(np.arange(len(died)), died, "training") is not None


def test_zeros_that_are_rounded_losses_are_none() -> None:
    t = np.arange(100)
    memorised = np.round(2 * 0.85**t, 4)
    assert (memorised[-10:] == 0).all()
    assert divergence(t, memorised, "training") is None
    assert divergence(t, memorised.astype(np.float32).astype(float), "training") is None
    assert divergence(t, np.append(np.full(99, 2.31), 0.0), "training") is None
    assert divergence(t, np.append(np.linspace(0.9, 0.08, 90).round(4), np.zeros(10)), "training") is not None


def test_what_a_resumed_run_left_behind_does_not_count() -> None:
    steps = [*range(100), *range(60, 90)]
    losses = [*np.geomspace(4, 2, 80), *[np.nan] * 20, *np.geomspace(2.2, 2.1, 30)]
    assert log_of(step=[float(s) for s in steps], loss=losses).diverged is None


def test_a_loss_that_is_logged_no_more_though_the_rates_go_on() -> None:
    steps = np.arange(10.0, 110, 10)
    log = log_of(step=steps, loss=[5.0, 4.5, 4.0, 3.5, 3.25, 3.125, *[None] * 4], lr=np.full(10, 0.1))
    assert log.diverged is not None
    assert log.diverged.step == 70
    assert log.diverged.reason.startswith("no loss is logged in all 4 rows from there on")
    assert log.diverged.reason.endswith("was 3.125 at step 60")
    assert log_of(step=steps, loss=[5.0, 4.5, 4.0, 3.5, 3.25, 3.1, 3.0, 2.9, None, None], lr=steps).diverged is None


def test_a_training_loss_that_dies_beside_a_validation_loss() -> None:
    steps = np.arange(1, 375.0)
    training = np.where(steps > 370, np.nan, 2 + 3 * steps**-0.5)
    validation: list[float | None] = [2.1 + 3 * s**-0.5 if s <= 370 else None for s in steps]
    log = log_of(step=steps, loss=training, eval_loss=validation)
    assert log.target == "eval_loss"
    assert log.diverged is not None
    assert log.diverged.step == 371
    assert log.diverged.reason.startswith("the training loss is NaN")


@examples(40)
@given(
    n=st.integers(20, 200),
    turn=st.floats(0.2, 0.7),
    rise=st.floats(0.2, 20),
    noise=st.floats(0, 0.01),
    seed=st.integers(0, 99),
)
def test_overfitting_is_no_divergence(n: int, turn: float, rise: float, noise: float, seed: int) -> None:
    t = np.linspace(0, 1, n)
    losses = 2 - np.minimum(t, turn) / turn + rise * np.maximum(t - turn, 0) / (1 - turn)
    losses *= np.exp(noise * np.random.default_rng(seed).normal(size=n))
    log = log_of(step=np.arange(10.0, 10 * n + 1, 10), eval_loss=losses)
    assert log.diverged is None
    assert is_past_best(log)
    assert log.best == (int(log.steps[np.argmin(losses)]), losses.min())


def test_a_validation_loss_that_scatters_hardly_ever_overfits() -> None:
    """By its noise alone, about one in 7,000 such losses is taken to rise; 3 in 1,000 would be a fault."""
    rng = np.random.default_rng(0)
    n_wrong = 0
    for seed in range(1000):
        level, size, exponent, noise = rng.uniform([0.05, 0.5, 0.1, 0.0], [5, 8, 1, 0.02])
        losses = learning(int(rng.integers(20, 401)), level, size, exponent, noise, seed)
        found = evaluations(np.arange(len(losses)), losses)
        n_wrong += found is not None and found.rise > 0
    assert n_wrong < 3


def state(rows: list[dict[str, float]], **facts: object) -> bytes:
    return json.dumps({"log_history": rows, **facts}).encode()


def test_a_run_that_the_trainer_finished(tmp_path: Path) -> None:
    rows = [{"step": s, "loss": 3 * s**-0.3} for s in range(500, 3001, 500)]
    summary = {"step": 3100, "train_runtime": 12.0, "train_loss": 0.5}
    file = tmp_path / "trainer_state.json"
    for content, finished, last in (
        (state(rows, global_step=3100, max_steps=3100), True, 3000),
        (state([*rows, summary], global_step=3100, max_steps=3100), True, 3100),
        (state([*rows, summary]), True, 3100),
        (state(rows, global_step=3000, max_steps=3100), False, 3000),
        (state([*rows[:3], summary, *rows[3:]], global_step=3000, max_steps=6200), False, 3100),
        (state(rows, global_step=0, max_steps=0), False, 3000),
    ):
        file.write_bytes(content)
        log = read_log(file)
        assert (log.finished, log.last_seen) == (finished, last)
        before = log.until(1000)
        assert before is not None
        assert not before.finished


def test_the_last_step_seen_is_that_of_any_row() -> None:
    log = log_of(
        step=np.arange(10.0, 991, 10),
        loss=np.geomspace(4, 2, 99),
        eval_loss=[3.0 if i % 9 == 0 else None for i in range(99)],
    )
    assert log.last_seen == 990
    assert log.best == (10, 3.0)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 1])
def test_no_published_run_is_said_to_have_diverged(share: float) -> None:
    if not CURVES.is_file():
        pytest.skip("the published loss curves are not beside this repository")
    for _, rows in pl.read_parquet(CURVES).sort("step").group_by("family", "run"):
        seen = rows.filter(pl.col("step") <= share * rows["step"].max())  # type: ignore[operator]
        assert divergence(seen["step"].cast(pl.Int64).to_numpy(), seen["loss"].to_numpy(), "training") is None
