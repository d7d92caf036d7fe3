from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples
from scipy.optimize import curve_fit, least_squares, nnls

from toposcope.forecasting.forecasters.power_law_fit import EXPONENTS, fit_power_law, fit_power_laws
from toposcope.least_squares import HUBER

Vector = NDArray[np.float64]

positive = st.floats(0.05, 10)
exponents = st.floats(0.1, 1.4)


def points(n: int = 60, first: float = 300.0, last: float = 1000.0) -> Vector:
    return np.linspace(first, last, n)


def law(x: Vector, L0: float, A: float, a: float) -> Vector:
    return np.asarray(L0 + A * (x / x[-1]) ** -a)


@examples(100)
@given(positive, positive, st.integers(1, len(EXPONENTS) - 2), st.integers(6, 100))
def test_what_is_on_the_grid_is_found(L0: float, A: float, k: int, n: int) -> None:
    x = points(n)
    found = fit_power_law(x, law(x, L0, A, EXPONENTS[k]), np.ones(n))
    assert found.a == pytest.approx(EXPONENTS[k], rel=1e-12)
    np.testing.assert_allclose([found.L0, found.A], [L0, A], rtol=1e-3)
    assert not found.at_edge
    assert found.warnings() == ()


@examples(10)
@given(st.lists(st.tuples(st.sampled_from([5, 6, 40]), st.integers(0, 99)), min_size=1, max_size=60))
def test_a_fit_does_not_depend_on_what_is_fitted_with_it(drawn: list[tuple[int, int]]) -> None:
    noise = [np.random.default_rng(seed).standard_cauchy(n) for n, seed in drawn]
    problems = [(points(len(e)), law(points(len(e)), 2, 1, 0.5) + 0.02 * np.abs(e), 1 + e**2) for e in noise]
    assert fit_power_laws(problems) == [fit_power_law(*problem) for problem in problems]


@examples(25)
@given(positive, positive, exponents)
def test_between_the_grid_the_end_is_that_of_a_free_fit(L0: float, A: float, a: float) -> None:
    x = points()
    y = law(x, L0, A, a)
    # exponents are 0.0025 apart: up to that share of A is lost
    free, _ = curve_fit(lambda x, *p: law(x, *p), x, y, [L0, A, a * 1.1])
    ends = np.array([x[-1], 3 * x[-1]])
    expected = free[0] + free[1] * (ends / x[-1]) ** -free[2]
    np.testing.assert_allclose(fit_power_law(x, y, np.ones(len(x)))(ends), expected, atol=0.002 * A)


@examples(100)
@given(st.integers(0, 10_000), st.floats(-3, 3), st.floats(-3, 3), exponents)
def test_neither_offset_nor_factor_is_negative(seed: int, L0: float, A: float, a: float) -> None:
    """Whatever the values; for one exponent, without outliers, it is the non-negative least-squares fit."""
    rng = np.random.default_rng(seed)
    x = points(30)
    weight = rng.uniform(0.5, 2, len(x))
    # residuals of one size: Huber's function leaves all of them whole
    y = law(x, L0, A, a) + 0.01 * rng.choice([-1.0, 1.0], len(x))
    y += max(0.05 - y.min(), 0)
    found = fit_power_law(x, y, weight, np.array([a]))
    assert found.L0 >= 0
    assert found.A >= 0
    columns = np.stack([np.ones(len(x)), (x / x[-1]) ** -a], axis=1)
    root = np.sqrt(weight)
    expected, _ = nnls(columns * root[:, None], y * root)
    residuals = np.abs(y - columns @ expected)
    if residuals.max() < HUBER * 1.4826 * np.median(residuals):
        np.testing.assert_allclose([found.L0, found.A], expected, rtol=1e-6, atol=1e-6)


@examples(30)
@given(st.integers(0, 10_000), st.sampled_from([0.2, 0.5, 0.9]))
def test_with_outliers_it_is_a_huber_fit(seed: int, a: float) -> None:
    rng = np.random.default_rng(seed)
    x = points(80)
    y = law(x, 2.0, 1.0, a) + 0.02 * rng.normal(size=len(x)) + (rng.random(len(x)) < 0.1) * rng.uniform(0, 1, len(x))
    found = fit_power_law(x, y, np.ones(len(x)), np.array([a]))
    bounds = ([0, 0], np.inf)

    def residuals(p: Vector) -> Vector:
        return y - law(x, p[0], p[1], a)

    huber = least_squares(residuals, [2, 1], loss="huber", f_scale=HUBER * found.scale, bounds=bounds)
    expected = [huber.x.sum(), huber.x[0] + huber.x[1] * 3**-a]
    np.testing.assert_allclose(found(np.array([x[-1], 3 * x[-1]])), expected, atol=0.005)


@examples(100)
@given(st.integers(0, 10_000), st.floats(-6, 6), st.floats(-6, 6))
def test_units_do_not_matter(seed: int, of_x: float, of_y: float) -> None:
    rng = np.random.default_rng(seed)
    x, weight = points(40), rng.uniform(0.5, 2, 40)
    y = law(x, 2.0, 1.0, 0.4) * np.exp(0.02 * rng.normal(size=40))
    here = fit_power_law(x, y, weight)
    there = fit_power_law(x * 10**of_x, y * 10**of_y, weight)
    assert there.a == here.a
    np.testing.assert_allclose(
        [there.L0, there.A, there.scale], np.array([here.L0, here.A, here.scale]) * 10**of_y, rtol=1e-6
    )


def test_equal_weights_are_those_of_repeated_points() -> None:
    rng = np.random.default_rng(3)
    x = points(20)
    y = law(x, 2.0, 1.0, 0.5) + 0.01 * rng.choice([-1.0, 1.0], len(x))
    twice = np.repeat(x, 2), np.repeat(y, 2)
    once, again = fit_power_law(x, y, np.full(20, 2.0)), fit_power_law(*twice, np.ones(40))
    np.testing.assert_allclose([once.L0, once.A, once.a], [again.L0, again.A, again.a], rtol=1e-9)


def test_the_residuals_scale_is_that_of_the_noise() -> None:
    rng = np.random.default_rng(1)
    x = points(400)
    found = fit_power_law(x, law(x, 2.0, 1.0, 0.5) + 0.05 * rng.normal(size=400), np.ones(400))
    assert found.scale == pytest.approx(0.05, rel=0.15)


@pytest.mark.parametrize(
    ("shape", "edge"),
    [
        (lambda u: 3 - u, False),
        (lambda u: 2 + u**-0.5, False),
        (lambda u: 2 + u**-3.0, True),
    ],
    ids=["line", "power law", "steep"],
)
def test_an_exponent_at_the_edge_is_told(shape: Callable[[Vector], Vector], edge: bool) -> None:
    x = points()
    found = fit_power_law(x, shape(x / x[-1]), np.ones(len(x)))
    assert found.at_edge == edge
    assert bool(found.warnings()) == edge
    if edge:
        assert "exponent is at the edge" in found.warnings()[0]


@pytest.mark.parametrize("shape", [lambda u: 2 + u, lambda u: 2 + u**8, lambda u: np.full(len(u), 3.0)])
def test_a_loss_that_does_not_fall_is_told(shape: Callable[[Vector], Vector]) -> None:
    x = points()
    y = shape(x / x[-1])
    found = fit_power_law(x, y, np.ones(len(x)))
    assert y.min() <= found(x[-1:])[0] <= y.max()
    assert found(x[-1:])[0] == pytest.approx(found(10 * x[-1:])[0])
    assert len(found.warnings()) == 1
    assert "the loss does not fall" in found.warnings()[0]
