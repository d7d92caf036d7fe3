"""Functions at scattered points: the triangulation, and the warning for graphs of nearest neighbours."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from hard_cases import Array
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology import delaunay_edges, nearest_neighbour_edges, sublevel_graph

Edges = NDArray[np.int64]
POINTS = np.random.default_rng(1).uniform(-6, 6, (10_000, 2))
X, Y = POINTS.T
HIMMELBLAU = (X**2 + Y - 11) ** 2 + (X + Y**2 - 7) ** 2


def test_the_triangulation_finds_the_four_minima_and_nearest_neighbours_more() -> None:
    found = sublevel_graph(HIMMELBLAU, delaunay_edges(POINTS))
    assert len(found.minima) + 1 == 4
    assert_allclose(np.sort(found.diagram.lifetimes), [13.282268, 67.631770, 103.832294], rtol=0.03)
    assert len(sublevel_graph(HIMMELBLAU, nearest_neighbour_edges(POINTS, 8)).minima) + 1 == 19


# The graphs


def squared_distances(points: Array) -> Array:
    return np.asarray(((points[:, None] - points) ** 2).sum(axis=2))


def as_set(edges: Edges) -> set[tuple[int, int]]:
    """Edges as pairs, after a look at their form."""
    assert edges.dtype == np.int64
    assert edges.ndim == 2
    pairs = [(a, b) for a, b in edges.tolist()]
    assert pairs == sorted(set(pairs))
    assert all(a < b for a, b in pairs)
    return set(pairs)


@pytest.mark.parametrize("seed", range(20))
def test_delaunay_circles_are_empty(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(4 + seed % 9, 2))
    expected = set()
    for corners in itertools.combinations(range(len(points)), 3):
        a, b, c = points[list(corners)]
        centre = a + np.linalg.solve(2 * np.array([b - a, c - a]), [(b - a) @ (b - a), (c - a) @ (c - a)])
        others = np.delete(points, corners, axis=0)
        if (((others - centre) ** 2).sum(axis=1) > (a - centre) @ (a - centre)).all():
            expected |= set(itertools.combinations(corners, 2))
    for scale in (1.0, 2.0**600, 2.0**-600):
        assert as_set(delaunay_edges(points * scale)) == expected


@pytest.mark.parametrize("d", [2, 3, 4])
def test_delaunay_joins_nearest_neighbours(d: int) -> None:
    points = np.random.default_rng(d).normal(size=(60, d))
    squared = squared_distances(points) + np.diag(np.full(60, np.inf))
    nearest = {(min(a, b), max(a, b)) for a, b in enumerate(squared.argmin(axis=1).tolist())}
    assert nearest <= as_set(delaunay_edges(points))


def test_delaunay_leaves_no_duplicate_alone() -> None:
    points = np.random.default_rng(0).normal(size=(30, 2))
    doubled = np.concatenate([points, points[:10], points[:10]])
    found = sublevel_graph(np.zeros(50), delaunay_edges(doubled))
    assert found.diagram.n_essential == 1


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((3, 2)),
        np.zeros((9, 2)),
        np.column_stack([np.arange(9.0), np.arange(9.0)]),
        np.arange(9.0)[:, None],
        np.zeros((4, 3)),
        np.array([[np.nan, 1.0]] * 5),
        np.zeros((5, 0)),
        "points",
    ],
)
def test_bad_delaunay_points(points: Any) -> None:
    with pytest.raises(ToposcopeError, match="points: ") as error:
        delaunay_edges(points)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:the graph of the")
@pytest.mark.parametrize(("n", "d", "k"), [(2, 1, 1), (30, 1, 3), (40, 2, 5), (25, 7, 24), (30, 40, 2)])
def test_nearest_neighbours_by_sorting(n: int, d: int, k: int) -> None:
    points = np.random.default_rng(n + d + k).normal(size=(n, d))
    nearest = squared_distances(points).argsort(axis=1)[:, 1 : k + 1]
    expected = {(min(a, b), max(a, b)) for a, row in enumerate(nearest.tolist()) for b in row}
    for scale in (1.0, 2.0**600, 2.0**-600):
        assert as_set(nearest_neighbour_edges(points * scale, k)) == expected


def test_nearest_neighbours_among_duplicates() -> None:
    for copies in range(2, 7):
        edges = as_set(nearest_neighbour_edges(np.repeat([[1.0, 2.0]], copies, axis=0), copies - 1))
        assert edges == set(itertools.combinations(range(copies), 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        degree = np.bincount(np.ravel(nearest_neighbour_edges(np.zeros((40, 3)), 4)), minlength=40)
    assert degree.min() >= 4


def test_a_disconnected_graph_is_announced() -> None:
    points = np.concatenate([np.arange(5.0), 100 + np.arange(5.0), 300 + np.arange(5.0)])[:, None]
    with pytest.warns(UserWarning, match=r"2 nearest neighbours of 15 points falls into 3 components") as record:
        edges = nearest_neighbour_edges(points, 2)
    assert record[0].filename == __file__
    found = sublevel_graph(np.arange(15.0), edges)
    assert found.diagram.n_essential == 3
    assert found.essential_minima.tolist() == [0, 5, 10]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sublevel_graph(np.arange(15.0), nearest_neighbour_edges(points, 5)).diagram.n_essential == 1


@pytest.mark.parametrize(("n", "k"), [(5, 0), (5, 5), (5, None), (1, 1)])
def test_bad_k(n: int, k: Any) -> None:
    with pytest.raises(ToposcopeError, match="k: expected"):
        nearest_neighbour_edges(np.zeros((n, 2)), k)
