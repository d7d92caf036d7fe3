"""Two nearest neighbours against known dimensions and a plain implementation on all distances."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hard_cases import LARGE_CLOUDS, Array, large_cloud
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import two_nn

moderate = examples(60)
seeds = st.integers(0, 2**32)


def distances(points: Array) -> Array:
    return np.asarray(squareform(pdist(points)))


def plain(matrix: Array, discard: float = 0.1) -> float:
    """By loops, from a matrix of distances between distinct points."""
    ratios = []
    for i, row in enumerate(matrix):
        first, second = sorted(value for j, value in enumerate(row) if j != i)[:2]
        ratios.append(math.log(second / first))
    n = len(ratios)
    pairs = [(x, -math.log(1 - i / n)) for i, x in enumerate(sorted(ratios), 1) if i < n]
    pairs = pairs[: max(1, round(n * (1 - discard)))]
    return sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)


@pytest.mark.parametrize(("d", "n", "within"), [(1, 1000, 0.05), (2, 2000, 0.05), (5, 4000, 0.1), (10, 4000, 0.15)])
def test_uniform_cubes(d: int, n: int, within: float) -> None:
    # In many dimensions nearly all points are at the boundary, which lowers it.
    found = [two_nn(np.random.default_rng(seed).random((n, d))).dimension for seed in range(3)]
    assert np.mean(found) == pytest.approx(d, rel=within)


@moderate
@given(seeds, st.integers(3, 60), st.integers(1, 8), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_plain_implementation(seed: int, n: int, d: int, discard: float) -> None:
    points = np.random.default_rng(seed).normal(size=(n, d))
    wanted = plain(distances(points), discard)
    assert two_nn(points, discard=discard).dimension == pytest.approx(wanted, rel=1e-9)
    matrix = distances(points)
    assert two_nn(matrix, discard=discard, metric="precomputed").dimension == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("name", LARGE_CLOUDS)
def test_hard_clouds(name: str) -> None:
    points = large_cloud(name, 300, 6)
    distinct = np.unique(points, axis=0)
    found = two_nn(points)
    matrix = distances(distinct)
    assert (found.n_points, found.n_duplicates) == (len(distinct), 300 - len(distinct))
    if len(distinct) < 3:
        assert math.isnan(found.dimension)
        return
    assert found.dimension == pytest.approx(plain(matrix), rel=1e-9)
    assert two_nn(distances(points), metric="precomputed").n_points == found.n_points


@pytest.mark.parametrize("n_copies", [1, 3, 25])
def test_directions(n_copies: int) -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(500, 4))
    unit = points / np.linalg.norm(points, axis=1)[:, None]
    # More in one direction than a list of neighbours holds; equal but for rounding.
    scaled = np.concatenate([points * factor for factor in [1, *generator.uniform(0.1, 10, n_copies - 1)]])
    found = two_nn(scaled, metric="cosine")
    assert (found.n_points, found.n_duplicates) == (500, 500 * (n_copies - 1))
    assert found.dimension == pytest.approx(two_nn(unit).dimension, rel=1e-6)
    assert found.dimension == pytest.approx(3, rel=0.15)
    # 1 - cos is half the square of the chord.
    cosine = distances(unit) ** 2 / 2
    assert two_nn(np.sqrt(cosine), metric="precomputed").dimension == pytest.approx(found.dimension, rel=1e-6)


def test_no_ratio_but_one() -> None:
    assert two_nn(1 - np.eye(5), metric="precomputed").dimension == math.inf
    # Of a line of equal steps only the ends have another ratio.
    line = np.arange(50.0)[:, None]
    assert two_nn(line).dimension == math.inf
    assert two_nn(line, discard=0).dimension == pytest.approx(plain(distances(line), 0))


@pytest.mark.filterwarnings("error")
def test_too_few_points() -> None:
    for points, n_points in ((np.ones((1, 2)), 1), (np.ones((9, 2)), 1), (np.eye(2), 2), (np.eye(2)[[0, 1, 1, 0]], 2)):
        for metric, values in (("euclidean", points), ("cosine", points), ("precomputed", distances(points))):
            found = two_nn(values, metric=metric)  # type: ignore[arg-type]
            assert math.isnan(found.dimension)
            assert (found.n_points, found.n_duplicates) == (n_points, len(points) - n_points)


def test_dtypes_and_scales() -> None:
    points = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float16)
    wanted = two_nn(points.astype(np.float64))
    assert two_nn(points) == wanted
    assert two_nn(torch.from_numpy(points).requires_grad_()) == wanted
    for exponent in (-1000, 1000):
        assert two_nn(np.ldexp(points.astype(np.float64), exponent)) == wanted


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.ones(3), {}, "points: "),
        (np.full((3, 3), np.nan), {}, "points: .*NaN"),
        (np.zeros((3, 3)), {"metric": "cosine"}, "points: .*zero"),
        (np.ones((3, 3)), {"metric": "precomputed"}, "points: .*diagonal"),
        (np.eye(3), {"metric": "manhattan"}, "metric: "),
        (np.eye(3), {"discard": 1.0}, "discard: .*below 1"),
        (np.eye(3), {"discard": -0.1}, "discard: "),
    ],
)
def test_bad_input_is_refused(values: Any, options: Any, message: str) -> None:
    with pytest.raises(ToposcopeError, match=rf"\A{message}[^\n]*\Z"):
        two_nn(values, **options)
