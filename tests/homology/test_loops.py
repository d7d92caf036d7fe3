"""The engine of H1 against GUDHI's simplex tree and its Rips engine, on clouds and on matrices that are no metric."""

from importlib import import_module

import gudhi
import numpy as np
import pytest
from gudhi.sklearn import RipsPersistence
from hard_cases import CLOUD_KINDS, Array, clouds, hard_cloud
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from property_examples import examples
from scipy.spatial.distance import cdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import Loop, farthest_points, longest_loops, loops, memory, points_for_loops, rips
from toposcope.homology.loops import LoopFiltration, closed_paths, loop_diagram
from toposcope.homology.point_cloud import with_distances
from toposcope.kernels import annotations, loop_edges
from toposcope.kernels.loop_cycles import odd_branches

rips_module = import_module("toposcope.homology.rips")  # the package has the function by this name

thorough = examples(400)
moderate = examples(100)


def symmetric(upper: list[float]) -> Array:
    """Return the matrix with these entries above its diagonal."""
    return np.asarray(squareform(np.array(upper, dtype=float)))


def sides(n: int) -> int:
    return n * (n - 1) // 2


matrices = st.integers(2, 11).flatmap(
    lambda n: st.lists(
        st.one_of(
            st.integers(1, 4).map(float),  # ties everywhere, the triangle inequality broken at will
            st.sampled_from([1.0, np.nextafter(1.0, 2), 1.5, 2.0, np.inf]),
            st.floats(1e-3, 1e3),
            st.sampled_from([0.0, -0.0, 5e-324, 1e-300, 1e300]),
        ),
        min_size=sides(n),
        max_size=sides(n),
    ).map(symmetric)
)
"""Symmetric matrices, most of them of no metric; some distances infinite, some one digit apart."""

sparse = st.integers(3, 10).flatmap(
    lambda n: st.lists(st.sampled_from([1.0, 2.0, np.inf, np.inf, np.inf]), min_size=sides(n), max_size=sides(n)).map(
        symmetric
    )
)
"""Most distances infinite: several components, and loops that never end."""

integers = st.integers(2, 14).flatmap(
    lambda n: st.lists(st.integers(0, 3).map(float), min_size=sides(n), max_size=sides(n)).map(symmetric)
)
"""Small whole numbers, zeros among them."""


def loops_of_simplex_tree(matrix: Array, cap: float = np.inf) -> tuple[Array, int]:
    """Bars of H1 of positive length over Z/2, sorted, and how many never end."""
    finite = np.where(np.isfinite(matrix), matrix, 0)
    tree = gudhi.SimplexTree()
    n = len(matrix)
    tree.insert_batch(np.arange(n)[None, :], np.zeros(n))
    ends = np.array([(i, j) for i in range(n) for j in range(i) if matrix[i, j] <= cap and np.isfinite(matrix[i, j])])
    if len(ends):
        tree.insert_batch(ends.T, finite[ends[:, 0], ends[:, 1]])
    tree.expansion(2)
    tree.compute_persistence(homology_coeff_field=2, persistence_dim_max=True)
    bars = tree.persistence_intervals_in_dimension(1).reshape(-1, 2)
    is_open = np.isinf(bars[:, 1])
    return in_order(bars[~is_open]), int(is_open.sum())


def loops_of_engine(matrix: Array) -> Array:
    """Bars of H1, by GUDHI's engine for Rips complexes."""
    engine = RipsPersistence(homology_dimensions=[1], input_type="full distance matrix", homology_coeff_field=2)
    bars = np.asarray(engine.fit_transform([matrix])[0][0]).reshape(-1, 2)
    return in_order(bars[bars[:, 1] > bars[:, 0]])


def in_order(bars: Array) -> Array:
    return bars[np.lexsort((bars[:, 1], bars[:, 0]))]


# Diagrams


@thorough
@given(st.one_of(matrices, integers, sparse))
@example(symmetric([1.0]))
@example(symmetric([np.inf, np.inf, 1.0, np.inf, 1.0, np.inf]))
@example(np.zeros((6, 6)))
@example(symmetric([np.inf] * sides(5)))
def test_loops_are_those_of_the_simplex_tree(matrix: Array) -> None:
    bars, n_open = loops_of_simplex_tree(matrix)
    found = loop_diagram(matrix)
    assert_array_equal(in_order(found.pairs), bars)
    assert (found.n_essential, found.n_truncated) == (n_open, 0)


@moderate
@given(st.one_of(matrices, integers), st.data())
def test_a_cap_leaves_open_what_it_cuts(matrix: Array, data: st.DataObject) -> None:
    cap = data.draw(st.sampled_from(sorted({0.5, *matrix[np.isfinite(matrix)].tolist()})))
    bars, n_open = loops_of_simplex_tree(matrix, cap)
    found = loop_diagram(matrix, cap)
    assert_array_equal(in_order(found.pairs), bars)
    is_capped = cap < matrix[np.isfinite(matrix)].max()
    assert (found.n_essential, found.n_truncated) == ((0, n_open) if is_capped else (n_open, 0))


def test_a_cap_of_minus_zero_is_zero() -> None:
    matrix = np.ones((4, 4)) - np.eye(4)
    for i in range(4):
        matrix[i, (i + 1) % 4] = matrix[(i + 1) % 4, i] = 0
    assert loop_diagram(matrix, -0.0).n_truncated == loop_diagram(matrix, 0.0).n_truncated == 1


@moderate
@given(st.one_of(matrices, integers), st.floats(0.01, 0.5), st.integers(1, 8))
def test_in_what_parts_edges_enter_does_not_matter(matrix: Array, share: float, per_bucket: int) -> None:
    whole = loop_diagram(matrix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_edges, "EDGES_PER_BUCKET", per_bucket)
        patch.setattr(loops, "FIRST_EDGE_SHARE", share)
        patch.setattr(loops, "GROWTH", 1.5)
        in_parts = loop_diagram(matrix)
    assert_array_equal(in_parts.pairs, whole.pairs)
    assert (in_parts.n_essential, in_parts.n_truncated) == (whole.n_essential, whole.n_truncated)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLOUD_KINDS)
@pytest.mark.parametrize(("n", "d"), [(60, 1), (150, 2), (200, 10), (250, 300)])
def test_loops_of_larger_clouds_are_those_of_the_other_engine(kind: str, n: int, d: int) -> None:
    points = hard_cloud(kind, n, d)
    for matrix in (cdist(points, points), cdist(points, points).astype(np.float32).astype(float)):
        assert_array_equal(in_order(loop_diagram(matrix).pairs), loops_of_engine(matrix))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d", "count"), [(800, 2, 800), (800, 64, 800), (1500, 256, 600)])
def test_loops_of_clouds_that_enter_in_parts(n: int, d: int, count: int) -> None:
    points = np.random.default_rng(0).normal(size=(n, d))
    matrix = cdist(points, points)
    if count < n:  # landmarks, whose distances are nearly equal
        landmarks = farthest_points(points, count)[0]
        matrix = matrix[np.ix_(landmarks, landmarks)]
    assert_array_equal(in_order(loop_diagram(matrix).pairs), loops_of_engine(matrix))


def test_lunes_that_nearly_all_fall_apart() -> None:
    # Points of three simplices in orthogonal subspaces: nearly every lune falls apart into single points.
    n = 120
    corners = np.eye(n // 3) - 3 / n
    points = np.zeros((n, n))
    for k in range(3):
        points[k::3, k::3] = corners
    matrix = cdist(points, points) + 1e-9 * squareform(np.random.default_rng(0).random(sides(n)))
    assert_array_equal(in_order(loop_diagram(matrix).pairs), loops_of_engine(matrix))


@moderate
@given(st.one_of(matrices, integers))
def test_where_room_runs_out_does_not_matter(matrix: Array) -> None:
    whole = LoopFiltration(matrix, np.inf, keeps_cycles=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(annotations, "no_annotations", without_room)
        patch.setattr(annotations, "SPARE", 1)
        in_steps = LoopFiltration(matrix, np.inf, keeps_cycles=True)
    assert_array_equal(in_steps.pairs(), whole.pairs())
    for loop in np.flatnonzero(np.isfinite(whole.pairs()[:, 1])).tolist():
        assert_array_equal(in_steps.cycle(loop), whole.cycle(loop))


usual = annotations.no_annotations


def without_room() -> annotations.Annotations:
    """The state before the first loop, with room for no more than that."""
    state = usual()
    used = {"parent", "ids", "table"}
    state = state._replace(
        **{
            name: np.zeros_like(array[: 1 if name in used else 0])
            for name, array in state._asdict().items()
            if name != "counters"
        }
    )
    return annotations._with_limits(state)


def test_torsion_is_that_of_two_elements() -> None:
    # The projective plane on six points has a loop over Z/2 that Z/11, GUDHI's default, does not see.
    triangles = [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5), (0, 1, 5), (1, 2, 4), (2, 3, 5), (1, 3, 4), (2, 4, 5)]
    triangles.append((1, 3, 5))
    # Of its barycentric subdivision, which a Rips complex can be: vertices, edges and triangles, near if nested.
    faces = sorted({f for t in triangles for f in (t, *((t[i], t[j]) for i in range(3) for j in range(i + 1, 3)))})
    cells = [frozenset(f) for f in faces] + [frozenset([v]) for v in range(6)]
    matrix = np.array([[0.0 if a == b else 1.0 if a < b or b < a else 2.0 for b in cells] for a in cells])
    assert_array_equal(loop_diagram(matrix).pairs, [[1.0, 2.0]])


def test_more_points_than_can_be_numbered_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MAX_POINTS", 9)
    points = np.random.default_rng(0).normal(size=(10, 2))
    with pytest.raises(ToposcopeError, match=r"points: H1 of 10 points, and at most 9 can be taken; lower max_points"):
        rips(points)
    monkeypatch.setattr(loops, "MAX_POINTS", 10)
    monkeypatch.setattr(memory, "free_memory", lambda: 2399)
    with pytest.raises(ToposcopeError, match=r"points: H1 of 10 points: needs 2.4e-06 GB"):
        longest_loops(points)
    # Of distances that are at hand, the rest.
    monkeypatch.setattr(memory, "free_memory", lambda: 1600)
    assert len(rips(with_distances(points))) == 2
    monkeypatch.setattr(memory, "free_memory", lambda: 1599)
    with pytest.raises(ToposcopeError, match=r"points: H1 of 10 points: needs 1.6e-06 GB"):
        rips(with_distances(points))


def test_more_points_than_can_be_numbered_mean_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rips_module, "MAX_POINTS", 50)
    monkeypatch.setattr(rips_module, "DEFAULT_LANDMARKS", 20)
    assert [points_for_loops(n) for n in (50, 51)] == [50, 20]


# Cycles


def assert_cycle_of(loop: Loop, matrix: Array, bars: Array) -> None:
    """It is a cycle, the last of its edges was born with it, and it bounds at its death and not before."""
    steps = [(int(a), int(b)) for path in loop.paths for a, b in zip(path, np.roll(path, -1), strict=True)]
    edges = {frozenset(step) for step in steps}
    assert len(edges) == len(steps)
    assert all(len(path) >= 3 and len(set(path.tolist())) == len(path) for path in loop.paths)
    assert max(matrix[a, b] for a, b in steps) == loop.birth
    assert [loop.birth, loop.death] in bars.tolist()
    assert bounds(edges, matrix, loop.death)
    shorter = matrix[matrix < loop.death].max()
    assert not bounds(edges, matrix, shorter)


def bounds(edges: set[frozenset[int]], matrix: Array, length: float) -> bool:
    """Tell whether edges are a sum of boundaries of triangles no longer than this: Gauss over two elements."""
    n = len(matrix)
    near = matrix <= length
    bit = {frozenset((i, j)): 1 << k for k, (i, j) in enumerate((i, j) for i in range(n) for j in range(i))}
    pivots: dict[int, int] = {}

    def reduced(column: int) -> int:
        while column and column.bit_length() in pivots:
            column ^= pivots[column.bit_length()]
        return column

    for i in range(n):
        for j in range(i):
            for k in range(j):
                if near[i, j] and near[i, k] and near[j, k]:
                    column = reduced(bit[frozenset((i, j))] ^ bit[frozenset((i, k))] ^ bit[frozenset((j, k))])
                    if column:
                        pivots[column.bit_length()] = column
    return reduced(sum(bit[edge] for edge in edges)) == 0


@moderate
@given(clouds(max_points=14))
def test_loops_of_clouds_have_cycles(points: Array) -> None:
    matrix = cdist(points, points)
    bars = loop_diagram(matrix).pairs
    found = longest_loops(matrix, 3, metric="precomputed")
    assert len(found) == min(3, len(bars))
    lifetimes = [loop.death - loop.birth for loop in found]
    assert_array_equal(lifetimes, -np.sort(-(bars[:, 1] - bars[:, 0]))[:3])
    for loop in found:
        assert_cycle_of(loop, matrix, bars)


def test_no_loops_and_none_asked_for() -> None:
    assert longest_loops(np.zeros((1, 2))) == []
    assert longest_loops(np.eye(5), 3) == []
    assert longest_loops(np.random.default_rng(0).normal(size=(30, 2)), 0) == []
    with pytest.raises(ToposcopeError, match="count"):
        longest_loops(np.eye(5), -1)


def test_cosine_loops() -> None:
    angles = np.arange(12) * np.pi / 6
    points = np.column_stack([np.cos(angles), np.sin(angles)]) * np.arange(1, 13)[:, None]
    [loop] = longest_loops(points, metric="cosine")
    assert len(loop.points) == 12
    assert loop.birth == pytest.approx(1 - np.cos(np.pi / 6), rel=1e-12)


@moderate
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=7, unique=True), min_size=1, max_size=4))
def test_a_cycle_is_divided_into_closed_paths(circuits: list[list[int]]) -> None:
    edges: set[frozenset[int]] = set()
    for circuit in circuits:
        edges ^= {frozenset(pair) for pair in zip(circuit, circuit[1:] + circuit[:1], strict=True)}
    paths = closed_paths(np.array([sorted(edge) for edge in edges], dtype=np.int64).reshape(-1, 2))
    walked = [frozenset((int(a), int(b))) for path in paths for a, b in zip(path, np.roll(path, -1), strict=True)]
    assert len(walked) == len(set(walked)) == len(edges)
    assert set(walked) == edges
    assert all(len(set(path.tolist())) == len(path) >= 3 for path in paths)


@moderate
@given(st.integers(2, 20).flatmap(lambda n: st.tuples(*(st.integers(0, v - 1) for v in range(1, n)))), st.data())
def test_tree_edges_that_close_chords(parents: tuple[int, ...], data: st.DataObject) -> None:
    n = len(parents) + 1
    tree = np.array([sorted((v, p)) for v, p in enumerate(parents, start=1)], dtype=np.int32)
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda pair: pair[0] != pair[1])
    chords = np.array(data.draw(st.lists(ends, min_size=1, max_size=4)), dtype=np.int32)
    chosen = odd_branches(tree, chords, n)
    degree = np.bincount(np.concatenate([tree[chosen].ravel(), chords.ravel()]), minlength=n)
    assert not (degree % 2).any()
