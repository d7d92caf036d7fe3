"""Distances between diagrams against exact matchings."""

import math
from itertools import permutations
from typing import Any, Literal

import numpy as np
import pytest
from exact_matching import exact_bottleneck, exact_wasserstein, pairing_costs
from hard_cases import diagrams
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    Diagram,
    bottleneck,
    diagram_distances,
    matching,
    neural_persistence,
    rips,
    vineyard,
    wasserstein,
)

thorough = examples(200)
moderate = examples(100)

Order = Literal[1, 2]
ORDERS: tuple[Order, ...] = (1, 2)
orders = pytest.mark.parametrize("order", ORDERS)
EMPTY = Diagram(np.empty((0, 2)), 1)
THICK_EMPTY = Diagram(np.array([[1.0, 1.0], [-2.0, -2.0]]), 1)
"""Empty too: both of its bars lie on the diagonal."""


def rounding(*several: Diagram) -> float:
    """Error that no arithmetic on the coordinates avoids."""
    return 1e-15 * max(float(np.abs(diagram.pairs).max(initial=0)) for diagram in several)


def perturbed(diagram: Diagram, size: float, seed: int) -> Diagram:
    """The same diagram after a small step of training."""
    noise = np.random.default_rng(seed).normal(size=diagram.pairs.shape)
    return Diagram(diagram.pairs + size * noise, diagram.dimension)


def assert_wasserstein(first: Diagram, second: Diagram, order: Order) -> None:
    expected = exact_wasserstein(first.pairs, second.pairs, order)
    got = wasserstein(first, second, order=order)
    assert got == pytest.approx(expected, rel=1e-14, abs=rounding(first, second))


def assert_bottleneck(first: Diagram, second: Diagram) -> None:
    expected = exact_bottleneck(first.pairs, second.pairs)
    assert bottleneck(first, second) == pytest.approx(expected, rel=1e-15, abs=rounding(first, second))


# Against exact matchings


@orders
@thorough
@given(diagrams(max_bars=7), diagrams(max_bars=7))
def test_wasserstein_is_the_best_assignment(order: Order, first: Diagram, second: Diagram) -> None:
    assert_wasserstein(first, second, order)


@thorough
@given(diagrams(max_bars=7), diagrams(max_bars=7))
@example(Diagram(np.array([[0.0, 1.0]]), 1), Diagram(np.array([[0.0, 1.0 + 1e-15]]), 1))
def test_bottleneck_is_the_least_sufficient_cost(first: Diagram, second: Diagram) -> None:
    assert_bottleneck(first, second)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # All to the diagonal.
        ([[0.25, 0.75]] * 3, [[0.0, 0.25]] * 3, 0.25),
        # No two bars alike.
        ([[-1.25, 0], [-1.75, -1.125], [-2, -1.5]], [[1, 2.125], [1.25, 3.25], [2, 3.125], [0, 0.375]], 1.0),
        ([[-2, -0.25], [-1, -0.875], [-0.75, -0.375], [0, 0.25]], [[0, 1.5], [0.75, 2], [1.75, 3.75]], 1.0),
    ],
)
def test_bottleneck_worked_examples(first: Any, second: Any, expected: float) -> None:
    assert exact_bottleneck(np.array(first, float), np.array(second, float)) == expected
    assert bottleneck(Diagram(np.array(first, float), 1), Diagram(np.array(second, float), 1)) == expected


def test_wasserstein_worked_example() -> None:
    first, second = Diagram(np.array([[0.0, 2.0], [0.0, 5.0]]), 1), Diagram(np.array([[0.0, 6.0]]), 1)
    # 5 to 6 costs 1, the bar of length 2 goes to the diagonal and costs 1. Order 2 is the default.
    assert wasserstein(first, second) == pytest.approx(math.sqrt(2), rel=1e-15, abs=0)
    assert wasserstein(first, second, order=1) == pytest.approx(2, rel=1e-15, abs=0)
    assert bottleneck(first, second) == 1


@moderate
@given(diagrams(max_bars=3), diagrams(max_bars=2))
def test_matchings_of_tiny_diagrams_one_by_one(first: Diagram, second: Diagram) -> None:
    # No solver at all: every permutation. This also vouches for the exact matchings of the other tests.
    matrix = pairing_costs(first.pairs, second.pairs)
    rows = range(len(matrix))
    matchings = [matrix[rows, list(columns)] for columns in permutations(rows)]
    least = min(float(matching.max(initial=0)) for matching in matchings)
    assert exact_bottleneck(first.pairs, second.pairs) == least
    assert bottleneck(first, second) == pytest.approx(least, rel=1e-15, abs=rounding(first, second))
    for order in ORDERS:
        best = min(float(np.sum(matching**order)) for matching in matchings) ** (1 / order)
        assert exact_wasserstein(first.pairs, second.pairs, order) == pytest.approx(best, rel=1e-14, abs=0)
        assert_wasserstein(first, second, order)


@orders
@pytest.mark.parametrize("dimension", [0, 1])
def test_wasserstein_of_clouds(dimension: int, order: Order) -> None:
    rng = np.random.default_rng(1)
    assert_wasserstein(
        rips(rng.normal(size=(60, 3)))[dimension], rips(rng.normal(size=(50, 3)) * 1.5)[dimension], order
    )


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_bottleneck_of_clouds(dimension: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_bottleneck(rips(rng.normal(size=(60, 3)))[dimension], rips(rng.normal(size=(50, 3)))[dimension])


@orders
def test_wasserstein_of_weights(order: Order) -> None:
    rng = np.random.default_rng(2)
    first = neural_persistence(rng.normal(size=(20, 30))).diagram
    assert_wasserstein(first, neural_persistence(rng.standard_cauchy(size=(25, 10))).diagram, order)


def test_bottleneck_of_weights() -> None:
    rng = np.random.default_rng(2)
    first = neural_persistence(rng.normal(size=(20, 30))).diagram
    assert_bottleneck(first, neural_persistence(rng.standard_cauchy(size=(25, 10))).diagram)


# Near-equal diagrams, as neighbouring checkpoints have


@orders
@thorough
@given(diagrams(max_bars=7), st.sampled_from([1e-1, 1e-2, 1e-3, 1e-6, 1e-9, 1e-12]), st.integers(0, 2**32))
def test_wasserstein_of_near_equal_diagrams(order: Order, diagram: Diagram, size: float, seed: int) -> None:
    assert_wasserstein(diagram, perturbed(diagram, size, seed), order)


@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-5, 1e-8])
@orders
def test_wasserstein_of_neighbouring_checkpoints(order: Order, size: float) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 8))
    (first,) = rips(points, max_dimension=0)
    (second,) = rips(points + size * rng.normal(size=points.shape), max_dimension=0)
    expected = exact_wasserstein(first.pairs, second.pairs, order)
    assert wasserstein(first, second, order=order) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-8, 1e-10, 1e-12])
def test_wasserstein_of_clusters(size: float) -> None:
    # Bars close to each other, as every weight matrix has: which goes to which is decided far below their lifetimes.
    rng = np.random.default_rng(6)
    for n in range(2, 12):
        first, second = (Diagram([[0.0, 1.0]] + size * rng.normal(size=(n, 2)), 1) for _ in range(2))
        for order in ORDERS:
            assert_wasserstein(first, second, order)


@orders
@thorough
@given(diagrams(max_bars=7), diagrams(max_bars=2))
def test_wasserstein_to_a_few_more_bars(order: Order, diagram: Diagram, added: Diagram) -> None:
    assert_wasserstein(diagram, Diagram(np.concatenate([diagram.pairs, added.pairs]), 1), order)


@orders
@moderate
@given(diagrams(max_bars=7), st.data())
def test_wasserstein_does_not_see_the_order_of_points(order: Order, diagram: Diagram, data: st.DataObject) -> None:
    shuffled = Diagram(diagram.pairs[data.draw(st.permutations(range(len(diagram.pairs))))], 1)
    assert wasserstein(diagram, shuffled, order=order) == 0


@thorough
@given(diagrams(max_bars=7), st.sampled_from([1e-1, 1e-3, 1e-6, 1e-12]), st.integers(0, 2**32))
def test_bottleneck_of_near_equal_diagrams(diagram: Diagram, size: float, seed: int) -> None:
    assert_bottleneck(diagram, perturbed(diagram, size, seed))


@moderate
@given(diagrams(max_bars=7), st.data())
def test_bottleneck_does_not_see_the_order_of_points(diagram: Diagram, data: st.DataObject) -> None:
    shuffled = Diagram(diagram.pairs[data.draw(st.permutations(range(len(diagram.pairs))))], 1)
    assert bottleneck(diagram, shuffled) == 0


# Axioms of a metric


@moderate
@given(diagrams())
def test_identity(diagram: Diagram) -> None:
    assert bottleneck(diagram, diagram) == 0
    assert wasserstein(diagram, diagram, order=1) == 0
    assert wasserstein(diagram, diagram, order=2) == 0


@orders
@moderate
@given(diagrams(max_bars=6), diagrams(max_bars=6))
def test_wasserstein_is_symmetric(order: Order, first: Diagram, second: Diagram) -> None:
    back = wasserstein(second, first, order=order)
    assert wasserstein(first, second, order=order) == pytest.approx(back, rel=1e-14, abs=rounding(first, second))


@moderate
@given(diagrams(max_bars=6), diagrams(max_bars=6))
def test_bottleneck_is_symmetric(first: Diagram, second: Diagram) -> None:
    back = bottleneck(second, first)
    assert bottleneck(first, second) == pytest.approx(back, rel=1e-15, abs=rounding(first, second))


@orders
@moderate
@given(diagrams(max_bars=5), diagrams(max_bars=5), diagrams(max_bars=5))
def test_triangle_inequality_of_wasserstein(order: Order, a: Diagram, b: Diagram, c: Diagram) -> None:
    detour = wasserstein(a, b, order=order) + wasserstein(b, c, order=order)
    assert wasserstein(a, c, order=order) <= detour * (1 + 1e-14) + 3 * rounding(a, b, c)


@moderate
@given(diagrams(max_bars=5), diagrams(max_bars=5), diagrams(max_bars=5))
def test_triangle_inequality_of_bottleneck(a: Diagram, b: Diagram, c: Diagram) -> None:
    assert bottleneck(a, c) <= bottleneck(a, b) + bottleneck(b, c) + 3 * rounding(a, b, c)


@moderate
@given(diagrams(max_bars=6), diagrams(max_bars=6))
def test_higher_orders_are_smaller(first: Diagram, second: Diagram) -> None:
    one, two = wasserstein(first, second, order=1), wasserstein(first, second, order=2)
    slack = 2 * rounding(first, second)
    assert bottleneck(first, second) <= two * (1 + 1e-14) + slack
    assert two <= one * (1 + 1e-14) + slack


@orders
@moderate
@given(diagrams(max_bars=6), diagrams(max_bars=6), st.integers(-300, 300))
def test_a_power_of_two_scales_wasserstein(order: Order, first: Diagram, second: Diagram, exponent: int) -> None:
    far, away = (Diagram(np.ldexp(diagram.pairs, exponent), 1) for diagram in (first, second))
    expected = math.ldexp(wasserstein(first, second, order=order), exponent)
    tolerance = math.ldexp(rounding(first, second), exponent)
    assert wasserstein(far, away, order=order) == pytest.approx(expected, rel=1e-14, abs=tolerance)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_wasserstein_of_tiny_and_huge_bars(scale: float) -> None:
    first, second = Diagram(np.array([[0.0, 1.0]]) * scale, 1), Diagram(np.array([[0.0, 2.0], [0.0, 0.5]]) * scale, 1)
    assert wasserstein(first, second) == pytest.approx(math.hypot(1, 0.25) * scale, rel=1e-14, abs=0)


@moderate
@given(diagrams(max_bars=6), diagrams(max_bars=6), st.integers(-300, 300))
def test_a_power_of_two_scales_bottleneck(first: Diagram, second: Diagram, exponent: int) -> None:
    far, away = (Diagram(np.ldexp(diagram.pairs, exponent), 1) for diagram in (first, second))
    assert bottleneck(far, away) == math.ldexp(bottleneck(first, second), exponent)


# The diagonal


@pytest.mark.parametrize("empty", [EMPTY, THICK_EMPTY])
@moderate
@given(diagrams())
@example(EMPTY)
@example(THICK_EMPTY)
def test_distance_to_an_empty_diagram_is_that_to_the_diagonal(empty: Diagram, diagram: Diagram) -> None:
    halves = (diagram.lifetimes / 2).tolist()
    tolerance = rounding(diagram)
    expected = (max(halves, default=0), math.fsum(halves), math.sqrt(math.fsum(half**2 for half in halves)))
    for first, second in ((diagram, empty), (empty, diagram)):
        got = (bottleneck(first, second), wasserstein(first, second, order=1), wasserstein(first, second, order=2))
        assert got == pytest.approx(expected, rel=1e-14, abs=tolerance)


counts = st.tuples(st.integers(0, 2), st.integers(0, 2))


@moderate
@given(diagrams(max_bars=4), diagrams(max_bars=4), counts, counts)
def test_classes_without_a_death_are_matched_with_their_like_or_infinitely_far(
    first: Diagram, second: Diagram, of_first: tuple[int, int], of_second: tuple[int, int]
) -> None:
    finite = diagram_distances(first, second)
    first, second = (Diagram(d.pairs, 1, *n) for d, n in ((first, of_first), (second, of_second)))
    expected = finite if of_first == of_second else (math.inf,) * 3
    assert diagram_distances(first, second) == expected
    assert (wasserstein(first, second, 1), wasserstein(first, second, 2), bottleneck(first, second)) == expected
    if of_first == of_second:
        assert len(matching(first, second)) == len(first.pairs)
        return
    for call in (lambda: matching(first, second), lambda: vineyard([first, second])):
        with pytest.raises(ToposcopeError, match=r"\Adiagrams: no matching has a finite cost, their n_[^\n]*\Z"):
            call()


@orders
@moderate
@given(diagrams(max_bars=6), diagrams(max_bars=6))
def test_only_finite_bars_of_positive_length_count(order: Order, first: Diagram, second: Diagram) -> None:
    padded = Diagram(np.concatenate([second.pairs, [[0.5, 0.5], [3.0, 3.0]]]), 1)
    turned = Diagram(second.pairs[:, ::-1], 1)
    for other in (padded, turned):
        assert bottleneck(first, other) == bottleneck(first, second)
        assert wasserstein(first, other, order=order) == wasserstein(first, second, order=order)


# Bad input


@pytest.mark.parametrize("dimensions", [(0, 1), (2, 1)])
def test_diagrams_of_different_dimensions_are_refused(dimensions: tuple[int, int]) -> None:
    first, second = (Diagram(np.array([[0.0, 1.0]]), dimension) for dimension in dimensions)
    for distance in (wasserstein, bottleneck):
        with pytest.raises(ToposcopeError, match=rf"\A[^\n]*{dimensions[0]} and {dimensions[1]}[^\n]*\Z"):
            distance(first, second)


@pytest.mark.parametrize("order", [0, 3, 0.5, math.inf, math.nan, None, "2"])
def test_other_orders_are_refused(order: Any) -> None:
    with pytest.raises(ToposcopeError, match=r"\Aorder: [^\n]*\Z"):
        wasserstein(EMPTY, EMPTY, order=order)
