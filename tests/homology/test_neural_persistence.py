"""Neural persistence against the algorithms of Kruskal and Prim, and SciPy."""

import math
from typing import Any

import numpy as np
import pytest
from hard_cases import LARGE_MATRICES, large_matrix, matrices
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from property_examples import examples
from weight_matrices import FORMATS, kruskal, scipy_tree, widened

from toposcope.homology import neural_persistence

thorough = examples(200)
moderate = examples(100)
orders = st.sampled_from([1.0, 1.5, 2.0, 3.0, 7.0])


def dense_prim(W: NDArray[Any]) -> NDArray[np.float64]:
    """The same by Prim's algorithm on whole rows and columns, which is quick enough for larger matrices."""
    weights = np.abs(W).astype(np.float64)
    # The heaviest entry between the tree and every row and column outside; below zero for those inside.
    rows, columns = np.full(W.shape[0], -0.5), weights[0].copy()
    inside_rows, inside_columns = np.zeros(W.shape[0], bool), np.zeros(W.shape[1], bool)
    inside_rows[0], rows[0] = True, -1
    tree = np.empty(sum(W.shape) - 1)
    for k in range(len(tree)):
        i, j = rows.argmax(), columns.argmax()
        if rows[i] > columns[j]:
            tree[k], rows[i], inside_rows[i] = rows[i], -1, True
            np.maximum(columns, weights[i], out=columns, where=~inside_columns)
        else:
            tree[k], columns[j], inside_columns[j] = columns[j], -1, True
            np.maximum(rows, weights[:, j], out=rows, where=~inside_rows)
    return np.sort(tree)[::-1]


def expected_deaths(tree: NDArray[Any], scale: float) -> NDArray[np.float64]:
    return tree.astype(np.float64) / scale if scale else np.ones(len(tree))


@thorough
@given(matrices())
@example(np.zeros((3, 2)))
@example(np.ones((1, 1), np.float32))
@example(np.array([[5e-324, 0.0]]))
@example(np.array([[np.finfo(np.float64).max, -np.finfo(np.float64).max, 1.0]]))
def test_deaths_are_the_maximum_spanning_tree(W: NDArray[Any]) -> None:
    deaths = neural_persistence(W).deaths
    largest = float(np.abs(W).max())
    assert deaths.dtype == np.float64
    assert_array_equal(deaths, expected_deaths(kruskal(W), largest))
    assert_array_equal(deaths, expected_deaths(scipy_tree(W), largest))


@pytest.mark.parametrize("format", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", LARGE_MATRICES)
def test_deaths_of_every_hard_kind_in_every_format(kind: str, format: str) -> None:
    W = FORMATS[format](large_matrix(kind, 700, 900))
    wide = widened(W)
    assert_array_equal(neural_persistence(W).deaths, expected_deaths(dense_prim(wide), float(np.abs(wide).max())))


@pytest.mark.parametrize("shape", [(40, 3000), (3000, 40)])
@pytest.mark.parametrize("kind", LARGE_MATRICES)
def test_deaths_of_every_hard_kind_in_long_matrices(kind: str, shape: tuple[int, int]) -> None:
    format = ["float16", "bfloat16", "float32", "float64"][(len(kind) + shape[0]) % 4]
    W = FORMATS[format](large_matrix(kind, *shape))
    wide = widened(W)
    assert_array_equal(neural_persistence(W).deaths, expected_deaths(dense_prim(wide), float(np.abs(wide).max())))


@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1)])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "ternary", "half zeros", "zeros", "ascending"])
def test_a_single_row_or_column_is_its_own_tree(kind: str, format: str, shape: tuple[int, int]) -> None:
    W = FORMATS[format](large_matrix(kind, *shape))
    weights = np.sort(np.abs(widened(W)), axis=None)[::-1]
    assert_array_equal(neural_persistence(W).deaths, expected_deaths(weights, float(weights[0])))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "int4", "row scales", "dead rows and columns", "zeros"])
def test_the_number_of_threads_does_not_matter(kind: str) -> None:
    W = large_matrix(kind, 1500, 1500).astype(np.float32)
    one, *more = (neural_persistence(W, n_threads=count) for count in (1, 2, 3))
    for other in more:
        assert_array_equal(other.deaths, one.deaths)
        assert (other.mean, other.norm, other.normalized) == (one.mean, one.norm, one.normalized)


@thorough
@given(matrices(), orders)
def test_statistics_are_those_of_the_definition(W: NDArray[Any], p: float) -> None:
    result = neural_persistence(W, p=p)
    n_tree = sum(W.shape) - 1
    lost = [1 - float(a) for a in result.deaths]
    norm = math.fsum(x**p for x in lost) ** (1 / p)
    assert result.mean == pytest.approx(math.fsum(lost) / n_tree, rel=1e-13, abs=0)
    assert result.norm == pytest.approx(norm, rel=1e-13, abs=0)
    assert result.normalized == pytest.approx(norm / n_tree ** (1 / p), rel=1e-13, abs=0)
    assert result.scale == np.abs(W).max()
    assert result.degenerate == (not W.any())


@moderate
@given(matrices())
def test_shape_and_order_of_the_diagram(W: NDArray[Any]) -> None:
    result = neural_persistence(W)
    deaths, diagram = result.deaths, result.diagram
    assert deaths.shape == (sum(W.shape) - 1,)
    assert deaths[0] == 1
    assert np.all(deaths[:-1] >= deaths[1:])
    assert np.all(deaths >= 0)
    assert np.all(diagram.pairs[:, 0] == 1)
    assert_array_equal(diagram.pairs[:, 1], deaths[::-1])
    assert_array_equal(np.sort(diagram.lifetimes), 1 - deaths)
    assert (diagram.dimension, diagram.n_essential, diagram.n_truncated, diagram.cover_radius) == (0, 1, 0, 0.0)


@moderate
@given(matrices(extreme=False), st.floats(1, 1000), orders)
def test_scale_of_a_network(W: NDArray[Any], factor: float, p: float) -> None:
    largest = float(np.abs(W).max())
    assume(largest > 0)
    scale = largest * factor
    result = neural_persistence(W, scale=scale, p=p)
    assert result.scale == scale
    assert not result.degenerate
    assert_array_equal(result.deaths, kruskal(W).astype(np.float64) / scale)
    assert 0 <= result.normalized <= 1 + 1e-14
    assert_array_equal(neural_persistence(W, scale=largest).deaths, neural_persistence(W).deaths)


@pytest.mark.parametrize("scale", [2, 2.0, np.float64(2), np.float32(2), np.int64(2)])
def test_scale_is_any_real_number(scale: Any) -> None:
    # np.abs(W).max() of a float32 matrix is such a number.
    result = neural_persistence(np.array([[1.0, 0.5]], np.float32), scale=scale)
    assert_array_equal(result.deaths, [0.5, 0.25])
    assert type(result.scale) is float


@moderate
@given(matrices(), orders)
def test_counted_essential_class_adds_one_to_every_sum(W: NDArray[Any], p: float) -> None:
    dropped, counted = neural_persistence(W, p=p), neural_persistence(W, p=p, essential="count")
    n_tree = len(dropped.deaths)
    assert_array_equal(counted.deaths, dropped.deaths)
    assert_array_equal(counted.diagram.pairs, dropped.diagram.pairs)
    if dropped.degenerate:
        assert (counted.mean, counted.norm, counted.normalized) == (0, 0, 0)
        return
    assert counted.mean == pytest.approx(dropped.mean + 1 / n_tree, rel=1e-13, abs=0)
    assert counted.norm == pytest.approx((dropped.norm**p + 1) ** (1 / p), rel=1e-13, abs=0)
    assert counted.normalized == pytest.approx(counted.norm / n_tree ** (1 / p), rel=1e-13, abs=0)


@pytest.mark.parametrize("scale", ["layer", 0.0, 2.0])
@pytest.mark.parametrize("essential", ["drop", "count"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 3)])
def test_all_zero_matrix_is_degenerate(shape: tuple[int, int], essential: Any, scale: Any) -> None:
    result = neural_persistence(np.zeros(shape), essential=essential, scale=scale)
    assert result.degenerate
    assert (result.mean, result.norm, result.normalized) == (0, 0, 0)
    assert_array_equal(result.deaths, np.ones(sum(shape) - 1))
    assert not result.diagram.lifetimes.any()


def test_worked_example() -> None:
    # 4 joins row 0 to column 0, 3 brings row 1, 2 brings column 1; 1 would close a cycle.
    result = neural_persistence(np.array([[4.0, 2.0], [-3.0, 1.0]]))
    assert_array_equal(result.deaths, [1, 0.75, 0.5])
    assert result.mean == 0.25
    assert result.norm == math.sqrt(0.25**2 + 0.5**2)
    assert result.normalized == pytest.approx(result.norm / math.sqrt(3), rel=1e-15, abs=0)


@pytest.mark.parametrize(("p", "gap"), [(1, 1e-12), (2, 1e-12), (10, 1e-12), (30, 1e-5), (30, 1e-12), (100, 1e-5)])
def test_norm_lies_between_the_largest_persistence_and_their_sum(p: float, gap: float) -> None:
    result = neural_persistence(np.array([[1.0, 1 - gap], [1.0, 1 - gap / 2]]), p=p)
    lost = 1 - result.deaths
    assert lost.max() * (1 - 1e-12) <= result.norm <= lost.sum() * (1 + 1e-12)
