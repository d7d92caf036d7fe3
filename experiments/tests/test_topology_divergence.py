"""Representation topology divergence against relative homology by hand, and ripser."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from exact_matching import exact_bottleneck
from hard_cases import Array, clouds
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from ripser import ripser
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope_experiments.similarity.similarity import cross_barcode, rtd

thorough = examples(200)
moderate = examples(100)

P, Q = np.array([[0.0], [1.0], [10.0], [11.0]]), np.array([[0.0], [1.0], [2.0], [3.0]])


def distances(points: Array) -> Array:
    return np.asarray(squareform(pdist(points)))


@st.composite
def pairs_of_distances(draw: st.DrawFn, max_points: int = 7) -> tuple[Array, Array]:
    """Two matrices on the same points: small integers (ties, zeros, no triangle inequality), or of point clouds."""
    n = draw(st.integers(1, max_points))
    if draw(st.booleans()):
        levels = hnp.arrays(np.float64, (2, n, n), elements=st.integers(0, 6).map(float))
        upper = np.triu(draw(levels), k=1)
        first, second = upper + upper.transpose(0, 2, 1)
        return first, second
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    points = generator.normal(size=(n, draw(st.integers(1, 3))))
    noise = draw(st.sampled_from([0.0, 0.1, 1.0, 10.0]))
    return distances(points), distances(points + noise * generator.normal(size=points.shape))


def relative_bars(w: Array, v: Array) -> Array:
    """H1 of (R(min), R(w)) by definition: a cone over R(w) in R(min), and the boundary matrix reduced by columns."""
    n = len(w)

    def entry(matrix: Array, simplex: tuple[int, ...]) -> float:
        return max((float(matrix[i, j]) for i, j in combinations(simplex, 2)), default=0.0)

    apex = n
    simplices: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, (apex,))]
    for k in (1, 2, 3):
        for simplex in combinations(range(n), k):
            simplices.append((entry(np.minimum(w, v), simplex), k - 1, simplex))
            if k < 3:
                simplices.append((entry(w, simplex), k, (*simplex, apex)))
    simplices.sort()
    place = {simplex: i for i, (_, _, simplex) in enumerate(simplices)}
    reduced: dict[int, set[int]] = {}
    bars = []
    for death, dimension, simplex in simplices:
        column = {place[face] for face in combinations(simplex, dimension)} if dimension else set()
        while column and max(column) in reduced:
            column ^= reduced[max(column)]
        if column:
            reduced[max(column)] = column
            birth, born_in, _ = simplices[max(column)]
            if born_in == 1 and death > birth:
                bars.append((birth, death))
    return np.array(sorted(bars)).reshape(-1, 2)


def authors_bars(w: Array, v: Array) -> Array:
    """The construction of the authors' released code: 2n vertices, no triangle left out, by ripser in float32."""
    matrix = np.block([[np.zeros_like(w), w], [w, np.minimum(w, v)]])
    bars = np.asarray(ripser(matrix, maxdim=1, distance_matrix=True)["dgms"][1], dtype=np.float64).reshape(-1, 2)
    assert np.isfinite(bars).all()
    return bars


# Known answers


def test_worked_example() -> None:
    # Two pairs of neighbours, 9 apart in p and 1 apart in q: from 1 to 9 they are two clusters in p only.
    assert cross_barcode(distances(P), distances(Q)).pairs.tolist() == [[1, 9]]
    assert len(cross_barcode(distances(Q), distances(P)).pairs) == 0
    result = rtd(P, Q, normalize=False)
    assert (result.forward.tolist(), result.backward.tolist()) == ([8], [0])
    assert (result.value, result.spread, result.n_batches, result.batch_size) == (4, 0, 1, 4)
    turned = rtd(Q, P, normalize=False)
    assert (turned.forward.tolist(), turned.backward.tolist(), turned.value) == ([0], [8], 4)


# Against other implementations


@thorough
@given(pairs_of_distances())
@example((np.zeros((1, 1)), np.zeros((1, 1))))
@example((np.zeros((4, 4)), 1 - np.eye(4)))
@example((1 - np.eye(4), np.zeros((4, 4))))
def test_bars_are_those_of_relative_homology(pair: tuple[Array, Array]) -> None:
    w, v = pair
    diagram = cross_barcode(w, v)
    assert_array_equal(diagram.pairs, relative_bars(w, v))
    assert (diagram.dimension, diagram.n_essential, diagram.n_truncated) == (1, 0, 0)


@moderate
@given(pairs_of_distances(max_points=14))
def test_bars_are_those_of_the_authors_construction(pair: tuple[Array, Array]) -> None:
    w, v = pair
    expected = authors_bars(w, v)
    got = cross_barcode(w, v).pairs
    assert exact_bottleneck(got, expected) <= 1e-6 * w.max()


def test_normalized_value_against_the_authors_construction() -> None:
    generator = np.random.default_rng(1)
    first = generator.normal(size=(40, 4))
    second = first[:, :3] + 0.5 * generator.normal(size=(40, 3))
    w, v = (d / np.quantile(d, 0.9) for d in (distances(first), distances(second)))
    expected = [float(np.diff(bars).sum()) for bars in (authors_bars(w, v), authors_bars(v, w))]
    result = rtd(first, second)
    assert [result.forward[0], result.backward[0]] == pytest.approx(expected, rel=1e-5)
    assert result.value == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.slow
def test_published_example() -> None:
    # The example of the authors' released code: mean over ten random halves, drawn as it draws them.
    random = np.random.RandomState(7)
    first, second = random.rand(1000, 2), random.rand(1000, 2)
    halves = [random.permutation(1000)[:500] for _ in range(10)]
    results = [rtd(first[half], second[half]) for half in halves]
    assert np.mean([result.value for result in results]) == pytest.approx(35.55, abs=0.01)
    # Other halves differ: the value itself is within its standard error of it.
    own = rtd(first, second)
    assert (own.batch_size, own.n_batches) == (500, 10)
    assert abs(own.value - 35.55) < 3 * own.spread / math.sqrt(10)


# Invariance


@moderate
@given(clouds(max_points=14))
def test_identical_representations_do_not_diverge(points: Array) -> None:
    assume(np.quantile(distances(points), 0.9) > 0)
    result = rtd(points, points)
    assert (result.value, result.spread) == (0, 0)
    # A power of two is a scale without rounding; the quantile takes it out.
    assert rtd(points, points * 4).value == 0


@moderate
@given(st.integers(0, 2**32), st.integers(3, 20), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_isometry_and_scale_do_not_matter(seed: int, n: int, by: float, other: float) -> None:
    generator = np.random.default_rng(seed)
    first, second = generator.normal(size=(n, 3)), generator.normal(size=(n, 2))
    rotation, _ = np.linalg.qr(generator.normal(size=(5, 5)))
    moved = np.pad(first, ((0, 0), (0, 2))) @ rotation * by + generator.normal(size=5)
    before, after = rtd(first, second), rtd(moved, second * other)
    assert_allclose([*after.forward, *after.backward], [*before.forward, *before.backward], rtol=0, atol=1e-9 * n)
    # Rotations alone are invisible too where nothing is normalized.
    unscaled = rtd(first @ np.linalg.qr(generator.normal(size=(3, 3)))[0], second, normalize=False)
    assert unscaled.value == pytest.approx(rtd(first, second, normalize=False).value, abs=1e-9 * n)


@moderate
@given(clouds(max_points=10), clouds(max_points=10))
def test_precomputed_distances_and_swapped_sides(first: Array, second: Array) -> None:
    n = min(len(first), len(second))
    assume(n > 1)
    first, second = first[:n], second[:n]
    result = rtd(first, second, normalize=False)
    swapped = rtd(second, first, normalize=False)
    assert (swapped.value, swapped.forward, swapped.backward) == (result.value, result.backward, result.forward)
    given_distances = rtd(distances(first), distances(second), metric="precomputed", normalize=False)
    assert given_distances.value == pytest.approx(result.value, rel=1e-9, abs=1e-12)
    assert result.value >= 0


# Batches


def test_batches_are_seeded_and_independent_of_their_number() -> None:
    generator = np.random.default_rng(3)
    first, second = generator.normal(size=(60, 3)), generator.normal(size=(60, 3))
    result = rtd(first, second, batch_size=20, n_batches=4, seed=5)
    again = rtd(first, second, batch_size=20, n_batches=4, seed=5)
    more = rtd(first, second, batch_size=20, n_batches=6, seed=5)
    assert_array_equal(again.forward, result.forward)
    assert_array_equal(more.backward[:4], result.backward)
    assert (result.n_batches, result.batch_size, len(result.forward), len(result.backward)) == (4, 20, 4, 4)
    values = (result.forward + result.backward) / 2
    assert result.value == pytest.approx(values.mean(), rel=1e-14)
    assert result.spread == pytest.approx(values.std(ddof=1), rel=1e-14)
    assert len(set(values.tolist())) == 4
    other = rtd(first, second, batch_size=20, n_batches=4, seed=6)
    assert other.value != result.value


def test_one_batch_of_more_points_has_no_known_spread() -> None:
    points = np.random.default_rng(5).normal(size=(30, 2))
    assert math.isnan(rtd(points, points[::-1], batch_size=10, n_batches=1).spread)
    assert rtd(points, points[::-1], batch_size=30, n_batches=1).spread == 0


# Dtypes and scales


def test_torch_and_half_precision() -> None:
    generator = np.random.default_rng(6)
    first, second = (generator.normal(size=(12, 3)).astype(np.float16) for _ in range(2))
    expected = rtd(first.astype(np.float64), second.astype(np.float64)).value
    assert rtd(first, second).value == expected
    assert rtd(torch.from_numpy(first).requires_grad_(), torch.from_numpy(second)).value == expected


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_tiny_and_huge_clouds(scale: float) -> None:
    assert rtd(P * scale, Q).value == pytest.approx(rtd(P, Q).value, rel=1e-12)
    assert rtd(P * scale, Q * scale, normalize=False).forward[0] == pytest.approx(8 * scale, rel=1e-12)


# Bad input

GOOD = np.random.default_rng(7).random((4, 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.empty((0, 2)), "empty"),
        (np.arange(4.0), "2-D"),
        (np.ones((4, 2), complex), "complex"),
        (np.full((4, 2), "a"), "real numbers"),
        (np.full((4, 2), np.nan), "NaN"),
        (np.array([[np.inf, 0.0]] * 4), "infinite"),
        (np.ones((4, 2)), r"quantile of the distances of 4 points is 0, shape \(4, 2\)"),
        (np.array([[1.7e308], [-1.7e308], [0.0], [1.0]]), r"beyond the range of float64, shape \(4, 1\)"),
        (None, "2-D|floating"),
    ],
)
def test_bad_clouds_are_refused(values: Any, message: str) -> None:
    with pytest.raises(ToposcopeError, match=rf"\Afirst: [^\n]*({message})[^\n]*\Z"):
        rtd(values, GOOD)
    with pytest.raises(ToposcopeError, match=rf"\Asecond: [^\n]*({message})[^\n]*\Z"):
        rtd(GOOD, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((4, 3)), r"\(n, n\) matrix of distances, got shape \(4, 3\)"),
        (np.triu(np.ones((4, 4)), 1), r"6 asymmetric pairs"),
        (np.eye(4) - 1, r"12 negative entries in shape \(4, 4\)"),
        (np.ones((4, 4)), r"4 entries other than 0 on the diagonal"),
        (np.where(np.eye(4) > 0, 0, np.inf), "infinite"),
    ],
)
def test_bad_distances_are_refused(values: Any, message: str) -> None:
    good = distances(GOOD)
    with pytest.raises(ToposcopeError, match=rf"\Afirst_distances: [^\n]*{message}[^\n]*\Z"):
        cross_barcode(values, good)
    with pytest.raises(ToposcopeError, match=rf"\Asecond_distances: [^\n]*{message}[^\n]*\Z"):
        cross_barcode(good, values)
    with pytest.raises(ToposcopeError, match=rf"\Asecond: [^\n]*{message}[^\n]*\Z"):
        rtd(good, values, metric="precomputed")


def test_different_numbers_of_points_are_refused() -> None:
    with pytest.raises(ToposcopeError, match=r"\Asecond: [^\n]*\(4, 2\)[^\n]*\(3, 2\)[^\n]*\Z"):
        rtd(GOOD, GOOD[:3])
    with pytest.raises(ToposcopeError, match=r"\Asecond_distances: [^\n]*\(4, 4\)[^\n]*\(3, 3\)[^\n]*\Z"):
        cross_barcode(distances(GOOD), distances(GOOD[:3]))


def test_one_point_has_no_topology_to_compare() -> None:
    with pytest.raises(ToposcopeError, match=r"\Afirst: expected at least 2 points, got shape \(1, 2\)\Z"):
        rtd(GOOD[:1], GOOD[:1])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("metric", "manhattan"), ("batch_size", 1), ("n_batches", 0), ("seed", -1)],
    ],
)
def test_bad_options_are_refused(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(ToposcopeError, match=rf"\A{option}: [^\n]*\Z"):
        rtd(GOOD, GOOD, **options)
