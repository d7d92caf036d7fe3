"""Statistics and vectors of one diagram, recomputed the plain way."""

import math
import tracemalloc
import warnings
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from statistics import median, pstdev
from typing import Any

import numpy as np
import pytest
from hard_cases import Array, diagrams
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, betti_curve, landscape, neural_persistence, persistence_image, statistics
from toposcope.homology.statistics import statistics_batch

thorough = examples(200)
moderate = examples(100)

EMPTY = Diagram(np.empty((0, 2)), 1)
SPIKE = Diagram(np.array([[0.0, 1e300], [0.0, 1e-300]]), 1)
"""The share of the short bar underflows to zero."""


def bars(diagram: Diagram) -> list[tuple[float, float]]:
    """(low, high) of the bars of positive length."""
    ends = [(min(x, y), max(x, y)) for x, y in diagram.pairs.tolist()]
    return [(low, high) for low, high in ends if high > low]


def turned(diagram: Diagram) -> Diagram:
    """The same bars, births and deaths exchanged: the descending filtration."""
    return Diagram(diagram.pairs[:, ::-1].copy(), diagram.dimension)


# Scalars


@st.composite
def bars_of_any_size(draw: st.DrawFn) -> list[tuple[float, float]]:
    """Bars whose exact lengths are few bits, from the least number of float64 to twice the largest."""
    near = draw(st.sampled_from([(-1074, -1071), (1015, 1020), (-1074, 1020), (-3, 3), (505, 520), (-545, -530)]))
    sizes = st.builds(math.ldexp, st.integers(1, 15).map(float), st.integers(*near))
    shapes = st.sampled_from([(0, 1), (1, 0), (-1, 1), (1, -1), (-1, 0)])
    return [(size * low, size * high) for size, (low, high) in draw(st.lists(st.tuples(sizes, shapes), max_size=7))]


def nearest_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


@thorough
@given(bars_of_any_size())
@example([(0.0, 1.7e308), (0.0, 1.7e308), (0.0, 1.7e308)])
@example([(-1.7e308, 1.7e308), (0.0, 1e308), (0.0, 5e-324)])
@example([(0.0, 5e-324), (0.0, 1e-323), (0.0, 1e-323), (0.0, 1.5e-323)])
def test_statistics_at_the_ends_of_the_range_are_those_of_fractions(pairs: list[tuple[float, float]]) -> None:
    lives = [abs(Fraction(b) - Fraction(a)) for a, b in pairs]
    total, count = sum(lives, Fraction(0)), len(lives)
    mean = Fraction(total, max(count, 1))
    variance = sum((life - mean) ** 2 for life in lives) / max(count, 1)
    scale = max(lives, default=Fraction(1))
    entropy = -math.fsum(float(life / total) * math.log(life / total) for life in lives if float(life / total))
    wanted = {
        "total": nearest_float(total),
        "total_p2": nearest_float(sum((life**2 for life in lives), Fraction(0))),
        "mean": nearest_float(mean),
        "max": nearest_float(max(lives, default=Fraction(0))),
        "std": nearest_float(Fraction(math.sqrt(variance / scale**2)) * scale),
        "entropy": entropy,
        "entropy_normalized": entropy / math.log(count) if count > 1 else 0.0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagram = Diagram(np.array(pairs).reshape(-1, 2), 1)
        got = statistics(diagram)
        assert statistics_batch([diagram, diagram]) == [got, got]
        repr(diagram)
    for name, value in wanted.items():
        # A share next to 1 is rounded to a double, and its entropy with it.
        least = 1e-15 if name.startswith("entropy") else 1e-323
        assert got[name] == value or got[name] == pytest.approx(value, rel=1e-14, abs=least), name
    assert got["count"] == count
    assert got["n_significant"] == sum(life > median(lives) for life in lives)


@thorough
@given(diagrams(max_bars=12), st.integers(0, 5), st.integers(0, 5), st.floats(0, 10))
def test_definitions(plain: Diagram, n_essential: int, n_truncated: int, cover_radius: float) -> None:
    diagram = Diagram(plain.pairs, 1, n_essential, n_truncated, cover_radius)
    lives = [high - low for low, high in bars(diagram)]
    total = math.fsum(lives)
    shares = [life / total for life in lives]
    entropy = -math.fsum(share * math.log(share) for share in shares)
    expected = {
        "count": len(lives),
        "total": total,
        "total_p2": math.fsum(life**2 for life in lives),
        "mean": total / len(lives) if lives else 0,
        "max": max(lives, default=0),
        "std": pstdev(lives) if lives else 0,
        "entropy": entropy,
        "entropy_normalized": entropy / math.log(len(lives)) if len(lives) > 1 else 0,
        "n_significant": sum(life > median(lives) for life in lives),
        "n_zero": len(plain.pairs) - len(lives),
        "n_essential": n_essential,
        "n_truncated": n_truncated,
        "cover_radius": cover_radius,
    }
    got = statistics(diagram)
    assert list(got) == list(expected)
    assert all(type(value) is float for value in got.values())
    for name in ("count", "max", "n_significant", "n_zero", "n_essential", "n_truncated", "cover_radius"):
        assert got[name] == expected[name], name
    for name in ("total", "total_p2", "mean"):
        assert got[name] == pytest.approx(expected[name], rel=1e-13, abs=0), name
    # The spread of nearly equal bars is known to the rounding of their mean; 1 nat of entropy to that of its terms.
    assert got["std"] == pytest.approx(expected["std"], rel=1e-12, abs=1e-15 * expected["mean"])
    for name in ("entropy", "entropy_normalized"):
        assert got[name] == pytest.approx(expected[name], rel=1e-12, abs=1e-15), name


@moderate
@given(diagrams(max_bars=10), st.integers(-20, 20), st.randoms(use_true_random=False))
def test_what_statistics_do_not_see(diagram: Diagram, exponent: int, random: np.random.Generator) -> None:
    expected = statistics(diagram)
    order = list(range(len(diagram.pairs)))
    random.shuffle(order)
    assert statistics(Diagram(diagram.pairs[order], 1)) == expected
    assert statistics(turned(diagram)) == expected
    # A power of two scales every statistic of dimension length exactly, and leaves the others alone.
    scaled = statistics(Diagram(np.ldexp(diagram.pairs, exponent), 1))
    powers = {"total": 1, "mean": 1, "max": 1, "std": 1, "total_p2": 2}
    for name, value in expected.items():
        assert scaled[name] == math.ldexp(value, exponent * powers.get(name, 0)), name


def test_statistics_of_neural_persistence_are_its_own() -> None:
    W = np.random.default_rng(3).normal(size=(12, 9))
    result = neural_persistence(W)
    got = statistics(result.diagram)
    # The heaviest edge is a bar of length zero: it counts among the N - 1 of the mean, not among these bars.
    assert (got["n_zero"], got["count"]) == (1, len(result.deaths) - 1)
    assert got["total"] / len(result.deaths) == pytest.approx(result.mean, rel=1e-14, abs=0)
    assert math.sqrt(got["total_p2"]) == pytest.approx(result.norm, rel=1e-14, abs=0)


# Betti curve


@thorough
@given(diagrams(), st.lists(st.floats(-4, 4), max_size=5))
@example(SPIKE, [0.0, 1e-300, 1.0, 1e300])
def test_betti_curve_counts_half_open_bars(diagram: Diagram, between: list[float]) -> None:
    at = np.array([*between, *diagram.pairs.ravel()])
    curve = betti_curve(diagram, at)
    assert curve.dtype == np.int64
    assert curve.tolist() == [sum(low <= t < high for low, high in bars(diagram)) for t in at]


# Landscape


@thorough
@given(diagrams(), st.lists(st.floats(-4, 4), min_size=1, max_size=6), st.integers(1, 10))
def test_landscape_is_the_kth_largest_tent(diagram: Diagram, between: list[float], n_layers: int) -> None:
    at = np.array([*between, *diagram.pairs.ravel()])
    expected = np.zeros((n_layers, len(at)))
    for column, t in enumerate(at):
        tents = sorted((max(0.0, min(t - low, high - t)) for low, high in bars(diagram)), reverse=True)[:n_layers]
        expected[: len(tents), column] = tents
    assert_array_equal(landscape(diagram, at, n_layers), expected)


def test_a_landscape_of_many_bars_takes_little_memory() -> None:
    bars = np.sort(np.random.default_rng(0).normal(size=(100_000, 2)), axis=1)
    tracemalloc.start()
    layers = landscape(Diagram(bars, 0), np.linspace(-2, 2, 100))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120e6
    assert (layers[:-1] >= layers[1:]).all()


# Image


def gauss_legendre(f: Callable[[Array, Array], Array], x_edges: Array, y_edges: Array) -> Array:
    """Integral of f over each pixel, by 24 x 24 nodes."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    image = np.empty((len(y_edges) - 1, len(x_edges) - 1))
    for row, (bottom, top) in enumerate(pairwise(y_edges)):
        for column, (left, right) in enumerate(pairwise(x_edges)):
            x = (left + right) / 2 + (right - left) / 2 * nodes
            y = (bottom + top) / 2 + (top - bottom) / 2 * nodes
            area = (right - left) * (top - bottom) / 4
            image[row, column] = area * (weights @ f(*np.meshgrid(x, y)) @ weights)
    return image


@moderate
@given(diagrams(max_bars=5, heavy=False), st.sampled_from([0.25, 0.4, 1.0, 3.0]))
def test_image_is_the_integral_of_the_surface(diagram: Diagram, bandwidth: float) -> None:
    births, lives = np.array([-1.5, -0.5, 0.0, 0.25, 1.25]), np.array([0.0, 0.5, 1.25, 2.0])

    def surface(x: Array, y: Array) -> Array:
        total = np.zeros_like(x)
        for low, high in bars(diagram):
            squared = (x - low) ** 2 + (y - (high - low)) ** 2
            total += (high - low) * np.exp(-squared / (2 * bandwidth**2)) / (2 * math.pi * bandwidth**2)
        return total

    image = persistence_image(diagram, births, lives, bandwidth)
    assert image.shape == (3, 4)
    assert_allclose(image, gauss_legendre(surface, births, lives), rtol=1e-10, atol=1e-13)


# All vectors


@pytest.mark.parametrize("diagram", [EMPTY, Diagram(np.array([[1.0, 1.0], [2.0, 2.0]]), 0, n_essential=1)])
def test_vectors_of_an_empty_diagram_are_zero(diagram: Diagram) -> None:
    at = [0.0, 1.0, 2.0]
    assert_array_equal(betti_curve(diagram, at), np.zeros(3))
    assert_array_equal(landscape(diagram, at), np.zeros((5, 3)))
    assert_array_equal(persistence_image(diagram, at, [0.0, 1.0], 0.5), np.zeros((1, 2)))
    assert betti_curve(diagram, []).shape == (0,)
    assert landscape(diagram, [], 2).shape == (2, 0)


# Bad input to vectors


@pytest.mark.parametrize(
    "at",
    [[0.0, math.nan], 1.0, [[0.0, 1.0]], [[0.0], [0.0, 1.0]], ["a", "b"], [None], [1j], [True], {"a": 1}, None, "012"],
)
def test_filtration_values_are_a_sequence_of_numbers(at: Any) -> None:
    for name, vector in (
        ("at", lambda: betti_curve(SPIKE, at)),
        ("at", lambda: landscape(SPIKE, at)),
        ("birth_edges", lambda: persistence_image(SPIKE, at, [0, 1], 1.0)),
        ("lifetime_edges", lambda: persistence_image(SPIKE, [0, 1], at, 1.0)),
    ):
        with pytest.raises(ToposcopeError, match=rf"\A{name}: [^\n]*\Z"):
            vector()


@pytest.mark.parametrize("bandwidth", [0, math.nan, math.inf, None])
def test_bandwidth_is_a_finite_number_above_zero(bandwidth: Any) -> None:
    with pytest.raises(ToposcopeError, match=r"\Abandwidth: [^\n]*\Z"):
        persistence_image(EMPTY, [0, 1], [0, 1], bandwidth)


@pytest.mark.parametrize("n_layers", [0, 2.5])
def test_layers_are_whole_numbers_above_zero(n_layers: Any) -> None:
    with pytest.raises(ToposcopeError, match=r"\An_layers: [^\n]*\Z"):
        landscape(EMPTY, [0, 1], n_layers)


def test_how_many_values_are_nan() -> None:
    with pytest.raises(ToposcopeError, match=r"\Aat: 2 of 3 values are NaN"):
        betti_curve(EMPTY, [math.nan, 0.0, math.nan])


@pytest.mark.parametrize("edges", [[], [0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 2.0, 1.0], list(range(100, 0, -1))])
def test_edges_ascend(edges: list[float]) -> None:
    ascending = [0.0, 1.0]
    for births, lifetimes, name in ((ascending, edges, "lifetime_edges"), (edges, ascending, "birth_edges")):
        with pytest.raises(ToposcopeError, match=rf"\A{name}: expected at least two edges[^\n]{{,150}}\Z"):
            persistence_image(SPIKE, births, lifetimes, 1.0)


@moderate
@given(diagrams(heavy=False))
def test_infinite_values_and_edges(diagram: Diagram) -> None:
    at = [-math.inf, math.inf]
    assert_array_equal(betti_curve(diagram, at), [0, 0])
    assert_array_equal(landscape(diagram, at, 2), np.zeros((2, 2)))
    total = persistence_image(diagram, at, at, 0.3)
    assert total.shape == (1, 1)
    assert total.item() == pytest.approx(statistics(diagram)["total"], rel=1e-14, abs=0)


@pytest.mark.filterwarnings("error")
def test_a_bandwidth_far_below_the_pixels() -> None:
    image = persistence_image(Diagram(np.array([[2.5, 4.0]]), 1), [0, 1, 2, 3], [0, 1, 2], bandwidth=1e-310)
    assert_array_equal(image, [[0, 0, 0], [0, 0, 1.5]])


@given(diagrams(), st.floats(0.1, 10))
@thorough
def test_bars_are_significant_from_so_many_times_the_median_on(diagram: Diagram, times: float) -> None:
    lives = [high - low for low, high in bars(diagram)]
    found = statistics(diagram, significant=times)
    assert {**found, "n_significant": 0} == {**statistics(diagram), "n_significant": 0}
    if lives and math.isfinite(max(lives)):
        middle = times * median(lives)
        apart = [life for life in lives if not math.isclose(life, middle, rel_tol=1e-9)]
        assert len(apart) != len(lives) or found["n_significant"] == sum(life > middle for life in lives)
