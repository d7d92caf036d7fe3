"""The kernels alone: what the functions above them do not show."""

from typing import Any

import numpy as np
import pytest
from hard_cases import Array, clouds, matrices
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from toposcope.kernels.bipartite_tree import bipartite_tree_weights
from toposcope.kernels.euclidean_tree import euclidean_tree_lengths
from toposcope.kernels.union_find import find

moderate = settings(max_examples=100, deadline=None)


@moderate
@given(st.integers(1, 30).flatmap(lambda n: st.tuples(*(st.integers(0, v) for v in range(n)))), st.data())
def test_find_reaches_the_root_and_changes_no_component(links: tuple[int, ...], data: st.DataObject) -> None:
    # A parent of no higher number: such an array is a forest, whatever its shape.
    parent = np.array(links)

    def root(v: int) -> int:
        while links[v] != v:
            v = links[v]
        return v

    roots = [root(v) for v in range(len(links))]
    for v in data.draw(st.permutations(range(len(links)))):
        assert find(parent, v) == roots[v]
    assert [find(parent, v) for v in range(len(links))] == roots


def test_find_halves_a_long_path() -> None:
    parent = np.maximum(np.arange(1000) - 1, 0)
    assert find(parent, 999) == 0
    # Every other vertex of the path now points to its grandparent.
    assert_array_equal(parent[999:1:-2], np.arange(997, -1, -2))


@moderate
@given(matrices())
def test_tree_weights_keep_the_dtype_and_are_entries(W: NDArray[Any]) -> None:
    weights = bipartite_tree_weights(W)
    assert weights.dtype == W.dtype
    assert weights.shape == (sum(W.shape) - 1,)
    assert set(weights.tolist()) <= set(np.abs(W).ravel().tolist())
    # The heaviest edge of every row and of every column is in some maximum spanning tree, so its weight is here.
    assert set(np.abs(W).max(axis=0).tolist()) | set(np.abs(W).max(axis=1).tolist()) <= set(weights.tolist())


def test_worst_case_of_many_rounds() -> None:
    # A staircase: row i reaches columns i and i + 1 only, with weights that halve the components as slowly as can be.
    n = 257
    W = np.zeros((n, n + 1), np.float32)
    valuation = np.array([(k & -k).bit_length() for k in range(1, 2 * n + 1)], np.float32)
    steps = 64 - valuation
    W[np.arange(n), np.arange(n)] = steps[0::2]
    W[np.arange(n), np.arange(n) + 1] = steps[1::2]
    assert_array_equal(np.sort(bipartite_tree_weights(W)), np.sort(steps))


@moderate
@given(clouds(exact=True))
def test_tree_lengths_are_those_of_a_slow_prim(points: Array) -> None:
    lengths = euclidean_tree_lengths(points)
    inside, outside = [0], list(range(1, len(points)))
    squared = np.sum((points[:, None] - points[None]) ** 2, axis=-1)
    remaining = []
    while outside:
        cut = squared[np.ix_(inside, outside)]
        remaining.append(float(np.sqrt(cut.min())))
        inside.append(outside.pop(int(cut.min(axis=0).argmin())))
    assert lengths.shape == (len(points) - 1,)
    assert lengths[:1].tolist() == remaining[:1]
    assert_array_equal(np.sort(lengths), np.sort(remaining))


@pytest.mark.parametrize("offset", [0.0, 2.0**30, -(2.0**40)])
def test_tree_lengths_survive_a_distant_origin(offset: float) -> None:
    # Squared norms would leave nothing of steps of 2^-10 at a distance of 2^40; coordinate differences are exact.
    steps = np.random.default_rng(4).permutation(np.arange(1, 41)) * 2.0**-10
    line = np.cumsum(steps)[:, None] * np.array([[1.0, 0.0, -1.0]]) + offset
    assert_array_equal(np.sort(euclidean_tree_lengths(line)), np.sqrt(2 * np.sort(steps[1:]) ** 2))


def test_tree_lengths_of_a_single_point() -> None:
    assert euclidean_tree_lengths(np.zeros((1, 3))).shape == (0,)
