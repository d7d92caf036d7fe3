"""Sublevel persistence of grids and graphs against a full sort with union-find, and against GUDHI."""

import itertools
import math
from collections.abc import Iterable
from typing import Any, Literal, get_args

import gudhi
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.homology.sublevel import Sublevel, sublevel_graph, sublevel_grid

Array = NDArray[np.float64]
Edges = NDArray[np.int64]
Connectivity = Literal["4", "8", "freudenthal"]

CONNECTIVITIES: tuple[Connectivity, ...] = get_args(Connectivity)
FORWARD = {"4": [(0, 1), (1, 0)], "8": [(0, 1), (1, 0), (1, 1), (1, -1)], "freudenthal": [(0, 1), (1, 0), (1, 1)]}

thorough = examples(300)
moderate = examples(150)

# Few levels make plateaus; the rest of float64, its ends and both zeros make everything else.
levels = st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.0])
anything = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.one_of(st.just(levels), st.just(anything), st.just(st.floats(-1, 1, width=16)))


@st.composite
def grids(draw: st.DrawFn, longest: int = 7) -> Array:
    shape = draw(st.tuples(st.integers(1, longest), st.integers(1, longest)))
    return draw(hnp.arrays(np.float64, shape, elements=draw(numbers)))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Array, Edges]:
    n = draw(st.integers(1, 14))
    values = draw(hnp.arrays(np.float64, n, elements=draw(numbers)))
    ends = st.integers(0, n - 1)
    return values, np.array(draw(st.lists(st.tuples(ends, ends), max_size=30)), np.int64).reshape(-1, 2)


def grid_edges(shape: tuple[int, ...], connectivity: str) -> Edges:
    """Edges of a grid, one by one."""
    m, n = shape
    return np.array(
        [
            (i * n + j, (i + a) * n + j + b)
            for i, j in itertools.product(range(m), range(n))
            for a, b in FORWARD[connectivity]
            if i + a < m and 0 <= j + b < n
        ],
        np.int64,
    ).reshape(-1, 2)


def by_full_sort(values: Array, edges: Iterable[Any]) -> tuple[set[tuple[int, int, int]], set[int]]:
    """Merges of positive persistence, as (survivor, dying minimum, saddle), and essential minima."""
    neighbours: list[set[int]] = [set() for _ in values]
    for a, b in edges:
        neighbours[a].add(int(b))
        neighbours[b].add(int(a))
    component: dict[int, int] = {}
    merges = set()
    for v in sorted(range(len(values)), key=lambda v: (values[v], v)):
        meeting = {component[u] for u in neighbours[v] if u in component}
        survivor = min(meeting, key=lambda u: (values[u], u), default=v)
        component[v] = survivor
        for dying in meeting - {survivor}:
            component = {u: survivor if root == dying else root for u, root in component.items()}
            if values[dying] < values[v]:
                merges.add((survivor, dying, v))
    return merges, set(component.values())


def assert_is(found: Sublevel, values: Array, merges: set[tuple[int, int, int]], essential: set[int]) -> None:
    """Every field, and how the fields hang together."""
    values = values.ravel()
    assert {tuple(row) for row in found.merges.tolist()} == merges
    assert len(found.merges) == len(merges)
    assert found.essential_minima.tolist() == sorted(essential)
    assert (found.diagram.dimension, found.diagram.n_essential) == (0, len(essential))
    saddles = found.merges[:, 2].tolist()
    assert saddles == sorted(saddles, key=lambda v: (values[v], v))
    assert_array_equal(found.diagram.pairs, np.column_stack([values[found.minima], values[found.saddles]]))
    pairs = found.diagram.pairs.tolist()
    assert pairs == sorted(pairs)
    assert (found.diagram.pairs[:, 0] < found.diagram.pairs[:, 1]).all()
    assert set(zip(found.minima.tolist(), found.saddles.tolist(), strict=True)) == {(b, c) for _, b, c in merges}


def assert_same(first: Sublevel, second: Sublevel) -> None:
    assert_array_equal(first.diagram.pairs, second.diagram.pairs)
    assert first.diagram.n_essential == second.diagram.n_essential
    assert_array_equal(first.essential_minima, second.essential_minima)
    assert sorted(first.merges.tolist()) == sorted(second.merges.tolist())


def finite(bars: Any) -> Array:
    """Finite bars of positive length, sorted."""
    pairs = np.reshape(np.asarray(bars, np.float64), (-1, 2))
    pairs = pairs[np.isfinite(pairs[:, 1]) & (pairs[:, 0] < pairs[:, 1])]
    return np.asarray(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])


def simplex_tree_bars(values: Array, edges: Edges) -> Array:
    """H0 of the lower-star filtration of a graph, by GUDHI, essential classes included."""
    tree = gudhi.SimplexTree()
    for v, value in enumerate(values):
        tree.insert([v], value)
    for a, b in edges:
        if a != b:
            tree.insert([a, b], max(values[a], values[b]))
    tree.compute_persistence(persistence_dim_max=True)
    return np.reshape(tree.persistence_intervals_in_dimension(0), (-1, 2))


# Against the full sort


@thorough
@given(grids())
@example(np.zeros((1, 1)))
@example(np.zeros((4, 5)))
@example(np.array([[0.0, 1.0, -0.0], [1.0, 1.0, 1.0], [-0.0, 1.0, 0.0]]))
def test_grids_by_full_sort(grid: Array) -> None:
    for connectivity in CONNECTIVITIES:
        expected = by_full_sort(grid.ravel(), grid_edges(grid.shape, connectivity))
        assert_is(sublevel_grid(grid, connectivity=connectivity), grid, *expected)


@pytest.mark.parametrize("connectivity", CONNECTIVITIES)
@pytest.mark.parametrize(("shape", "n_levels"), [((3, 3), 2), ((2, 3), 3), ((1, 6), 3), ((6, 1), 3)])
def test_every_small_grid(connectivity: Connectivity, shape: tuple[int, int], n_levels: int) -> None:
    edges = grid_edges(shape, connectivity)
    for entries in itertools.product(range(n_levels), repeat=math.prod(shape)):
        values = np.array(entries, np.float64)
        found = sublevel_grid(values.reshape(shape), connectivity=connectivity)
        assert_is(found, values, *by_full_sort(values, edges))


@pytest.mark.parametrize("connectivity", CONNECTIVITIES)
def test_every_ring_around_a_vertex(connectivity: Connectivity) -> None:
    rng = np.random.default_rng(0)
    edges = grid_edges((5, 5), connectivity)
    for lower in itertools.product((0, 1), repeat=8):
        # A high frame keeps apart what the ring does not join.
        grid: Array = rng.permutation(25).reshape(5, 5) + np.float64(100)
        ring = np.insert(np.where(lower, rng.permutation(8), 60 + rng.permutation(8)), 4, 50)
        grid[1:4, 1:4] = ring.reshape(3, 3)
        found = sublevel_grid(grid, connectivity=connectivity)
        assert_is(found, grid, *by_full_sort(grid.ravel(), edges))


@thorough
@given(graphs())
@example((np.zeros(1), np.zeros((0, 2), np.int64)))
@example((np.array([0.0, 0.0, 0.0, 1.0]), np.array([[3, 0], [3, 1], [3, 2], [3, 3], [0, 3]])))
def test_graphs_by_full_sort(graph: tuple[Array, Edges]) -> None:
    values, edges = graph
    assert_is(sublevel_graph(values, edges), values, *by_full_sort(values, edges))


@moderate
@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_edges_does_not_matter(graph: tuple[Array, Edges], random: Any) -> None:
    values, edges = graph
    mixed = [tuple(random.sample(edge, 2)) for edge in edges.tolist() * 2] + [(v, v) for v in range(len(values))]
    random.shuffle(mixed)
    assert_same(sublevel_graph(values, mixed), sublevel_graph(values, edges))


# Against GUDHI


@pytest.mark.parametrize(("connectivity", "cells"), [("4", "vertices"), ("8", "top_dimensional_cells")])
@pytest.mark.parametrize("digits", [1, 16])
def test_large_noise_by_gudhi(connectivity: Connectivity, cells: str, digits: int) -> None:
    grid = np.random.default_rng(digits).normal(size=(150, 211)).round(digits)
    complex_ = gudhi.CubicalComplex(**{cells: grid})
    complex_.compute_persistence()
    found = sublevel_grid(grid, connectivity=connectivity)
    assert_array_equal(found.diagram.pairs, finite(complex_.persistence_intervals_in_dimension(0)))


@pytest.mark.parametrize("n_levels", [5, 10**6])
def test_large_random_graphs_by_gudhi(n_levels: int) -> None:
    rng = np.random.default_rng(n_levels)
    values, edges = rng.integers(n_levels, size=3000).astype(float), rng.integers(3000, size=(4000, 2))
    bars = simplex_tree_bars(values, edges)
    found = sublevel_graph(values, edges)
    assert_array_equal(found.diagram.pairs, finite(bars))
    assert found.diagram.n_essential == np.isinf(bars[:, 1]).sum() > 1


# Degenerate functions


def test_a_basin_as_long_as_the_grid() -> None:
    # One winding valley through all of the grid, and a second minimum at its upper end.
    grid = np.full((201, 201), 1e9)
    grid[::2] = np.arange(101 * 201).reshape(101, 201)
    grid[2::4] = grid[2::4, ::-1].copy()
    grid[1::4, -1] = grid[0:-1:4, -1] + 0.5
    grid[3::4, 0] = grid[2:-1:4, 0] + 0.5
    grid[-1, -1] = 0.5
    found = sublevel_grid(grid, connectivity="4")
    assert found.diagram.pairs.tolist() == [[0.5, grid[-1, -2]]]
    assert found.essential_minima.tolist() == [0]


@moderate
@given(grids())
def test_increasing_maps_carry_the_diagram_along(grid: Array) -> None:
    _, ranks = np.unique(grid, return_inverse=True)
    found, ranked = sublevel_grid(grid), sublevel_grid(ranks.reshape(grid.shape))
    assert_array_equal(found.merges, ranked.merges)
    assert_array_equal(found.minima, ranked.minima)
    for connectivity in CONNECTIVITIES:
        turned = sublevel_grid(grid.T, connectivity=connectivity)
        assert_array_equal(turned.diagram.pairs, sublevel_grid(grid, connectivity=connectivity).diagram.pairs)


def test_a_graph_without_edges() -> None:
    empty: tuple[Any, ...] = ([], np.zeros((0, 2)), np.zeros((0, 2), np.int64))
    for nothing in empty:
        assert sublevel_graph([1.0, 1.0], nothing).essential_minima.tolist() == [0, 1]


# Inputs


def test_the_input_is_left_as_it_is() -> None:
    rng = np.random.default_rng(0)
    grid, values, edges = rng.normal(size=(9, 8)), rng.normal(size=20), rng.integers(20, size=(30, 2))
    copies = grid.copy(), values.copy(), edges.copy()
    sublevel_grid(grid)
    sublevel_graph(values, edges)
    for given_, copy in zip((grid, values, edges), copies, strict=True):
        assert_array_equal(given_, copy)
        given_.flags.writeable = False
    sublevel_grid(grid)
    sublevel_graph(values, edges)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, ">f8"])
def test_dtypes_and_views(dtype: Any) -> None:
    wide = np.random.default_rng(1).integers(5, size=(20, 22)).astype(dtype)
    for view in (wide, wide[::2, ::-3], wide.T, np.asfortranarray(wide)):
        assert_same(sublevel_grid(view), sublevel_grid(np.array(view.tolist(), np.float64)))
    edges = np.random.default_rng(2).integers(20, size=(2, 40))
    expected = sublevel_graph(wide[:, 0].tolist(), edges.T.tolist())
    assert_same(sublevel_graph(wide[:, 0], edges.T.astype(np.uint8)), expected)


def test_tensors() -> None:
    grid = torch.randn(12, 13, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert_same(sublevel_grid(grid), sublevel_grid(grid.detach().numpy()))
    assert_same(sublevel_grid(grid.bfloat16()), sublevel_grid(grid.bfloat16().detach().float().numpy()))
    edges = torch.tensor([[0, 1], [1, 2]])
    assert sublevel_graph(torch.tensor([0, 2, 1]), edges).diagram.pairs.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, np.nan]], r"values: 1 of 2 entries are NaN or infinite, shape \(1, 2\)"),
        ([[np.inf, -np.inf]], "values: 2 of 2 entries"),
        (np.zeros((0, 3)), r"values: .* at least one entry, got shape \(0, 3\)"),
        ([1.0, 2.0], r"values: expected a 2-D grid, shape \(m, n\), got shape \(2,\)"),
        (3.0, r"got shape \(\)"),
        (np.zeros((2, 2, 2)), r"got shape \(2, 2, 2\)"),
        ([[1j]], "values: expected real numbers, got complex128"),
        ([["a", "b"]], "values: expected real numbers, got <U1"),
        ([[None, 1.0]], "values: expected real numbers, got object"),
        ([[1.0], [1.0, 2.0]], "values: "),
        ([[2**53 + 1]], r"values: expected integers within 2\^53"),
        ([[-(2**63)]], r"values: expected integers within 2\^53"),
        (np.array([["2020-01-01"]], "M8[D]"), "values: expected real numbers"),
    ],
)
def test_bad_grids(values: Any, message: str) -> None:
    with pytest.raises(ToposcopeError, match=message) as error:
        sublevel_grid(values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("connectivity", ["6", 4, None, "", ["8"]])
def test_bad_connectivity(connectivity: Any) -> None:
    with pytest.raises(ToposcopeError, match="connectivity: expected '4', '8' or 'freudenthal', got"):
        sublevel_grid([[1.0]], connectivity=connectivity)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([[0, 3]], r"edges: expected vertices from 0 to 2, got 3, shape \(1, 2\)"),
        ([[-1, 0]], "edges: expected vertices from 0 to 2, got -1"),
        (np.array([[0, 2**64 - 1]], np.uint64), "edges: expected vertices from 0 to 2"),
        ([[0.0, 1.0]], "edges: expected integers, got float64"),
        ([[True, False]], "edges: expected integers, got bool"),
        ([0, 1], r"edges: expected pairs of vertices, shape \(k, 2\), got shape \(2,\)"),
        ([[0, 1, 2]], r"got shape \(1, 3\)"),
        (np.zeros((0, 3), int), r"got shape \(0, 3\)"),
        ([[0, 1], [2]], "edges: "),
        ("no", "edges: "),
    ],
)
def test_bad_edges(edges: Any, message: str) -> None:
    with pytest.raises(ToposcopeError, match=message) as error:
        sublevel_graph([1.0, 2.0, 3.0], edges)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", [[[1.0]], [], 1.0, [np.nan], [1j], ["a"]])
def test_bad_vertex_values(values: Any) -> None:
    with pytest.raises(ToposcopeError, match="values: "):
        sublevel_graph(values, [])
