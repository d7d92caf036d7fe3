"""Held-out evaluation: folds, the choice of a method, widths of intervals, scores of probabilities."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope_downstream.held_out import (
    COMPUTE_GAP,
    MIN_TRAINED,
    Miss,
    choose,
    extrapolating_folds,
    half_width,
    interval,
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


def test_the_method_of_all_tasks_and_of_one() -> None:
    first, second = np.full(5, 0.02), np.full(5, 0.01)
    assert choose({"a": {"x": first, "y": second}, "b": {"x": first, "y": second}}, "x") == {"a": "y", "b": "y"}
    # by a twentieth only
    assert choose({"a": {"x": first, "y": 0.95 * first}}, "x") == {"a": "x"}
    # on average, but in two folds of five
    assert choose({"a": {"x": first, "y": np.array([0.001, 0.001, 0.021, 0.021, 0.021])}}, "x") == {"a": "x"}
    # on one task only, but in each of its folds and by half
    other = {"a": {"x": 0.2 * second, "y": second}, "b": {"x": first, "y": 0.3 * first}}
    assert choose(other, "y") == {"a": "x", "b": "y"}
    worse_once = np.array([0.001, 0.001, 0.001, 0.001, 0.02])
    assert choose({"a": {"x": worse_once, "y": second}, "b": {"x": 3 * first, "y": first}}, "y")["a"] == "y"
    # of those better in each fold, though another has the lower mean
    uneven, worse = np.array([1e-4, 1e-4, 1e-4, 1e-4, 0.021]), np.full(5, 0.05)
    tasks = {"a": {"x": first, "y": uneven, "z": 0.25 * first}, "b": {"x": first, "y": worse, "z": worse}}
    assert choose(tasks, "x") == {"a": "z", "b": "x"}
    # nothing was held out, or too little
    assert choose({"a": {"x": np.full(3, np.nan), "y": np.full(3, np.nan)}}, "x") == {"a": "x"}
    assert choose({"a": {"x": first[:3], "y": second[:3]}}, "x") == {"a": "x"}
    # the other was not fitted in every fold
    assert choose({"a": {"x": first, "y": np.array([np.nan, *second[1:]])}}, "x") == {"a": "x"}
    assert choose({}, "x") == {}


def test_intervals_are_widened_by_what_was_missed_and_not_by_what_nobody_saw() -> None:
    near, far = frozenset({"4", "5"}), frozenset({"3", "4", "5"})
    misses = [Miss("5", near, 0.5)] * 10 + [Miss("3", far, 4.0)] * 10
    assert half_width(misses) == 4.0
    assert half_width(misses, near) == 4.0  # of a fold that saw neither 4 nor 5, a model that is known then
    assert half_width(misses, far) == 1.645
    assert half_width(misses[:10]) == 1.645
    assert interval(0.95, 0.1, 2.0) == (0.75, 1.0)
