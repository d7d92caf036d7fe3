"""Critical points of piecewise-linear functions against a walk around each vertex, and the Euler check."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.homology import CriticalPoints, critical_points, critical_points_of_triangles, sublevel_grid

Array = NDArray[np.float64]

AROUND = [(-1, -1), (-1, 0), (0, 1), (1, 1), (1, 0), (0, -1)]
grids = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    elements=st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.0]), st.floats(allow_nan=False, allow_infinity=False)),
)


def by_walking(grid: Array) -> tuple[list[int], dict[int, int], list[int]]:
    """Minima, saddles with their multiplicities, and maxima: count the lower parts of the ring around each vertex."""
    m, n = grid.shape
    minima, saddles, maxima = [], {}, []
    for i, j in np.ndindex(m, n):
        own = (grid[i, j], i * n + j)
        ring = [
            bool((grid[i + a, j + b], (i + a) * n + j + b) < own) if 0 <= i + a < m and 0 <= j + b < n else None
            for a, b in AROUND
        ]
        # a part begins where the one before is not lower, or lies outside
        parts = sum(lower is True and ring[k - 1] is not True for k, lower in enumerate(ring))
        if all(lower is not True for lower in ring):
            minima.append(own[1])
        elif all(lower is True for lower in ring):
            maxima.append(own[1])
        elif parts > 1:
            saddles[own[1]] = parts - 1
    return minima, saddles, maxima


def freudenthal(m: int, n: int) -> NDArray[np.int64]:
    """All triangles of a grid."""
    return np.array(
        [
            (i * n + j, (i + 1) * n + j + 1, third)
            for i in range(m - 1)
            for j in range(n - 1)
            for third in (i * n + j + 1, (i + 1) * n + j)
        ],
        np.int64,
    ).reshape(-1, 3)


def assert_same(first: CriticalPoints, second: CriticalPoints) -> None:
    for name in ("minima", "saddles", "multiplicities", "maxima"):
        assert_array_equal(getattr(first, name), getattr(second, name))


@examples(300)
@given(grids)
@example(np.zeros((1, 1)))
@example(np.zeros((5, 4)))
@example(np.arange(7.0)[None] % 2)
def test_by_walking_around_each_vertex(grid: Array) -> None:
    found = critical_points(grid)
    minima, saddles, maxima = by_walking(grid)
    assert found.minima.tolist() == minima
    assert dict(zip(found.saddles.tolist(), found.multiplicities.tolist(), strict=True)) == saddles
    assert found.maxima.tolist() == maxima
    assert found.index_sum == 1


@examples(150)
@given(grids)
def test_a_grid_is_the_triangulation_of_its_squares(grid: Array) -> None:
    if min(grid.shape) > 1:
        assert_same(critical_points(grid), critical_points_of_triangles(grid.ravel(), freudenthal(*grid.shape)))


@examples(150)
@given(st.integers(2, 7), st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_minima_and_saddles_are_those_of_the_tree(m: int, n: int, seed: int) -> None:
    grid = np.random.default_rng(seed).permutation(m * n).reshape(m, n).astype(float)
    found, tree = critical_points(grid), sublevel_grid(grid, connectivity="freudenthal")
    assert found.minima.tolist() == sorted([*tree.minima, *tree.essential_minima])
    joins = np.unique(tree.merges[:, 2], return_counts=True)
    multiplicity = dict(zip(found.saddles.tolist(), found.multiplicities.tolist(), strict=True))
    assert all(multiplicity[v] >= count for v, count in zip(*(each.tolist() for each in joins), strict=True))


def test_the_index_sum_is_the_euler_characteristic() -> None:
    ring = [[k, (k + 1) % 4, 4 + k] for k in range(4)] + [[(k + 1) % 4, 4 + (k + 1) % 4, 4 + k] for k in range(4)]
    for seed in range(20):
        assert critical_points_of_triangles(np.random.default_rng(seed).normal(size=8), ring).index_sum == 0
    assert critical_points_of_triangles([1.0, 2.0], np.empty((0, 3), int)).index_sum == 2


@pytest.mark.parametrize("triangles", [[[0, 1]], [[0.0, 1.0, 2.0]], [[0, 1, 3]], [[-1, 0, 1]], [0, 1, 2]])
def test_bad_triangles(triangles: Any) -> None:
    with pytest.raises(ToposcopeError, match="triangles: expected"):
        critical_points_of_triangles([1.0, 2.0, 3.0], triangles)


def test_bad_values() -> None:
    with pytest.raises(ToposcopeError, match="values: expected a 2-D grid"):
        critical_points([1.0, 2.0])
    with pytest.raises(ToposcopeError, match="NaN or infinite"):
        critical_points_of_triangles([1.0, np.nan, 2.0], [[0, 1, 2]])
