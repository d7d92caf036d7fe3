"""Births of loops of clouds of any size, against the engine that has all distances."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hard_cases import CLOUD_KINDS, Array, clouds, hard_cloud
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from scipy.spatial.distance import cdist, pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import h1_births, loop_births, rips
from toposcope.homology.arrays import as_scaled_matrix
from toposcope.homology.loop_births import FloatProducts, IntegerProducts, tree_and_births
from toposcope.homology.loops import loop_diagram
from toposcope.homology.point_cloud import as_cloud, outlasts_rounding, with_distances
from toposcope.kernels.relative_neighbours import REACH

thorough = examples(300)
moderate = examples(100)

BOUNDS = [partial(FloatProducts, dtype=np.float32), partial(FloatProducts, dtype=np.float64), IntegerProducts]
TRIANGLES = np.array([[i + j / 2, j * np.sqrt(3) / 2] for i in range(5) for j in range(5)])
"""A lattice whose equal sides differ in the last digit, or do not."""


def relative_neighbours(points: Array) -> int:
    """Count the edges with no point nearer to both ends than they are long."""
    d = cdist(points, points)
    return sum(not (np.maximum(d[i], d[j]) < d[i, j]).any() for i in range(len(d)) for j in range(i))


def assert_births_of(points: Array, metric: Any) -> None:
    """The births are those of all bars, also those that the diagram leaves out as rounding of equal cosines."""
    cloud = as_cloud(points, metric, "points")
    bars = loop_diagram(cloud.distances(np.arange(len(points))))
    assert_array_equal(h1_births(points, metric=metric), bars.pairs[:, 0])
    lasting = outlasts_rounding(bars.pairs, cloud)
    assert_array_equal(rips(points, metric=metric)[1].pairs, bars.pairs[lasting])
    assert bars.lifetimes[~lasting].max(initial=0) < 1e-15 * (4 * points.shape[1] + 60)


@thorough
@given(st.one_of(clouds(max_points=16), clouds(max_points=16, exact=True)))
@example(np.zeros((5, 2)))
@example(TRIANGLES)
@example(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
def test_births_are_those_of_the_diagram(points: Array) -> None:
    assert_array_equal(h1_births(points), rips(points)[1].pairs[:, 0])
    if points.any(axis=1).all():
        assert_births_of(points, "cosine")
    matrix = cdist(points, points)
    matrix = np.maximum(matrix, matrix.T)
    assert_array_equal(h1_births(matrix, metric="precomputed"), rips(matrix, metric="precomputed")[1].pairs[:, 0])


@pytest.mark.parametrize("kind", CLOUD_KINDS)
@pytest.mark.parametrize(("n", "d"), [(60, 1), (300, 2), (400, 10), (300, 300)])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_births_of_larger_clouds(kind: str, n: int, d: int, metric: Any) -> None:
    points = hard_cloud(kind, n, d)
    assert_births_of(points[points.any(axis=1)], metric)


@pytest.mark.parametrize("block_bytes", [1, 7000])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("d", [5, 70])
def test_blocks_and_kinds_of_bounds_change_nothing(
    block_bytes: int, bounds: Any, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_births, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(loop_births, "_bounds", bounds)
    for kind in CLOUD_KINDS:
        points = hard_cloud(kind, 150, d)
        assert_array_equal(h1_births(points), rips(points)[1].pairs[:, 0])


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("kind", [*CLOUD_KINDS, "heavy tails"])
@pytest.mark.parametrize(("n", "d"), [(2, 64), (3, 70), (261, 9), (130, 770)])
def test_distances_are_within_their_bounds(bounds: Any, kind: str, n: int, d: int) -> None:
    rng = np.random.default_rng([n, d])
    points = rng.standard_cauchy((n, d)) ** 3 if kind == "heavy tails" else hard_cloud(kind, n, d)
    order, (points, _) = rng.permutation(n), as_scaled_matrix(points, "points")
    made, wide = bounds(points, order), points[order].astype(np.longdouble)
    squares = np.array([((wide - row) ** 2).sum(axis=1) for row in wide])
    begin = n // 3
    below = made.below(slice(begin, n), np.empty((n - begin, n), made.dtype))
    assert (below - np.abs(below) * REACH - np.finfo(np.float32).tiny <= squares[begin:]).all()
    assert (made.above(np.arange(0, n, 2)) >= squares[::2]).all()


def test_where_too_many_ties_need_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.eye(40)
    exact = h1_births(points)
    monkeypatch.setattr(loop_births, "MAX_TRIALS_PER_POINT", 1)
    assert_array_equal(h1_births(points), exact)
    monkeypatch.setattr(loop_births, "free_memory", lambda: 1000)
    with pytest.raises(ToposcopeError, match=r"\Apoints: so many of their distances are equal [^\n]*\Z"):
        h1_births(points)


def test_landmarks_never_need_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.eye(40)
    monkeypatch.setattr(loop_births, "MAX_TRIALS_PER_POINT", 1)
    for cloud in (points, np.asarray(squareform(pdist(points)))):
        metric: Any = "euclidean" if cloud is points else "precomputed"
        landmarks = rips(cloud, max_points=10, metric=metric)[1]
        assert landmarks.births is None
        assert landmarks.cover_radius > 0


@pytest.mark.parametrize(("n", "d"), [(500, 2), (500, 3), (300, 50)])
def test_their_number_is_that_of_the_edges_less_the_tree(n: int, d: int) -> None:
    points = np.random.default_rng([n, d]).normal(size=(n, d))
    births = h1_births(points)
    assert len(births) == relative_neighbours(points) - (n - 1)
    assert (np.diff(births) >= 0).all()


def test_the_tree_comes_with_them() -> None:
    for kind in CLOUD_KINDS:
        points = hard_cloud(kind, 200, 6)
        for metric in ("euclidean", "cosine"):
            cloud = as_cloud(points, metric, "points")
            found = tree_and_births(cloud)
            assert found is not None
            assert_allclose(found[0], cloud.tree()[0], rtol=1e-13, atol=0)
            assert_array_equal(found[1], h1_births(points, metric=metric))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_components_of_a_large_cloud_do_not_depend_on_the_landmarks(metric: Any) -> None:
    points = np.random.default_rng(0).normal(size=(1200, 64))
    alone, shared = rips(points, metric=metric, max_dimension=0)[0], rips(points, metric=metric, max_points=50)[0]
    assert (alone.engine, shared.engine) == ("boruvka", "lunes")
    assert_array_equal(shared.pairs, alone.pairs)


def test_births_of_points_with_their_distances() -> None:
    points = hard_cloud("normal", 120, 5)
    assert_array_equal(h1_births(with_distances(points)), h1_births(points))
    few = rips(with_distances(points), max_points=20)[1]
    assert_array_equal(few.births, h1_births(points))


@moderate
@given(clouds(max_points=14), st.integers(-900, 900))
def test_a_power_of_two_scales_every_digit(points: Array, exponent: int) -> None:
    assume(np.abs(points).max() < 2**20)
    assert_array_equal(h1_births(np.ldexp(points, exponent)), np.ldexp(h1_births(points), exponent))


def test_every_kind_of_array_and_bad_ones() -> None:
    points = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
    expected = h1_births(points)
    assert expected.dtype == np.float64
    assert len(expected)
    assert_array_equal(h1_births(points.tolist()), h1_births(points.astype(float)))
    assert_array_equal(h1_births(torch.tensor(points)), expected)
    assert_array_equal(h1_births(np.asfortranarray(points)), expected)
    assert_array_equal(h1_births(points[:1]), [])
    for bad in (np.full((3, 2), np.nan), np.zeros(3), None):
        with pytest.raises(ToposcopeError, match=r"\Apoints: [^\n]*\Z"):
            h1_births(bad)
