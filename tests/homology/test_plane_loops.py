"""Loops of the plane and space without a matrix, against those of the matrix, and GUDHI's simplex tree."""

from importlib import import_module

import gudhi
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from toposcope.errors import ToposcopeError
from toposcope.homology import memory, plane_loops, rips
from toposcope.homology.loops import loop_diagram
from toposcope.homology.plane_loops import PlaneBars, is_plane, plane_bars
from toposcope.homology.point_cloud import Euclidean
from toposcope.typing import Matrix

rips_module = import_module("toposcope.homology.rips")  # the package has the function by this name

KINDS = (
    "normal",
    "lattice",
    "line",
    "coplanar",
    "circle",
    "duplicates",
    "near duplicates",
    "clusters",
    "integers",
)


@st.composite
def clouds(draw: st.DrawFn) -> Matrix:
    """Clouds of the plane and space, most of them in no general position, of very different sizes."""
    d, n = draw(st.sampled_from([2, 3])), draw(st.integers(1, 60))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    points = random.standard_normal((n, d))
    kind = draw(st.sampled_from(KINDS))
    if kind == "lattice":
        points = np.stack(np.meshgrid(*[np.arange(draw(st.integers(1, 4)))] * d), axis=-1).reshape(-1, d).astype(float)
    elif kind == "line":
        points = points[:, :1] * random.integers(-3, 4, d)
    elif kind == "coplanar":
        points[:, -1] = draw(st.sampled_from([0.0, 1e-17])) * points[:, 0]
    elif kind == "circle":
        angles = 2 * np.pi * np.arange(n) / n
        points[:, :2], points[:, 2:] = np.column_stack([np.cos(angles), np.sin(angles)]), 0
    elif kind == "duplicates":
        points = points[random.integers(0, max(n // 3, 1), n)]
    elif kind == "near duplicates":
        points = points[random.integers(0, max(n // 3, 1), n)] + 1e-15 * random.standard_normal((n, d))
    elif kind == "clusters":
        points += 1e6 * random.integers(0, 3, (n, 1))
    elif kind == "integers":
        points = random.integers(-3, 4, (n, d)).astype(float)
    return points * draw(st.sampled_from([1.0, 1.0, 1e-150, 1e150, 3e-300]))


def without_matrix(points: Matrix, threshold: float = np.inf) -> PlaneBars:
    found = plane_bars(Euclidean.of(points, "points"), threshold, matrix_fits=False)
    assert found is not None
    return found


@examples(500)
@given(clouds(), st.data())
def test_diagrams_are_those_of_the_matrix(points: Matrix, data: st.DataObject) -> None:
    matrix = Euclidean.of(points, "points").distances(np.arange(len(points)))
    is_small = Euclidean.of(points, "points").exponent < plane_loops.MIN_EXPONENT
    threshold = data.draw(st.sampled_from([np.inf, np.inf, *([] if is_small else matrix[0, :5].tolist())]))
    tree, edges, found, ends = without_matrix(points, threshold)
    expected = loop_diagram(matrix, threshold)
    assert_array_equal(found.pairs, expected.pairs)
    assert_array_equal(matrix[ends[:, 0::2], ends[:, 1::2]], expected.pairs)
    assert_allclose(matrix[edges[:, 0], edges[:, 1]], tree, rtol=1e-15)
    assert connected_components(csr_matrix((tree + 1, edges.T), matrix.shape))[0] == 1
    assert found.n_truncated == expected.n_truncated + expected.n_essential
    assert_array_equal(tree, Euclidean.of(points, "points").tree()[0])


@examples(100)
@given(clouds())
def test_diagrams_are_those_of_the_simplex_tree(points: Matrix) -> None:
    matrix = Euclidean.of(points, "points").distances(np.arange(len(points)))
    simplices = gudhi.RipsComplex(distance_matrix=matrix).create_simplex_tree(max_dimension=2)
    simplices.compute_persistence(homology_coeff_field=2, min_persistence=0, persistence_dim_max=True)
    bars = simplices.persistence_intervals_in_dimension(1).reshape(-1, 2)
    bars = bars[bars[:, 1] > bars[:, 0]]
    found = without_matrix(points).h1.pairs
    assert_array_equal(found[np.lexsort(found.T)], bars[np.lexsort(bars.T)])


def test_a_budget_that_is_spent_leaves_the_cloud_to_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_loops, "MIN_TREE_POINTS", 100)
    points = np.random.default_rng(0).standard_normal((300, 2))
    by_boxes = rips(points)
    assert [diagram.engine for diagram in by_boxes] == ["boxes", "boxes"]
    monkeypatch.setattr(plane_loops, "MAX_VISITS_PER_PAIR", 0.1)
    by_matrix = rips(points)
    assert by_matrix[1].engine == "lunes"
    for a, b in zip(by_boxes, by_matrix, strict=True):
        assert_array_equal(a.pairs, b.pairs)
        assert (a.n_essential, a.n_truncated, a.cover_radius) == (b.n_essential, b.n_truncated, b.cover_radius)
    assert rips(points, max_points=50)[1].cover_radius > 0  # landmarks, where the user asks for them


@pytest.mark.parametrize("at_once", [0, 50])
def test_a_walk_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    points = np.random.default_rng(0).standard_normal((300, 2))
    tree, _, whole, _ = without_matrix(points)
    monkeypatch.setattr(plane_loops, "VISITS_AT_ONCE", at_once)
    tree_in_parts, _, in_parts, _ = without_matrix(points)
    assert_array_equal(tree_in_parts, tree)
    assert_array_equal(in_parts.pairs, whole.pairs)


def test_work_that_is_no_visit_is_counted() -> None:
    points = np.random.default_rng(0).standard_normal((1500, 2))
    points[0] = 1e300  # beside it all other distances are too small to be told apart, and no point refutes another
    assert plane_bars(Euclidean.of(points, "points"), np.inf, matrix_fits=True) is None


def test_few_distinct_points_need_no_matrix() -> None:
    points = np.random.default_rng(0).integers(0, 2, (2000, 2)).astype(float)
    by_boxes = rips(points)
    assert [diagram.engine for diagram in by_boxes] == ["boxes", "boxes"]
    assert by_boxes[1].pairs.tolist() == [[1, 2**0.5]]
    assert rips(np.ones((2000, 3)))[1].engine == "boxes"


def test_what_refuses_more_dimensions_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 20)
    monkeypatch.setattr(rips_module, "plane_bars", lambda *_, **__: pytest.fail("H1 was computed first"))
    with pytest.raises(ToposcopeError, match="H2 and up of 2000 points"):
        rips(np.random.default_rng(0).standard_normal((3000, 2)), max_dimension=2)


def test_only_large_clouds_of_the_plane_and_space_go_without_a_matrix() -> None:
    for shape, expected in (((2000, 2), True), ((2000, 3), True), ((1999, 2), False), ((2000, 4), False)):
        assert is_plane(Euclidean.of(np.zeros(shape), "points")) is expected


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 3])
def test_a_cloud_that_is_large(d: int) -> None:
    random = np.random.default_rng(1)
    points = np.concatenate([random.standard_normal((4000, d)), random.uniform(5, 6, (1000, d))])
    tree, _, found, _ = without_matrix(points)
    matrix = Euclidean.of(points, "points").distances(np.arange(len(points)))
    assert_array_equal(found.pairs, loop_diagram(matrix).pairs)
    assert_array_equal(tree, Euclidean.of(points, "points").tree()[0])


def test_a_threshold_among_lengths_that_are_rounded_is_left_to_the_matrix() -> None:
    cloud = Euclidean.of(np.random.default_rng(0).standard_normal((100, 2)) * 1e-322, "points")
    assert plane_bars(cloud, 2e-322, matrix_fits=False) is None
    assert plane_bars(cloud, np.inf, matrix_fits=False) is not None
