"""The verdict where a test cannot be made, and beside the row's own interval."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from named_features import by_feature
from scipy.stats import combine_pvalues
from synthetic_runs import synthetic_study

from toposcope.analysis.adjustment import adjusted_over_runs, own_p, replicated
from toposcope.analysis.association import COLUMNS
from toposcope.analysis.association_verdict import DETERMINED, GAPS, RUNS, with_verdicts
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


def test_a_loss_that_falls_at_every_checkpoint_is_compared_by_how_far_it_falls() -> None:
    """Given the step its ranks leave nothing; its values do."""
    walks = falling(lambda rng, drops: np.sqrt(STEPS) + 30 * rng.normal(size=N))
    assert walks.get_column("rho_given_step").is_nan().all()
    assert BEYOND not in set(walks.get_column("verdict"))
    table = falling(lambda rng, drops: np.cumsum(drops + 0.003 * rng.normal(size=N)))
    assert set(table.get_column("verdict")) == {BEYOND}
    assert set(table.get_column("untested")) == {""}


@pytest.mark.parametrize(("target", "needs"), [("validation_loss", ""), ("smoothed_loss", ", or a validation loss")])
def test_a_loss_that_its_covariates_determine_leaves_the_verdict_open(target: str, needs: str) -> None:
    loss = 4 - np.log1p(STEPS / 100)
    runs = [
        Trajectory(
            f"run{run}",
            STEPS,
            by_feature({"rips f": np.random.default_rng(run).normal(size=N)}),
            {target: loss},
            {"step": STEPS.astype(np.float64)},
        )
        for run in range(5)
    ]
    table = association_table(runs)
    assert set(table.select("verdict", "untested", "needs").iter_rows()) == {
        (UNDETERMINED, DETERMINED.untested, f"finer checkpoints{needs}")
    }


def test_falls_that_other_runs_have_as_well_are_no_information() -> None:
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


def test_few_runs_need_more_and_a_feature_that_is_a_covariate_fails() -> None:
    runs = synthetic_study("clock and information", 3, 1, 0.0, 0.1, 0)
    for run in runs:
        run.features.update(by_feature({"rips norm": run.covariates["weight_norm"]}))
    table = association_table(runs)
    norm, informed = (table.filter(feature=f"rips {name}") for name in ("norm", "f0"))
    assert set(norm.get_column("p_given_all")) == {1.0}
    assert BEYOND not in set(norm.get_column("verdict"))
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
    # one small p does not decide; with too few runs for a verdict the lowest counts
    assert replicated(p) == pytest.approx([combine_pvalues(of).pvalue for of in (p[0, 1:], p[1, 1:], [0.004])])
    assert replicated(np.array([[0.01, 0.3, 0.9]])) == pytest.approx([combine_pvalues([0.01, 0.3, 0.9]).pvalue])
    assert np.isnan(replicated(np.full((1, 4), np.nan))).all()
    rho = np.where(np.isnan(p), np.nan, np.array([[0.5, 0.4, -0.4, 0.1]]))
    # the third run has another sign than the others; the last feature is in one run alone
    assert own_p(p, rho)[0] == pytest.approx([0.0005, 0.01, 0.03, 0.45])
    assert own_p(p, rho)[2, 0] == 0.004
    by_row = adjusted_over_runs(p.ravel(), rho.ravel(), np.repeat([0, 1, 2], 4))
    assert by_row[:2] == pytest.approx([2 * replicated(p)[0]] * 2)  # the second of three features
    assert by_row[2] >= 0.03  # at least its own
    assert by_row[8] == pytest.approx(0.012)
    assert np.array_equal(np.isnan(by_row), np.isnan(p.ravel()))


@pytest.mark.parametrize("n_runs", [4, 8, 24])
def test_more_runs_make_no_false_feature_more_likely(n_runs: int) -> None:
    """Of independent p-values, and where one run of them is always significant."""
    p = np.random.default_rng(n_runs).uniform(size=(20_000, n_runs))
    assert (replicated(p) < 0.05).mean() < 0.05
    p[:, 0] = 0
    assert (replicated(p) < 0.05).mean() == pytest.approx(0.05, abs=0.006)


def row(**other: float) -> pl.DataFrame:
    """A row that passes both tests."""
    values = dict.fromkeys(COLUMNS, np.nan) | {
        **{"rho": 0.2, "block_low": -0.3, "block_high": 0.6, "p_shift": 0.4, "n_others": 4.0, "rho_step": -0.9},
        **{"rho_given_step": 0.8, "rho_given_all": 0.8, "p_given_all": 1e-4, "share_others": 0.0, "p_pairing": 0.008},
        **other,
    }
    place = {"target": ["x"], "group": ["network"], "feature": ["f"], "block": [0]}
    return pl.DataFrame({**place, "n": [50], **{name: [value] for name, value in values.items()}})


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ({}, BEYOND),  # neither the plain correlation nor that given the step has to hold
        ({"p_given_all": 0.2}, NONE),
        ({"p_given_all": 0.2, "block_low": 0.1, "p_shift": 0.02}, TREND),
        ({"rho_given_all": 0.0, "p_given_all": 1.0}, NONE),  # the covariates determine the feature
        ({"rho_given_all": np.nan, "p_given_all": np.nan}, UNDETERMINED),  # ... the loss
        ({"p_given_all": np.nan}, UNDETERMINED),  # too few independent checkpoints
        ({"rho_given_all": np.nan, "p_given_all": np.nan, "n_scale": 3.0}, UNDETERMINED),
        ({"p_pairing": 0.2}, NONE),
        ({"p_pairing": np.nan}, UNDETERMINED),
        ({"p_pairing": np.nan, "p_given_all": 0.2}, NONE),  # a test that fails settles it
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
    assert len(GAPS) == 6
    assert all(untested == gap.untested and 0 < len(gap.reason) <= 40 for untested, gap in GAPS.items())
