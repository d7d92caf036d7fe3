"""Charts of merge trees and of distance matrices."""

import json
from typing import Any

import numpy as np
import pytest
from chart_checks import rows_of_chart
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from property_examples import examples

from toposcope.charts.distances import distance_matrix
from toposcope.errors import ToposcopeError
from toposcope.homology import sublevel_graph, sublevel_grid

HOSTILE = "</script><script>alert(1)</script>{{7*7}} \u202e & \"'"
GRIDS = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.integers(0, 6).map(float))


def crossings(branches: list[dict[str, Any]]) -> int:
    """Count places where the line of a joining branch cuts through another branch."""
    return sum(
        min(join["x"], join["parent"]) < other["x"] < max(join["x"], join["parent"])
        and other["birth"] < join["end"] < other["end"]
        for join in branches
        if join["death"] is not None
        for other in branches
    )


@pytest.mark.slow
@examples(60)
@given(grid=GRIDS)
def test_every_minimum_is_a_leaf_and_no_lines_cross(grid: np.ndarray) -> None:
    tree = sublevel_grid(grid, connectivity="4")
    drawn = rows_of_chart(tree.plot())
    assert len(drawn) == len(tree.minima) + len(tree.essential_minima)
    assert sorted(row["birth"] for row in drawn) == sorted([*tree.diagram.pairs[:, 0], *tree.essential_births])
    assert crossings(drawn) == 0


def test_essential_births_are_the_values_of_the_lowest_vertices() -> None:
    tree = sublevel_graph([3.0, 1.0, 5.0, 2.0], [[0, 1], [2, 3]])
    assert tree.essential_minima.tolist() == [1, 3]
    assert tree.essential_births.tolist() == [1.0, 2.0]


def test_a_tree_of_two_basins() -> None:
    chart = sublevel_grid([[0.0, 3.0, 1.0]]).plot()
    assert chart.title == "2 minima in 1 component; the deepest that joins another lies 2 below its saddle"
    join = next(row for row in rows_of_chart(chart) if row["death"] is not None)
    root = next(row for row in rows_of_chart(chart) if row["death"] is None)
    assert (join["birth"], join["death"], join["parent"]) == (1.0, 3.0, root["x"])


def test_of_many_branches_the_most_persistent_are_drawn_with_those_that_they_join() -> None:
    chart = sublevel_grid(np.random.default_rng(0).normal(size=(60, 60))).plot()
    drawn = rows_of_chart(chart)
    assert len(drawn) == 100
    assert "100 most persistent" in chart.caption
    assert {row["parent"] for row in drawn} <= {row["x"] for row in drawn}
    assert chart.render("svg").startswith(b"<svg")


def test_rows_of_a_distance_matrix_keep_their_order_and_undefined_cells_are_marked() -> None:
    matrix = np.array([[0, 1, np.nan], [1, 0, 2], [np.nan, 2, 0]])
    chart = distance_matrix(matrix, ["b", "a", "a"], "bottleneck distance")
    assert chart.title == "Nearest: b and a; farthest: a and a (2)"
    assert "–" in chart.caption
    assert [row["row"] for row in rows_of_chart(chart)[::3]] == ["b", "a", "a (2)"]
    assert sum(row["text"] == "–" for row in rows_of_chart(chart)) == 2
    text = json.dumps(chart.spec(), allow_nan=False)
    assert text.count('"sort": ["b", "a", "a (2)"]') >= 2


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, 1, 2, 40])
def test_distance_matrices_of_any_size_are_drawn(n: int) -> None:
    matrix = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    assert distance_matrix(matrix, [f"{HOSTILE} {i}" for i in range(n)]).render("svg").startswith(b"<svg")


def test_hostile_names_stay_text() -> None:
    svg = distance_matrix(np.zeros((2, 2)), [HOSTILE, "b"]).render("svg").decode()
    assert "<script" not in svg
    assert "alert(1)" in svg


def test_a_matrix_without_a_name_for_each_row_is_refused() -> None:
    with pytest.raises(ToposcopeError, match=r"expected shape \(2, 2\)"):
        distance_matrix(np.zeros((3, 3)), ["a", "b"])
