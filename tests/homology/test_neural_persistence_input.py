"""What neural persistence reads, and what it refuses: layouts in memory, formats, views, bad input."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hard_cases import large_matrix, matrices
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from property_examples import examples
from weight_matrices import FORMATS, widened

from toposcope.errors import ToposcopeError
from toposcope.homology import neural_persistence

moderate = examples(100)


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
    "steps both ways": lambda W: np.kron(W, np.array([[1, 9, 9], [9, 9, 9]], W.dtype))[::2, ::3],
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(9, 7), (1, 6), (6, 1), (1, 1), (330, 310)])
def test_layout_in_memory_does_not_matter(shape: tuple[int, int], dtype: Any) -> None:
    W = large_matrix("normal", *shape).astype(dtype)
    chosen = np.arange(shape[0])[::-2]
    all_deaths, chosen_deaths = neural_persistence(W).deaths, neural_persistence(W[chosen].copy()).deaths
    for name, layout in LAYOUTS.items():
        same = layout(W)
        before = np.array(same)
        assert_array_equal(neural_persistence(same).deaths, all_deaths, name)
        assert_array_equal(neural_persistence(same, rows=chosen).deaths, chosen_deaths, name)
        assert_array_equal(same, before, name)


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
    "large integers": (np.full((2, 2), -(2**60)), "2^53"),
    "booleans": (np.ones((2, 2), bool), "bool"),
    "words": (np.array([["a", "b"]]), "<U1"),
    "a word": ("weights.npy", "()"),
    "ragged": ([[1.0, 2.0], [3.0]], "list"),
    "objects": (np.array([[1.0, None]], object), "object"),
    "sparse tensor": (torch.eye(2).to_sparse(), "Tensor"),
    "tensor without data": (torch.empty(2, 2, device="meta"), ""),
    "conjugated tensor": (torch.ones(2, 2, dtype=torch.complex64).conj(), ""),
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("scale", value) for value in (0.99, 0, np.inf, "network", None, [1.0, 2.0])],
        *[("p", value) for value in (0.5, np.inf, "2")],
        *[("essential", value) for value in ("keep", None)],
        ("n_threads", 0),
        *[("rows", value) for value in ([1], [0, 0], [-1], [], [[0]], [[0], [0, 0]], [True], [0.0], 0, "0")],
        ("rows", torch.zeros(1, dtype=torch.bfloat16)),
    ],
)
def test_bad_options_are_refused_in_one_line(option: str, value: Any) -> None:
    W: Any = np.array([[1.0, -0.5]])
    with pytest.raises(ToposcopeError, match=rf"\A{option}: [^\n]*\Z"):
        neural_persistence(W, **{option: value})
