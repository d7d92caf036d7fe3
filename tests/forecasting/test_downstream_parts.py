"""Parts of predictions from ladders: folds, the choice, widths of intervals, least squares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.forecasting.downstream.held_out import (
    COMPUTE_GAP,
    MIN_TRAINED,
    NORMAL,
    Miss,
    choose,
    folds,
    half_width,
    interval,
)
from toposcope.forecasting.downstream.ladder import Endpoints
from toposcope.forecasting.least_squares import least_squares


def points(runs: list[tuple[float, float]]) -> Endpoints:
    N, D = (np.array(values) for values in zip(*runs, strict=True))
    n = len(runs)
    return Endpoints(tuple(map(str, range(n))), N, D, np.ones(n), np.full(n, 0.5), 0.0)


@given(st.lists(st.tuples(st.floats(1e7, 1e10), st.floats(1e8, 1e13)), min_size=1, max_size=30))
@examples(100)
def test_folds_predict_what_was_not_trained_on_and_never_interpolate(runs: list[tuple[float, float]]) -> None:
    ladder = points(runs)
    for fold in folds(ladder):
        assert not (fold.trained & fold.predicted).any()
        assert fold.trained.sum() >= MIN_TRAINED
        quantities = (ladder.N, ladder.D, ladder.D / ladder.N, ladder.compute)
        beyond = np.any([values > values[fold.trained].max() for values in quantities], axis=0)
        assert beyond[fold.predicted].all()
        if fold.name.startswith("compute"):
            limit = ladder.compute[fold.trained].max()
            assert (ladder.compute[fold.predicted] >= COMPUTE_GAP * limit * (1 - 1e-12)).all()


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
    # nothing was left out, or too little
    assert choose({"a": {"x": np.full(3, np.nan), "y": np.full(3, np.nan)}}, "x") == {"a": "x"}
    assert choose({"a": {"x": first[:3], "y": second[:3]}}, "x") == {"a": "x"}
    # the other was not fitted in every fold
    assert choose({"a": {"x": first, "y": np.array([np.nan, *second[1:]])}}, "x") == {"a": "x"}
    assert choose({}, "x") == {}


def test_intervals_are_widened_by_what_was_missed_and_not_by_what_nobody_saw() -> None:
    near, far = frozenset({"4", "5"}), frozenset({"3", "4", "5"})
    misses = [Miss("5", near, 0.5)] * 10 + [Miss("3", far, 4.0)] * 10
    assert half_width(misses) == 4.0
    assert half_width(misses, near) == 4.0  # of a fold that saw neither 4 nor 5, a rung that is known then
    assert half_width(misses, far) == NORMAL
    assert half_width(misses[:10]) == NORMAL
    assert interval(0.95, 0.1, 2.0) == (0.75, 1.0)


@given(st.floats(-3, 3), st.floats(-3, 3))
@examples(40)
def test_many_least_squares_at_once_find_known_parameters(a: float, b: float) -> None:
    x = np.linspace(-1, 1, 15)
    truth = np.stack([np.exp(a * x) + b, np.exp(-a * x) + 2 * b])

    def residuals(theta, rows):  # type: ignore[no-untyped-def]
        return (np.exp(theta[:, :1] * x) + theta[:, 1:] - truth[rows]) / 1e-4

    theta, squares = least_squares(residuals, np.zeros((2, 2)))
    np.testing.assert_allclose(theta, [[a, b], [-a, 2 * b]], atol=1e-6)
    assert (squares < 1e-3).all()


def test_problems_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = np.linspace(-2, 2, 7)

    def residuals(theta, rows):  # type: ignore[no-untyped-def]
        return np.stack([theta[:, 0] - truth[rows], np.exp(theta[:, 0]) - np.exp(truth[rows])], axis=1)

    monkeypatch.setattr("toposcope.forecasting.least_squares.AT_ONCE", 6)
    np.testing.assert_allclose(least_squares(residuals, np.zeros((7, 1)))[0][:, 0], truth, atol=1e-3)
