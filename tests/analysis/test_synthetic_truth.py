"""The verdict on runs whose truth is known: how often it is wrong, and how often it finds what is there."""

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from named_features import by_feature
from property_examples import repeated
from synthetic_runs import INFORMED, SPACING, UNINFORMED, Schedule, Truth, synthetic_study

from toposcope.analysis.association_verdict import MIN_POWER, PLANTED, POWER
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, UNDETERMINED


def shares(
    truth: Truth, phi: float, noise: float, n_series: int, n_runs: int = 5, schedule: Schedule = "shared cosine",
    **options: Any,
) -> dict[str, float]:  # fmt: skip
    """Verdicts on so many series, in studies of five runs with ten features each."""
    n_features = 10
    tables = [
        association_table(synthetic_study(truth, n_runs, n_features, phi, noise, seed, schedule, **options))
        for seed in range(n_series // (max(n_runs, 1) * n_features))
    ]
    counts = pl.concat(tables).get_column("verdict").value_counts(normalize=True)
    return dict(counts.iter_rows())


@pytest.mark.parametrize(("phi", "noise"), [(0.0, 0.02), (0.7, 0.1)])
@pytest.mark.parametrize("truth", ["clock", "nothing", "shared cause", "random walk"])
def test_no_information_is_not_beyond_the_trend(truth: Truth, phi: float, noise: float) -> None:
    assert shares(truth, phi, noise, 200).get(BEYOND, 0) <= LEVEL


@pytest.mark.parametrize("schedule", ["restarts", "dips", "bursts"])
@pytest.mark.parametrize("truth", ["rate", "clock and rate", "delayed rate", "cumulative rate"])
@pytest.mark.parametrize(
    "n_runs", [5, pytest.param(4, marks=pytest.mark.slow), pytest.param(24, marks=pytest.mark.slow)]
)
def test_what_follows_a_schedule_of_the_runs_own_is_not_beyond_the_trend(
    truth: Truth, schedule: Schedule, n_runs: int
) -> None:
    """Given ranks of step and sum of the rates alone, 90% of what followed the rate under dips passed."""
    n_series = 100 if n_runs == 5 else 480
    found = shares(truth, 0.0, 0.002, n_series, n_runs, schedule, feature_noise=0.003)
    assert found.get(BEYOND, 0) <= LEVEL


@pytest.mark.parametrize("schedule", ["shared restarts", "restarts", "dips", "cycles"])
@pytest.mark.parametrize("phi", [0.0, 0.7])
def test_a_partial_correlation_of_06_is_found_whatever_the_schedule(schedule: Schedule, phi: float) -> None:
    assert shares("clock and information", phi, 0.01, 80, 8, schedule, correlation=0.6)[BEYOND] > 0.7


@pytest.mark.parametrize("n_runs", [1, 3])
def test_few_runs_leave_it_open(n_runs: int) -> None:
    found = shares("clock and information", 0.0, 0.1, 100, n_runs)
    assert BEYOND not in found
    assert found[UNDETERMINED] > 0.9


@pytest.mark.slow
def test_nothing_correlates_with_nothing() -> None:
    assert shares("nothing", 0.0, 0.1, 200, n=200)[NONE] > 0.9


def share_found(*tables: pl.DataFrame) -> float:
    return float(np.mean([verdict == BEYOND for table in tables for verdict in table["verdict"]]))


def mean_of(column: str, *tables: pl.DataFrame) -> float:
    return float(np.nanmean(pl.concat(tables)[column].to_numpy()))


@pytest.mark.parametrize("truth", INFORMED)
@pytest.mark.parametrize("schedule", ["restarts", "dips", "cycles"])
def test_information_that_so_few_checkpoints_cannot_show_is_not_called_a_trend(
    truth: Truth, schedule: Schedule
) -> None:
    """Where the design would have missed a partial correlation of 0.45, nothing is said against a feature."""
    tables = [association_table(synthetic_study(truth, 5, 4, 0.0, 0.01, seed, schedule, n=16)) for seed in range(2)]
    table = pl.concat(tables)
    assert set(table["verdict"]) <= {BEYOND, UNDETERMINED}
    weak = table.filter(untested=POWER.untested)
    assert len(weak) > len(table) / 2
    assert (weak["power"] < MIN_POWER).all()
    assert set(weak["needs"]) == {"finer checkpoints, or more runs, or another schedule"}


@pytest.mark.parametrize(("schedule", "noise"), [("bursts", 0.01), ("trapezoid", 0.01), ("cuts", 0.003)])
def test_more_runs_do_not_find_less(schedule: Schedule, noise: float) -> None:
    """The same 24 runs in studies of five, of eight and of all: adjusting over features and runs lost up to half."""
    runs = synthetic_study("clock and information", 24, 10, 0.0, noise, 0, schedule)
    five, eight, all_ = (
        share_found(*(association_table(runs[i : i + n]) for i in range(0, 25 - n, n))) for n in (5, 8, 24)
    )
    assert five - 0.03 <= eight
    assert eight - 0.03 <= all_
    assert five > 0.4


def noisy_study(n_runs: int, n: int, seed: int = 0, informed: int = 0) -> list[Trajectory]:
    """Runs with ten features, some of which explain a fifth of what the loss does beside its fall."""
    rng, steps, runs = np.random.default_rng(seed), np.arange(n) * SPACING, []
    for run in range(n_runs):
        deviation, *own = rng.standard_normal((11, n))
        sizes = [PLANTED if i < informed else 0 for i in range(10)]
        mixed = [s * deviation + np.sqrt(1 - s**2) * noise for s, noise in zip(sizes, own, strict=True)]
        features = {f"rips f{i}": values for i, values in enumerate(mixed)}
        loss = 2 + 2 / (1 + 20 * np.arange(n) / n) + 0.05 * deviation
        covariates = {"step": steps.astype(np.float64)}
        runs.append(Trajectory(f"run{run}", steps, by_feature(features), {"validation_loss": loss}, covariates))
    return runs


@pytest.mark.parametrize("n", [60, pytest.param(100, marks=pytest.mark.slow), 160])
def test_power_is_how_often_such_a_feature_is_found(n: int) -> None:
    tables = [association_table(noisy_study(5, n, seed, informed=1)) for seed in range(12)]
    found = share_found(*(table.filter(feature="rips f0") for table in tables))
    assert mean_of("power", *tables) == pytest.approx(found, abs=0.15)


@pytest.mark.parametrize("n_runs", [1, 6])
def test_power_grows_with_the_checkpoints(n_runs: int) -> None:
    tables = [association_table(noisy_study(n_runs, n)) for n in (24, 48, 96, 192)]
    power, detectable = ([mean_of(name, table) for table in tables] for name in ("power", "detectable"))
    assert all(more >= fewer - 0.05 for fewer, more in pairwise(power))
    assert power[0] < 0.3
    assert power[-1] > 0.95
    assert all(more <= fewer for fewer, more in pairwise(detectable[1:]))
    assert detectable[-1] == pytest.approx(PLANTED)
    assert association_table(noisy_study(n_runs, 48)).equals(tables[1])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", get_args(Schedule))
@pytest.mark.parametrize("noise", repeated([0.002, 0.02]))
def test_every_truth_without_information_under_every_schedule(schedule: Schedule, noise: float) -> None:
    for truth in UNINFORMED:
        n_series = 1000 if truth == "shared cause" else 200  # of which whole studies pass or fail
        assert shares(truth, 0.0, noise, n_series, schedule=schedule).get(BEYOND, 0) <= LEVEL, truth
