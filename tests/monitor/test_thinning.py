"""The log of a very fast loop is thinned to what is affordable, and never loses what matters."""

import math
from itertools import pairwise

import pytest

from toposcope.monitor.budget import MAX_EVERY, Thinning
from toposcope.monitor.tuning import LOG_SHARE

STEP, ROW = 0.002, 20e-6


def kept_of(thinning: Thinning, n_steps: int, **more: object) -> list[int]:
    return [step for step in range(n_steps) if thinning.keeps(step, {"loss": 3.0, **more})]  # type: ignore[dict-item]


@pytest.mark.parametrize("step_seconds", [0.0003, 0.001, 0.002, 0.005, 0.02])
def test_the_rows_of_a_fast_loop_stay_within_their_share(step_seconds: float) -> None:
    thinning, n_kept = Thinning(share=0.01), 0
    for step in range(20_000):
        n_kept += thinning.keeps(step, {"loss": 3.0})
        if step % 200 == 199:
            thinning.adapt(step_seconds, 100, 100 * ROW)
    assert n_kept * ROW <= 1.1 * LOG_SHARE * 0.01 * 20_000 * step_seconds + 400 * ROW
    assert n_kept + thinning.n_dropped == 20_000


def test_slow_steps_lose_no_row() -> None:
    thinning = Thinning(share=0.01)
    thinning.adapt(0.1, 100, 100 * ROW)
    assert kept_of(thinning, 1000) == list(range(1000))
    assert thinning.n_dropped == 0


def test_kept_rows_are_evenly_spaced_and_nested() -> None:
    thinning = Thinning(share=0.01)
    thinning.adapt(STEP, 100, 100 * ROW)
    first = kept_of(thinning, 1000)
    assert {b - a for a, b in pairwise(first)} == {thinning.every}
    every = thinning.every
    for _ in range(30):
        thinning.adapt(STEP / 3, 100, 100 * ROW)
    assert thinning.every > every
    assert set(kept_of(thinning, 1000)) < set(first)


def test_rows_with_a_validation_loss_are_all_kept() -> None:
    thinning = Thinning(share=0.01)
    thinning.adapt(STEP, 100, 100 * ROW)
    assert all(thinning.keeps(step, {"loss": 3.0, "val_loss": 3.1}) for step in range(100))
    assert all(thinning.keeps(step, {"eval/loss": 3.1}) for step in range(100, 200))


def test_rows_of_another_kind_are_kept_beside_each_other() -> None:
    thinning = Thinning(share=0.01)
    thinning.adapt(STEP, 100, 100 * ROW)
    kept = [
        (step, name) for step in range(64) for name in ("loss", "lr", "grad_norm") if thinning.keeps(step, {name: 1.0})
    ]
    assert {step for step, name in kept if name == "loss"} == {step for step, name in kept if name == "lr"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_value_that_is_not_finite_is_kept(value: float) -> None:
    thinning = Thinning(share=0.01)
    thinning.adapt(STEP, 100, 100 * ROW)
    kept = [step for step in range(1000) if thinning.keeps(step, {"loss": 3.0 if step < 333 else value})]
    assert 333 in kept
    assert len(kept) < 1000 / thinning.every + 3  # a run that has diverged costs no more


def test_the_last_row_is_kept_at_the_end() -> None:
    thinning = Thinning(share=0.01)
    thinning.adapt(STEP, 100, 100 * ROW)
    kept_of(thinning, 8 * thinning.every + 2)
    assert thinning.last_dropped() == (8 * thinning.every + 1, {"loss": 3.0})
    assert thinning.last_dropped() is None


def test_however_fast_something_is_kept() -> None:
    thinning = Thinning(share=0.001)
    for _ in range(10):
        thinning.adapt(1e-9, 100, 1.0)
    assert thinning.every == MAX_EVERY
    assert len(kept_of(thinning, 10 * MAX_EVERY)) == 10
    for _ in range(100):
        thinning.adapt(1.0, 100, 100 * ROW)
    assert thinning.every == 1
