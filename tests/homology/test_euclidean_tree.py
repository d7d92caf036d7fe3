"""The Euclidean minimum spanning tree, by Prim and by Boruvka, and the searches, orders and filters beside it."""

import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hard_cases import LARGE_CLOUDS, Array, clouds, large_cloud
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from property_examples import examples
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist, pdist, squareform

from toposcope.kernels import boruvka as rounds
from toposcope.kernels import farthest, pairwise
from toposcope.kernels.boruvka import (
    BOUNDS_BYTES,
    N_LISTED,
    Neighbours,
    ProductSearch,
    boruvka_tree,
    difference_search,
    tree_by_searches,
)
from toposcope.kernels.farthest import farthest_order
from toposcope.kernels.pairwise import first_occurrences
from toposcope.kernels.prim import matrix_tree, prim_tree

exhaustive = examples(600)
thorough = examples(200)
moderate = examples(100)

Indices = NDArray[np.int64]
Squares = Callable[[Array], Array]
Search = Callable[[Array, Indices, NDArray[np.int32]], Neighbours]


def boruvka(points: Array) -> Array:
    """The rounds to their end, however many points the last search is asked for."""
    searches: list[Any] = [
        ProductSearch(points, np.float32),
        ProductSearch(points, np.float64),
        partial(difference_search, points),
    ]
    tree = tree_by_searches(len(points), searches, limit=len(points))
    assert tree is not None
    return tree.squares


def prim(points: Array) -> Array:
    return prim_tree(points).squares


ENGINES: dict[str, Squares] = {"prim": prim, "boruvka": boruvka}


def test_equal_distances_are_left_to_prim() -> None:
    points = np.eye(300)
    assert boruvka_tree(points) is None
    assert_array_equal(boruvka(points), prim(points))
    assert boruvka_tree(np.random.default_rng(0).uniform(-1, 1, (300, 20))) is not None


SEARCHES: dict[str, Search] = {
    "float32": lambda points, rows, labels: ProductSearch(points, np.float32)(rows, labels),
    "float64": lambda points, rows, labels: ProductSearch(points, np.float64)(rows, labels),
    "differences": difference_search,
}


def in_units(points: Array) -> Array:
    """The cloud by a power of two, so that no coordinate is above one."""
    return np.ldexp(points, -int(np.frexp(np.abs(points).max())[1]))


def lengths(engine: str, points: Array) -> Array:
    squares = ENGINES[engine](points)
    assert squares.shape == (len(points) - 1,)
    return np.sqrt(np.sort(squares))


def scipy_tree(distances: Array) -> Array:
    """Lengths of SciPy's minimum spanning tree, ascending; found on ranks, since SciPy reads a zero as no edge."""
    levels, rank = np.unique(distances, return_inverse=True)
    tree = minimum_spanning_tree(csr_matrix(np.triu(1 + rank.reshape(distances.shape), k=1)))
    return np.sort(levels[tree.data.astype(int) - 1])


def slow_prim(points: Array) -> Array:
    """Lengths of the tree, ascending, from distances that SciPy makes one row at a time."""
    n = len(points)
    nearest, outside = np.full(n, np.inf), np.ones(n, bool)
    tree = np.empty(n)
    added = 0
    for k in range(n):
        outside[added] = False
        np.minimum(nearest, cdist(points[added : added + 1], points)[0], out=nearest)
        added = int(np.argmin(np.where(outside, nearest, np.inf)))
        tree[k] = nearest[added]
    return np.sort(tree[:-1])


@st.composite
def hard_clouds(draw: st.DrawFn, max_points: int = 60, max_dimensions: int = 6) -> Array:
    """More points than a list keeps, of every hard kind, in units of a power of two."""
    name = draw(st.sampled_from(sorted(LARGE_CLOUDS)))
    n, d = draw(st.integers(1, max_points)), draw(st.integers(1, max_dimensions))
    return large_cloud(name, n, d, draw(st.integers(0, 2**32)))


# The tree


@exhaustive
@given(clouds(max_points=30).map(in_units) | hard_clouds())
@example(np.zeros((1, 1)))
@example(np.zeros((2, 3)))
@example(np.zeros((30, 2)))
def test_small_and_hard_clouds(points: Array) -> None:
    expected = scipy_tree(squareform(pdist(points)))
    for engine in ENGINES:
        assert_allclose(lengths(engine, points), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("n", "d", "name"),
    [(n, d, name) for n, d in ((300, 1), (257, 60), (700, 7)) for name in LARGE_CLOUDS]
    + [(3000, 3, name) for name in ("normal", "clusters of 1e-6", "heavy tails", "large lattice")],
)
def test_large_clouds(n: int, d: int, name: str) -> None:
    points = large_cloud(name, n, d)
    # Many equal points make every list useless: they are taken out before.
    distinct = points[first_occurrences(points)]
    expected = slow_prim(points)
    by_boruvka = np.concatenate([np.zeros(n - len(distinct)), lengths("boruvka", distinct)])
    assert_allclose(by_boruvka, expected, rtol=1e-12, atol=0)
    assert_allclose(lengths("prim", points), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n", [1, 2, 3, N_LISTED - 1, N_LISTED, N_LISTED + 1, N_LISTED + 2, 255, 256, 257, 513])
def test_every_size_about_that_of_a_list_and_of_a_run(engine: str, n: int) -> None:
    points = large_cloud("normal", n, 3)
    assert_allclose(lengths(engine, points), slow_prim(points), rtol=1e-12, atol=0)


@thorough
@given(clouds(max_points=25, exact=True))
@pytest.mark.parametrize("engine", ENGINES)
def test_squares_of_small_integers_are_exact(engine: str, points: Array) -> None:
    inside, outside = [0], list(range(1, len(points)))
    squared = np.sum((points[:, None] - points[None]) ** 2, axis=-1)
    expected = []
    while outside:
        cut = squared[np.ix_(inside, outside)]
        expected.append(float(cut.min()))
        inside.append(outside.pop(int(cut.min(axis=0).argmin())))
    assert_array_equal(np.sort(ENGINES[engine](points / 4)), np.sort(expected) / 16)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("offset", [0.0, 0.5, -0.75])
def test_lengths_survive_a_distant_origin(engine: str, offset: float) -> None:
    # Squared norms would leave nothing of steps of 2^-40 at a distance of 1/2; coordinate differences are exact.
    steps = np.random.default_rng(4).permutation(np.arange(1, 401)) * 2.0**-40
    line = np.cumsum(steps)[:, None] * np.array([[1.0, 0.0, -1.0]]) + offset
    assert_array_equal(np.sort(ENGINES[engine](line)), 2 * np.sort(steps[1:]) ** 2)


def test_memory_is_that_of_the_points() -> None:
    n, d = 20_000, 8
    points = large_cloud("normal", n, d)
    boruvka_tree(points[:300])  # compiled
    tracemalloc.start()
    try:
        boruvka_tree(points)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Lists, two copies of the points, and one block of bounds; all distances would be 3.2 GB.
    assert peak < BOUNDS_BYTES + 40 * n * (N_LISTED + d)


# The searches


@st.composite
def components(draw: st.DrawFn, n: int) -> NDArray[np.int32]:
    """A label for every point: all apart, a few components, or all but one in the same."""
    kind = draw(st.sampled_from(["apart", "few", "one outside", "together"]))
    if kind == "apart":
        return np.arange(n, dtype=np.int32)
    if kind == "few":
        return draw(hnp.arrays(np.int32, n, elements=st.integers(0, min(n, 4) - 1)))
    labels = np.zeros(n, np.int32)
    if kind == "one outside":
        labels[draw(st.integers(0, n - 1))] = n - 1
    return labels


def exact_squares(points: Array) -> NDArray[Any]:
    """Squared distances as fractions, without any rounding."""
    exact = np.array([[Fraction(x) for x in row] for row in points.tolist()], dtype=object)
    squares: NDArray[Any] = ((exact[:, None] - exact[None]) ** 2).sum(axis=-1)
    return squares


def assert_sound(points: Array, rows: Indices, labels: NDArray[np.int32], found: Neighbours) -> None:
    """Lists hold exact squares in order, of other components only; no unlisted point is nearer than the bound."""
    exact = exact_squares(points)
    assert found.indices.shape == found.squares.shape == (len(rows), N_LISTED)
    for r, row in enumerate(rows):
        others = set(np.flatnonzero(labels != labels[row]).tolist())
        n_listed = min(N_LISTED, len(others))
        listed = found.indices[r, :n_listed].tolist()
        assert len(set(listed)) == n_listed
        assert set(listed) <= others
        expected = [float(exact[row, other]) for other in listed]
        # A difference of two coordinates below 1e-154 of the unit has no square in float64.
        assert_allclose(found.squares[r, :n_listed], expected, rtol=1e-14, atol=1e-300)
        assert np.all(np.diff(found.squares[r, :n_listed]) >= 0)
        assert np.all(np.isinf(found.squares[r, n_listed:]))
        unlisted = [exact[row, other] for other in others - set(listed)]
        if unlisted:
            slack = 1 + Fraction(1, 10**14)
            assert Fraction(float(found.beyond[r])) <= min(unlisted) * slack + Fraction(1, 10**300)


@pytest.mark.slow
@moderate
@given(hard_clouds(max_points=40, max_dimensions=4), st.data())
@pytest.mark.parametrize("search", SEARCHES)
def test_searches_are_sound(search: str, points: Array, data: st.DataObject) -> None:
    n = len(points)
    labels = data.draw(components(n))
    rows = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=12, unique=True)))
    assert_sound(points, rows, labels, SEARCHES[search](points, rows, labels))


@moderate
@given(clouds(max_points=16), st.data())
@pytest.mark.parametrize("search", SEARCHES)
def test_searches_of_small_clouds_are_sound(search: str, points: Array, data: st.DataObject) -> None:
    points, n = in_units(points), len(points)
    assert_sound(
        points, np.arange(n), (labels := data.draw(components(n))), SEARCHES[search](points, np.arange(n), labels)
    )


@pytest.mark.parametrize("search", ["float32", "float64"])
@pytest.mark.parametrize("name", LARGE_CLOUDS)
def test_bounds_of_large_clouds_hold(name: str, search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, d = 600, 40
    monkeypatch.setattr(rounds, "BOUNDS_BYTES", 100 * n * 4)  # several blocks
    points = large_cloud(name, n, d)
    rows = np.arange(0, n, 2)
    labels = (np.arange(n) // 3).astype(np.int32)
    found = SEARCHES[search](points, rows, labels)
    squares = cdist(points[rows], points) ** 2
    assert_allclose(found.squares, np.take_along_axis(squares, found.indices, axis=1), rtol=1e-13, atol=0)
    assert np.all(labels[found.indices] != labels[rows][:, None])
    squares[labels[rows][:, None] == labels] = np.inf
    np.put_along_axis(squares, found.indices.astype(np.int64), np.inf, axis=1)
    assert np.all(found.beyond <= squares.min(axis=1) * (1 + 1e-13))


@pytest.mark.parametrize("search", ["float32", "float64"])
def test_bounds_are_tight_enough_to_be_of_use(search: str) -> None:
    points = large_cloud("normal", 500, 30)
    rows, labels = np.arange(500), np.arange(500, dtype=np.int32)
    found, exact = (SEARCHES[kind](points, rows, labels) for kind in (search, "differences"))
    assert np.mean(found.beyond > found.squares[:, 0]) > 0.99
    assert_allclose(found.squares[:, 0], exact.squares[:, 0], rtol=1e-14)


def test_the_search_by_differences_is_brute_force() -> None:
    points = large_cloud("clusters of 1e-9", 400, 5)
    labels = (np.arange(400) % 7).astype(np.int32)
    rows = np.arange(400)[::-3].copy()
    found = difference_search(points, rows, labels)
    squares = cdist(points[rows], points) ** 2
    squares[labels[rows][:, None] == labels] = np.inf
    nearest = np.sort(squares, axis=1)
    assert_allclose(found.squares, nearest[:, :N_LISTED], rtol=1e-13)
    assert_array_equal(found.beyond, found.squares[:, -1])


# Duplicates


@thorough
@given(clouds(max_points=30), st.data())
def test_first_occurrences(points: Array, data: st.DataObject) -> None:
    copies = data.draw(st.lists(st.integers(0, len(points) - 1), max_size=10))
    points = np.concatenate([points, -0.0 - -points[copies]])
    points[points == 0] *= data.draw(st.sampled_from([1.0, -1.0]))
    points[::2][points[::2] == 0] *= -1
    expected = np.sort(np.unique(points + 0.0, axis=0, return_index=True)[1])
    assert_array_equal(first_occurrences(points), expected)


def test_colliding_hashes_lose_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "_hashes", lambda points: np.zeros(len(points), np.uint64))
    points = np.array([[1.0], [2.0], [1.0], [2.0], [3.0]])
    # The second 2 is kept as well, as documented: it is compared with the first row of its hash alone.
    assert_array_equal(first_occurrences(points), [0, 1, 3, 4])


# Farthest points, and matrices of lengths


@thorough
@given(st.one_of(hard_clouds(max_points=30), clouds(max_points=20).map(in_units)), st.data())
def test_farthest_order(points: Array, data: st.DataObject) -> None:
    n = len(points)
    first, count = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, n))
    indices, squared_radii = farthest_order(points, first, count)
    apart = cdist(points, points)
    nearest = np.full(n, np.inf)
    assert indices[0] == first
    for k in range(count):
        assert k == 0 or nearest[indices[k]] == pytest.approx(nearest.max(), rel=1e-14, abs=0)
        nearest = np.minimum(nearest, apart[indices[k]])
        assert np.sqrt(squared_radii[k]) == pytest.approx(nearest.max(), rel=1e-14, abs=0)
    # Distinct even where points are not: they may be handed back as landmarks.
    assert len(set(indices.tolist())) == count
    assert np.all(np.diff(squared_radii) <= 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(farthest, "MIN_BOUNDED_WIDTH", 0)
        for found, expected in zip(farthest_order(points, first, count), (indices, squared_radii), strict=True):
            assert_array_equal(found, expected)
    for shorter in {1, (count + 1) // 2}:
        part, radii = farthest_order(points, first, shorter)
        assert_array_equal(part, indices[:shorter])
        assert_array_equal(radii, squared_radii[:shorter])


@pytest.mark.parametrize("kind", ["any", "clustered"])
def test_few_distances_are_measured_for_farthest_points(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, measured, measure = np.random.default_rng(0), [0], farthest._measure
    points = rng.standard_normal((2048, 256))
    if kind == "clustered":
        points += 8 * rng.standard_normal((20, 256))[rng.integers(0, 20, 2048)]

    def counting(*arguments: Any) -> None:
        measure(*arguments)
        squares, n_chosen = arguments[-1], len(arguments[1])
        measured[0] += np.isfinite(squares[:n_chosen]).sum()

    monkeypatch.setattr(farthest, "_measure", counting)
    farthest_order(in_units(points), 0, 300)
    assert measured[0] < 0.1 * 300 * 2048
    measured[0] = 0
    nearest = farthest.nearest_squares(in_units(points), np.arange(300))
    assert measured[0] < 0.1 * 300 * 2048
    assert_allclose(nearest, cdist(in_units(points), in_units(points)[:300], "sqeuclidean").min(axis=1), 1e-12)


@thorough
@given(st.integers(1, 14), st.integers(0, 2**32), st.sampled_from(["any", "ties", "zeros"]))
def test_trees_of_a_matrix_of_lengths(n: int, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    distances = rng.random((n, n)) if kind == "any" else rng.integers(kind == "ties", 4, (n, n)).astype(float)
    distances = np.triu(distances, 1) + np.triu(distances, 1).T
    assert_array_equal(np.sort(matrix_tree(distances)[0]), scipy_tree(distances) if n > 1 else [])


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", ["lattice", "steps", "clusters", "repeats"])
def test_flat_clouds_have_scipys_tree(d: int, kind: str) -> None:
    rng = np.random.default_rng(d)
    points = rng.random((1500, d))
    if kind == "lattice":
        points = rng.permutation(np.argwhere(np.ones([12] * d if d == 3 else [40, 40]))[:1500]) / 7
    elif kind == "steps":
        points[:, 0], points[:, 1:] = np.arange(1500) % 300 / 3, 0.5 * rng.integers(0, 2, (1500, d - 1))
    elif kind == "clusters":
        points = rng.integers(0, 3, (1500, 1)) + points * 1e-7
    points = np.unique(points, axis=0) if kind != "repeats" else np.unique(points[rng.integers(0, 900, 1500)], axis=0)
    tree = boruvka_tree(points)
    squares = prim_tree(points).squares if tree is None else tree.squares
    assert_array_equal(np.sort(squares), np.sort(prim_tree(points).squares))
    assert_allclose(np.sqrt(np.sort(squares)), scipy_tree(cdist(points, points)), rtol=1e-12)
