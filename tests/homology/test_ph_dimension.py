"""Persistent-homology dimension (Birdal et al. 2021) against SciPy's spanning tree and sets of known dimension."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hard_cases import Array, clouds
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree

from toposcope.errors import ToposcopeError
from toposcope.homology.dimension import PHDimension, ph_dimension

moderate = examples(100)
few = examples(25)
quietly = pytest.mark.filterwarnings("ignore::UserWarning")


def power_sum(points: Array, alpha: float) -> float:
    """E_alpha of all points, by SciPy's minimum spanning tree; found on ranks, since SciPy reads a zero as no edge."""
    distances = np.array([[math.dist(x, y) for y in points] for x in points])
    levels, rank = np.unique(distances, return_inverse=True)
    tree = minimum_spanning_tree(csr_matrix(np.triu(1 + rank.reshape(distances.shape), k=1)))
    return math.fsum((levels[tree.data.astype(int) - 1] ** alpha).tolist())


def dimensions(result: PHDimension) -> list[float]:
    return [estimate.dimension for estimate in result.estimates]


# Sets of known dimension


def sierpinski(n: int, generator: np.random.Generator) -> Array:
    """Random points of the Sierpinski triangle, by the chaos game, one game a point."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])
    points = np.zeros((n, 2))
    for _ in range(40):
        points = (points + corners[generator.integers(0, 3, n)]) / 2
    return points


def brownian(n: int, generator: np.random.Generator) -> Array:
    return np.cumsum(generator.normal(size=(n, 200)), axis=0)


KNOWN: dict[str, tuple[Callable[[int, np.random.Generator], Array], float, float, float]] = {
    # True dimension, and the band in which all three alphas fall: its width is the bias at 1,000 points.
    "line": (lambda n, g: np.arange(n, dtype=float)[:, None], 1.0, 0.97, 1.05),
    "circle": (lambda n, g: np.exp(2j * np.pi * np.arange(n) / n)[:, None].view(np.float64), 1.0, 0.98, 1.07),
    "sierpinski": (sierpinski, math.log2(3), 1.54, 1.68),
    "square": (lambda n, g: g.random((n, 2)), 2.0, 1.9, 2.02),
    "brownian": (brownian, 2.0, 2.0, 2.27),
    "cube": (lambda n, g: g.random((n, 3)), 3.0, 2.7, 3.0),
    "gaussian": (lambda n, g: g.normal(size=(n, 5)), 5.0, 4.9, 5.7),
}


@quietly
@pytest.mark.parametrize("name", KNOWN)
def test_known_dimensions(name: str) -> None:
    make, true, low, high = KNOWN[name]
    result = ph_dimension(make(1000, np.random.default_rng(0)))
    assert low < true + 0.05
    assert all(low < dimension < high for dimension in dimensions(result))
    assert result.interval[0] < result.dimension < result.interval[1]
    low, high = result.interval
    assert high - low < 0.2 * true
    # To first order the interval is the quantile of Student's t at 20 draws a size, or more, on either side.
    assert 3.9 < (high - low) / result.estimates[0].standard_error < 4.3


# Against other implementations


@quietly
@moderate
@given(clouds(max_points=14), st.floats(0.1, 4))
def test_power_sums_are_those_of_the_spanning_tree(points: Array, alpha: float) -> None:
    assume(len(points) >= 4)
    assume(len(np.unique(points, axis=0)) > 3)
    n = len(points)
    # No subset of n - 2 points is one point repeated; the only subset of n is everything.
    assume(np.unique(points, axis=0, return_counts=True)[1].max() < n - 2)
    result = ph_dimension(points, alpha=(alpha, 1), sizes=(n, n - 1, n - 2), n_draws=2)
    expected = [power_sum(points, a) for a in (alpha, 1)]
    assert_allclose(np.exp(result.log_sums[-1]), expected, rtol=1e-12, atol=0)
    assert_array_equal(result.sizes, [n - 2, n - 1, n])


@quietly
@few
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_the_line_is_that_of_least_squares(seed: int, d: int) -> None:
    result = ph_dimension(np.random.default_rng(seed).normal(size=(60, d)), n_draws=3, seed=seed)
    for estimate, means in zip(result.estimates, result.log_sums.T, strict=True):
        slope, _ = np.polyfit(np.log(result.sizes), means, 1)
        assert estimate.slope == pytest.approx(slope, rel=1e-9, abs=1e-12)
        correlation = np.corrcoef(np.log(result.sizes), means)[0, 1]
        assert estimate.r_squared == pytest.approx(correlation**2, rel=1e-6, abs=1e-9)
        expected = estimate.alpha / (1 - slope) if slope < 1 else math.inf
        assert estimate.dimension == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@quietly
def test_the_interval_covers_the_choice_of_subsets() -> None:
    points = np.random.default_rng(3).random((150, 2))
    results = [ph_dimension(points, n_draws=5, seed=seed) for seed in range(120)]
    # The same points throughout: the value that infinitely many draws would give.
    centre = 1 / (1 - float(np.mean([result.estimates[0].slope for result in results])))
    covered = np.mean([low <= centre <= high for low, high in (result.interval for result in results)])
    assert covered == pytest.approx(0.95, abs=0.06)


@quietly
def test_more_draws_narrow_the_interval() -> None:
    points = np.random.default_rng(4).random((200, 2))
    low, high = ph_dimension(points, n_draws=10).interval
    lower, higher = ph_dimension(points, n_draws=160).interval
    assert (higher - lower) < (high - low) / 2


# Invariance


@quietly
@few
@given(st.integers(-300, 300))
def test_scale_is_no_matter(exponent: int) -> None:
    points = np.random.default_rng(5).normal(size=(60, 3))
    expected = ph_dimension(points, n_draws=3)
    got = ph_dimension(np.ldexp(points, exponent), n_draws=3)
    assert_allclose(dimensions(got), dimensions(expected), rtol=1e-9)


# Randomness


@quietly
def test_a_seed_is_all_there_is_to_chance() -> None:
    points = np.random.default_rng(7).random((80, 2))
    state = np.random.get_state(legacy=False)["state"]["key"]  # noqa: NPY002
    first = ph_dimension(points, seed=3)
    np.random.default_rng(0).random(5)
    second = ph_dimension(points, seed=3)
    assert first.estimates == second.estimates
    assert_array_equal(first.log_sums, second.log_sums)
    assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], state)  # noqa: NPY002
    assert ph_dimension(points, seed=4).dimension != first.dimension


@quietly
def test_draws_of_one_size_do_not_depend_on_the_others() -> None:
    points = np.random.default_rng(8).random((80, 2))
    some = ph_dimension(points, sizes=(10, 20, 40))
    more = ph_dimension(points, sizes=[40, 12, 20, 10, 20], alpha=(1, 2))
    assert_array_equal(more.sizes, [10, 12, 20, 40])
    assert_array_equal(more.log_sums[[0, 2, 3], 0], some.log_sums[:, 0])


@quietly
def test_alphas_share_their_draws_and_the_first_is_primary() -> None:
    points = np.random.default_rng(9).random((80, 2))
    both = ph_dimension(points, alpha=(0.5, 1.0))
    assert [estimate.alpha for estimate in both.estimates] == [0.5, 1.0]
    assert both.dimension == both.estimates[0].dimension == ph_dimension(points, alpha=0.5).dimension
    assert both.interval == both.estimates[0].interval
    assert both.estimates[1] == ph_dimension(points, alpha=1.0).estimates[0]
    assert (both.n_points, both.n_draws) == (80, 20)


@pytest.mark.parametrize(
    ("n", "largest"),
    [(50, 40), (77, 61), (126, 100), (202, 101), (1000, 500), (2000, 1000), (4003, 1000), (4004, 1001)],
)
@quietly
def test_default_sizes(n: int, largest: int) -> None:
    sizes = ph_dimension(np.random.default_rng(n).random((n, 1)), n_draws=2).sizes
    assert len(sizes) == 8
    assert (sizes[0], sizes[-1]) == (largest // 4, largest)
    # Evenly spaced in the logarithm, up to rounding.
    assert_allclose(sizes, sizes[0] * (sizes[-1] / sizes[0]) ** (np.arange(8) / 7), rtol=0, atol=0.5 + 1e-9)


# What the theory does not cover


def test_alpha_not_below_the_dimension_is_said_once() -> None:
    line = np.arange(200)[:, None] / 3
    with pytest.warns(UserWarning, match=r"\A[^\n]*alpha below the dimension[^\n]*alpha = 2 [^\n]*3 [^\n]*\Z") as seen:
        result = ph_dimension(line, alpha=(0.5, 2, 3))
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert [estimate.alpha_too_large for estimate in result.estimates] == [False, True, True]


def test_nothing_is_said_when_there_is_nothing_to_say() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ph_dimension(np.random.default_rng(0).random((200, 2)))
    assert not any(estimate.alpha_too_large for estimate in result.estimates)


def test_a_slope_of_one_or_more_gives_no_finite_dimension() -> None:
    # Gaps that double: the longest holds half of the sum, and grows exponentially with the number of points.
    points = 4.0 ** np.arange(60)[:, None]
    with pytest.warns(UserWarning, match="no dimension finite, for alpha = 1"):
        result = ph_dimension(points, alpha=1)
    (estimate,) = result.estimates
    assert estimate.slope >= 1
    assert estimate.dimension == estimate.interval[1] == math.inf
    assert not estimate.alpha_too_large


def test_sums_that_do_not_grow() -> None:
    points = np.repeat([[0.0], [1.0]], 30, axis=0)
    with pytest.warns(UserWarning, match="alpha = 1 "):
        result = ph_dimension(points, alpha=1, sizes=(58, 59, 60))
    (estimate,) = result.estimates
    # Two places, whatever the size: one gap of length 1.
    assert (estimate.slope, estimate.dimension, estimate.interval) == (0, 1, (1, 1))
    assert math.isnan(estimate.r_squared)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [1e-6, 300.0])
def test_extreme_powers_stay_in_range(alpha: float) -> None:
    points = np.random.default_rng(11).random((60, 3)) * 1e30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = ph_dimension(points, alpha=alpha)
    assert np.isfinite(result.log_sums).all()


# Bad input


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.ones((60, 2)), r"all 60 points are equal, shape \(60, 2\)"),
        (np.concatenate([np.zeros((99, 1)), [[1.0]]]), r"equal points only, shape \(100, 1\)"),
        (np.random.default_rng(0).random((49, 2)), r"at least 50 points, got shape \(49, 2\)"),
        (np.empty((0, 2)), "empty"),
        (np.ones((60, 1), bool), "real numbers, got bool"),
        (np.full((60, 2), np.nan), "NaN"),
    ],
)
def test_bad_points_are_refused(points: Any, message: str) -> None:
    with pytest.raises(ToposcopeError, match=rf"\Apoints: [^\n]*({message})[^\n]*\Z"):
        ph_dimension(points)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("alpha", value) for value in (0, math.inf, (), (1, 0), "1")],
        *[("sizes", value) for value in (10, (10, 20), (10, 10, 20), (1, 10, 20), (10, 20, 61), (10.0, 20, 30), "abc")],
        *[("n_draws", 1), ("seed", -1), ("metric", "cosine")],
    ],
)
def test_bad_options_are_refused(option: str, value: Any) -> None:
    points = np.random.default_rng(0).random((60, 2))
    options: dict[str, Any] = {option: value}
    with pytest.raises(ToposcopeError, match=rf"\A{option}: [^\n]*\Z"):
        ph_dimension(points, **options)
