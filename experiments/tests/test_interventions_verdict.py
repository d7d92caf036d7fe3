"""Verdicts on pushed trainings: right on planted truths, and said only where they can be."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_pushes import (
    COST,
    H0_ALONE,
    H0_BEYOND,
    NULL,
    RANK_ALONE,
    SPREAD_ALONE,
    STATISTIC_NAME,
    Trained,
    planted_loss,
    rates,
    results_of,
    train,
)
from scipy import stats

from toposcope.extend import UNDETERMINED, ToposcopeError
from toposcope_experiments.interventions.effects import (
    MAX_EXACT_PAIRS,
    Estimate,
    detectable,
    directed_effect,
    diverged_p,
    effect_rows,
    seeds_needed,
)
from toposcope_experiments.interventions.results import (
    BASE,
    DOWN,
    RANK,
    SPREAD,
    STATISTIC,
    TWIN,
    UP,
    StatisticRuns,
    missing_runs,
    read_results,
)
from toposcope_experiments.interventions.verdict import EXPLAINED, FOLLOWS, NO_EFFECT, StatisticVerdict, judge

EXPLAINED_BY_RANK, EXPLAINED_BY_SPREAD = f"{EXPLAINED} effective rank", f"{EXPLAINED} spread"


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(100)


def table_of(trained: Trained, truth: str, n_seeds: int = 60) -> pl.DataFrame:
    return results_of(trained, planted_loss(trained, truth), range(n_seeds), np.random.default_rng(3))


def judged(table: pl.DataFrame) -> StatisticVerdict:
    return judge([StatisticRuns(STATISTIC_NAME, table)])[0]


def test_verdicts_on_planted_truths(trained: Trained) -> None:
    right = {
        H0_BEYOND: {FOLLOWS}, H0_ALONE: {FOLLOWS}, RANK_ALONE: {EXPLAINED_BY_RANK},
        SPREAD_ALONE: {EXPLAINED_BY_SPREAD},
    }  # fmt: skip
    for truth, words in right.items():
        assert set(rates(trained, truth, 91, 3)) == words, truth
    for truth in (NULL, COST):
        found = rates(trained, truth, 91, 3)
        assert found[NO_EFFECT] >= 2, truth
        assert not found[FOLLOWS], truth


@pytest.mark.slow
def test_verdicts_are_right_19_times_in_20() -> None:
    pool, n = train(300), 60
    for truth, word in {H0_BEYOND: FOLLOWS, H0_ALONE: FOLLOWS, RANK_ALONE: EXPLAINED_BY_RANK}.items():
        assert rates(pool, truth, 91, n)[word] >= 0.95 * n, truth
    for truth in (NULL, COST, RANK_ALONE, SPREAD_ALONE):
        assert rates(pool, truth, 24, n)[FOLLOWS] <= 0.05 * n, truth


def test_equal_dose_alone_does_not_tell_topology_from_what_moves_it(trained: Trained) -> None:
    assert set(rates(trained, H0_ALONE, 91, 3)) == {FOLLOWS}
    assert FOLLOWS not in rates(trained, H0_ALONE, 91, 3, own=False)


def test_what_pushes_of_results_changed_is_read_back(trained: Trained) -> None:
    table = table_of(trained, NULL)
    found = Trained.of(StatisticRuns(STATISTIC_NAME, table.with_columns(diverged=(pl.col("seed") == 7).cast(pl.Int64))))
    for key, changes in trained.changes.items():
        for name, values in changes.items():
            np.testing.assert_array_equal(found.changes[key][name], np.delete(values[:60], 7))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_estimates_are_those_of_a_paired_test(n: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(n) + 0.3
    found, test = Estimate.of(np.append(values, np.nan)), stats.ttest_1samp(values, 0)
    interval = test.confidence_interval()
    np.testing.assert_allclose((found.low, found.high), (interval.low, interval.high))
    assert found.n == n
    if n > MAX_EXACT_PAIRS:
        assert found.p == pytest.approx(test.pvalue)
    elif n < 9:
        flips = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
        assert found.p == pytest.approx((abs(flips @ values) >= abs(values.sum()) - 1e-9).mean())


def test_power_is_that_of_simulated_tests() -> None:
    assert detectable(17, 91) == pytest.approx(5.0, abs=0.1)
    assert seeds_needed(17, 5) == pytest.approx(91, abs=3)
    assert seeds_needed(17, 0.01) is None
    drawn = np.random.default_rng(0).standard_normal((4000, 12)) + detectable(1, 12)
    assert (stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.03)


def test_what_all_runs_of_a_seed_share_cancels(trained: Trained) -> None:
    table = table_of(trained, H0_BEYOND)
    shifted = table.with_columns(loss=pl.col("loss") + pl.col("seed") * 7.0)
    for direction in ("up", "down", "half of up minus down"):
        effects = [
            effect_rows(StatisticRuns(STATISTIC_NAME, each)).filter(arm=STATISTIC, direction=direction)["effect"][0]
            for each in (table, shifted)
        ]
        assert effects[0] == pytest.approx(effects[1], abs=1e-6)
    flipped = table.with_columns(direction=-pl.col("direction"))
    first, second = (directed_effect(StatisticRuns(STATISTIC_NAME, each), STATISTIC) for each in (table, flipped))
    np.testing.assert_allclose(first, -second)


def test_diverged_runs_are_counted_and_not_compared(trained: Trained) -> None:
    lost = (pl.col("arm") == STATISTIC) & (pl.col("direction") == UP) & (pl.col("seed") < 5)
    table = table_of(trained, H0_BEYOND).with_columns(diverged=lost.cast(pl.Int64))
    rows = effect_rows(StatisticRuns(STATISTIC_NAME, table)).filter(arm=STATISTIC)
    up = rows.filter(direction="up").row(0, named=True)
    assert (up["n"], up["n_runs"], up["n_diverged"], up["n_base_diverged"]) == (55, 60, 5, 0)
    assert up["p_diverged"] == pytest.approx(2 / 2**5)
    assert judged(table).verdict == FOLLOWS
    assert diverged_p(np.array([1.0, 0, 0]), np.array([0.0, 1, 0])) == 1
    many = table.with_columns(diverged=((pl.col("arm") == STATISTIC) & (pl.col("seed") < 20)).cast(pl.Int64))
    found = judged(many)
    assert (found.verdict, found.reason) == (UNDETERMINED, "33% of its pairs with the base diverged; push less")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (pl.col("seed") < 4, "4 seeds with a run up and a run down that ended; at least 6 are needed"),
        (pl.col("arm") != TWIN, "a placebo has no runs yet: permuted weights"),
        ((pl.col("arm") != STATISTIC) | (pl.col("direction") != DOWN), "the statistic was not pushed both up and down"),
    ],
)
def test_what_cannot_be_told_says_why(trained: Trained, change: pl.Expr, reason: str) -> None:
    found = judged(table_of(trained, H0_BEYOND).filter(change))
    assert found.verdict == UNDETERMINED
    assert found.reason.startswith(reason)


def test_no_effect_is_said_only_with_power(trained: Trained) -> None:
    found = judged(table_of(trained, NULL))
    assert found.words.startswith(f"{NO_EFFECT} ")
    assert found.bound == pytest.approx(max(abs(found.effect.low), abs(found.effect.high)))
    few = judged(table_of(trained, NULL, 8))
    assert few.verdict == UNDETERMINED
    assert "5 mnat need" in few.reason
    still = judged(table_of(trained, NULL).with_columns(dose=pl.col("dose") / 10))
    assert still.reason.startswith("pushing changed the statistic by 1")


def test_the_plain_quantity_that_does_most_is_named(trained: Trained) -> None:
    found = judged(table_of(trained, RANK_ALONE))
    assert found.explained_by == RANK
    without = judged(table_of(trained, RANK_ALONE).filter(pl.col("arm") != RANK))
    assert (without.verdict, without.explained_by) in {(EXPLAINED, SPREAD), (UNDETERMINED, "")}


def test_holm_counts_all_statistics(trained: Trained) -> None:
    table = table_of(trained, NULL)
    several = [StatisticRuns(name, table.with_columns(statistic=pl.lit(name))) for name in ("a", "b", "c")]
    for found in judge(several):
        assert found.p_effect == pytest.approx(min(1.0, 3 * found.p))


def test_results_are_read_and_faults_named(trained: Trained, tmp_path: Path) -> None:
    table = table_of(trained, H0_BEYOND, 3)
    path = tmp_path / "results.csv"
    table.write_csv(path)
    frame, declared = read_results(tmp_path)
    assert frame.drop("target_dose").equals(table.drop("target_dose"), null_equal=True) or len(frame) == len(table)
    assert not missing_runs(frame, declared)
    (tmp_path / "design.json").write_text('{"seeds": 5}')
    assert missing_runs(*read_results(tmp_path))[STATISTIC] == 4
    table.drop("dose").write_csv(path)
    with pytest.raises(ToposcopeError, match="the column 'dose' is missing"):
        read_results(tmp_path)
    pl.concat([table, table.filter(arm=BASE)]).write_csv(path)
    with pytest.raises(ToposcopeError, match="the run base of scale_free_h0, direction 0, seed 0, is there twice"):
        read_results(tmp_path)
    path.write_text("")
    with pytest.raises(ToposcopeError, match="cannot be read"):
        read_results(tmp_path)


def test_a_stronger_push_that_missed_the_dose_explains_nothing_unless_at_equal_share(trained: Trained) -> None:
    table = table_of(trained, H0_BEYOND)
    gain = directed_effect(StatisticRuns(STATISTIC_NAME, table), STATISTIC).mean() / 1000
    of_twin = pl.col("arm") == TWIN
    does_as_much = pl.when(of_twin).then(pl.col("loss") + 1.2 * gain * pl.col("direction")).otherwise("loss")
    for factor, explains in ((9.0, False), (1.0, True)):
        share = pl.when(of_twin).then(0.02 * factor).otherwise(0.02)
        found = judged(table.with_columns(loss=does_as_much, share=share, dose=pl.when(~of_twin).then("dose")
                                          .otherwise(pl.col("dose") * 1e-3)))  # fmt: skip
        twin = found.comparison(TWIN)
        assert twin is not None
        assert (twin.explains, twin.beaten) == (explains, False)
        assert found.verdict == (EXPLAINED if explains else UNDETERMINED)
