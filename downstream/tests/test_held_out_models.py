"""Held-out evaluation: folds, shares of methods, widths of intervals, scores of probabilities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope_downstream.held_out import (
    COMPUTE_GAP,
    MIN_TRAINED,
    Evidence,
    Miss,
    extrapolating_folds,
    half_width,
    interval,
    of_all_tasks,
    shares_at,
)


@given(st.lists(st.tuples(st.floats(1e7, 1e10), st.floats(1e8, 1e13)), min_size=1, max_size=30))
@examples(100)
def test_folds_predict_what_was_not_trained_on_and_never_interpolate(runs: list[tuple[float, float]]) -> None:
    N, D = (np.array(values) for values in zip(*runs, strict=True))
    for fold in extrapolating_folds(N, D):
        assert not (fold.trained & fold.predicted).any()
        assert fold.trained.sum() >= MIN_TRAINED
        beyond = np.any([values > values[fold.trained].max() for values in (N, D, D / N, N * D)], axis=0)
        assert beyond[fold.predicted].all()
        if fold.name.startswith("compute"):
            assert ((N * D)[fold.predicted] >= COMPUTE_GAP * (N * D)[fold.trained].max() * (1 - 1e-12)).all()


def test_five_models_of_two_sizes_are_enough_to_predict_others() -> None:
    N, D = np.array([1e8] * 3 + [2e8] * 2 + [4e8]), np.array([1, 2, 3, 1, 2, 1]) * 1e10
    assert [fold.name for fold in extrapolating_folds(N, D)][:1] == ["sizes from 4e+08 parameters"]
    assert not extrapolating_folds(N[1:], D[1:])


def test_methods_are_believed_by_their_errors_at_the_distance_asked_for() -> None:
    fold, distance = np.repeat(np.arange(5), 2), np.tile([0.5, 4.0], 5)
    near, far = np.where(distance < 1, 0.01, 0.04), np.where(distance < 1, 0.04, 0.01)
    evidence = Evidence(fold, distance, {"x": near, "y": far})
    shares = shares_at(evidence, ["x", "y"], np.array([0.5, 2.25, 4.0, 100.0]))
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares[0, 0] > 0.9 > shares[1, 0] > shares[2, 0]
    assert shares[1, 0] == pytest.approx(0.5)
    np.testing.assert_allclose(shares[3], shares[2])  # no held-out model is farther
    # of another task's runs count those that all methods of this one predict
    both = of_all_tasks([evidence, Evidence(fold, distance, {"x": far})])
    np.testing.assert_allclose(shares_at(both, ["x", "y"], np.array([4.0])), shares[2:3])
    few = Evidence(fold[:6], distance[:6], {"x": near[:6], "y": far[:6]})
    assert shares_at(few, ["x", "y"], np.array([4.0])).tolist() == [[1.0, 0.0]]


def test_intervals_are_widened_by_what_was_missed_and_not_by_what_nobody_saw() -> None:
    near, far = frozenset({"4", "5"}), frozenset({"3", "4", "5"})
    misses = [Miss("5", near, 0.5)] * 10 + [Miss("3", far, 4.0)] * 10
    assert half_width(misses) == 4.0
    assert half_width(misses, near) == 4.0  # of a fold that saw neither 4 nor 5, a model that is known then
    assert half_width(misses, far) == 1.645
    assert half_width(misses[:10]) == 1.645
    assert interval(0.95, 0.1, 2.0) == (0.75, 1.0)
