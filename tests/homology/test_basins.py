"""Average persistence, saddle-minimum distance and profile against floods from each minimum."""

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    Profile,
    average_persistence,
    profile_graph,
    profile_grid,
    saddle_minimum_distance,
    sublevel_graph,
    sublevel_grid,
)

Array = NDArray[np.float64]
Edges = list[tuple[int, int]]

OFFSETS: dict[Literal["4", "8", "freudenthal"], list[tuple[int, int]]] = {
    "4": [(0, 1), (1, 0)],
    "8": [(0, 1), (1, 0), (1, 1), (1, -1)],
    "freudenthal": [(0, 1), (1, 0), (1, 1)],
}


@st.composite
def graphs(draw: st.DrawFn, distinct: bool) -> tuple[Array, Edges]:
    n = draw(st.integers(1, 12))
    values = draw(st.permutations(range(n))) if distinct else draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    ends = st.integers(0, n - 1)
    return np.array(values, float), draw(st.lists(st.tuples(ends, ends), max_size=25))


def flood(values: Array, edges: Edges, start: int, level: float) -> set[int]:
    """The component of the sublevel set that holds a vertex."""
    reached, waiting = {start}, [start]
    while waiting:
        v = waiting.pop()
        for a, b in edges:
            other = b if a == v else a if b == v else v
            if other not in reached and values[other] <= level:
                reached.add(other)
                waiting.append(other)
    return reached


def grid_edges(shape: tuple[int, ...], connectivity: Literal["4", "8", "freudenthal"]) -> Edges:
    m, n = shape
    return [
        (i * n + j, (i + a) * n + j + b)
        for i in range(m)
        for j in range(n)
        for a, b in OFFSETS[connectivity]
        if i + a < m and 0 <= j + b < n
    ]


def assert_profile(found: Profile, values: Array, edges: Edges) -> None:
    """Every width by a flood from the minimum; every basin joins the one that survives it."""
    assert (found.births == values[found.minima]).all()
    for i, minimum in enumerate(found.minima.tolist()):
        alive = (found.births[i] <= found.levels) & (found.levels < found.deaths[i])
        expected = [len(flood(values, edges, minimum, level)) for level in found.levels[alive].tolist()]
        assert found.widths[i, alive].tolist() == expected
        assert not found.widths[i, ~alive].any()
        parent = int(found.parents[i])
        assert parent < i
        assert (parent == -1) == math.isinf(found.deaths[i])
        if parent >= 0:
            assert minimum in flood(values, edges, int(found.minima[parent]), float(found.deaths[i]))
            assert found.births[parent] <= found.births[i] < found.deaths[i] <= found.deaths[parent]


@examples(150)
@given(graphs(distinct=True))
def test_saddle_minimum_distance_by_floods(graph: tuple[Array, Edges]) -> None:
    values, edges = graph
    minima = [v for v in range(len(values)) if len(flood(values, edges, v, values[v])) == 1]
    gaps = []
    for v in minima:
        meets = [t for t in sorted(values.tolist()) if len(flood(values, edges, v, t) & set(minima)) > 1]
        gaps += [meets[0] - values[v]] if meets else []
    found = saddle_minimum_distance(sublevel_graph(values, np.array(edges, int).reshape(-1, 2)))
    assert_allclose(found, np.mean(gaps) if gaps else np.nan)


def test_a_path_of_three_basins() -> None:
    tree = sublevel_graph([0, 3, 1, 5, 2, 6], [(v, v + 1) for v in range(5)])
    # pairs (1, 3) and (2, 5): the elder rule leaves out the lowest minimum, the tree's leaf edges do not
    assert average_persistence(tree) == 2.5
    assert saddle_minimum_distance(tree) == (3 + 2 + 3) / 3


def test_one_basin_has_no_average() -> None:
    tree = sublevel_grid([[0.0, 1.0, 2.0]])
    assert math.isnan(average_persistence(tree))
    assert math.isnan(saddle_minimum_distance(tree))


@examples(100)
@given(graphs(distinct=False), st.integers(2, 9))
def test_widths_of_graphs_by_floods(graph: tuple[Array, Edges], n_levels: int) -> None:
    values, edges = graph
    found = profile_graph(values, np.array(edges, int).reshape(-1, 2), n_levels=n_levels)
    assert_profile(found, values, edges)
    assert found.levels[-1] == values.max()
    assert found.widths[:, -1].sum() == found.n_vertices == len(values)


@examples(60)
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.integers(0, 9).map(float)))
def test_widths_of_grids_by_floods(grid: Array) -> None:
    for connectivity in OFFSETS:
        found = profile_grid(grid, connectivity=connectivity, n_levels=5)
        assert_profile(found, grid.ravel(), grid_edges(grid.shape, connectivity))


@pytest.mark.slow
def test_of_many_basins_the_most_persistent_are_measured() -> None:
    grid = np.random.default_rng(0).normal(size=(20, 20))
    found, every = profile_grid(grid, max_basins=5), profile_grid(grid, max_basins=10**6)
    assert (len(found.minima), found.n_basins) == (5, len(every.minima))
    assert_array_equal(found.minima, every.minima[:5])
    assert_array_equal(found.parents, every.parents[:5])
    assert_profile(found, grid.ravel(), grid_edges(grid.shape, "8"))
    assert repr(found) == f"Profile(5 of {found.n_basins} basins, 400 vertices)"


@pytest.mark.parametrize("options", [{"n_levels": 1}, {"max_basins": 0}, {"connectivity": "6"}, {"n_levels": 2.5}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ToposcopeError, match=next(iter(options))):
        profile_grid(np.eye(3), **options)
