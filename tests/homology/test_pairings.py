"""Pairings against the diagrams they belong to, SciPy's spanning tree, and GUDHI's persistence pairs."""

from typing import Any

import gudhi
import numpy as np
import pytest
from hard_cases import LARGE_CLOUDS, LARGE_MATRICES, Array, clouds, large_matrix, matrices
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from property_examples import examples
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.distance import cdist
from weight_matrices import FORMATS, widened

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    neural_persistence,
    neural_persistence_pairing,
    neural_persistence_pairing_batch,
    rips,
    rips_pairings,
    rips_pairings_batch,
)
from toposcope.homology.point_cloud import Euclidean
from toposcope.typing import Indices

thorough = examples(100)
moderate = examples(60)


def is_tree(ends: Indices, n: int) -> bool:
    """Whether edges, each with its smaller end first, join n points without a cycle."""
    graph = csr_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), (n, n))
    return bool((ends[:, 0] < ends[:, 1]).all()) and len(ends) == n - 1 and connected_components(graph)[0] == 1


def lengths_of(points: Array, ends: Indices, metric: str) -> Array:
    if metric == "precomputed":
        return points[ends[:, 0], ends[:, 1]]
    if metric == "cosine":
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
    squares: Array = ((points[ends[:, 0]] - points[ends[:, 1]]) ** 2).sum(axis=1)
    return squares / 2 if metric == "cosine" else np.sqrt(squares)


def assert_elders_survive(named: Indices) -> None:
    """Check that every edge ends the component without the least point, named by its own least point."""
    component = {int(end): {int(end)} for end in named[:, 1:].ravel()}
    for vertex, a, b in named.tolist():
        assert vertex == max(min(component[a]), min(component[b]))
        united = component[a] | component[b]
        component |= dict.fromkeys(united, united)


def assert_pairs(points: Array, metric: Any = "euclidean", *, rtol: float, atol: float = 0) -> None:
    """Check that the pairings of a cloud have the lengths of its diagrams, in their order."""
    (named, h1), (pairs0, pairs1) = rips_pairings(points, metric=metric), rips(points, metric=metric)
    h0 = named[:, 1:]
    assert is_tree(h0, len(points))
    assert_elders_survive(named)
    assert_allclose(lengths_of(points, h0, metric), pairs0.pairs[:, 1], rtol=rtol, atol=atol)
    assert_allclose(lengths_of(points, h1[:, :2], metric), pairs1.pairs[:, 0], rtol=rtol, atol=atol)
    assert_allclose(lengths_of(points, h1[:, 2:], metric), pairs1.pairs[:, 1], rtol=rtol, atol=atol)
    if metric == "euclidean":  # to the last bit, as the engine measures them
        matrix = Euclidean.of(points, "points").distances(np.arange(len(points)))
        assert_array_equal(matrix[h1[:, 0::2], h1[:, 1::2]], pairs1.pairs)
    assert h0.dtype == h1.dtype == np.int64
    assert h1.shape == (len(pairs1.pairs), 4)
    assert_array_equal(rips_pairings(points, metric=metric, max_dimension=0)[0], named)


@thorough
@given(clouds(exact=True))
@example(np.zeros((5, 2)))
@example(np.zeros((1, 1)))
@example(np.array([[0.0, 1.0], [3.0, 1.0]]))
def test_lengths_that_do_not_round_are_those_of_the_diagrams(points: Array) -> None:
    assert_pairs(points, rtol=0)


@thorough
@given(clouds())
def test_pairings_have_the_lengths_of_the_diagrams(points: Array) -> None:
    assert_pairs(points, rtol=1e-14)
    distances = cdist(points, points)
    assert_pairs(distances, "precomputed", rtol=0)
    directions = points[np.abs(points).max(axis=1) > 1e-3]
    if len(directions):
        assert_pairs(directions, "cosine", rtol=1e-9, atol=1e-15 * points.shape[1])


@moderate
@given(st.integers(2, 14), st.integers(1, 5), st.integers(0, 2**32))
def test_pairs_are_those_of_gudhi(n: int, d: int, seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(n, d))
    distances = cdist(points, points)
    tree = gudhi.RipsComplex(distance_matrix=distances).create_simplex_tree(max_dimension=2)
    tree.compute_persistence(homology_coeff_field=2, min_persistence=0)
    expected = set()
    for born, died in tree.persistence_pairs():
        if len(born) == 2 and len(died) == 3:
            edges = [sorted(set(died) - {corner}) for corner in died]
            longest = max(edges, key=lambda edge: distances[edge[0], edge[1]])
            if distances[born[0], born[1]] < distances[longest[0], longest[1]]:
                expected.add((*sorted(born), *longest))
    h0, h1 = rips_pairings(points)
    assert set(map(tuple, h1.tolist())) == expected
    scipy = minimum_spanning_tree(csr_matrix(np.triu(distances))).tocoo()
    assert set(map(tuple, h0[:, 1:].tolist())) == set(zip(scipy.row.tolist(), scipy.col.tolist(), strict=True))


@pytest.mark.parametrize("kind", LARGE_CLOUDS)
def test_trees_of_middle_sized_clouds(kind: str) -> None:
    for n, d in ((300, 5), (1200, 40)):
        points = LARGE_CLOUDS[kind](np.random.default_rng(0), n, d)
        [named] = rips_pairings(points, max_dimension=0)
        ends = named[:, 1:]
        assert is_tree(ends, n)
        deaths = rips(points, max_dimension=0)[0].pairs[:, 1]
        assert_allclose(lengths_of(points, ends, "euclidean"), deaths, rtol=1e-13, atol=0)


def test_float32_far_from_the_origin() -> None:
    points = (1e4 + np.random.default_rng(0).normal(size=(50, 3))).astype(np.float32)
    assert_pairs(points.astype(np.float64), rtol=1e-15)
    assert_array_equal(rips_pairings(points)[0], rips_pairings(points.astype(np.float64))[0])


@pytest.mark.parametrize("format", FORMATS)
def test_points_of_every_format(format: str) -> None:
    points = FORMATS[format](np.random.default_rng(0).normal(size=(40, 3)))
    for ends, expected in zip(rips_pairings(points), rips_pairings(widened(points)), strict=True):
        assert_array_equal(ends, expected)


def test_infinite_distances_leave_bars_out() -> None:
    distances = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))
    distances[:2, 2:] = distances[2:, :2] = np.inf
    h0, h1 = rips_pairings(distances, metric="precomputed")
    assert_array_equal(h0, [[1, 0, 1], [3, 2, 3], [4, 3, 4], [5, 4, 5]])
    assert h1.shape == (0, 4)


def test_refusals() -> None:
    points = np.zeros((4, 2))
    with pytest.raises(ToposcopeError, match=r"^max_dimension: expected 0 or 1, got 2; pairings are of H0 and"):
        rips_pairings(points, max_dimension=2)
    with pytest.raises(ToposcopeError, match=r"^points: H1 of 70000 points, and at most 65536 can be taken; take"):
        rips_pairings(np.random.default_rng(0).normal(size=(70_000, 5)))
    for lengths in ([1], [0, 1], [1, 5], [1.0, 2.0]):
        with pytest.raises(ToposcopeError, match=r"^lengths: expected 2 whole numbers from 1 to 4, got"):
            rips_pairings_batch([points, points], lengths=lengths)
    with pytest.raises(ToposcopeError, match=r"^stack: expected several matrices of one shape, \(b, n, d\), got"):
        rips_pairings_batch(points)
    with pytest.raises(ToposcopeError, match=r"^stack\[0\]: expected \(n, n\) distances, got shape \(3, 5\)$"):
        rips_pairings_batch(np.zeros((2, 3, 5)), metric="precomputed")


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "precomputed"])
def test_faults_of_a_batch_name_the_cloud(metric: Any) -> None:
    stack = np.ones((3, 4, 4)) - np.eye(4)
    stack[2, 0, 1] = np.nan
    for max_dimension in (0, 1):
        for names, name in ((None, r"stack\[2\]"), (["a", "b", "c"], "c")):
            with pytest.raises(ToposcopeError, match=rf"^{name}: 1 of 16 entries are NaN or infinite"):
                rips_pairings_batch(stack, max_dimension=max_dimension, metric=metric, names=names)
    for large in (1, 90):
        with pytest.raises(
            ToposcopeError, match=rf"^stack\[2\]: {large**2} of {16 * large**2} entries are NaN or infinite"
        ):
            neural_persistence_pairing_batch(np.kron(stack, np.ones((large, large))))


@moderate
@given(st.data(), st.sampled_from(["euclidean", "cosine", "precomputed"]))
def test_a_batch_is_its_clouds(data: st.DataObject, metric: Any) -> None:
    b, n, d = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.integers(1, n), min_size=b, max_size=b))
    stack = np.random.default_rng(data.draw(st.integers(0, 99))).integers(1, 6, (b, n, d)).astype(np.float64)
    if metric == "precomputed":
        stack = np.stack([cdist(points, points) for points in stack])
    each = [
        (named[:, 1:], h1)
        for a, k in zip(stack, lengths, strict=True)
        for named, h1 in [rips_pairings(a[:k, :k] if metric == "precomputed" else a[:k], metric=metric)]
    ]
    for k, j in enumerate(lengths):
        stack[k, j:] = np.nan  # not looked at
    together = rips_pairings_batch(stack, metric=metric, lengths=lengths)
    assert together[0].shape == (b, n - 1, 2)
    assert together[1].shape == (b, max(len(h1) for _, h1 in each), 4)
    for dimension in (0, 1):
        for row, pairings in zip(together[dimension], each, strict=True):
            assert_array_equal(row[: len(pairings[dimension])], pairings[dimension])
            assert (row[len(pairings[dimension]) :] == -1).all()


def assert_is_tree_of(W: Any, entries: Indices) -> None:
    """Check that entries are a spanning tree of rows and columns, and the deaths of W, in their order."""
    sizes, persistence = np.abs(widened(W)), neural_persistence(W)
    m, n = sizes.shape
    assert entries.dtype == np.int64
    assert is_tree(np.column_stack([entries[:, 0], m + entries[:, 1]]), m + n)
    weights = sizes[entries[:, 0], entries[:, 1]]
    assert_array_equal(weights / persistence.scale if persistence.scale else weights + 1, persistence.deaths)


@thorough
@given(matrices(extreme=False))
@example(np.zeros((3, 2)))
@example(np.ones((1, 1), np.float32))
@example(np.full((4, 3), -0.5))
def test_entries_are_the_maximum_spanning_tree(W: NDArray[Any]) -> None:
    entries = neural_persistence_pairing(W)
    assert_is_tree_of(W, entries)
    assert_array_equal(neural_persistence_pairing_batch([W[::-1], W])[1], entries)
    for view in (W.T, W[::-1], W[:, ::-1]):
        assert_is_tree_of(view, neural_persistence_pairing(view))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", [(40, 60), (350, 300)], ids=str)
def test_entries_of_every_format(format: str, shape: tuple[int, int]) -> None:
    for kind in LARGE_MATRICES:
        W = FORMATS[format](large_matrix(kind, *shape))
        assert_is_tree_of(W, neural_persistence_pairing(W))
