"""The verdict on runs whose truth is known: how often it is wrong, and how often it finds what is there."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from synthetic_runs import OWN_SCHEDULES, UNINFORMED, Schedule, Truth, synthetic_study

from toposcope.analysis.table import association_table
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
def test_what_follows_a_schedule_of_the_runs_own_is_not_beyond_the_trend(truth: Truth, schedule: Schedule) -> None:
    """With the sum of the rates as the clock, 90% of what followed the rate under dips passed."""
    found = shares(truth, 0.0, 0.002, 100, schedule=schedule, feature_noise=0.003)
    assert found.get(BEYOND, 0) <= LEVEL


@pytest.mark.slow
def test_information_is_found_beside_the_clock() -> None:
    assert shares("clock and information", 0.0, 0.1, 200)[BEYOND] > 0.9


@pytest.mark.slow
def test_information_without_a_trend_is_found() -> None:
    """Its plain correlation is small beside the fall of the loss, and does not have to hold."""
    assert shares("information", 0.0, 0.02, 200)[BEYOND] > 0.9


@pytest.mark.parametrize("n_runs", [1, 3])
def test_few_runs_leave_it_open(n_runs: int) -> None:
    found = shares("clock and information", 0.0, 0.1, 100, n_runs)
    assert BEYOND not in found
    assert found[UNDETERMINED] > 0.9


@pytest.mark.slow
def test_nothing_correlates_with_nothing() -> None:
    assert shares("nothing", 0.0, 0.1, 200)[NONE] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("phi", [0.0, 0.7])
def test_a_thousand_series_of_each_truth(phi: float, noise: float) -> None:
    """The figures of docs/methods/association.md."""
    found = {
        truth: shares(truth, phi, noise, 1000)
        for truth in ("clock", "nothing", "shared cause", "clock and information", "information")
    }
    for truth in ("clock", "nothing", "shared cause"):
        assert found[truth].get(BEYOND, 0) <= LEVEL
    assert found["clock and information"].get(BEYOND, 0) >= (0.9 if phi == 0 else 0.5)
    assert np.isclose(sum(found["information"].values()), 1)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", OWN_SCHEDULES)
@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_every_truth_without_information_under_every_schedule(schedule: Schedule, noise: float) -> None:
    for truth in UNINFORMED:
        assert shares(truth, 0.0, noise, 200, schedule=schedule).get(BEYOND, 0) <= LEVEL, truth
