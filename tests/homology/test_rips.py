"""Vietoris-Rips persistence against SciPy's spanning tree, ripser, and GUDHI's simplex tree."""

import math
from dataclasses import replace
from importlib import import_module
from typing import Any

import gudhi
import numpy as np
import polars as pl
import pytest
import torch
from exact_matching import exact_bottleneck
from hard_cases import Array, clouds
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from ripser import ripser
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree

from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, farthest_points, neural_persistence, rips, statistics

rips_module = import_module("toposcope.homology.rips")  # the package has the function by this name

thorough = examples(200)
moderate = examples(100)


def distances(points: Array) -> Array:
    """All distances, each correctly rounded or nearly so, none from squared norms."""
    return np.array([[math.dist(x, y) for y in points] for x in points])


def tree_lengths(points: Array) -> Array:
    """Lengths of SciPy's minimum spanning tree, ascending; found on ranks, since SciPy reads a zero as no edge."""
    levels, rank = np.unique(distances(points), return_inverse=True)
    n = len(points)
    graph = np.triu(1 + rank.reshape(n, n), k=1)
    tree = minimum_spanning_tree(csr_matrix(graph))
    return np.sort(levels[tree.data.astype(int) - 1])


def simplex_tree_bars(points: Array, max_dimension: int, cap: float = np.inf, field: int = 2) -> list[Array]:
    """Bars of every dimension, by GUDHI's cohomology of the explicit complex."""
    complex_ = gudhi.RipsComplex(distance_matrix=distances(points), max_edge_length=cap)
    tree = complex_.create_simplex_tree(max_dimension=max_dimension + 1)
    tree.compute_persistence(homology_coeff_field=field, min_persistence=0, persistence_dim_max=True)
    return [np.reshape(tree.persistence_intervals_in_dimension(k), (-1, 2)) for k in range(max_dimension + 1)]


def ordered(pairs: Array) -> Array:
    pairs = pairs[pairs[:, 1] > pairs[:, 0]]
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def finite(bars: Array) -> Array:
    return bars[np.isfinite(bars[:, 1])]


def assert_same(first: list[Diagram], second: list[Diagram]) -> None:
    """Equality to the last bit."""
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert_array_equal(a.pairs, b.pairs)
        assert (a.dimension, a.n_essential, a.n_truncated) == (b.dimension, b.n_essential, b.n_truncated)
        assert a.cover_radius == b.cover_radius


# Connected components


@thorough
@given(clouds(max_points=16))
@example(np.zeros((1, 1)))
@example(np.zeros((4, 2)))
@example(np.array([[0.0, 0.0], [3.0, 4.0]]))
def test_h0_is_the_minimum_spanning_tree(points: Array) -> None:
    (h0,) = rips(points, max_dimension=0)
    assert h0.pairs.shape == (len(points) - 1, 2)
    assert not h0.pairs[:, 0].any()
    assert_allclose(h0.pairs[:, 1], tree_lengths(points), rtol=1e-14, atol=0)
    assert (h0.dimension, h0.n_essential, h0.n_truncated, h0.cover_radius) == (0, 1, 0, 0.0)


@moderate
@given(clouds(), st.data())
def test_duplicates_stay_as_bars_of_length_zero(points: Array, data: st.DataObject) -> None:
    copies = data.draw(st.lists(st.integers(0, len(points) - 1), max_size=6))
    doubled = np.concatenate([points, points[copies]])
    once, twice = rips(points, max_dimension=1), rips(doubled, max_dimension=1)
    assert_array_equal(twice[0].pairs[:, 1], np.sort([*once[0].pairs[:, 1], *[0.0] * len(copies)]))
    assert_array_equal(twice[1].pairs, once[1].pairs)


def test_extremely_mixed_scales_in_one_cloud() -> None:
    # Below 1e-154 of the largest coordinate a length counts as zero, as documented; the bar itself stays.
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1e200, 0.0]])
    assert_allclose(rips(points, max_dimension=0)[0].pairs[:, 1], [0, 1e200], rtol=1e-14)


# Loops and voids


@thorough
@given(clouds(max_points=10))
@example(np.zeros((1, 1)))
@example(np.zeros((3, 2)))
def test_higher_dimensions_are_those_of_the_simplex_tree(points: Array) -> None:
    expected = simplex_tree_bars(points, 2)
    tolerance = 1e-14 * np.abs(points).max()
    for k, diagram in enumerate(rips(points, max_dimension=2)):
        assert (diagram.dimension, diagram.n_truncated) == (k, 0)
        assert diagram.n_essential == (k == 0)
        # Sorted arrays would not bear ties that rounding breaks.
        assert exact_bottleneck(diagram.pairs, finite(expected[k])) <= tolerance


@pytest.mark.parametrize(("n", "d", "seed"), [(40, 2, 0), (30, 3, 1), (24, 4, 2), (20, 10, 3)])
def test_generic_clouds_bar_by_bar(n: int, d: int, seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(n, d))
    got = rips(points, max_dimension=2)
    expected = simplex_tree_bars(points, 2)
    by_ripser = ripser(distances(points), maxdim=2, distance_matrix=True)["dgms"]
    assert len(got[1].pairs) > 1
    for k in (0, 1, 2):
        assert_allclose(got[k].pairs, ordered(finite(expected[k])), rtol=1e-12, atol=0)
        # ripser computes in float32, where a very short bar may come or go.
        assert exact_bottleneck(got[k].pairs, finite(by_ripser[k].astype(np.float64))) <= 1e-6 * distances(points).max()


def test_coefficients_are_in_the_field_of_two_elements() -> None:
    # The projective plane, as the lines x x^T: twice around its loop is nothing, which three elements cannot see.
    x = np.random.default_rng(3).normal(size=(36, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    points = (x[:, :, None] * x[:, None, :]).reshape(36, 9)
    by_two, by_three = simplex_tree_bars(points, 2, field=2), simplex_tree_bars(points, 2, field=3)
    for k, diagram in enumerate(rips(points, max_dimension=2)):
        assert exact_bottleneck(diagram.pairs, finite(by_two[k])) <= 1e-14
        assert k == 0 or exact_bottleneck(diagram.pairs, finite(by_three[k])) > 0.05


def test_dimensions_do_not_depend_on_how_many_are_asked() -> None:
    points = np.random.default_rng(5).normal(size=(20, 3))
    three = rips(points, max_dimension=2)
    assert_same(rips(points, max_dimension=0), three[:1])
    assert_same(rips(points), three[:2])


# The cap


@thorough
@given(clouds(max_points=10), st.data())
def test_a_cap_loses_nothing(points: Array, data: st.DataObject) -> None:
    whole = rips(points, max_dimension=2)
    ends = [x for diagram in whole for x in diagram.pairs.ravel().tolist()] or [1.0]
    end = data.draw(st.sampled_from(ends))
    cap = data.draw(st.sampled_from([end, np.nextafter(end, 0), np.nextafter(end, np.inf), end / 2]))
    for full, capped in zip(whole, rips(points, max_dimension=2, threshold=cap), strict=True):
        birth, death = full.pairs.T
        # Inclusive: what dies at the cap has died, what is born at the cap is alive.
        assert_array_equal(capped.pairs, full.pairs[death <= cap])
        assert_array_equal(capped.truncated_births, np.sort(birth[(birth <= cap) & (cap < death)]))
        assert capped.n_essential == full.n_essential


@pytest.mark.parametrize("cap", [0, 1, 2])
def test_a_whole_number_is_a_cap(cap: int) -> None:
    points = np.random.default_rng(8).normal(size=(12, 2))
    assert_same(rips(points, threshold=cap), rips(points, threshold=float(cap)))


# Scales


@moderate
@given(clouds(max_points=10), st.integers(-900, 900), st.sampled_from([{}, {"threshold": 1.0}, {"max_points": 3}]))
def test_a_power_of_two_scales_every_digit(points: Array, exponent: int, options: dict[str, Any]) -> None:
    of_scaled = {k: np.ldexp(value, exponent) if k == "threshold" else value for k, value in options.items()}
    expected = [
        replace(d, pairs=np.ldexp(d.pairs, exponent), cover_radius=np.ldexp(d.cover_radius, exponent), births=None)
        for d in rips(points, max_dimension=2, **options)
    ]
    assert_same(rips(np.ldexp(points, exponent), max_dimension=2, **of_scaled), expected)


@pytest.mark.filterwarnings("error")
def test_a_huge_cap_on_a_tiny_cloud() -> None:
    points = np.random.default_rng(6).normal(size=(10, 2)) * 1e-200
    assert_same(rips(points, threshold=1e300), rips(points))


# Invariance


@moderate
@given(clouds(max_points=10), st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(points: Array, random: Any) -> None:
    order = list(range(len(points)))
    random.shuffle(order)
    assert_same(rips(points, max_dimension=2), rips(points[order], max_dimension=2))


# Landmarks


@thorough
@given(clouds(max_points=14), st.data())
def test_farthest_points(points: Array, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(points)))
    landmarks, cover_radii = farthest_points(points, count)
    cover_radius = cover_radii[-1]
    apart = distances(points)
    tolerance = 1e-12 * max(1.0, float(np.abs(points).max()))
    assert landmarks.shape == (count,)
    assert cover_radius == pytest.approx(apart[:, landmarks].min(axis=1).max(), rel=1e-12, abs=0)
    from_centroid = np.array([math.dist(x, points.mean(axis=0)) for x in points])
    assert from_centroid[landmarks[0]] >= from_centroid.max() - tolerance
    for k in range(1, count):
        reached = apart[:, landmarks[:k]].min(axis=1)
        assert reached[landmarks[k]] == pytest.approx(reached.max(), rel=1e-12, abs=0)
    if count == len(points):
        assert cover_radius == 0
    if len(np.unique(points, axis=0)) == len(points):
        assert len(set(landmarks.tolist())) == count


def test_enough_room_means_all_points() -> None:
    points = np.random.default_rng(12).normal(size=(20, 2))
    assert_same(rips(points, max_points=20), rips(points))
    assert rips(points, max_points=19)[1].cover_radius > 0


@moderate
@given(clouds(max_points=14), st.sampled_from(["euclidean", "cosine"]), st.data())
def test_landmarks_carry_the_births_of_all_points(points: Array, metric: Any, data: st.DataObject) -> None:
    assume(len(points) > 2)
    assume(metric != "cosine" or points.any(axis=1).all())
    count = data.draw(st.integers(1, len(points) - 1))
    h1 = rips(points, metric=metric, max_points=count)[1]
    births = rips(points, metric=metric)[1].pairs[:, 0]
    assert_array_equal(h1.births, births)
    assert statistics(h1)["count"] == len(births)


def test_where_the_filtration_is_capped_landmarks_have_no_births() -> None:
    points = np.random.default_rng(13).normal(size=(20, 2))
    h1 = rips(points, max_points=10, threshold=2.0)[1]
    assert h1.births is None
    assert statistics(h1)["count"] == len(h1.pairs)


def test_all_points_are_used_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(14).normal(size=(60, 4))
    monkeypatch.setattr(rips_module, "total_memory", lambda: 48 * 60**2)
    assert rips(points)[1].cover_radius == 0
    monkeypatch.setattr(rips_module, "total_memory", lambda: 48 * 60**2 - 1)
    monkeypatch.setattr(rips_module, "DEFAULT_LANDMARKS", 30)
    found = rips(points)[1]
    assert_array_equal(found.pairs, rips(points, max_points=30)[1].pairs)
    assert found.cover_radius > 0
    assert_array_equal(found.births, rips(points, max_points=60)[1].pairs[:, 0])


WAYS: dict[str, Any] = {
    "int64": np.int64, "int32": np.int32, "int8": np.int8, "uint8": np.abs, "list": np.ndarray.tolist, "rows": list,
    "tuple": lambda points: tuple(map(tuple, points)), "frame": pl.DataFrame, "tensor": torch.from_numpy,
    "tensors": lambda points: [torch.from_numpy(point) for point in points], "masked": np.ma.masked_array,
    "short tensor": lambda points: torch.tensor(points).short(), "by columns": np.asfortranarray,
}  # fmt: skip
"""How others hand over whole numbers."""


@moderate
@given(arrays(np.int64, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.integers(-99, 99)))
@pytest.mark.parametrize("way", WAYS)
def test_whole_numbers_are_points_and_weights_as_they_are_as_floats(way: str, points: Array) -> None:
    given_so = WAYS[way](points)
    floats = np.array(given_so, dtype=np.float64) if way == "uint8" else points.astype(np.float64)
    for found, expected in zip(rips(given_so), rips(floats), strict=True):
        assert_array_equal(found.pairs, expected.pairs)
    assert_array_equal(neural_persistence(given_so).deaths, neural_persistence(floats).deaths)


# Bad input


@pytest.mark.parametrize(
    ("points", "quoted"),
    [
        (np.array([[0.0, np.nan]]), "1 of 2"),
        (np.array([[0.0], [-np.inf]]), "1 of 2"),
        (torch.full((3, 2), torch.inf), "6 of 6"),
        (np.zeros((0, 2)), "(0, 2)"),
        (np.zeros((3, 0)), "(3, 0)"),
        ([], "(0,)"),
        (np.zeros(3), "(3,)"),
        (np.zeros((2, 2, 2)), "(2, 2, 2)"),
        (np.zeros((2, 2), complex), "complex128"),
        (np.full((2, 2), 2**53 + 1), "2^53"),
        (np.zeros((2, 2), bool), "bool"),
        ([["a", "b"]], "<U1"),
        ([[1.0], [2.0, 3.0]], "list"),
        (None, "()"),
    ],
)
def test_bad_clouds_are_refused_in_one_line(points: Any, quoted: str) -> None:
    with pytest.raises(ToposcopeError) as caught:
        rips(points)
    message = str(caught.value)
    assert message.startswith("points: ")
    assert quoted in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_dimension", -1),
        *[("max_points", value) for value in (0, 2.5)],
        *[("threshold", value) for value in (-1e-300, np.nan, None)],
    ],
)
def test_bad_options_are_refused_in_one_line(option: str, value: Any) -> None:
    points: Any = np.random.default_rng(0).normal(size=(5, 2))
    with pytest.raises(ToposcopeError, match=rf"\A[^\n]*{option}[^\n]*\Z"):
        rips(points, **{option: value})
