"""What runs on the device where tensors lie: on the CPU always, on a GPU where there is one."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hard_cases import LARGE_CLOUDS, LARGE_MATRICES, Array, clouds, large_cloud, large_matrix, matrices
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from property_examples import examples
from torch import Tensor

import toposcope
from toposcope.kernels import device_bipartite_tree, device_search
from toposcope.kernels.boruvka import DEVICE_BOUNDS_BYTES, N_LISTED, Neighbours, difference_search
from toposcope.kernels.device_bipartite_tree import (
    DEVICE_BLOCK_ENTRIES,
    DEVICE_SURVIVORS_PER_VERTEX,
    KEY_TYPES,
    Forest,
    SortedEdges,
    device_tree_weights,
)
from toposcope.kernels.device_search import TorchProductSearch, device_tree, torch_difference_search
from toposcope.kernels.prim import prim_tree

moderate = examples(100)
DTYPES = list(KEY_TYPES)


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return name


def finite(W: NDArray[Any], dtype: torch.dtype) -> Tensor:
    """Round to a format; what is beyond its range becomes one."""
    rounded = torch.from_numpy(W).to(dtype)
    return rounded.masked_fill(~rounded.isfinite(), 1)


def assert_exact(weights: Array, W: Tensor) -> None:
    """Compare with the tree of the CPU's kernel."""
    expected = toposcope.neural_persistence(W.cpu())
    weights = weights[::-1]
    assert weights[0] == expected.scale
    assert_array_equal(weights / weights[0] if weights[0] else np.ones_like(weights), expected.deaths)


@moderate
@given(W=matrices(), dtype=st.sampled_from(DTYPES))
def test_small_trees_are_exact(device: str, W: NDArray[Any], dtype: torch.dtype) -> None:
    tensor = finite(W, dtype).to(device)
    weights = device_tree_weights(tensor)
    assert weights.dtype == np.float64
    assert weights.shape == (sum(W.shape) - 1,)
    assert_exact(weights, tensor)


@pytest.mark.parametrize("block", [10000, DEVICE_BLOCK_ENTRIES])
@pytest.mark.parametrize("name", LARGE_MATRICES)
def test_hard_trees_are_exact(device: str, name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_bipartite_tree, "DEVICE_BLOCK_ENTRIES", block)
    for dtype in DTYPES:
        tensor = torch.from_numpy(large_matrix(name, 290, 170)).to(device, dtype)
        assert_exact(device_tree_weights(tensor), tensor)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_views_are_read_where_they_lie(device: str, dtype: torch.dtype) -> None:
    W = torch.from_numpy(large_matrix("normal", 300, 420)).to(device, dtype)
    for view in (W.T, W[::2, ::3], W[5:, 7:].T, W[:1], W[:, :1], W[0].expand(200, 420), W[:, :1].expand(300, 200)):
        assert_exact(device_tree_weights(view), view)
    assert_exact(device_tree_weights(W.requires_grad_()), W.detach())


@pytest.mark.parametrize(
    "shape",
    [
        (300, 250),
        (40, 10000),
        (10000, 40),
        (1, 5000),
        (5000, 1),
        *(
            pytest.param(shape, marks=pytest.mark.slow)
            for shape in [(900, 700), (2000, 1500), (40, 30000), (30000, 40)]
        ),
    ],
)
def test_large_trees_are_exact(device: str, shape: tuple[int, int]) -> None:
    W = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
    for tensor in (W, W.bfloat16()):
        assert_exact(device_tree_weights(tensor), tensor)


def test_long_chains_are_exact(device: str) -> None:
    # A staircase whose steps rise: every vertex chooses the next one.
    n = 300
    W = torch.zeros(n, n + 1, device=device)
    steps = torch.arange(1.0, 2 * n + 1, device=device)
    W[torch.arange(n), torch.arange(n)] = steps[0::2]
    W[torch.arange(n), torch.arange(n) + 1] = steps[1::2]
    assert_array_equal(device_tree_weights(W), steps.double().cpu())


@pytest.mark.parametrize("name", LARGE_MATRICES)
def test_a_sample_that_misleads_costs_no_memory(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_bipartite_tree, "_sample", lambda bits, count: bits.new_zeros(count))
    joined_along = []

    def join(forest: Forest, edges: SortedEdges, waiting: Tensor | None) -> Tensor:
        joined_along.append(len(edges.keys))
        return joined(forest, edges, waiting)

    joined = device_bipartite_tree._join
    monkeypatch.setattr(device_bipartite_tree, "_join", join)
    tensor = torch.from_numpy(large_matrix(name, 290, 170)).to(device)
    assert_exact(device_tree_weights(tensor), tensor)
    assert max(joined_along) <= 2 * DEVICE_SURVIVORS_PER_VERTEX * (290 + 170)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_shows(device: str, value: float, dtype: torch.dtype) -> None:
    W = torch.randn((300, 200), generator=torch.Generator().manual_seed(2)).to(device, dtype)
    assert np.isfinite(device_tree_weights(W).max())
    W[123, 45] = value
    assert not np.isfinite(device_tree_weights(W).max())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_of_a_matrix_on_a_gpu_a_block_at_a_time_is_copied() -> None:
    W = torch.randn((16_384, 16_384), device="cuda").bfloat16()
    device_tree_weights(W)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    device_tree_weights(W)
    assert torch.cuda.max_memory_allocated() - before < W.nbytes / 4


@st.composite
def questions(draw: st.DrawFn, *, exact: bool = False) -> tuple[Array, NDArray[np.int64], NDArray[np.int32]]:
    """Points in the unit cube, some of them to ask for, and components."""
    points = draw(clouds(30, exact=exact))
    n = len(points)
    points = points / max(2.0 ** np.frexp(np.abs(points).max())[1], 2.0**-900)
    rows = draw(st.lists(st.integers(0, n - 1), unique=True))
    labels = draw(st.lists(st.integers(0, draw(st.integers(0, n - 1))), min_size=n, max_size=n))
    return points, np.array(rows, np.int64), np.array(labels, np.int32)


def assert_bounded(found: Neighbours, points: Array, rows: NDArray[np.int64], labels: NDArray[np.int32]) -> None:
    """Check lists against all distances."""
    assert [str(part.dtype) for part in found] == ["int32", "float64", "float64"]
    assert found.indices.shape == found.squares.shape == (len(rows), N_LISTED)
    for row, indices, squares, beyond in zip(rows, *found, strict=True):
        true = np.sum((points - points[row]) ** 2, axis=1)
        listed = indices[indices >= 0]
        assert len(set(listed.tolist())) == len(listed) == np.isfinite(squares).sum()
        assert_allclose(squares[: len(listed)], true[listed], rtol=1e-13)
        assert (squares[1:] >= squares[:-1]).all()
        others = labels != labels[row]
        assert others[listed].all()
        others[listed] = False
        assert (true[others] * (1 + 1e-14) >= beyond).all()
        assert others.any() or len(listed) == N_LISTED or beyond == np.inf


@pytest.mark.slow
@moderate
@given(question=questions(), dtype=st.sampled_from([np.float32, np.float64]))
def test_product_search_bounds_what_it_does_not_list(device: str, question: Any, dtype: Any) -> None:
    points, rows, labels = question
    search = TorchProductSearch(torch.from_numpy(points).to(device), dtype)
    assert_bounded(search(rows, labels), points, rows, labels)


@moderate
@given(question=questions(exact=True))
def test_difference_search_lists_the_nearest(device: str, question: Any) -> None:
    points, rows, labels = question
    found = torch_difference_search(torch.from_numpy(points).to(device), rows, labels)
    assert_bounded(found, points, rows, labels)
    expected = difference_search(points, rows, labels)
    assert_array_equal(found.squares, expected.squares)
    assert_array_equal(found.beyond, expected.beyond)


@pytest.mark.parametrize("block_bytes", [1 << 15, DEVICE_BOUNDS_BYTES])
@pytest.mark.parametrize("name", LARGE_CLOUDS)
def test_large_searches(device: str, name: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_search, "DEVICE_BOUNDS_BYTES", block_bytes)
    points = large_cloud(name, 200, 20)
    rng = np.random.default_rng(4)
    labels, rows = rng.integers(0, 5, 200).astype(np.int32), np.flatnonzero(rng.random(200) < 0.3)
    tensor = torch.from_numpy(points).to(device)
    searches: list[Any] = [TorchProductSearch(tensor, np.float32), TorchProductSearch(tensor, np.float64)]
    searches.append(partial(torch_difference_search, tensor))
    for search in searches:
        assert_bounded(search(rows, labels), points, rows, labels)
    assert_allclose(searches[2](rows, labels).squares, difference_search(points, rows, labels).squares, rtol=1e-13)
    monkeypatch.setattr(device_search, "MIN_POINTS_PER_SEARCH", 1)
    tree = device_tree(tensor)
    assert tree is not None
    assert_allclose(np.sort(tree.squares), np.sort(prim_tree(points).squares), rtol=1e-13)
    assert_allclose(((points[tree.ends[:, 0]] - points[tree.ends[:, 1]]) ** 2).sum(axis=1), tree.squares, rtol=1e-13)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_are_made_in_full_precision(device: str, precision: str) -> None:
    points = np.random.default_rng(5).uniform(-1, 1, (500, 64))
    tensor = torch.from_numpy(points).to(device)
    rows, labels = np.arange(500), np.arange(500, dtype=np.int32)
    search = TorchProductSearch(tensor, np.float32)
    expected = search(rows, labels)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.autocast(device, torch.bfloat16):
            found = search(rows, labels)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(a, b)
