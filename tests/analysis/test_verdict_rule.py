"""The verdict where a test cannot be made, and beside the row's own interval."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from named_features import by_feature
from synthetic_runs import synthetic_study

from toposcope.analysis.adjustment import adjusted_over_runs, replicated
from toposcope.analysis.association import COLUMNS
from toposcope.analysis.association_verdict import FEATURE, GAPS, LOSS, RUNS, with_verdicts
from toposcope.analysis.ranks import dependent_p
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import (
    BEYOND,
    GLOSSES,
    MARKS,
    NONE,
    TEMPLATES,
    TREND,
    UNDETERMINED,
    VERDICTS,
    strongest,
    verdict_sentence,
)

N = 40
STEPS = np.arange(N) * 100
Rule = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def falling(feature: Rule, n_runs: int = 5, n_features: int = 4, target: str = "validation_loss") -> pl.DataFrame:
    """The table of runs whose loss falls at every checkpoint, by amounts of its own."""
    runs = []
    for run in range(n_runs):
        rng = np.random.default_rng(run)
        drops = 0.01 + 0.05 * rng.uniform(size=N)
        loss = 4 - np.cumsum(drops)
        features = {f"rips f{i}": feature(rng, drops) for i in range(n_features)}
        covariates = {"step": STEPS.astype(np.float64)}
        runs.append(Trajectory(f"run{run}", STEPS, by_feature(features), {target: loss}, covariates))
    return association_table(runs)


def test_a_loss_that_falls_at_every_checkpoint_leaves_the_verdict_open() -> None:
    table = falling(lambda rng, drops: np.sqrt(STEPS) + 30 * rng.normal(size=N))
    assert table.get_column("rho_given_step").is_nan().all()
    assert set(table.get_column("verdict")) == {UNDETERMINED}
    assert set(table.get_column("untested")) == {LOSS.untested}
    assert set(table.get_column("needs")) == {"finer checkpoints"}  # the loss is one of validation already
    raw = falling(lambda rng, drops: rng.normal(size=N), target="smoothed_loss")
    assert set(raw.get_column("needs")) == {"finer checkpoints, or a validation loss"}


def test_changes_speak_where_the_step_determines_the_loss() -> None:
    table = falling(lambda rng, drops: np.cumsum(drops + 0.003 * rng.normal(size=N)))
    assert set(table.get_column("verdict")) == {BEYOND}
    assert set(table.get_column("untested")) == {""}


def test_changes_that_other_runs_have_as_well_are_no_information() -> None:
    shared = 0.05 * np.random.default_rng(99).uniform(size=N)
    runs = []
    for run in range(5):
        rng = np.random.default_rng(run)
        loss = 4 - np.cumsum(0.01 + shared + 0.002 * rng.uniform(size=N))
        features = {f"rips f{i}": np.cumsum(shared + 0.003 * rng.normal(size=N)) for i in range(4)}
        covariates = {"step": STEPS.astype(np.float64)}
        runs.append(Trajectory(f"run{run}", STEPS, by_feature(features), {"validation_loss": loss}, covariates))
    counts = association_table(runs).get_column("verdict").value_counts(normalize=True)
    assert dict(counts.iter_rows()).get(BEYOND, 0) <= 0.05


def test_a_clock_among_the_features_cannot_be_told_and_few_runs_need_more() -> None:
    """The loss is free here; one feature is the step, the other holds information."""
    runs = synthetic_study("clock and information", 3, 1, 0.0, 0.1, 0)
    for run in runs:
        run.features.update(by_feature({"rips clock": run.steps.astype(np.float64)}))
    table = association_table(runs)
    clock, informed = (table.filter(feature=f"rips {name}") for name in ("clock", "f0"))
    assert set(clock.select("verdict", "untested", "needs").iter_rows()) == {
        (UNDETERMINED, FEATURE.untested, "finer checkpoints")
    }
    assert set(informed.select("verdict", "untested", "needs").iter_rows()) == {
        (UNDETERMINED, RUNS.untested, "more runs")
    }


@pytest.mark.parametrize("truth", ["clock", "nothing", "random walk"])
def test_a_verdict_of_trend_never_contradicts_its_interval(truth: str) -> None:
    studies = [synthetic_study(truth, 4, 10, 0.7, 0.1, seed, n=400) for seed in range(2)]  # type: ignore[arg-type]
    table = pl.concat([association_table(study) for study in studies])
    trend = table.filter(verdict=TREND)
    assert ((trend["block_low"] > 0) | (trend["block_high"] < 0)).all()
    assert truth != "clock" or len(trend)


def test_adjusted_p_of_rho_allows_for_dependent_checkpoints() -> None:
    rng = np.random.default_rng(1)
    runs = []
    for run in range(3):
        features = {f"rips f{i}": np.cumsum(rng.normal(size=N)) for i in range(10)}
        covariates = {"step": STEPS.astype(np.float64)}
        loss = 4 - np.sqrt(STEPS) / 50 + 0.001 * rng.normal(size=N)
        runs.append(Trajectory(f"run{run}", STEPS, by_feature(features), {"validation_loss": loss}, covariates))
    table = association_table(runs)
    assert (table.get_column("p") < 0.001).sum() > 5  # of independent walks, by the p that is usually reported
    assert (table.get_column("p_adjusted") < 0.05).sum() == 0


def test_two_rising_series_are_worth_one_of_few_orders() -> None:
    assert dependent_p(np.array([1.0]), np.array([4.0]))[0] == pytest.approx(2 / 24)
    assert dependent_p(np.array([0.3]), np.array([50.0]))[0] == pytest.approx(0.0343, abs=1e-3)  # Student's
    assert np.isnan(dependent_p(np.array([0.9]), np.array([2.0]))[0])


def test_a_feature_is_one_hypothesis_in_all_its_runs() -> None:
    p = np.array([[0.001, 0.02, 0.03, 0.9], [0.2, 0.2, 0.2, 0.2], [0.004, np.nan, np.nan, np.nan]])
    assert replicated(p) == pytest.approx([3 / 2 * 0.03, 0.2, 0.004])  # one small p does not decide, three do
    assert replicated(np.array([[0.01, 0.3, 0.9]])) == pytest.approx([3 * 0.01])  # too few runs for a verdict
    assert np.isnan(replicated(np.full((1, 4), np.nan))).all()
    rows, features = p.ravel(), np.repeat([0, 1, 2], 4)
    by_row = adjusted_over_runs(rows, features)
    assert by_row[:4] == pytest.approx([0.09, 0.09, 0.09, 0.9])  # the second of three features, and at least its own
    assert by_row[8] == pytest.approx(0.012)
    assert np.array_equal(np.isnan(by_row), np.isnan(rows))


@pytest.mark.parametrize("n_runs", [4, 8, 24])
def test_more_runs_make_no_false_feature_more_likely(n_runs: int) -> None:
    """Of independent p-values, and where one run of them is always significant."""
    p = np.random.default_rng(n_runs).uniform(size=(20_000, n_runs))
    assert (replicated(p) < 0.05).mean() < 0.05
    p[:, 0] = 0
    assert (replicated(p) < 0.05).mean() == pytest.approx(0.05, abs=0.006)


def row(**other: float) -> pl.DataFrame:
    """A row that passes every test given the step."""
    values = dict.fromkeys(COLUMNS, np.nan) | {
        **{"rho": 0.2, "block_low": -0.3, "block_high": 0.6, "p_shift": 0.4, "n_others": 4.0, "rho_step": -0.9},
        **{"rho_given_step": 0.8, "rho_given_all": 0.8, "rho_differences_given_step": 0.7},
        **{"share_others_given_step": 0.0, "p_pairing": 0.008, "p_pairing_differences": 0.008},
        **dict.fromkeys(("p_given_step", "p_given_all", "p_differences_given_step"), 1e-4),
        **other,
    }
    place = {"target": ["x"], "group": ["network"], "feature": ["f"], "block": [0]}
    return pl.DataFrame({**place, "n": [50], **{name: [value] for name, value in values.items()}})


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ({}, BEYOND),  # the plain correlation does not have to hold
        ({"p_given_step": 0.2}, NONE),
        ({"p_given_all": 0.2}, NONE),
        ({"p_given_all": 0.2, "block_low": 0.1, "p_shift": 0.02}, TREND),
        ({"rho_given_all": -0.8}, NONE),  # of the other sign
        ({"rho_given_all": np.nan, "p_given_all": np.nan}, NONE),  # the covariates determine the feature
        ({"rho_given_all": np.nan, "p_given_all": np.nan, "rho_learning_rate": 1.0}, UNDETERMINED),  # ... the loss
        ({"p_given_all": np.nan}, UNDETERMINED),  # too few independent checkpoints
        ({"p_differences_given_step": np.nan}, UNDETERMINED),
        ({"p_pairing": 0.2}, NONE),
        ({"p_pairing": np.nan}, UNDETERMINED),
        ({"p_pairing": np.nan, "p_given_step": 0.2}, NONE),  # a test that fails settles it
    ],
)
def test_each_test_is_needed(other: dict[str, float], verdict: str) -> None:
    assert with_verdicts(row(**other)).get_column("verdict").to_list() == [verdict]


def test_each_verdict_has_one_gloss_one_mark_and_one_sentence() -> None:
    assert VERDICTS == (BEYOND, UNDETERMINED, TREND, NONE)
    assert set(MARKS) == set(TEMPLATES) == set(GLOSSES)
    assert len(set(MARKS.values())) == len(VERDICTS)
    assert verdict_sentence(NONE) == "Nothing found: topology says no more about the loss than the training step"
    words = {"what": "the final loss", "known": "norms", "who": "H0 total", "figures": "1 of 3"}
    assert verdict_sentence(BEYOND, **words) == "H0 total says more about the final loss than norms: 1 of 3"
    assert verdict_sentence(UNDETERMINED, **words) == (
        "Whether H0 total says more about the final loss than norms cannot be told: 1 of 3"
    )
    assert strongest({NONE, TREND, UNDETERMINED}) == UNDETERMINED
    assert strongest({NONE}) == NONE


def test_every_gap_says_why_in_a_few_words() -> None:
    assert len(GAPS) == 9
    assert all(untested == gap.untested and 0 < len(gap.reason) <= 40 for untested, gap in GAPS.items())
