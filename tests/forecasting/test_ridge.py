import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples
from sklearn.linear_model import Ridge

from toposcope.forecasting.forecasters import stack as ridge
from toposcope.forecasting.forecasters.stack import (
    LEVERAGE_FACTOR,
    MAX_COUNTED_ERROR,
    MAX_DEVIATIONS,
    MAX_FOLDS,
    STRENGTHS,
    fit_ridge,
)
from toposcope.least_squares import HUBER, NORMAL

Vector = NDArray[np.float64]


def made(seed: int, n: int = 24, p: int = 3, noise: float = 0.01) -> tuple[Vector, Vector, list[int]]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, p)) * [1, 10, 0.1][:p] + [0, 5, -2][:p]
    z = (features - features.mean(axis=0)) / features.std(axis=0)
    return features, z @ [0.02, -0.01, 0.005][:p] + noise * rng.normal(size=n) + 0.1, [i % 6 for i in range(n)]


def by_sklearn(features: Vector, target: Vector, strength: float, asked: Vector) -> Vector:
    """Iteratively reweighted ridge: Huber's weights of the residuals, the scale by their median."""
    centre, scale = features.mean(axis=0), features.std(axis=0)
    z, asked_z = (features - centre) / scale, np.clip((asked - centre) / scale, -MAX_DEVIATIONS, MAX_DEVIATIONS)
    weight = np.ones(len(target))
    for _ in range(4):
        model = Ridge(alpha=strength).fit(z, target, sample_weight=weight)
        size = np.abs(target - model.predict(z))
        weight = np.minimum(1, HUBER * (NORMAL * np.median(size) + 1e-9) / np.maximum(size, 1e-12))
    return np.asarray(np.clip(model.predict(asked_z), target.min(), target.max()))


@pytest.mark.slow
@examples(6)
@given(st.integers(0, 10_000), st.integers(12, 40))
def test_it_is_a_robust_ridge_that_errs_least_on_left_out_groups(seed: int, n: int) -> None:
    features, target, groups = made(seed, n)
    asked = np.random.default_rng(seed + 1).normal(size=(5, 3)) * 3
    found = fit_ridge(features, target, groups)
    held_out = {}
    for strength in STRENGTHS[:-1]:
        answers = np.full(n, np.nan)
        for group in set(groups):
            out = np.array([other == group for other in groups])
            answers[out] = by_sklearn(features[~out], target[~out], strength, features[out])
        held_out[strength] = answers
    losses = {
        strength: np.minimum(np.abs(answers - target), MAX_COUNTED_ERROR).mean()
        for strength, answers in held_out.items()
    }
    best = min(losses, key=lambda strength: losses[strength])
    if np.isinf(found.strength):
        assert np.minimum(np.abs(found.held_out - target), MAX_COUNTED_ERROR).mean() <= losses[best]
        return
    assert found.strength == best
    np.testing.assert_allclose(found.held_out, held_out[best], atol=1e-9)
    np.testing.assert_allclose(found(asked), by_sklearn(features, target, best, asked), atol=1e-9)


def test_without_outliers_it_is_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    features, target, groups = made(1)
    monkeypatch.setattr(ridge, "HUBER", 1e9)
    found = fit_ridge(features, target, groups)
    z = (features - features.mean(axis=0)) / features.std(axis=0)
    expected = Ridge(alpha=found.strength).fit(z, target)
    np.testing.assert_allclose(found.slopes, expected.coef_, atol=1e-12)
    assert found.offset == pytest.approx(expected.intercept_)


def test_noise_alone_is_answered_by_the_middle() -> None:
    rng = np.random.default_rng(0)
    features, target = rng.normal(size=(40, 3)), rng.normal(size=40)
    found = fit_ridge(features, target, [i // 4 for i in range(40)])
    assert found.strength >= 100
    assert np.abs(found(features) - np.median(target)).max() < 0.4


def test_a_bad_run_does_not_turn_it() -> None:
    features, target, groups = made(2)
    broken = target.copy()
    broken[5] += 3
    middle = features.mean(axis=0)[None]
    assert fit_ridge(features, broken, groups)(middle)[0] == pytest.approx(
        fit_ridge(features, target, groups)(middle)[0], abs=0.01
    )


def test_no_answer_is_outside_of_what_was_seen() -> None:
    features, target, groups = made(3)
    found = fit_ridge(features, target, groups)
    asked = np.vstack([features.mean(axis=0) + direction * 100 for direction in np.vstack([np.eye(3), -np.eye(3)])])
    assert (found(asked) >= target.min()).all()
    assert (found(asked) <= target.max()).all()


def test_a_feature_that_never_changes_tells_nothing() -> None:
    features, target, groups = made(4)
    more = np.hstack([features, np.full((len(features), 1), 7.0)])
    asked = np.hstack([features, np.full((len(features), 1), 9.0)])
    found = fit_ridge(more, target, groups)
    assert found.slopes[-1] == 0
    np.testing.assert_allclose(found(asked), fit_ridge(features, target, groups)(features), atol=1e-12)
    np.testing.assert_allclose(found.reach(asked), fit_ridge(features, target, groups).reach(features))


def test_the_unit_of_a_feature_does_not_matter() -> None:
    features, target, groups = made(5)
    scaled = features * [1e-6, 1e6, -3] + [1, -2, 4]
    np.testing.assert_allclose(
        fit_ridge(features, target, groups).held_out, fit_ridge(scaled, target, groups).held_out, atol=1e-9
    )


def test_folds_hold_whole_groups_and_do_not_depend_on_the_order() -> None:
    features, target, _ = made(6, n=60)
    groups = [f"g{i % 15}" for i in range(60)]
    found = fit_ridge(features, target, groups)
    order = np.random.default_rng(0).permutation(60)
    again = fit_ridge(features[order], target[order], [groups[i] for i in order])
    np.testing.assert_allclose(again.held_out, found.held_out[order], atol=1e-9)
    fold = {name: i % MAX_FOLDS for i, name in enumerate(sorted(set(groups)))}
    out = np.array([fold[group] == 3 for group in groups])
    if np.isfinite(found.strength):
        expected = by_sklearn(features[~out], target[~out], found.strength, features[out])
        np.testing.assert_allclose(found.held_out[out], expected, atol=1e-9)


def test_held_out_answers_do_not_see_their_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another target in one group changes nothing of what is answered for it."""
    monkeypatch.setattr(ridge, "STRENGTHS", (3.0,))
    features, target, groups = made(7)
    changed = np.where(np.array(groups) == 2, 5.0, target)
    one, two = (fit_ridge(features, y, groups).held_out for y in (target, changed))
    np.testing.assert_array_equal(one[np.array(groups) == 2], two[np.array(groups) == 2])
    assert not np.array_equal(one, two)


def test_reach_grows_with_leverage() -> None:
    features, target, groups = made(8, n=40)
    found = fit_ridge(features, target, groups)
    z = (features - features.mean(axis=0)) / features.std(axis=0)
    near, far = features.mean(axis=0)[None], features.mean(axis=0)[None] + 2.5 * features.std(axis=0)
    assert found.reach(near)[0] == pytest.approx(1)
    leverage = 2.5**2 * np.linalg.inv(z.T @ z + 3 * np.eye(3)).sum()
    assert found.reach(far)[0] == pytest.approx(np.sqrt(1 + LEVERAGE_FACTOR * leverage))
    beyond = features.mean(axis=0)[None] + 50 * features.std(axis=0)
    assert found.reach(beyond)[0] == pytest.approx(
        found.reach(features.mean(axis=0)[None] + 3 * features.std(axis=0))[0]
    )
