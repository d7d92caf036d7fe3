"""Pairs at equal compute: what they are, and that nothing which judges them has seen them."""

import numpy as np
import pytest

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.calibration import Calibration, calibration_of
from toposcope.forecasting.decision.equal_flop_pairs import (
    calibrated_out_of_fold,
    checked_calibration,
    equal_flop_pairs,
    joined,
    judge,
)
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.held_out import brier_score, calibration_error, dealt_folds, reliability
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw, scaling_law
from toposcope.forecasting.tuning import MAX_SUNK_SHARE, MIN_SIZE_RATIO

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)


def points(n_runs: int = 24, n_tokens: int = 6, hidden: float = 0.0, seed: int = 0) -> Points:
    """Runs of 12 sizes along their tokens; each run off the law by its own error."""
    draw = np.random.default_rng(seed)
    N = np.geomspace(5e7, 2e9, 12)[np.arange(n_runs) % 12]
    D = np.geomspace(4e9, 4e11, n_tokens)
    off = hidden * draw.normal(size=n_runs)
    loss = LAW.loss(N[:, None], D) + off[:, None] + draw.normal(0, 1e-4, (n_runs, n_tokens))
    names = np.repeat([f"run {i:02}" for i in range(n_runs)], n_tokens)
    return Points(np.repeat(N, n_tokens), np.tile(D, n_runs), loss.ravel(), names)


def fit(found: Points) -> FittedScalingLaw:
    return scaling_law(found, resamples=20)


def test_pairs_are_all_that_there_are_if_few() -> None:
    made = points(6, 4)
    found = equal_flop_pairs(made, most=10_000)
    expected = 0
    for i in range(len(made)):
        for j in range(len(made)):
            sunk = 1 - made.C[j] / made.C[i]
            begun = sunk * made.D[i] >= made.D[made.run == made.run[i]].min()
            expected += bool(made.N[j] >= MIN_SIZE_RATIO * made.N[i] and 0 <= sunk <= MAX_SUNK_SHARE and begun)
    assert len(found) == expected > 0


def test_both_arms_spend_the_same() -> None:
    found = equal_flop_pairs(points())
    assert len(found) > 100
    spent_on = 6 * found.N0 * (found.D - found.D0)
    assert spent_on == pytest.approx(6 * found.N1 * found.D1)
    assert found.budget == pytest.approx(6 * found.N1 * found.D1)
    assert (found.N1 >= MIN_SIZE_RATIO * found.N0).all()
    assert (found.D0 >= 4e9 * (1 - 1e-9)).all()


def test_every_two_runs_weigh_as_one() -> None:
    found = equal_flop_pairs(points(), most=7)
    two = np.char.add(found.run, found.other)
    for name in np.unique(two)[:5]:
        assert found.weight[two == name].sum() == pytest.approx(1)
        assert (two == name).sum() <= 7


def test_runs_of_one_point_begin_at_nothing() -> None:
    made = points(24, 1)
    made = Points(made.N, 4e19 / (6 * made.N), made.loss, made.run)
    found = equal_flop_pairs(made)
    assert len(found) > 0
    assert found.D0.max() < 1e-3 * made.D.min()


def test_the_same_pairs_every_time_and_others_by_another_seed() -> None:
    made = points()
    first, again, other = (equal_flop_pairs(made, seed, most=5) for seed in (1, 1, 2))
    assert (first.D == again.D).all()
    assert not np.array_equal(first.D, other.D)


def test_folds_hold_whole_runs_of_all_sizes() -> None:
    made = points()
    folds = dealt_folds(made.run, made.N, 4)
    assert sorted(np.unique(folds)) == [0, 1, 2, 3]
    for name in np.unique(made.run):
        assert len(np.unique(folds[made.run == name])) == 1
    for fold in range(4):
        assert made.N[folds == fold].max() / made.N[folds == fold].min() > 10
    assert not np.array_equal(folds, dealt_folds(made.run, made.N, 4, seed=1))


def test_a_law_may_not_judge_what_it_has_seen() -> None:
    made = points()
    with pytest.raises(ToposcopeError, match="was fitted to it"):
        judge(equal_flop_pairs(made), fit(made))


def test_neither_law_nor_calibration_sees_a_run_of_the_pair() -> None:
    made = points()
    folds = dealt_folds(made.run, made.N, 4)
    seen: list[set[str]] = []

    def watched(found: Points) -> FittedScalingLaw:
        seen.append({*found.run.tolist()})
        return fit(found)

    judged, probability = calibrated_out_of_fold(made, folds, watched)
    assert len(judged) == len(probability)
    for number in range(4):
        assert not seen[number] & {*made.run[folds == number].tolist()}
    assert len(seen) == 4


def test_margins_are_those_of_the_law() -> None:
    judged, _ = calibrated_out_of_fold(points(), dealt_folds(points().run, points().N, 3), fit)
    truth = judged.pairs.predicted_margin(LAW)
    assert np.abs(judged.margin - truth).max() < 5e-3
    assert (judged.won == (judged.pairs.continued > judged.pairs.scaled)).all()


def test_runs_that_lie_on_the_law_are_judged_right_and_surely() -> None:
    made = points(hidden=0.0)
    judged, probability = calibrated_out_of_fold(made, dealt_folds(made.run, made.N, 4), fit)
    clear = np.abs(judged.pairs.margin) > 0.01
    assert ((probability > 0.5) == judged.won)[clear].all()
    assert calibration_of(fit(made)).blur < 0.005


def test_probabilities_hold_where_runs_are_off_the_law() -> None:
    sets = [
        calibrated_out_of_fold(p, dealt_folds(p.run, p.N, 4), fit)
        for p in (points(hidden=0.05, seed=s) for s in range(3))
    ]
    judged, probability = joined([j for j, _ in sets]), np.concatenate([p for _, p in sets])
    weight = judged.pairs.weight
    bare = Calibration(0.0).probability(judged.margins)
    before, after = (calibration_error(reliability(p, judged.won, weight)) for p in (bare, probability))
    assert after < before
    assert after < 0.06
    assert brier_score(probability, judged.won, weight) < brier_score(bare, judged.won, weight)
    assert calibration_of(fit(points(hidden=0.05))).blur == pytest.approx(0.05 * np.sqrt(2), rel=0.4)


@pytest.mark.parametrize("n", [8, 10, 12, 16, 20])
def test_few_runs_of_one_point_are_checked_or_the_remark_says_why(n: int) -> None:
    """Folds of so few leave too little to resample: once a traceback, "need at least one array to stack"."""
    draw = np.random.default_rng(n)
    sizes, tokens = np.exp(draw.uniform(np.log(5e7), np.log(2e9), n)), np.exp(draw.uniform(22, 26, n))
    made = Points(sizes, tokens, LAW.loss(sizes, tokens) + draw.normal(0, 0.01, n))
    checked = checked_calibration(scaling_law(made, resamples=20))
    assert len(checked.probability) == (0 if checked.judged is None else len(checked.judged))
    assert (checked.judged is None) == ("cannot be checked on held-out runs: " in checked.remark)


def test_a_law_without_a_bootstrap_judges_no_pairs() -> None:
    made = points()
    held_out = np.isin(made.run, made.run[:1])
    law = scaling_law(made.where(~held_out), resamples=0)
    with pytest.raises(RefusedError, match="determine no law"):
        judge(equal_flop_pairs(made.where(held_out)), law)
