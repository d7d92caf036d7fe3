"""The marks of merge trees."""

from typing import Any

import altair as alt
import numpy as np
import pytest
from chart_checks import rows_of_chart
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from property_examples import examples

from toposcope.charts.chart import Chart
from toposcope.charts.merge_tree import tree_layers, tree_title
from toposcope.homology import Sublevel, sublevel_graph, sublevel_grid

GRIDS = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.integers(0, 6).map(float))


def drawn_tree(tree: Sublevel) -> Chart:
    branches = tree.branches()
    finite = branches.deaths[np.isfinite(branches.deaths)]
    ends = [float(branches.births.min()) - 1, float(max([branches.births.max(), *finite])) + 1]
    layers = tree_layers(branches.births, branches.deaths, branches.parents, {"scale": alt.Scale(domain=ends)})
    return Chart("tree", tree_title(branches.births, branches.deaths), "", "", alt.layer(*layers))


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
    drawn = rows_of_chart(drawn_tree(tree))
    assert len(drawn) == len(tree.minima) + len(tree.essential_minima)
    assert sorted(row["birth"] for row in drawn) == sorted([*tree.diagram.pairs[:, 0], *tree.essential_births])
    assert crossings(drawn) == 0


def test_essential_births_are_the_values_of_the_lowest_vertices() -> None:
    tree = sublevel_graph([3.0, 1.0, 5.0, 2.0], [[0, 1], [2, 3]])
    assert tree.essential_minima.tolist() == [1, 3]
    assert tree.essential_births.tolist() == [1.0, 2.0]


def test_a_tree_of_two_basins() -> None:
    chart = drawn_tree(sublevel_grid([[0.0, 3.0, 1.0]]))
    assert chart.title == "2 minima in 1 component; the deepest that joins another lies 2 below its saddle"
    join = next(row for row in rows_of_chart(chart) if row["death"] is not None)
    root = next(row for row in rows_of_chart(chart) if row["death"] is None)
    assert (join["birth"], join["death"], join["parent"]) == (1.0, 3.0, root["x"])


def test_of_many_branches_the_most_persistent_are_drawn_with_those_that_they_join() -> None:
    chart = drawn_tree(sublevel_grid(np.random.default_rng(0).normal(size=(60, 60))))
    drawn = rows_of_chart(chart)
    assert len(drawn) == 100
    assert {row["parent"] for row in drawn} <= {row["x"] for row in drawn}
    assert chart.render("svg").startswith(b"<svg")
