"""Neural persistence (METHODS 2) against Kruskal's algorithm, SciPy, and the theorems of Rieck et al. 2019."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hard_cases import LARGE_MATRICES, large_matrix, matrices
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree

from toposcope.errors import ToposcopeError
from toposcope.homology import neural_persistence

thorough = settings(max_examples=200, deadline=None)
moderate = settings(max_examples=100, deadline=None)
orders = st.sampled_from([1.0, 1.5, 2.0, 3.0, 7.0])


def kruskal(W: NDArray[Any]) -> NDArray[Any]:
    """Weights of the maximum spanning tree, descending: edges from heavy to light, each kept if it joins two trees."""
    m, n = W.shape
    weights = np.abs(W)
    tree_of = list(range(m + n))
    kept = []
    for edge in np.argsort(-weights, axis=None, kind="stable"):
        i, j = divmod(int(edge), n)
        a, b = tree_of[i], tree_of[m + j]
        if a != b:
            tree_of = [a if t == b else t for t in tree_of]
            kept.append(weights[i, j])
    return np.array(kept)


def scipy_tree(W: NDArray[Any]) -> NDArray[Any]:
    """The same by SciPy, on ranks: they are positive, so that a zero weight is not taken for a missing edge."""
    m, n = W.shape
    levels, rank = np.unique(np.abs(W), return_inverse=True)
    graph = np.zeros((m + n, m + n))
    graph[:m, m:] = len(levels) - rank.reshape(m, n)
    tree = minimum_spanning_tree(csr_matrix(graph))
    return np.sort(levels[len(levels) - tree.data.astype(int)])[::-1]


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


@pytest.mark.parametrize("shape", [(1, 400), (400, 1), (150, 170), (64, 300)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["normal", "quantised", "sparse", "row scales", "cauchy"])
def test_deaths_of_larger_matrices(shape: tuple[int, int], dtype: type[np.floating], kind: str) -> None:
    rng = np.random.default_rng(7)
    W = rng.normal(size=shape)
    if kind == "quantised":
        W = np.round(W * 4) / 4
    elif kind == "sparse":
        W *= rng.random(shape) < 0.02
    elif kind == "row scales":
        W *= 10.0 ** rng.integers(-12, 12, (shape[0], 1))
    elif kind == "cauchy":
        W = rng.standard_cauchy(shape)
    W = W.astype(dtype)
    assert_array_equal(neural_persistence(W).deaths, expected_deaths(scipy_tree(W), float(np.abs(W).max())))


FORMATS: dict[str, Any] = {
    "float16": lambda W: W.astype(np.float16),
    "bfloat16": lambda W: torch.from_numpy(W).bfloat16(),
    "float32": lambda W: W.astype(np.float32),
    "float64": lambda W: W,
    "float16 tensor": lambda W: torch.from_numpy(W).half(),
}


def widened(W: Any) -> NDArray[np.float64]:
    """The same entries in float64, by the conversions of torch and NumPy themselves."""
    return W.double().numpy() if isinstance(W, torch.Tensor) else np.asarray(W).astype(np.float64)


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


@pytest.mark.parametrize("kind", ["normal", "int4", "both scales", "dead rows and columns"])
def test_scipy_agrees_on_large_matrices(kind: str) -> None:
    W = large_matrix(kind, 400, 500).astype(np.float32)
    assert_array_equal(neural_persistence(W).deaths, expected_deaths(scipy_tree(W), float(np.abs(W).max())))


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


@thorough
@given(matrices(), orders)
def test_bounds_of_rieck(W: NDArray[Any], p: float) -> None:
    result = neural_persistence(W, p=p)
    n_tree = len(result.deaths)
    slack = 1 + 1e-14
    assert 0 <= result.norm <= n_tree ** (1 / p) * slack
    assert 0 <= result.normalized <= slack
    assert 0 <= result.mean <= 1
    assume(not result.degenerate)
    a = np.sort(np.abs(W).astype(np.float64), axis=None) / result.scale
    # Theorem 1: the spread of the weights. Theorem 2: the N - 1 heaviest and the N - 1 lightest weights.
    assert result.norm <= (a[-1] - a[0]) * n_tree ** (1 / p) * slack
    lower, upper = (float(np.sum((1 - part) ** p) ** (1 / p)) for part in (a[-n_tree:], a[:n_tree]))
    assert lower / slack <= result.norm <= upper * slack


@moderate
@given(matrices(), st.randoms(use_true_random=False))
def test_order_of_neurons_does_not_matter(W: NDArray[Any], random: Any) -> None:
    rows, columns = list(range(W.shape[0])), list(range(W.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    expected = neural_persistence(W)
    for other in (W[rows], W[:, columns], W[rows][:, columns], W.T, np.asfortranarray(W), np.ascontiguousarray(W.T)):
        result = neural_persistence(other)
        assert_array_equal(result.deaths, expected.deaths)
        assert (result.mean, result.norm, result.normalized) == (expected.mean, expected.norm, expected.normalized)


@moderate
@given(matrices(extreme=False), st.integers(-30, 30), st.data())
def test_scale_and_signs_do_not_matter(W: NDArray[Any], exponent: int, data: st.DataObject) -> None:
    signs = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=W.size, max_size=W.size))
    expected = neural_persistence(W)
    for other in (np.ldexp(W, exponent), W * np.reshape(signs, W.shape).astype(W.dtype)):
        result = neural_persistence(other)
        assert_array_equal(result.deaths, expected.deaths)
        assert (result.mean, result.norm, result.normalized) == (expected.mean, expected.norm, expected.normalized)


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


NUMBERS = {
    "int": 2,
    "float": 2.0,
    "float64": np.float64(2),
    "float32": np.float32(2),
    "int64": np.int64(2),
}


@pytest.mark.parametrize(
    "kind",
    [
        "int",
        "float",
        "float64",
        "float32",
        "int64",
    ],
)
def test_scale_is_any_real_number(kind: str) -> None:
    # np.abs(W).max() of a float32 matrix is such a number.
    scale: Any = NUMBERS[kind]
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


@moderate
@given(matrices(extreme=False))
def test_torch_tensors(W: NDArray[Any]) -> None:
    expected = neural_persistence(W).deaths
    tensor = torch.from_numpy(W.copy())
    wide = torch.zeros(W.shape[0] * 2, W.shape[1] * 3, dtype=tensor.dtype)
    wide[::2, 1::3] = tensor
    views = (tensor, tensor.clone().requires_grad_(), torch.nn.Parameter(tensor), tensor.T, wide[::2, 1::3])
    for view in views:
        assert_array_equal(neural_persistence(view).deaths, expected)


@moderate
@given(matrices(), st.sampled_from(["float16", "bfloat16", "float16 tensor"]))
def test_sixteen_bits_give_exactly_what_their_conversion_gives(W: NDArray[Any], format: str) -> None:
    with np.errstate(over="ignore"):
        short = FORMATS[format](W.astype(np.float64))
    wide = widened(short)
    assume(np.isfinite(wide).all())
    one, other = neural_persistence(short), neural_persistence(wide.astype(np.float32))
    assert_array_equal(one.deaths, other.deaths)
    assert (one.mean, one.norm, one.scale, one.degenerate) == (other.mean, other.norm, other.scale, other.degenerate)


LAYOUTS: dict[str, Any] = {
    "in order": lambda W: W,
    "by columns": np.asfortranarray,
    "transposed": lambda W: np.ascontiguousarray(W.T).T,
    "backwards": lambda W: np.ascontiguousarray(W[::-1, ::-1])[::-1, ::-1],
    "rows backwards": lambda W: np.ascontiguousarray(W[::-1])[::-1],
    "columns backwards": lambda W: np.ascontiguousarray(W[:, ::-1])[:, ::-1],
    "backwards by columns": lambda W: np.asfortranarray(W[::-1, ::-1])[::-1, ::-1],
    "columns of a wider one": lambda W: np.concatenate([W * 9, W, W * 9], axis=1)[:, W.shape[1] : 2 * W.shape[1]],
    "rows of a higher one": lambda W: np.concatenate([W * 9, W, W * 9])[W.shape[0] : 2 * W.shape[0]],
    "every second row": lambda W: np.repeat(W, 2, axis=0)[::2],
    "every third column": lambda W: np.repeat(W, 3, axis=1)[:, ::3],
    "steps both ways": lambda W: np.repeat(np.repeat(W, 2, axis=0), 3, axis=1)[::2, ::3],
    "steps backwards": lambda W: np.repeat(np.repeat(W, 2, axis=0), 3, axis=1)[::-1][:, ::-1][::-2, ::-3],
    "steps by columns": lambda W: np.asfortranarray(np.repeat(np.repeat(W, 2, axis=0), 3, axis=1))[::2, ::3],
    "a plane of a stack": lambda W: np.stack([W * 9, W, W * 9], axis=2)[:, :, 1],
    "other byte order": lambda W: W.astype(W.dtype.newbyteorder()),
    "other byte order by columns": lambda W: np.asfortranarray(W.astype(W.dtype.newbyteorder())),
    "unaligned": lambda W: unaligned(W),
    "a field of records": lambda W: records(W),
    "nested lists": lambda W: W.tolist(),
    "wider than float64": lambda W: W.astype(np.longdouble),
    "read-only": lambda W: read_only(W),
}


def unaligned(W: NDArray[Any]) -> NDArray[Any]:
    view = np.ndarray(W.shape, W.dtype, bytearray(W.nbytes + 1), 1)
    view[:] = W
    return view


def records(W: NDArray[Any]) -> Any:
    whole = np.zeros(W.shape, [("tag", np.int8), ("weight", W.dtype), ("rest", np.int16)])
    whole["weight"] = W
    return whole["weight"]


def read_only(W: NDArray[Any]) -> NDArray[Any]:
    view = W.copy()
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(9, 7), (1, 6), (6, 1), (1, 1), (330, 310)])
def test_layout_in_memory_does_not_matter(shape: tuple[int, int], dtype: Any, layout: str) -> None:
    W = large_matrix("normal", *shape).astype(dtype)
    chosen = np.arange(shape[0])[::-2]
    same = LAYOUTS[layout](W)
    before = np.array(same)
    assert_array_equal(neural_persistence(same).deaths, neural_persistence(W).deaths)
    assert_array_equal(neural_persistence(same, rows=chosen).deaths, neural_persistence(W[chosen].copy()).deaths)
    assert_array_equal(same, before)


@pytest.mark.parametrize("kind", ["rows", "columns", "all"])
@pytest.mark.parametrize("shape", [(5, 6), (1, 6), (6, 1), (350, 400)])
def test_broadcast_views(shape: tuple[int, int], kind: str) -> None:
    W = large_matrix("normal", *shape)
    view = np.broadcast_to({"rows": W[:1], "columns": W[:, :1], "all": W[:1, :1]}[kind], shape)
    chosen = np.arange(shape[0])[::-2]
    views: list[Any] = [view, view[::-1], view[:, ::-1]]
    if kind == "all":
        views.append(torch.from_numpy(W[:1, :1].copy()).expand(shape))
    for same in views:
        copied = np.array(np.asarray(same))
        assert_array_equal(neural_persistence(same).deaths, neural_persistence(copied).deaths)
        assert_array_equal(neural_persistence(same, rows=chosen).deaths, neural_persistence(copied[chosen]).deaths)
    assert_array_equal(neural_persistence(view.T).deaths, neural_persistence(view.copy()).deaths)


def test_windows_that_overlap() -> None:
    windows = np.lib.stride_tricks.sliding_window_view(np.random.default_rng(0).normal(size=900), 400)
    assert_array_equal(neural_persistence(windows).deaths, neural_persistence(windows.copy()).deaths)


@pytest.mark.parametrize("shape", [(20, 30), (400, 350)])
def test_memory_maps_are_read_in_place(shape: tuple[int, int], tmp_path: Path) -> None:
    W = large_matrix("normal", *shape).astype(np.float32)
    expected = neural_persistence(W).deaths
    np.save(tmp_path / "w.npy", W)
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    assert_array_equal(neural_persistence(mapped).deaths, expected)
    assert_array_equal(neural_persistence(mapped.T).deaths, expected)
    tensor = torch.from_numpy(W)
    torch.save({"w": tensor, "short": tensor.bfloat16()}, tmp_path / "w.pt")
    weights = torch.load(tmp_path / "w.pt", mmap=True)
    assert_array_equal(neural_persistence(weights["w"]).deaths, expected)
    assert_array_equal(
        neural_persistence(weights["short"]).deaths, neural_persistence(tensor.bfloat16().float()).deaths
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_views_of_tensors(dtype: torch.dtype) -> None:
    W = torch.from_numpy(large_matrix("normal", 340, 320)).to(dtype)
    before = W.clone()
    expected = neural_persistence(W.double()).deaths
    wide = torch.zeros(680, 960, dtype=dtype)
    wide[::2, 1::3] = W
    for same in (W, W.T, W.t().contiguous().t(), wide[::2, 1::3], wide.t()[1::3, ::2], W.clone().requires_grad_()):
        assert_array_equal(neural_persistence(same).deaths, expected)
    chosen = torch.arange(0, 340, 3)
    assert_array_equal(neural_persistence(wide[::2, 1::3], rows=chosen).deaths, neural_persistence(W[chosen]).deaths)
    assert torch.equal(W, before)


@pytest.mark.parametrize("shape", [(7, 9), (400, 350)])
@pytest.mark.parametrize("format", FORMATS)
def test_what_is_not_finite_is_counted_in_every_format(format: str, shape: tuple[int, int]) -> None:
    W = FORMATS[format](large_matrix("normal", *shape))
    W[0, 1], W[-1, -1], W[2, 3], W[2, 4] = math.nan, math.inf, -math.inf, -math.nan
    for same in (W, W.T, W[:, 1:], W[::2]):
        n_bad, size = int((~np.isfinite(widened(same))).sum()), math.prod(same.shape)
        with pytest.raises(ToposcopeError) as caught:
            neural_persistence(same, name="block.0.mlp")
        message = str(caught.value)
        assert message.startswith(
            f"block.0.mlp: {n_bad} of {size} entries are NaN or infinite, shape {tuple(same.shape)}"
        )
        assert "\n" not in message


def test_what_is_not_finite_in_other_rows_is_not_measured() -> None:
    W = large_matrix("normal", 400, 350)
    W[7, 3] = np.nan
    others = np.delete(np.arange(400), 7)
    assert_array_equal(neural_persistence(W, rows=others).deaths, neural_persistence(W[others]).deaths)
    with pytest.raises(ToposcopeError, match=r"\AW: 1 of 700 entries are NaN[^\n]*\Z"):
        neural_persistence(W, rows=[7, 8])


@pytest.mark.filterwarnings("error")
def test_what_float64_cannot_hold_is_infinite() -> None:
    W = np.ones((3, 4), np.longdouble)
    W[1, 2] = np.longdouble("1e400")
    if np.isinf(W[1, 2]):
        pytest.skip("long double is float64 here")
    with pytest.raises(ToposcopeError, match=r"\AW: 1 of 12 entries are NaN or infinite[^\n]*\Z"):
        neural_persistence(W)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_sixteen_bit_tensors_are_widened_exactly(dtype: torch.dtype, requires_grad: bool) -> None:
    tensor = torch.randn(40, 30, generator=torch.Generator().manual_seed(3)).to(dtype)
    wide = tensor.double().numpy()
    tensor.requires_grad_(requires_grad)
    expected = kruskal(wide) / np.abs(wide).max()
    assert_array_equal(neural_persistence(tensor).deaths, expected)
    assert_array_equal(neural_persistence(tensor.T[::1]).deaths, expected)


def test_every_layout_of_an_array() -> None:
    W = np.random.default_rng(2).normal(size=(9, 7))
    expected = neural_persistence(W).deaths
    read_only = W.copy()
    read_only.flags.writeable = False
    padded = np.full((18, 21), 99.0)
    padded[::2, ::3] = W
    swapped = W.astype(W.dtype.newbyteorder())
    for other in (read_only, padded[::2, ::3], W[::-1, ::-1], swapped, W.tolist(), W.astype(np.longdouble)):
        assert_array_equal(neural_persistence(other).deaths, expected)
    half = W.astype(np.float16)
    assert_array_equal(neural_persistence(half).deaths, neural_persistence(half.astype(np.float64)).deaths)


def test_the_matrix_is_left_alone() -> None:
    W = np.random.default_rng(2).normal(size=(9, 7))
    before = W.copy()
    neural_persistence(W)
    assert_array_equal(W, before)


@pytest.mark.parametrize(
    ("p", "gap"),
    [
        (1, 1e-12),
        (2, 1e-12),
        (10, 1e-12),
        (30, 1e-5),
        (30, 1e-12),
        (100, 1e-5),
    ],
)
def test_norm_lies_between_the_largest_persistence_and_their_sum(p: float, gap: float) -> None:
    result = neural_persistence(np.array([[1.0, 1 - gap], [1.0, 1 - gap / 2]]), p=p)
    lost = 1 - result.deaths
    assert lost.max() * (1 - 1e-12) <= result.norm <= lost.sum() * (1 + 1e-12)


BAD_MATRICES = {
    "one NaN": (np.array([[1.0, np.nan]]), "1 of 2"),
    "infinities": (np.array([[np.inf, -np.inf], [1.0, 2.0]], np.float32), "2 of 4"),
    "NaN in a tensor": (torch.full((2, 3), torch.nan, dtype=torch.bfloat16), "6 of 6"),
    "no rows": (np.zeros((0, 3)), "(0, 3)"),
    "no columns": (np.zeros((3, 0)), "(3, 0)"),
    "empty list": ([], "(0,)"),
    "a number": (1.0, "()"),
    "None": (None, "()"),
    "a vector": (np.ones(3), "(3,)"),
    "a stack": (np.ones((2, 3, 4)), "(2, 3, 4)"),
    "complex": (np.ones((2, 2), complex), "complex128"),
    "integers": (np.ones((2, 2), int), "int64"),
    "integer tensor": (torch.ones(2, 2, dtype=torch.int8), "int8"),
    "booleans": (np.ones((2, 2), bool), "bool"),
    "words": (np.array([["a", "b"]]), "<U1"),
    "a word": ("weights.npy", "()"),
    "ragged": ([[1.0, 2.0], [3.0]], "list"),
    "objects": (np.array([[1.0, None]], object), "object"),
    "sparse tensor": (torch.eye(2).to_sparse(), "Tensor"),
}


@pytest.mark.parametrize("name", BAD_MATRICES)
def test_bad_matrices_are_refused_in_one_line(name: str) -> None:
    matrix, quoted = BAD_MATRICES[name]
    with pytest.raises(ToposcopeError) as caught:
        neural_persistence(matrix)
    message = str(caught.value)
    assert message.startswith("W: ")
    assert quoted in message
    assert "\n" not in message


UNREADABLE_TENSORS = {
    "without data": torch.empty(2, 2, device="meta"),
    "conjugated": torch.ones(2, 2, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("name", UNREADABLE_TENSORS)
def test_unreadable_tensors_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ToposcopeError, match=r"\AW: .*\Z"):
        neural_persistence(UNREADABLE_TENSORS[name])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("scale", 0.99),
        ("scale", 0),
        ("scale", -2.0),
        ("scale", np.nan),
        ("scale", np.inf),
        ("scale", "network"),
        ("p", 0.5),
        ("p", 0),
        ("p", np.nan),
        ("p", np.inf),
        ("essential", "keep"),
        ("essential", None),
        ("scale", None),
        ("scale", [1.0, 2.0]),
        ("p", "2"),
        ("p", None),
        ("n_threads", 0),
        ("n_threads", -1),
        ("n_threads", 1.5),
        ("n_threads", None),
        ("rows", [1]),
        ("rows", [0, 0]),
        ("rows", [-1]),
        ("rows", []),
        ("rows", [[0]]),
        ("rows", [[0], [0, 0]]),
        ("rows", [True]),
        ("rows", [0.0]),
        ("rows", 0),
        ("rows", "0"),
        ("rows", torch.zeros(1, dtype=torch.bfloat16)),
    ],
)
def test_bad_options_are_refused_in_one_line(option: str, value: Any) -> None:
    W: Any = np.array([[1.0, -0.5]])
    with pytest.raises(ToposcopeError, match=rf"\A{option}: [^\n]*\Z"):
        neural_persistence(W, **{option: value})
