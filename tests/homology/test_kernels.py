"""The kernels alone, where the functions that call them cannot be used to test them."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from property_examples import examples
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from toposcope.kernels import bipartite_tree, compiled
from toposcope.kernels.bipartite_tree import SURVIVORS_PER_VERTEX, bipartite_tree_keys, heavy_entries
from toposcope.kernels.magnitudes import Magnitudes
from toposcope.kernels.sets import bits_above, empty_tree, find, join, largest, toggle

moderate = examples(100)


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
@given(st.integers(2, 30), st.data())
def test_join_returns_whether_two_trees_became_one(n: int, data: st.DataObject) -> None:
    parent, group = np.arange(n, dtype=data.draw(st.sampled_from([np.uint32, np.int64]))), list(range(n))
    for a, b in data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=2 * n)):
        assert join(parent, a, b) == (group[a] != group[b])
        group = [group[a] if g == group[b] else g for g in group]
    for a in range(n):
        assert [find(parent, a) == find(parent, b) for b in range(n)] == [group[a] == group[b] for b in range(n)]


def magnitudes(W: NDArray[Any], rows: NDArray[np.int64] | None = None) -> Magnitudes:
    return Magnitudes.of(W.view(f"u{W.itemsize}"), W.dtype.name, rows)


def tree_weights(W: NDArray[Any], n_threads: int = 1, rows: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    matrix = magnitudes(W, rows)
    return matrix.values(bipartite_tree_keys(matrix, n_threads)[::-1])


def scipy_weights(W: NDArray[Any]) -> NDArray[np.float64]:
    """The same by SciPy, on ranks: they are positive, so that a zero weight is not taken for a missing edge."""
    m, n = W.shape
    levels, rank = np.unique(np.abs(W).astype(np.float64), return_inverse=True)
    columns = np.tile(np.arange(m, m + n, dtype=np.int32), m)  # of SciPy 1.17.0, no other width
    starts = np.append(np.arange(m) * n, np.full(n + 1, m * n)).astype(np.int32)
    graph = csr_array((len(levels) - rank.ravel(), columns, starts), (m + n, m + n))
    tree = minimum_spanning_tree(graph)
    weights: NDArray[np.float64] = np.sort(levels[len(levels) - tree.data.astype(int)])
    return weights


def hard_case(kind: str, m: int, n: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(11)
    W = rng.normal(size=(m, n))
    if kind == "ternary":
        return np.round(W).clip(-1, 1)
    if kind == "equal":
        return np.full((m, n), 0.5)
    if kind == "zeros":
        return np.zeros((m, n))
    if kind == "dead":
        W[::3] = 0
        W[:, ::5] = 0
        return np.round(W, 1)
    if kind == "scales":
        W *= np.exp2(rng.integers(-6, 7, (m, 1)) + rng.integers(-6, 7, (1, n)))
    if kind == "blocks":
        W *= np.arange(m)[:, None] * 4 // m == np.arange(n) * 4 // n
    if kind == "ascending":
        return np.sort(W, axis=None).reshape(m, n)
    return W


KINDS = ["normal", "ternary", "equal", "zeros", "dead", "scales", "blocks", "ascending"]


@pytest.mark.parametrize("kind", KINDS)
def test_tree_of_views(kind: str) -> None:
    W = hard_case(kind, 1100, 900).astype(np.float32)
    for view in (W[::3, ::2], W[::-3, ::-2], W[:400, 5:], W[700:, ::-3].T):
        assert_array_equal(tree_weights(view), scipy_weights(view))
    rows = np.random.default_rng(3).permutation(1100)[:350]
    for other in (W, np.asfortranarray(W), W[:, ::-1]):
        assert_array_equal(tree_weights(other, rows=rows), scipy_weights(W[rows]))
    assert_array_equal(tree_weights(W[::-1], rows=rows), scipy_weights(W[::-1][rows]))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_tree_does_not_depend_on_threads(kind: str, dtype: type[np.floating]) -> None:
    # Sorted entries lie in the rows of the last thread, which has room for its share of the heavy ones only.
    W = hard_case(kind, 1024, 800).astype(dtype)
    alone = tree_weights(W)
    if kind in ("ascending", "dead") and dtype is np.float32:
        assert_array_equal(alone, scipy_weights(W))
    for n_threads in (2, 3):
        assert_array_equal(tree_weights(W, n_threads), alone)
    assert_array_equal(tree_weights(W[:, ::-1].T, 3), alone)


@pytest.mark.slow
@pytest.mark.parametrize("index", [np.uint32, np.int64])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("kind", ["normal", "ternary", "dead"])
def test_tree_with_either_index_and_without_the_filter(kind: str, filtered: bool, index: type[np.integer]) -> None:
    W = hard_case(kind, 120, 150).astype(np.float32)
    matrix = magnitudes(W)
    for grow in (bipartite_tree._grow, partial(bipartite_tree._grow_by_step, n_threads=1)):
        tree, places = np.empty(269, np.int32), np.empty(269, np.int64)
        grow(matrix.entries, filtered, np.arange(270).astype(index), tree, places)
        assert_array_equal(np.sort(matrix.values(tree)), scipy_weights(W))
        assert_array_equal(np.abs(W).flat[places], matrix.values(tree))


def hankel_weights(v: NDArray[Any], m: int, n: int) -> NDArray[np.float64]:
    """Tree of the m x n matrix of entries v[i + j], by Kruskal's algorithm on whole anti-diagonals, from the heaviest.

    Of equal ones the longest comes first: any order will do, and few of these join all.
    """
    weights = np.abs(v).astype(np.float64)
    tree_of, n_trees, found = np.arange(m + n), m + n, []
    for k in np.lexsort((np.abs(np.arange(m + n - 1) - (m + n) // 2), -weights)):
        i = np.arange(max(0, k - n + 1), min(m, k + 1))
        joined = coo_array((np.ones(len(i)), (tree_of[i], tree_of[m + k - i])), (n_trees, n_trees))
        n_left, merged = connected_components(joined, directed=False)
        found.append(np.full(n_trees - n_left, weights[k]))
        tree_of, n_trees = merged[tree_of], n_left
        if n_trees == 1:
            break
    return np.sort(np.concatenate(found))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "ternary"])
def test_positions_beyond_32_bits(kind: str) -> None:
    # Every row is a window of one vector: 4.4e9 entries in half a megabyte.
    m, n = 66_000, 66_500
    assert m * n > 1 << 32
    v = np.zeros(m + n - 1, np.float32)
    if kind == "normal":
        v[:] = np.random.default_rng(0).normal(size=len(v))
    else:
        v[[65_000, 66_400, 70_000]] = 1, -1, 1  # they leave 200 trees, which zeros join
    expected = hankel_weights(v, m, n)
    assert len(expected) == m + n - 1
    assert_array_equal(tree_weights(as_strided(v, (m, n), 2 * v.strides)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["normal", "ascending", "equal", "ternary"])
@pytest.mark.parametrize("step", [1, 2])
def test_heavy_entries_are_all_above_the_threshold(kind: str, dtype: type[np.floating], step: int) -> None:
    W = hard_case(kind, 500, 400 * step).astype(dtype)[:, ::step]
    matrix = magnitudes(W)
    keys = matrix.entries.buffer[matrix.entries.starts[:, None] + np.arange(400) * step] & matrix.entries.mask
    room = 1.6 * SURVIVORS_PER_VERTEX * 900 + 256
    for begin, end in ((0, 500), (0, 250), (250, 500), (490, 500)):
        heavy = heavy_entries(matrix.entries, np.empty(0, np.uint32), begin, end)
        order = np.argsort(heavy.positions)
        above = np.flatnonzero(keys[begin:end] > heavy.threshold)
        assert_array_equal(heavy.positions[order], above + begin * 400)
        assert_array_equal(heavy.keys[order], keys[begin:end].ravel()[above])
        assert len(heavy.keys) <= room * (end - begin) / 500 + 256
    if kind == "ascending":
        # The last rows hold nearly all: their threshold had to be raised.
        assert heavy.threshold > heavy_entries(matrix.entries, np.empty(0, np.uint32), 0, 500).threshold
    assert heavy.tied == (kind in ("equal", "ternary"))


@pytest.mark.parametrize("filtered", [False, True])
def test_worst_case_of_many_rounds(filtered: bool) -> None:
    # A staircase: row i reaches columns i and i + 1 only, with weights that halve the components as slowly as can be.
    n = 400
    W = np.zeros((n, n + 1), np.float32)
    valuation = np.array([(k & -k).bit_length() for k in range(1, 2 * n + 1)], np.float32)
    steps = 64 - valuation
    W[np.arange(n), np.arange(n)] = steps[0::2]
    W[np.arange(n), np.arange(n) + 1] = steps[1::2]
    matrix = magnitudes(W)
    tree, places = np.empty(2 * n, np.int32), np.empty(2 * n, np.int64)
    bipartite_tree._grow(matrix.entries, filtered, np.arange(2 * n + 1, dtype=np.uint32), tree, places)
    assert_array_equal(W.flat[places], matrix.values(tree))
    assert_array_equal(np.sort(matrix.values(tree)), np.sort(steps))


def test_bfloat16_and_not_finite_keys() -> None:
    bits = (hard_case("normal", 350, 300).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    matrix = Magnitudes.of(bits, "bfloat16")
    W = (bits.astype(np.uint32) << 16).view(np.float32)
    assert_array_equal(np.sort(matrix.values(bipartite_tree_keys(matrix))), scipy_weights(W))
    # Keys of all bits, beyond those of every number, still are the largest.
    for dtype in (np.float16, np.float32, np.float64):
        bad = hard_case("normal", 350, 300).astype(dtype)
        bad.view(f"u{bad.itemsize}")[7, 5] = np.iinfo(f"u{bad.itemsize}").max
        bad[9] = np.inf
        matrix = magnitudes(bad)
        assert bipartite_tree_keys(matrix).max() == matrix.entries.mask
        assert matrix.n_not_finite() == 301


@moderate
@given(st.sampled_from([1, 64, 65, 5000, 300_000]), st.data())
def test_a_bit_tree_is_a_set_with_its_largest_member(size: int, data: st.DataObject) -> None:
    tree, members = empty_tree(size), set[int]()
    assert largest(tree) == -1
    for member in data.draw(st.lists(st.integers(0, size - 1), max_size=30)):
        toggle(tree, member)
        members ^= {member}
        assert largest(tree) == max(members, default=-1)


@compiled.compiled
def word_above(keys: NDArray[Any], start: int, mask: Any, threshold: Any) -> Any:
    return bits_above(keys, start, mask, threshold)


@moderate
@given(st.sampled_from([np.int16, np.int32, np.int64]), st.integers(0, 20), st.integers(0, 2**31), st.data())
def test_bits_of_a_word_tell_which_numbers_exceed_a_threshold(
    dtype: type[np.signedinteger], start: int, seed: int, data: st.DataObject
) -> None:
    bounds = np.iinfo(dtype)
    few = np.random.default_rng(seed).integers(bounds.min, bounds.max, 8, dtype, endpoint=True)
    keys = np.random.default_rng(seed + 1).choice(few, 64 + start)
    mask = dtype(data.draw(st.sampled_from([-1, bounds.max, bounds.max >> 1])))
    threshold = dtype(data.draw(st.sampled_from([*(few & mask).tolist(), bounds.min, bounds.max])))
    word = int(word_above(keys, start, mask, threshold))
    assert [word >> k & 1 for k in range(64)] == ((keys[start:] & mask) > threshold).tolist()
