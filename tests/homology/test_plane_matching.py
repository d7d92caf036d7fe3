"""Matchings of diagrams in the plane, and the distances of a cloud, against dense ones."""

import math
from typing import Literal

import numpy as np
import pytest
from exact_matching import exact_bottleneck, exact_wasserstein
from hard_cases import Array, clouds
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, bottleneck, diagram_distances, rips, two_nn, wasserstein
from toposcope.homology.dimension import two_least
from toposcope.homology.point_cloud import with_distances
from toposcope.kernels.pairwise import distance_matrix

moderate = examples(60)


def band(n: int, seed: int, shift: float = 0.0, spread: float = 0.1) -> Diagram:
    """Bars as H1 of many dimensions has: births far apart, lifetimes short."""
    rng = np.random.default_rng(seed)
    births = shift + rng.normal(size=n)
    return Diagram(np.column_stack([births, births + spread * rng.exponential(size=n)]), 1)


def assert_exact(first: Diagram, second: Diagram) -> None:
    together = diagram_distances(first, second)
    for order, found in ((1, together.wasserstein_1), (2, together.wasserstein_2)):
        expected = exact_wasserstein(first.pairs, second.pairs, order)
        assert wasserstein(first, second, order) == pytest.approx(expected, rel=1e-12, abs=1e-14)  # type: ignore[arg-type]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert bottleneck(first, second) == pytest.approx(exact_bottleneck(first.pairs, second.pairs), rel=1e-15)
    assert together.bottleneck == bottleneck(first, second)


@pytest.mark.parametrize("spread", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize(("k", "n"), [(200, 200), (250, 90), (1, 150), (130, 129)])
def test_bands(k: int, n: int, spread: float) -> None:
    assert_exact(band(k, 0, spread=spread), band(n, 1, spread=spread))


@pytest.mark.parametrize("shift", [0.01, 0.1, 1.0, 100.0])
def test_shifted_bands(shift: float) -> None:
    # The nearest neighbours are all at the edge of the other: most pairs of the best matching are not among them.
    assert_exact(band(180, 0), band(160, 1, shift))


@pytest.mark.parametrize("size", [1e-2, 1e-6, 1e-12])
def test_nearly_equal_bands(size: float) -> None:
    first = band(200, 0)
    moved = Diagram(first.pairs + size * np.random.default_rng(1).normal(size=first.pairs.shape), 1)
    for order in (1, 2):
        expected = exact_wasserstein(first.pairs, moved.pairs, order)
        assert wasserstein(first, moved, order) == pytest.approx(expected, rel=1e-12, abs=0)
    assert bottleneck(first, moved) == pytest.approx(exact_bottleneck(first.pairs, moved.pairs), rel=1e-15)


@moderate
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 6), st.integers(0, 2**32))
def test_ties(k: int, n: int, levels: int, seed: int) -> None:
    # Few distinct bars, so that many pairs cost the same and many points are equal.
    rng = np.random.default_rng(seed)
    first, second = (Diagram(rng.integers(0, levels + 1, size=(size, 2)).astype(float), 1) for size in (k, n))
    assert_exact(first, second)


@pytest.mark.parametrize(("k", "n"), [(150, 150), (200, 60)])
@pytest.mark.parametrize("width", [1e-9, 1e-2, 1.0])
def test_crowds(width: float, k: int, n: int) -> None:
    # More bars in one place than the other diagram has there: prices that few pairs decide would be far too high.
    rng = np.random.default_rng(0)
    places = np.array([[0.0, 1.0], [0.3, 1.5], [0.9, 1.4]])
    first = Diagram(places[rng.choice(3, k, p=[0.8, 0.1, 0.1])] + width * rng.uniform(0, 0.1, (k, 2)), 1)
    second = Diagram(places[rng.choice(3, n, p=[0.1, 0.2, 0.7])] + width * rng.uniform(0, 0.1, (n, 2)), 1)
    assert_exact(first, second)


@pytest.mark.parametrize("order", [1, 2])
def test_many_bars(order: Literal[1, 2]) -> None:
    first, second = band(2000, 0, spread=0.3), band(1900, 1, shift=0.1, spread=0.3)
    (a, a_alone), (b, b_alone) = ((d.pairs, (d.lifetimes / 2) ** order) for d in (first, second))
    costs = np.abs(a[:, None] - b[None]).max(axis=2) ** order
    # What each pair saves beside two points alone.
    savings = np.minimum(costs - a_alone[:, None] - b_alone, 0)
    expected = a_alone.sum() + b_alone.sum() + savings[linear_sum_assignment(savings)].sum()
    assert wasserstein(first, second, order) ** order == pytest.approx(expected, rel=1e-11)


def test_does_not_see_the_order_of_points() -> None:
    first, second = band(150, 0), band(170, 1)
    shuffled = Diagram(np.random.default_rng(2).permutation(second.pairs), 1)
    for order in (1, 2):
        assert wasserstein(first, second, order) == wasserstein(first, shuffled, order)
    assert bottleneck(first, second) == bottleneck(first, shuffled)


def test_loops_of_neighbouring_clouds() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(120, 64)) * np.arange(1, 65) ** -0.5
    moved = points + 0.2 * rng.normal(size=points.shape) * np.arange(1, 65) ** -0.5
    first, second = rips(points)[1], rips(moved)[1]
    assert len(first.pairs) > 80
    assert_exact(first, second)


# Distances of a cloud


@moderate
@given(clouds(max_points=16))
def test_distances_are_those_of_differences(points: Array) -> None:
    largest = np.abs(points).max(initial=0.0)
    scaled = np.ascontiguousarray(points / largest if largest else points)
    expected = np.array([[math.dist(x, y) for y in scaled] for x in scaled])
    assert_allclose(distance_matrix(scaled), expected, rtol=1e-14, atol=1e-150)


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (3, 600), (130, 200), (257, 5), (70, 1000)])
def test_distances_of_larger_clouds(n: int, d: int) -> None:
    points = np.random.default_rng(n).normal(size=(n, d))
    found = distance_matrix(points)
    assert_allclose(found, squareform(pdist(points)), rtol=1e-13)
    assert_array_equal(found, found.T)
    # A pair's distance does not depend on where the two stand.
    order = np.random.default_rng(0).permutation(n)
    assert_array_equal(distance_matrix(points[order]), found[np.ix_(order, order)])


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_two_least_distances(n: int) -> None:
    matrix = squareform(pdist(np.random.default_rng(n).integers(0, 4, size=(n, 2)).astype(float)))
    expected = np.sort(matrix + np.diag(np.full(n, np.inf)), axis=1)
    expected = np.column_stack([expected, np.full(n, np.inf)])[:, :2]
    assert_array_equal(two_least(matrix), expected)


# Distances once for several functions


@moderate
@given(clouds(max_points=14))
def test_distances_at_hand_change_nothing(points: Array) -> None:
    known, plain = rips(with_distances(points)), rips(points)
    for one, other in zip(known, plain, strict=True):
        assert_allclose(one.pairs, other.pairs, rtol=1e-14, atol=1e-150)
    assert (len(known[0].pairs), known[0].n_essential) == (len(points) - 1, 1)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_distances_at_hand(metric: Literal["euclidean", "cosine"]) -> None:
    points = np.random.default_rng(0).normal(size=(150, 40))
    points[70], points[90], points[140] = points[3], points[3], 2 * points[5]
    known = with_distances(points, metric)
    for options in ({}, {"max_points": 60}, {"threshold": 0.9}, {"landmarks": np.arange(80)}):
        for one, other in zip(
            rips(known, metric=metric, **options), rips(points, metric=metric, **options), strict=True
        ):
            assert_allclose(one.pairs, other.pairs, rtol=1e-14, atol=1e-15)
            assert (one.n_truncated, one.cover_radius) == (other.n_truncated, other.cover_radius)
    at_hand, anew = two_nn(known, metric=metric), two_nn(points, metric=metric)
    assert (at_hand.n_points, at_hand.n_duplicates) == (anew.n_points, anew.n_duplicates)
    assert at_hand.dimension == pytest.approx(anew.dimension, rel=1e-12)


def test_distances_at_hand_are_of_one_metric() -> None:
    with pytest.raises(ToposcopeError, match=r"\Apoints: its distances are of metric 'euclidean', not 'cosine'\Z"):
        rips(with_distances(np.eye(3)), metric="cosine")
    precomputed = with_distances(1 - np.eye(3), "precomputed")
    assert rips(precomputed, metric="precomputed")[0].lifetimes.tolist() == [1, 1]
