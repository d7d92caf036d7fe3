"""Many least-squares problems at once, within bounds, beside SciPy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import least_squares as one_least_squares

from toposcope.least_squares import complex_step, huber_weights, least_squares

X = np.linspace(-1, 1, 15)


@given(st.floats(-3, 3), st.floats(-3, 3))
@examples(40)
def test_many_problems_at_once_find_known_parameters(a: float, b: float) -> None:
    truth = np.stack([np.exp(a * X) + b, np.exp(-a * X) + 2 * b])

    def residuals(theta: Any, rows: Any) -> Any:
        return (np.exp(theta[:, :1] * X) + theta[:, 1:] - truth[rows]) / 1e-4

    theta, squares = least_squares(complex_step(residuals), np.zeros((2, 2)))
    np.testing.assert_allclose(theta, [[a, b], [-a, 2 * b]], atol=1e-6)
    assert (squares < 1e-3).all()


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(0.1, 1), st.integers(0, 9))
@examples(40)
def test_bounds_hold_and_the_minimum_is_that_of_scipy(a: float, b: float, width: float, seed: int) -> None:
    low, high = np.array([-1.0, -0.5]), np.array([-1.0, -0.5]) + 2 * width
    y = np.exp(a * X) + b + 0.05 * np.random.default_rng(seed).normal(size=len(X))

    def residuals(theta: Any, rows: Any) -> Any:
        return np.exp(theta[:, :1] * X) + theta[:, 1:] - y

    middle = (low + high) / 2
    found, squares = least_squares(
        complex_step(residuals), middle[None], bounds=(low, high), tolerance=0, relative=1e-13, steps=300
    )
    assert ((low <= found[0]) & (found[0] <= high)).all()
    theirs = one_least_squares(lambda q: residuals(q[None], 0)[0], middle, bounds=(low, high), ftol=1e-14, xtol=1e-14)
    # where a bound leaves large residuals, steps that ignore second derivatives close in slowly
    assert squares[0] <= 2 * theirs.cost * (1 + 1e-4)


def test_problems_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = np.linspace(-2, 2, 7)

    def residuals(theta: Any, rows: Any) -> Any:
        return np.stack([theta[:, 0] - truth[rows], np.exp(theta[:, 0]) - np.exp(truth[rows])], axis=1)

    monkeypatch.setattr("toposcope.least_squares.BATCH_RESIDUALS", 6)
    found = least_squares(complex_step(residuals), np.zeros((7, 1)))[0][:, 0]
    np.testing.assert_allclose(found, truth, atol=1e-3)


def test_weights_of_residuals() -> None:
    assert huber_weights(np.array([0.0, 1.0, 2.0, 4.0]), 2.0, 1e-12).tolist() == [1, 1, 1, 0.5]
