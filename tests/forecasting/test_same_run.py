"""Logs of one run are recognised by the noise that they share; two runs that differ in the seed are not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import made_up_run

from toposcope.forecasting.siblings import complete_runs, is_same_run
from toposcope.logs import Run

NOISE = 0.003


def run(seed: int, noise: float = NOISE, end: int = 2000) -> Run:
    """One recipe: all but the noise is the same."""
    return made_up_run(f"seed {seed}", end=end, noise=noise, truth=None).log


def rows(log: Run, chosen: slice) -> Run:
    return replace(log, steps=log.steps[chosen], loss=log.loss[chosen], learning_rate=log.learning_rate[chosen])


def resampled(log: Run) -> Run:
    steps = np.arange(3, log.steps[-1], 17)
    rate = np.interp(steps, log.steps, log.learning_rate)
    return replace(log, steps=steps, loss=np.interp(steps, log.steps, log.loss), learning_rate=rate)


WAYS: dict[str, Callable[[Run], Run]] = {
    "3 decimals": lambda log: replace(log, loss=log.loss.round(3)),
    "4 decimals": lambda log: replace(log, loss=log.loss.round(4)),
    "4 digits": lambda log: replace(log, loss=np.array([float(f"{x:.4g}") for x in log.loss])),
    "single precision": lambda log: replace(log, loss=log.loss.astype(np.float32).astype(np.float64)),
    "every third row": lambda log: rows(log, slice(1, None, 3)),
    "one row more": lambda log: rows(log, slice(1, None)),
    "cut off": lambda log: rows(log, slice(None, 170)),
    "counted from 0": lambda log: replace(log, steps=log.steps + 1),
    "resampled": resampled,
    "resampled, 4 decimals": lambda log: replace(resampled(log), loss=resampled(log).loss.round(4)),
    "rates of 3 digits": lambda log: replace(
        log, learning_rate=np.array([float(f"{x:.2e}") for x in log.learning_rate]), loss=log.loss.round(4)
    ),
    "a damaged row": lambda log: replace(log, loss=np.where(log.steps == 400, 9.0, log.loss.round(4))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fraction", [0.2, 0.6, 1.0])
def test_a_run_logged_in_another_way_is_recognised(way: str, fraction: float) -> None:
    whole = run(1)
    seen = whole.until(fraction * 2000)
    assert seen is not None
    other = replace(WAYS[way](whole), name="another name")
    assert is_same_run(seen, other)
    assert is_same_run(other, seen)


@pytest.mark.parametrize("decimals", [2, 3, 4, 15])
@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.3, 1.0])
def test_another_seed_is_another_run(decimals: int, fraction: float) -> None:
    for noise in (0.0005, NOISE):
        one = run(1, noise).until(fraction * 2000)
        assert one is not None
        for seed in range(2, 12):
            other = run(seed, noise)
            assert not is_same_run(one, replace(other, loss=other.loss.round(decimals)))


def test_two_decimals_of_a_noisy_run_are_enough_and_its_name_helps() -> None:
    noisy, smooth = run(1, 0.01), run(1, 0.0005)
    assert is_same_run(replace(noisy, name="now"), replace(noisy, loss=noisy.loss.round(2)))
    rounded = replace(smooth, loss=smooth.loss.round(2))
    assert not is_same_run(replace(smooth, name="now"), rounded)
    assert is_same_run(smooth, rounded)


def test_branches_of_a_trunk_are_runs_of_their_own() -> None:
    """They share all rows until their rates part, and none after."""
    trunk = run(1)
    late = trunk.steps > 1200
    steps = np.where(late, trunk.steps + 3, trunk.steps)
    branch = replace(
        trunk, name="branch", steps=steps, learning_rate=np.where(late, 1e-4, trunk.learning_rate), loss=trunk.loss
    )
    assert not is_same_run(trunk, branch)


def test_a_rounded_copy_is_counted_once() -> None:
    whole = run(1)
    found = complete_runs([whole, replace(whole, name="rounded", loss=whole.loss.round(4)), run(2)])
    assert [each.log.name for each in found.runs] == ["seed 1", "seed 2"]
    assert found.remarks == ("rounded: left out, the same run as seed 1",)


def test_a_long_log_is_compared_quickly() -> None:
    steps = np.arange(100_000)
    noise = np.random.default_rng(0).normal(0, 0.02, 100_000)
    log = Run("long", steps, 3 + 20 * (steps + 100.0) ** -0.5 + noise, np.full(100_000, 1e-3))
    assert is_same_run(log, replace(log, name="rounded", loss=log.loss.round(3)))
