"""The recalibration: monotone, neutral where the bootstrap is right, and mending where it is too sure."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from toposcope.forecasting.decision.calibration import (
    SHIPPED,
    Calibration,
    brier_score,
    calibration_error,
    fit_calibration,
    log_score,
    reliability,
)

margins = st.lists(st.floats(-1, 1), min_size=2, max_size=20)
blurs = st.floats(0, 1)


def made(n: int, hidden: float, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Bootstraps of n pairs whose truth differs from what was estimated by their own spread, and by `hidden` nats."""
    draw = np.random.default_rng(seed)
    spread = draw.uniform(0.01, 0.05, n)
    estimated = draw.normal(0, 0.06, n)
    truth = estimated + spread * draw.normal(size=n) + hidden * draw.normal(size=n)
    return estimated[:, None] + spread[:, None] * draw.normal(size=(n, 60)), truth > 0


@given(margins, blurs, st.floats(0, 1))
def test_a_probability_rises_with_the_margins(found: list[float], blur: float, more: float) -> None:
    calibration = Calibration(blur)
    low, high = calibration.probability(found), calibration.probability(np.add(found, more))
    assert 0 <= low <= high <= 1


@given(margins, blurs)
def test_both_arms_are_treated_alike(found: list[float], blur: float) -> None:
    calibration = Calibration(blur)
    assert calibration.probability(np.negative(found)) == pytest.approx(1 - calibration.probability(found))


def test_without_a_blur_it_is_the_share_of_the_laws() -> None:
    found = np.array([[0.1, 0.2, -0.1, 0.3], [-1, -1, -1, 0]])
    assert Calibration(0.0).probability(found).tolist() == [0.75, 0.125]
    assert Calibration(1e-9).probability([0.1, 0.2, -0.1, 0.3]) == pytest.approx(0.75)


def test_a_larger_blur_is_less_sure() -> None:
    said = [float(Calibration(blur).probability([0.02, 0.03])) for blur in (0, 0.01, 0.1, 1.0)]
    assert said == sorted(said, reverse=True)
    assert said[-1] == pytest.approx(0.5, abs=0.02)


def test_what_is_calibrated_stays_so() -> None:
    found, won = made(4000, hidden=0.0)
    weight = np.ones(len(won))
    learnt = fit_calibration(found, won, weight, n_runs=2000, prior=None)
    assert learnt.blur < 0.008
    bare, mended = Calibration(0.0).probability(found), learnt.probability(found)
    assert np.abs(bare - mended).max() < 0.08
    assert calibration_error(reliability(mended, won, weight)) < 0.03
    assert log_score(mended, won, weight) <= log_score(bare, won, weight) + 1e-3


@pytest.mark.parametrize("hidden", [0.03, 0.1])
def test_what_the_bootstrap_does_not_see_is_learnt(hidden: float) -> None:
    found, won = made(4000, hidden)
    weight = np.ones(len(won))
    learnt = fit_calibration(found, won, weight, n_runs=2000, prior=None)
    assert learnt.blur == pytest.approx(hidden, rel=0.25)
    unseen, came = made(4000, hidden, seed=1)
    bare, mended = Calibration(0.0).probability(unseen), learnt.probability(unseen)
    assert calibration_error(reliability(mended, came, weight)) < 0.03
    assert log_score(mended, came, weight) < log_score(bare, came, weight)
    assert brier_score(mended, came, weight) < brier_score(bare, came, weight)


def test_few_runs_stay_near_the_shipped_blur_and_many_do_not() -> None:
    found, won = made(400, hidden=0.2)
    weight = np.ones(len(won))
    few, many = (fit_calibration(found, won, weight, n) for n in (2, 400))
    assert SHIPPED.blur < few.blur < many.blur
    assert many.blur == pytest.approx(0.2, rel=0.5)
    assert (many.n_pairs, many.n_runs) == (400, 400)


def test_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    p, weight = draw.uniform(0.01, 0.99, 50), draw.uniform(0.1, 1, 50)
    won = draw.random(50) < p
    assert log_score(p, won, weight) == pytest.approx(metrics.log_loss(won, p, sample_weight=weight))
    assert brier_score(p, won, weight) == pytest.approx(metrics.brier_score_loss(won, p, sample_weight=weight))


def test_reliability_by_hand() -> None:
    said = np.array([0.0, 0.05, 0.25, 1.0])
    won = np.array([False, True, False, True])
    bins = reliability(said, won, np.array([1.0, 3.0, 2.0, 2.0]))
    assert [(b.n, b.came) for b in bins] == [(2, 0.75), (1, 0.0), (1, 1.0)]
    assert [b.said for b in bins] == pytest.approx([0.0375, 0.25, 1.0])
    assert sum(b.weight for b in bins) == pytest.approx(1)
    assert calibration_error(bins) == pytest.approx(0.5 * 0.7125 + 0.25 * 0.25)
