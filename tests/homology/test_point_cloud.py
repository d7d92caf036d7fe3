"""Metrics, landmarks and engines of `rips` and `farthest_points`: what a cloud is, whatever is measured on it."""

import itertools
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import gudhi
import numpy as np
import pytest
import torch
from exact_matching import exact_bottleneck
from hard_cases import Array, assert_same_pairs, clouds, directed, large_cloud
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from property_examples import examples
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    farthest_points,
    h1_births,
    longest_loops,
    memory,
    point_cloud,
    rips,
)
from toposcope.homology.loop_births import tree_and_births

thorough = examples(200)
moderate = examples(100)


def simplex_tree_bars(distances: Array, max_dimension: int) -> list[Array]:
    """Finite bars of every dimension, by GUDHI's cohomology of the explicit complex."""
    tree = gudhi.RipsComplex(distance_matrix=distances).create_simplex_tree(max_dimension=max_dimension + 1)
    tree.compute_persistence(homology_coeff_field=2, min_persistence=0, persistence_dim_max=True)
    bars = [np.reshape(tree.persistence_intervals_in_dimension(k), (-1, 2)) for k in range(max_dimension + 1)]
    return [b[np.isfinite(b[:, 1])] for b in bars]


# Cosine


@thorough
@given(clouds(max_points=10))
def test_cosine_distances_are_those_of_the_definition(points: Array) -> None:
    points = directed(points)
    expected = simplex_tree_bars(squareform(pdist(points, "cosine").clip(0)), 1)
    # It is the reference that rounds here: 1 - cos keeps nothing below 1e-16.
    for diagram, bars in zip(rips(points, metric="cosine"), expected, strict=True):
        assert exact_bottleneck(diagram.pairs, bars) <= 1e-14 * points.shape[1]
    assert len(rips(points, metric="cosine")[0].pairs) == len(points) - 1


@moderate
@given(clouds(max_points=10), st.data())
def test_lengths_of_rows_do_not_matter_to_the_cosine(points: Array, data: st.DataObject) -> None:
    points = directed(points)
    n = len(points)
    exponents = data.draw(st.lists(st.integers(-300, 300), min_size=n, max_size=n))
    scaled = np.ldexp(points, np.array(exponents)[:, None])
    for max_points in (2000, max(1, n // 2)):
        by_rows, expected = (rips(p, metric="cosine", max_points=max_points) for p in (scaled, points))
        assert_same_pairs(by_rows, expected)
        assert by_rows[1].cover_radius == expected[1].cover_radius


@pytest.mark.parametrize("angle", [2.0**-10, 2.0**-20, 2.0**-26, 2.0**-40])
def test_nearly_parallel_points_keep_their_digits(angle: float) -> None:
    points = np.array([[1.0, 0.0], [1.0, angle]])
    # 1 - cos = 1 - 1/sqrt(1 + t^2) = t^2/2 - 3t^4/8 + ..., as a fraction; far below 1e-16, where 1 - cos is 0 or noise.
    t = Fraction(angle)
    expected = float(t**2 / 2 - 3 * t**4 / 8 + 5 * t**6 / 16)
    assert rips(points, metric="cosine", max_dimension=0)[0].pairs[0, 1] == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e300])
def test_cosine_of_tiny_and_huge_points(scale: float) -> None:
    points = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    got = rips(points * scale, metric="cosine")[0].pairs
    assert_allclose(got, rips(points, metric="cosine")[0].pairs, rtol=1e-14)


@pytest.mark.parametrize("call", [rips, lambda p, metric: farthest_points(p, 2, metric=metric)])
def test_points_without_a_direction_are_refused(call: Any) -> None:
    points = np.array([[1.0, 0.0], [0.0, 0.0], [-0.0, 0.0]])
    with pytest.raises(ToposcopeError, match=r"\Apoints: 2 of 3 points are zero, shape \(3, 2\)[^\n]*\Z"):
        call(points, metric="cosine")


def exact_cosines(rows: NDArray[np.int64]) -> tuple[Array, Array]:
    """The rank of every cosine distance of whole rows among all, by whole numbers alone, and the distance of each."""
    of_ranks = [Fraction(0)]
    keys = np.zeros((len(rows), len(rows)), object)
    for i, a in enumerate(rows.tolist()):
        for j, b in enumerate(rows.tolist()):
            dot = sum(x * y for x, y in zip(a, b, strict=True))
            square = Fraction(dot * dot, sum(x * x for x in a) * sum(y * y for y in b))
            keys[i, j] = -square if dot > 0 else square
    of_ranks = sorted({Fraction(-1), *keys.ravel()})
    place = {key: rank for rank, key in enumerate(of_ranks)}
    ranks = np.array([[float(place[key]) for key in line] for line in keys])
    with localcontext() as context:
        context.prec = 60
        roots = [(Decimal(abs(k).numerator) / Decimal(abs(k).denominator)).sqrt() for k in of_ranks]
        lengths = [float(1 + root if k > 0 else 1 - root) for k, root in zip(of_ranks, roots, strict=True)]
    return ranks, np.array(lengths)


TYING_ROWS = ("bits", "signs", "digits", "signed permutations", "hypercube", "bytes")


def tying_rows(kind: str, seed: int) -> NDArray[np.int64]:
    """Rows of whole numbers, none of them zero, with many equal angles."""
    rng = np.random.default_rng([seed, TYING_ROWS.index(kind)])
    n, d = int(rng.integers(8, 26)), int(rng.integers(2, 9))
    if kind == "hypercube":
        return np.array(list(itertools.product((-1, 1), repeat=4)))
    if kind == "signed permutations":
        row = rng.integers(0, 5, d) + (np.arange(d) == 0)
        return np.array([rng.permutation(row) * rng.choice([-1, 1], d) for _ in range(n)])
    low, high = {"bits": (0, 2), "signs": (-1, 2), "digits": (-9, 10), "bytes": (-127, 128)}[kind]
    rows = rng.integers(low, high, (n, d))
    return rows[rows.any(axis=1)]


ROW_FACTORS: dict[str, Any] = {
    "none": lambda rng, n: np.ones(n),
    "powers of two": lambda rng, n: 2.0 ** rng.integers(-40, 40, n),
    "whole": lambda rng, n: rng.integers(1, 1000, n).astype(float),
    "any": lambda rng, n: 10.0 ** rng.uniform(-3, 3, n),
}


@pytest.mark.parametrize("factors", ROW_FACTORS)
@pytest.mark.parametrize("kind", TYING_ROWS)
def test_equal_angles_have_equal_cosine_distances(kind: str, factors: str) -> None:
    for seed in range(6):
        rows = tying_rows(kind, seed)
        ranks, lengths = exact_cosines(rows)
        points = rows * ROW_FACTORS[factors](np.random.default_rng(seed), len(rows))[:, None]
        expected = [lengths[bars.astype(int)] for bars in simplex_tree_bars(ranks, 2)]
        diagrams = rips(points, metric="cosine", max_dimension=2)
        assert len(diagrams[0].pairs) == len(points) - 1
        for diagram, bars in zip(diagrams, expected, strict=True):
            bars, lasting = bars[bars[:, 1] > bars[:, 0]], diagram.pairs[diagram.lifetimes > 0]
            assert_allclose(lasting, bars[np.lexsort((bars[:, 1], bars[:, 0]))], rtol=1e-15, atol=0)
            assert len(np.unique(lasting)) == len(np.unique(bars))
        shuffled = np.random.default_rng(seed).permutation(len(points))
        assert_same_pairs(rips(points[shuffled], metric="cosine", max_dimension=2), diagrams)
        by_distances = point_cloud.with_distances(points, "cosine")
        assert_same_pairs(rips(by_distances, metric="cosine", max_dimension=2), diagrams)
        births = rips(points, metric="cosine", max_points=len(points) - 1)[1].births
        assert births is not None
        assert_array_equal(births, diagrams[1].pairs[:, 0])
        found = tree_and_births(point_cloud.as_cloud(points, "cosine", "points"))
        assert found is not None
        assert_array_equal(found[0], diagrams[0].pairs[:, 1])
        for cap in np.unique(diagrams[0].pairs[:, 1]):
            capped = rips(points, metric="cosine", threshold=cap)[0]
            assert capped.n_truncated == (diagrams[0].pairs[:, 1] > cap).sum()


@pytest.mark.parametrize("n", [3, 7, 12])
def test_cosine_bars_within_rounding_are_left_out(n: int) -> None:
    """Angles that are equal up to the rounding of the rows: of real numbers there are no exact ties."""
    rng = np.random.default_rng(n)
    vertices = np.array(list(itertools.product((-1.0, 1.0), repeat=3))) * rng.uniform(1, 2, 3)
    turned = vertices @ np.linalg.qr(rng.normal(size=(3, 3)))[0] * rng.uniform(0.1, 10, (8, 1))
    angles = 2 * np.pi * np.arange(n) / n
    fan = np.concatenate([np.column_stack([np.cos(angles + t), np.sin(angles + t)]) for t in (0, 0.3, 0.3 + 1e-3)])
    for points, exact in ((turned, vertices), (fan, None)):
        for diagram in rips(points, metric="cosine", max_dimension=2)[1:]:
            assert not len(diagram.pairs) or diagram.lifetimes.min() > 1e-14
        if exact is not None:
            assert len(rips(points, metric="cosine")[1].pairs) == len(rips(exact, metric="cosine")[1].pairs)
    assert all(loop.death - loop.birth > 1e-14 for loop in longest_loops(fan, 99, metric="cosine"))


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "precomputed"])
@pytest.mark.parametrize("kind", ["bits", "any"])
def test_the_layout_of_memory_changes_no_bit(metric: Any, kind: str) -> None:
    rng = np.random.default_rng(7)
    single = rng.normal(size=(60, 33)).astype(np.float32) if kind == "any" else tying_rows("bits", 2).astype(np.float32)
    points = single.astype(np.float64)
    if metric == "precomputed":
        points = squareform(pdist(points))
    wide = np.zeros((2 * points.shape[0], 3 * points.shape[1]))
    wide[::2, ::3] = points
    reversed_twice = np.ascontiguousarray(points[::-1, ::-1])[::-1, ::-1]
    layouts: list[Any] = [np.asfortranarray(points), np.ascontiguousarray(points.T).T, wide[::2, ::3], reversed_twice]
    layouts += [points.astype(">f8"), points.tolist(), torch.from_numpy(points).requires_grad_()]
    unaligned = np.ndarray(points.shape, np.float64, bytearray(points.nbytes + 1), 1)
    unaligned[:] = points
    layouts.append(unaligned)
    before = points.copy()
    points.flags.writeable = False
    if metric != "precomputed":
        layouts += [single, np.asfortranarray(single)]
    options: list[dict[str, Any]] = [{"max_dimension": 2}, {"max_points": len(points) - 3}, {"threshold": 1.0}]
    for option in options:
        expected = rips(points, metric=metric, **option)
        for layout in layouts:
            diagrams = rips(layout, metric=metric, **option)
            assert_same_pairs(diagrams, expected)
            assert diagrams[1].cover_radius == expected[1].cover_radius
            if expected[1].births is not None:
                assert_array_equal(diagrams[1].births, expected[1].births)
    assert_array_equal(points, before)
    if metric != "precomputed":
        coarse = torch.from_numpy(single).bfloat16()
        assert_same_pairs(rips(coarse, metric=metric), rips(coarse.double(), metric=metric))


# Matrices of distances


@moderate
@given(clouds(max_points=12), st.data())
def test_a_matrix_of_distances_is_its_cloud(points: Array, data: st.DataObject) -> None:
    distances = squareform(pdist(points))
    count = data.draw(st.integers(1, len(points)))
    chosen = farthest_points(points, count)[0]
    wanted: list[dict[str, Any]] = [{"max_dimension": 2}, {"landmarks": chosen}]
    for options in wanted:
        of_matrix = rips(distances, metric="precomputed", **options)
        for a, b in zip(of_matrix, rips(points, **options), strict=True):
            assert len(a.pairs) == len(b.pairs) or a.dimension > 0
            assert a.cover_radius == pytest.approx(b.cover_radius, rel=1e-13, abs=0)
            assert exact_bottleneck(a.pairs, b.pairs) <= 1e-14 * distances.max()


def infinite_graphs(seed: int) -> Array:
    """Distances between the points of several components, some of them without all of their edges."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 15))
    upper = np.triu(rng.integers(0, 6, (n, n)) / 2.0, 1)
    labels = rng.integers(0, 1 + seed % 4, n)
    missing = (labels[:, None] != labels) | (rng.random((n, n)) < (seed % 3) * 0.3)
    matrix: Array = np.where(np.triu(missing, 1), np.inf, upper)
    return np.asarray(np.maximum(np.triu(matrix, 1), np.triu(matrix, 1).T))


def test_an_infinite_distance_is_no_edge() -> None:
    for seed in range(60):
        matrix = infinite_graphs(seed)
        for cap in (np.inf, 1e9, 2.5, 1.0):
            complex_ = gudhi.RipsComplex(distance_matrix=matrix, max_edge_length=min(cap, 1e10))
            tree = complex_.create_simplex_tree(max_dimension=3)
            tree.compute_persistence(homology_coeff_field=2, min_persistence=0, persistence_dim_max=True)
            whole = matrix[np.isfinite(matrix)].max() <= cap
            n_components = connected_components(np.isfinite(matrix))[0]
            diagrams = rips(matrix, metric="precomputed", max_dimension=2, threshold=cap)
            for k, diagram in enumerate(diagrams):
                bars = np.reshape(tree.persistence_intervals_in_dimension(k), (-1, 2))
                finite = bars[np.isfinite(bars[:, 1]) & (bars[:, 1] > bars[:, 0])]
                lasting = diagram.pairs[diagram.lifetimes > 0]
                assert_array_equal(lasting, finite[np.lexsort((finite[:, 1], finite[:, 0]))])
                n_alive = int(np.isinf(bars[:, 1]).sum())
                assert diagram.n_essential + diagram.n_truncated == n_alive
                assert diagram.n_essential == (n_components if k == 0 else n_alive if whole else 0)
            assert len(diagrams[0].pairs) + diagrams[0].n_truncated == len(matrix) - n_components
            if cap == np.inf:
                births = h1_births(matrix, metric="precomputed")
                assert_array_equal(births, diagrams[1].pairs[:, 0])
                assert_same_pairs(
                    rips(point_cloud.with_distances(matrix, "precomputed"), metric="precomputed"), diagrams[:2]
                )
                loops = longest_loops(matrix, 99, metric="precomputed")
                assert sorted([loop.birth, loop.death] for loop in loops) == diagrams[1].pairs.tolist()


BAD_DISTANCES = {
    "not square": (np.zeros((2, 3)), "shape (2, 3)"),
    "a vector, as pdist returns": (np.ones(3), "shape (3,)"),
    "negative": (np.array([[0.0, -1.0], [-1.0, 0.0]]), "2 negative entries in shape (2, 2)"),
    "diagonal": (np.array([[0.0, 1.0], [1.0, 1e-9]]), "1 entries other than 0 on the diagonal of shape (2, 2)"),
    "asymmetric": (np.array([[0.0, 1.0], [1.5, 0.0]]), "shape (2, 2) with 1 asymmetric pairs"),
    "barely asymmetric": (np.array([[0.0, 1.0], [np.nextafter(1, 2), 0.0]]), "1 asymmetric"),
    "NaN": (np.array([[0.0, np.nan], [np.nan, 0.0]]), "2 of 4"),
    "minus infinity": (np.array([[0.0, -np.inf], [-np.inf, 0.0]]), "2 negative entries in shape (2, 2)"),
    "infinite diagonal": (np.full((2, 2), np.inf), "2 entries other than 0 on the diagonal"),
    "asymmetric infinity": (np.array([[0.0, np.inf], [1.0, 0.0]]), "shape (2, 2) with 1 asymmetric pairs"),
    "empty": (np.zeros((0, 0)), "(0, 0)"),
}


@pytest.mark.parametrize("name", BAD_DISTANCES)
def test_bad_matrices_of_distances_are_refused_in_one_line(name: str) -> None:
    matrix, quoted = BAD_DISTANCES[name]
    with pytest.raises(ToposcopeError, match=rf"\Apoints: [^\n]*{re.escape(quoted)}[^\n]*\Z"):
        rips(matrix, metric="precomputed")


@pytest.mark.parametrize("metric", ["manhattan", "", None, 2, ["cosine"]])
def test_unknown_metrics_are_refused_in_one_line(metric: Any) -> None:
    for call in (lambda: rips(np.eye(3), metric=metric), lambda: farthest_points(np.eye(3), 2, metric=metric)):
        with pytest.raises(ToposcopeError, match=r"\Ametric: [^\n]*'precomputed'[^\n]*\Z"):
            call()


# Engines


@pytest.mark.parametrize(
    ("n", "d", "engine"),
    [(1, 1, "sort"), (3000, 1, "sort"), (2, 2, "prim"), (999, 41, "prim"), (1000, 39, "prim"), (1000, 40, "boruvka")],
)
def test_the_engine_is_named(n: int, d: int, engine: str) -> None:
    points = large_cloud("normal", n, d)
    assert rips(points, max_dimension=0)[0].engine == engine
    if d > 1:
        assert rips(points, max_dimension=0, metric="cosine")[0].engine == engine


@pytest.mark.parametrize("kind", ["normal", "quantised"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_tree_of_a_wide_cloud_is_that_of_the_graph_of_births_unless_distances_are_equal(
    kind: str, metric: Any
) -> None:
    rng = np.random.default_rng(0)
    shape = 12_000, 256
    points = rng.normal(size=shape) if kind == "normal" else rng.integers(-1, 2, shape).astype(np.float64) + 0.5
    found = rips(points, max_dimension=0, metric=metric)[0]
    lengths, engine = point_cloud.as_cloud(points, metric, "points").tree()
    assert (found.engine, engine) == ("lunes" if kind == "normal" else "boruvka", "boruvka")
    assert_array_equal(found.pairs[:, 1], lengths)
    assert found.births is None


def test_the_engine_of_higher_dimensions_and_of_matrices_is_named() -> None:
    assert [d.engine for d in rips(np.eye(5), max_dimension=2)] == ["prim", "lunes", "lunes"]
    assert [d.engine for d in rips(1 - np.eye(5), metric="precomputed")] == ["prim", "lunes"]


@thorough
@given(clouds(max_points=25))
def test_engines_agree_on_every_small_cloud(points: Array) -> None:
    by_prim = rips(points, max_dimension=0)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point_cloud, "MIN_BORUVKA_POINTS", 0)
        patch.setattr(point_cloud, "MIN_BORUVKA_COORDINATES", 0)
        by_boruvka = rips(points, max_dimension=0)[0]
        flat = rips(np.pad(points[:, :1], ((0, 0), (0, 1))), max_dimension=0)[0]
    by_sorting = rips(points[:, :1], max_dimension=0)[0]
    assert by_boruvka.engine == ("sort" if points.shape[1] == 1 else "boruvka")
    assert (flat.engine, by_sorting.engine) == ("boruvka", "sort")
    assert_allclose(by_boruvka.pairs, by_prim.pairs, rtol=1e-14, atol=0)
    assert_allclose(flat.pairs, by_sorting.pairs, rtol=1e-14, atol=1e-154 * np.abs(points).max())


@pytest.mark.parametrize("name", ["duplicates", "equal", "unit vectors", "near duplicates"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_duplicates_stay_in_large_clouds(name: str, metric: Any) -> None:
    n = 2000
    points = large_cloud(name, n, 20)
    if metric == "cosine":
        points = np.resize(points[np.abs(points).max(axis=1) > 0], points.shape)
    h0 = rips(points, metric=metric, max_dimension=0)[0]
    # Where only twenty points differ, or all are equally far apart, Prim's algorithm takes over.
    assert h0.engine == "boruvka" or name == "unit vectors"
    assert (h0.n_essential, h0.n_truncated) == (1, 0)
    assert h0.pairs.shape == (n - 1, 2)
    if metric == "euclidean":
        assert np.sum(h0.pairs[:, 1] == 0) == n - len(np.unique(points, axis=0))
    middle = float(np.median(h0.pairs[:, 1]))
    capped = rips(points, metric=metric, max_dimension=0, threshold=middle)[0]
    assert len(capped.pairs) + capped.n_truncated == n - 1
    assert_array_equal(capped.pairs, h0.pairs[h0.pairs[:, 1] <= middle])


@pytest.mark.parametrize("name", ["off the origin by 1e6", "heavy tails"])
@pytest.mark.parametrize("exponent", [-1000, 7, 900])
def test_a_power_of_two_scales_every_digit_of_a_large_cloud(name: str, exponent: int) -> None:
    points = large_cloud(name, 1000, 40)
    plain, scaled = rips(points, max_dimension=0)[0], rips(np.ldexp(points, exponent), max_dimension=0)[0]
    assert plain.engine == scaled.engine == "boruvka"
    assert_array_equal(scaled.pairs, np.ldexp(plain.pairs, exponent))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("d", [1, 2, 40])
def test_distances_beyond_the_largest_float_are_refused(d: int) -> None:
    points = np.full((1000, d), 1.7e308)
    points[1] = -1.7e308
    for call in (lambda: rips(points, max_dimension=0), lambda: farthest_points(points, 1)):
        with pytest.raises(ToposcopeError, match=r"\Apoints: [^\n]*range of float64[^\n]*\Z"):
            call()


def test_subnormal_clouds_by_every_engine() -> None:
    for n, d in ((50, 1), (50, 3), (1000, 40)):
        places = np.random.default_rng(n).integers(-20, 20, (n, d)).astype(float)
        plain, tiny = (rips(points, max_dimension=0)[0].pairs for points in (places, places * 5e-324))
        # Lengths are rounded to whole multiples of the least float.
        assert_allclose(tiny / 5e-324, plain, rtol=0, atol=0.5)


# Memory


@pytest.mark.parametrize(
    ("options", "n"),
    [({}, 300), ({"max_points": 299}, 299), ({"landmarks": range(250)}, 250), ({"metric": "cosine"}, 300)],
)
def test_what_does_not_fit_is_refused_before_anything_is_computed(
    options: dict[str, Any], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    points = large_cloud("normal", 300, 5)
    monkeypatch.setattr(memory, "free_memory", lambda: 10**6)
    for method in ("tree", "distances", "landmarks", "cover_radius"):
        for kind in (point_cloud.Euclidean, point_cloud.Directions):
            monkeypatch.setattr(kind, method, never)
    with pytest.raises(ToposcopeError) as refusal:
        rips(points, **options)
    message = str(refusal.value)
    assert message.startswith(f"points: H1 of {n} points: needs {24 * n**2 / 1e9:.3g} GB")
    assert "0.001 GB are free" in message
    assert "max_points" in message
    assert "\n" not in message


def test_components_and_few_landmarks_always_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10**6)
    points = large_cloud("normal", 300, 5)
    assert len(rips(points, max_dimension=0)[0].pairs) == 299
    assert rips(points, max_points=100)[1].cover_radius > 0
