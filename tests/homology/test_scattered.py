"""Functions at scattered points: the triangulation, and the warning for graphs of nearest neighbours."""

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from toposcope.errors import ToposcopeError
from toposcope.homology import delaunay_edges, nearest_neighbour_edges, sublevel_graph, sublevel_points

POINTS = np.random.default_rng(1).uniform(-6, 6, (10_000, 2))
X, Y = POINTS.T
HIMMELBLAU = (X**2 + Y - 11) ** 2 + (X + Y**2 - 7) ** 2


def test_the_triangulation_finds_the_four_minima() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sublevel_points(HIMMELBLAU, POINTS)
    assert len(found.minima) + 1 == 4
    assert_allclose(np.sort(found.diagram.lifetimes), [13.282268, 67.631770, 103.832294], rtol=0.03)
    assert found.merges.tolist() == sublevel_graph(HIMMELBLAU, delaunay_edges(POINTS)).merges.tolist()


def test_nearest_neighbours_are_announced_where_they_make_minima() -> None:
    with pytest.warns(
        UserWarning, match=r"8 nearest neighbours of 10000 points has 19 minima where .* has 4;"
    ) as record:
        found = sublevel_points(HIMMELBLAU, POINTS, graph="nearest")
    assert record[0].filename == __file__
    assert len(found.minima) + 1 == 19
    assert found.merges.tolist() == sublevel_graph(HIMMELBLAU, nearest_neighbour_edges(POINTS, 8)).merges.tolist()


def test_nearest_neighbours_that_agree_pass_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(sublevel_points(X + 2 * Y, POINTS, graph="nearest", k=20).minima) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"graph": "knn"}, "graph: expected"),
        ({"graph": "nearest", "k": 0}, "k: expected"),
        ({"points": POINTS[:9]}, r"points: expected shape \(10, 2\)"),
        ({"points": np.zeros((10, 3))}, r"points: expected shape \(10, 2\)"),
        ({"points": np.zeros((10, 2))}, "points: expected points that span"),
        ({"values": [np.nan] * 10}, "values: "),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ToposcopeError, match=message) as error:
        sublevel_points(**{"values": HIMMELBLAU[:10], "points": POINTS[:10], **arguments})
    assert "\n" not in str(error.value)
