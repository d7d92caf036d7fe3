"""Distances between the points of a cloud: of all pairs, computed once for several functions."""

import math
from typing import Literal

import numpy as np
import pytest
from hard_cases import Array, clouds
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import rips, two_nn
from toposcope.homology.dimension import two_least
from toposcope.homology.point_cloud import with_distances
from toposcope.kernels.pairwise import distance_matrix, pair_distance

moderate = examples(60)


@moderate
@given(clouds(max_points=16))
def test_distances_are_those_of_differences(points: Array) -> None:
    largest = np.abs(points).max(initial=0.0)
    scaled = np.ascontiguousarray(points / largest if largest else points)
    expected = np.array([[math.dist(x, y) for y in scaled] for x in scaled])
    assert_allclose(distance_matrix(scaled), expected, rtol=1e-14, atol=1e-150)


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (3, 600), (4, 16), (5, 5000), (130, 200), (257, 5), (70, 1000)])
def test_distances_of_larger_clouds(n: int, d: int) -> None:
    points = np.random.default_rng(n).normal(size=(n, d))
    found = distance_matrix(points)
    assert_allclose(found, squareform(pdist(points)), rtol=1e-13)
    assert_array_equal(found, found.T)
    # A pair's distance does not depend on where the two stand.
    order = np.random.default_rng(0).permutation(n)
    assert_array_equal(distance_matrix(points[order]), found[np.ix_(order, order)])
    some = np.random.default_rng(1).integers(0, n, (20, 2))
    assert_array_equal([pair_distance(points, a, b) for a, b in some], found[some[:, 0], some[:, 1]])


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
