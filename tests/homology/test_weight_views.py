"""Matrices inside weights: unrolled convolutions, and the parts and heads of fused attention matrices."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.homology import neural_persistence, qkv_rows, unrolled

thorough = examples(200)


# Convolutions


@pytest.mark.parametrize(
    "shape", [(4, 3), (4, 3, 5), (4, 3, 5, 2), (2, 3, 2, 2, 2), (1, 1, 1, 1), (0, 3, 3), (3, 0, 2)]
)
def test_one_filter_a_row(shape: tuple[int, ...]) -> None:
    weight = np.arange(float(np.prod(shape))).reshape(shape)
    tensor = torch.from_numpy(weight)
    assert unrolled(weight).shape == (shape[0], int(np.prod(shape[1:])))
    assert_array_equal(unrolled(weight), [w.ravel() for w in weight] or np.empty((0, 9)))
    assert_array_equal(unrolled(tensor).numpy(), unrolled(weight))


def test_unrolling_shares_memory() -> None:
    weight = np.ones((4, 3, 5, 5), np.float32)
    assert np.shares_memory(unrolled(weight), weight)
    tensor = torch.from_numpy(weight)
    assert unrolled(tensor).data_ptr() == tensor.data_ptr()
    unrolled(tensor)[1, 2] = 7
    assert weight[1, 0, 0, 2] == 7


def test_a_convolution_is_measured_as_its_matrix() -> None:
    conv = torch.nn.Conv2d(16, 40, 3)
    expected = neural_persistence(conv.weight.detach().reshape(40, 144))
    last = conv.weight.detach().to(memory_format=torch.channels_last)
    weights: list[Any] = [conv.weight, conv.weight.detach().numpy(), last]
    for weight in weights:
        assert_array_equal(neural_persistence(unrolled(weight)).deaths, expected.deaths)
    with pytest.raises(ToposcopeError, match=r"\AW: [^\n]*\(40, 16, 3, 3\)[^\n]*unrolled[^\n]*\Z"):
        neural_persistence(conv.weight)


@pytest.mark.parametrize("weight", [np.ones(3), np.float64(1), torch.ones(2), None, [1.0, 2.0], "w"])
def test_what_is_no_convolution_is_refused_in_one_line(weight: Any) -> None:
    with pytest.raises(ToposcopeError, match=r"\Aweight: [^\n]*\Z"):
        unrolled(weight)


# Attention


def fused(n_heads: int, width: int, n_inputs: int, layout: str) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """A fused matrix made of its heads, and the heads by name."""
    rng = np.random.default_rng(n_heads)
    heads = {f"{p}.{h}": rng.normal(size=(width, n_inputs)) for p in "qkv" for h in range(n_heads)}
    order = (
        [f"{p}.{h}" for p in "qkv" for h in range(n_heads)]
        if layout == "stacked"
        else [f"{p}.{h}" for h in range(n_heads) for p in "qkv"]
    )
    return np.concatenate([heads[name] for name in order]), heads


@thorough
@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from(["stacked", "interleaved"]))
def test_rows_are_those_of_the_parts_and_heads(n_heads: int, width: int, layout: Any) -> None:
    W, heads = fused(n_heads, width, 3, layout)
    per_head = qkv_rows(len(W), n_heads, layout=layout, per="head")
    per_part = qkv_rows(len(W), n_heads, layout=layout)
    assert list(per_head) == list(heads)
    for name, rows in per_head.items():
        assert_array_equal(W[rows], heads[name])
    assert list(per_part) == ["q", "k", "v"]
    for part, rows in per_part.items():
        assert_array_equal(W[rows], np.concatenate([heads[f"{part}.{h}"] for h in range(n_heads)]))
    for split in (per_part, per_head):
        assert_array_equal(np.sort(np.concatenate(list(split.values()))), np.arange(len(W)))
        assert all(rows.dtype == np.int64 for rows in split.values())


@pytest.mark.parametrize("layout", ["stacked", "interleaved"])
@pytest.mark.parametrize("per", ["part", "head"])
@pytest.mark.parametrize("width", [4, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_are_measured_where_they_lie(layout: Any, per: Any, width: int, dtype: torch.dtype) -> None:
    W = torch.from_numpy(fused(3, width, 500, layout)[0]).to(dtype)
    for rows in qkv_rows(len(W), 3, layout=layout, per=per).values():
        expected = neural_persistence(W[rows].clone())
        # GPT-2 keeps one output a column.
        for same in (W, W.t().contiguous().t(), W.flip(0).contiguous().numpy()[::-1] if dtype == torch.float32 else W):
            result = neural_persistence(same, rows=rows)
            assert_array_equal(result.deaths, expected.deaths)
            assert (result.mean, result.norm, result.scale) == (expected.mean, expected.norm, expected.scale)


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda: qkv_rows(10, 2), "n_rows"),
        (lambda: qkv_rows(3, 2), "n_rows"),
        (lambda: qkv_rows(0, 1), "n_rows"),
        (lambda: qkv_rows(12, 0), "n_heads"),
        (lambda: qkv_rows(12, None), "n_heads"),  # type: ignore[arg-type]
        (lambda: qkv_rows(12, 2, layout="mixed"), "layout"),  # type: ignore[arg-type]
        (lambda: qkv_rows(12, 2, per="row"), "per"),  # type: ignore[arg-type]
    ],
)
def test_bad_splits_are_refused_in_one_line(call: Any, option: str) -> None:
    with pytest.raises(ToposcopeError, match=rf"\A{option}: [^\n]*\Z"):
        call()
