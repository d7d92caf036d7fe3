"""Landmarks of `rips` and `farthest_points`: their order, their bound, and whatever they are given as."""

import math
import re
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from exact_matching import exact_bottleneck
from hard_cases import Array, assert_same_pairs, clouds, directed
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from property_examples import examples
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    farthest_points,
    rips,
    two_nn,
)

rips_module = import_module("toposcope.homology.rips")  # the package has the function by this name

thorough = examples(200)
moderate = examples(100)


@moderate
@given(clouds(max_points=12), st.data())
def test_the_bound_of_landmarks_holds_in_the_cosine_distance(points: Array, data: st.DataObject) -> None:
    points = directed(points)
    count = data.draw(st.integers(1, len(points)))
    exact = rips(points, metric="cosine")
    by_count = rips(points, metric="cosine", max_points=count)[1]
    chosen = data.draw(st.permutations(range(len(points))))[:count]
    by_hand = rips(points, metric="cosine", landmarks=chosen)[1]
    for diagram in (by_count, by_hand):
        assert exact_bottleneck(diagram.pairs, exact[1].pairs) <= 2 * diagram.cover_radius + 1e-14
    apart = squareform(pdist(points, "cosine").clip(0))
    assert apart[:, chosen].min(axis=1).max() <= by_hand.cover_radius + 1e-14
    # Distances move by at most twice what chords do, which are at most 2.
    chords = squareform(pdist(points / np.linalg.norm(points, axis=1, keepdims=True)))
    assert by_hand.cover_radius == pytest.approx(2 * chords[:, chosen].min(axis=1).max(), rel=1e-12, abs=1e-14)


@moderate
@given(clouds(max_points=12), st.data())
def test_landmarks_of_a_matrix_of_distances(points: Array, data: st.DataObject) -> None:
    distances = squareform(pdist(points))
    n = len(points)
    count = data.draw(st.integers(1, n))
    chosen, radii = farthest_points(distances, count, metric="precomputed")
    assert distances[chosen[0]].max() == distances.max()
    for k in range(count):
        nearest = distances[chosen[: k + 1]].min(axis=0)
        assert radii[k] == nearest.max()
        if k + 1 < count:
            assert nearest[chosen[k + 1]] == nearest.max()
    assert len(set(chosen.tolist())) == count
    diagram = rips(distances, metric="precomputed", max_points=count)[1]
    if count < n:
        assert diagram.cover_radius == radii[-1]
    exact = rips(distances, metric="precomputed")[1]
    assert exact_bottleneck(diagram.pairs, exact.pairs) <= 2 * radii[-1] + 1e-14 * distances.max()


def test_landmarks_reach_every_component_or_say_so() -> None:
    matrix = np.where(np.arange(9)[:, None] % 3 == np.arange(9) % 3, 1.0, np.inf)
    np.fill_diagonal(matrix, 0)
    chosen, radii = farthest_points(matrix, 9, metric="precomputed")
    assert set(chosen[:3] % 3) == {0, 1, 2}
    assert radii.tolist() == [np.inf] * 2 + [1.0] * 6 + [0.0]
    assert rips(matrix, metric="precomputed", max_points=2)[1].cover_radius == np.inf
    refused: dict[str, Any] = {
        "points: 4 of 4 points have no second": lambda: two_nn(matrix[:4, :4], metric="precomputed"),
    }
    for message, call in refused.items():
        with pytest.raises(ToposcopeError, match=message):
            call()


@thorough
@given(clouds(max_points=14), st.sampled_from(["euclidean", "cosine", "precomputed"]), st.data())
def test_a_beginning_of_the_order_is_a_smaller_count(points: Array, metric: Any, data: st.DataObject) -> None:
    if metric == "cosine":
        points = directed(points)
    if metric == "precomputed":
        points = squareform(pdist(points))
    n = len(points)
    order, radii = farthest_points(points, n, metric=metric)
    assert sorted(order) == list(range(n))
    assert radii[-1] == 0
    count = data.draw(st.integers(1, n))
    chosen, cover_radii = farthest_points(points, count, metric=metric)
    assert_array_equal(chosen, order[:count])
    assert_array_equal(cover_radii, radii[:count])
    by_count = rips(points, metric=metric, max_points=count)
    by_hand = rips(points, metric=metric, landmarks=order[:count])
    assert_array_equal(by_hand[0].pairs, by_count[0].pairs)
    assert exact_bottleneck(by_hand[1].pairs, by_count[1].pairs) == 0
    assert by_hand[1].cover_radius == pytest.approx(radii[count - 1], rel=1e-14, abs=0)


@moderate
@given(clouds(max_points=12), st.data())
def test_landmarks_of_ones_own(points: Array, data: st.DataObject) -> None:
    chosen = data.draw(st.permutations(range(len(points))))[: data.draw(st.integers(1, len(points)))]
    h0, h1 = rips(points, landmarks=chosen, max_points=1)
    whole = rips(points)
    apart = np.array([[math.dist(x, y) for y in points] for x in points])
    assert_array_equal(h0.pairs, whole[0].pairs)
    assert_array_equal(h1.pairs, rips(points[chosen])[1].pairs)
    assert h1.cover_radius == pytest.approx(apart[:, chosen].min(axis=1).max(), rel=1e-14, abs=0)
    assert exact_bottleneck(h1.pairs, whole[1].pairs) <= 2 * h1.cover_radius + 1e-14 * np.abs(points).max()


@pytest.mark.parametrize(
    ("d", "advice"), [(2, "geoph computes H1 of all points of a plane"), (3, "geoph's Delaunay-Rips and GUDHI's alpha")]
)
def test_flat_clouds_beyond_the_matrix_are_landmarks_and_name_other_tools(
    d: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = np.random.default_rng(0).normal(size=(200, d))
    whole = rips(points)
    monkeypatch.setattr(rips_module, "MAX_POINTS", 199)
    monkeypatch.setattr(rips_module, "DEFAULT_LANDMARKS", 80)
    with pytest.warns(UserWarning, match=rf"H1 is of 80 landmarks of the 200 points, .* cover_radius; .*{advice}"):
        h0, h1 = rips(points)
    assert_array_equal(h0.pairs, whole[0].pairs)
    assert h1.births is not None
    assert_array_equal(h1.births, np.sort(whole[1].pairs[:, 0]))
    assert h1.cover_radius == farthest_points(points, 80)[1][-1]
    assert exact_bottleneck(h1.pairs, whole[1].pairs) <= 2 * h1.cover_radius
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rips(points, max_points=80)  # as asked for
        rips(np.hstack([points, points]))  # of more dimensions


def test_every_kind_of_landmarks() -> None:
    points = np.random.default_rng(5).normal(size=(30, 2))
    chosen = farthest_points(points, 20)[0]
    expected = rips(points, landmarks=chosen)
    for kind in (
        chosen.tolist(),
        chosen.astype(np.uint8),
        chosen.astype(">i2"),
        torch.from_numpy(chosen),
        chosen[::-1],
    ):
        assert_same_pairs(rips(points, landmarks=kind), expected)


@pytest.mark.parametrize(
    ("landmarks", "quoted"),
    [
        ([0, 0], "distinct numbers from 0 to 4, got 2 from 0 to 0"),
        ([-1, 2], "got 2 from -1 to 2"),
        ([5], "from 0 to 4, got 1 from 5 to 5"),
        ([], "shape (0,)"),
        ([[0, 1]], "shape (1, 2)"),
        ([0.0, 1.0], "float64"),
        ([True, False, True, True, False], "bool"),
        (object(), "object"),
    ],
)
def test_bad_landmarks_are_refused_in_one_line(landmarks: Any, quoted: str) -> None:
    with pytest.raises(ToposcopeError, match=rf"\Alandmarks: [^\n]*{re.escape(quoted)}[^\n]*\Z"):
        rips(np.eye(5), landmarks=landmarks)


@pytest.mark.parametrize("count", [0, 6, None])
def test_bad_counts_are_refused_in_one_line(count: Any) -> None:
    with pytest.raises(ToposcopeError, match=r"\Acount: [^\n]*\Z"):
        farthest_points(np.eye(5), count)
