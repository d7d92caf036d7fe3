"""Floats of 8 and 4 bits and whole numbers, each times a factor, are read as the library that wrote them reads them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packed_weights import FLOAT8, decoded, only_refusal, only_weight, random_codes, seeds
from property_examples import examples

from toposcope.checkpoints.formats.dtypes import DTYPES, without_8_bits


@given(
    seed=seeds,
    shape=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    dtype=st.sampled_from(FLOAT8),
    scale_dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e8m0fnu]),
    kind=st.sampled_from(["blocks", "row", "flat row", "one", "scalar"]),
)
@examples(40)
def test_scaled_floats_of_8_bits(
    seed: int, shape: tuple[int, int], dtype: str, scale_dtype: torch.dtype, kind: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    n_out, n_in = shape
    sizes = {"blocks": (-(-n_out // 128), -(-n_in // 128)), "row": (n_out, 1), "flat row": (n_out,)}
    stored = sizes.get(kind, () if kind == "scalar" else (1, 1))
    scale = torch.rand(stored, generator=generator).add(0.1).to(scale_dtype)
    weight = torch.randn(shape, generator=generator).to(getattr(torch, dtype))
    grid = scale.to(torch.float32).numpy()
    grid = grid[:, None] if grid.ndim == 1 else grid.reshape(stored or (1, 1))
    spread = grid if kind != "blocks" else grid.repeat(128, 0).repeat(128, 1)[:n_out, :n_in]
    right = weight.to(torch.float32).numpy() * spread
    name = "weight_scale_inv" if kind == "blocks" else "weight_scale"
    np.testing.assert_array_equal(only_weight({"q.weight": weight, f"q.{name}": scale}).whole(), right)


@pytest.mark.parametrize(
    ("weight", "scale"),
    [
        ("q.weight", "q.weight_scale_inv"),
        ("q.weight", "q.weight_scale"),
        ("q.weight", "q.scale_weight"),
        ("q.weight", "q.qscale_weight"),
        ("q.weight", "q.scale"),
        ("experts.gate_up_proj", "experts.gate_up_proj_scale_inv"),
        ("q.weight._data", "q.weight._scale"),
    ],
)
def test_scales_are_recognised_by_every_name(weight: str, scale: str) -> None:
    stored = torch.randn(4, 6).to(torch.float8_e4m3fn)
    tensors = {weight: stored, scale: torch.tensor(3.0), "q.input_scale": torch.tensor(2.0)}
    found = decoded(tensors)
    entry = next(e for e in found.entries if e.name == weight.removesuffix("._data"))
    assert np.array_equal(entry.whole(), stored.float().numpy() * 3)
    assert found.how == {entry.name: "fp8, one scale"}


def test_blocks_follow_the_configuration() -> None:
    weight, scale = torch.ones(192, 64).to(torch.float8_e4m3fn), torch.tensor([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]])
    entry = only_weight({"q.weight": weight, "q.weight_scale_inv": scale}, {"weight_block_size": [64, 32]})
    assert np.array_equal(entry.whole(), scale.numpy().repeat(64, 0).repeat(32, 1))
    default = torch.tensor([[1.0], [2.0]])
    cut = only_weight({"q.weight": weight, "q.weight_scale_inv": default}).whole()
    assert np.array_equal(cut[:, 0], [1.0] * 128 + [2.0] * 64)


def test_experts_of_scaled_floats() -> None:
    weight, scale = torch.randn(3, 8, 4).to(torch.float8_e4m3fn), torch.rand(3, 1, 1)
    entry = only_weight({"e.down_proj": weight, "e.down_proj_scale_inv": scale})
    assert np.array_equal(entry.whole(), (weight.float() * scale).numpy())


def test_floats_of_8_bits_without_a_scale() -> None:
    weight = torch.randn(4, 6).to(torch.float8_e5m2)
    alone = decoded({"q.weight": weight})
    assert alone.entries[0].dtype == "float8_e5m2"
    assert not (alone.refused)
    assert not (alone.how)
    assert "without the scale" in only_refusal({"q.weight": weight}, {"quant_method": "fp8"})
    among = decoded({"q.weight": weight, "k.weight": weight, "k.weight_scale": torch.tensor(2.0)})
    assert list(among.refused) == ["q.weight"]
    assert list(among.how) == ["k.weight"]


@given(seed=seeds, kind=st.sampled_from([(6,), (6, 1), (), (1,), (6, 4)]), shifted=st.booleans())
@examples(20)
def test_scaled_int8(seed: int, kind: tuple[int, ...], shifted: bool) -> None:
    rng = np.random.default_rng(seed)
    codes, scale = rng.integers(-128, 128, (6, 8)), np.asarray(rng.random(kind), np.float32)
    zero = np.asarray(rng.integers(-128, 128, kind), np.int8)
    tensors = {"q.weight": torch.from_numpy(codes.astype(np.int8)), "q.weight_scale": torch.from_numpy(scale)}
    if shifted:
        tensors["q.weight_zero_point"] = torch.from_numpy(zero)

    def spread(values: NDArray[Any]) -> NDArray[Any]:
        return values.repeat(2, 1) if values.ndim == 2 and values.shape[1] == 4 else values.reshape(values.size, 1)

    right = (codes - (spread(zero).astype(int) if shifted else 0)) * spread(scale)
    np.testing.assert_allclose(only_weight(tensors).whole(), right, rtol=1e-6)


def test_mxfp4_is_read_as_transformers_reads_it() -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 5, 2, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(110, 140, (3, 5, 2), generator=generator).to(torch.uint8)
    entry = only_weight({"mlp.experts.gate_up_proj_blocks": blocks, "mlp.experts.gate_up_proj_scales": scales})
    # It returns the inputs first.
    right = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    assert entry.name == "mlp.experts.gate_up_proj"
    assert np.array_equal(entry.whole(), right.numpy())


def e2m1(codes: NDArray[Any]) -> NDArray[Any]:
    """What codes of 4 bits stand for: a sign, two bits of exponent and one of mantissa."""
    sign, exponent, mantissa = codes >> 3, (codes >> 1) & 3, codes & 1
    magnitude = np.where(exponent == 0, mantissa / 2, 2.0 ** (exponent - 1) * (1 + mantissa / 2))
    return np.where(sign == 1, -magnitude, magnitude)


@given(seed=seeds, writer=st.sampled_from(["modelopt", "compressed-tensors", "quark", "deepseek"]))
@examples(20)
def test_nvfp4_and_mxfp4(seed: int, writer: str) -> None:
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, 4, 6, 64)
    packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))
    if writer in ("quark", "deepseek"):
        exponents = rng.integers(120, 132, (6, 2))
        scale = torch.from_numpy(exponents.astype(np.uint8))
        right = e2m1(codes) * (2.0 ** (exponents - 127)).repeat(32, 1)
        tensors = {"q.weight": packed, "q.weight_scale": scale}
        if writer == "deepseek":
            tensors = {"q.weight": packed.view(torch.int8), "q.weight_scale_inv": scale.view(torch.float8_e8m0fnu)}
    else:
        scale = torch.from_numpy(rng.random((6, 4)).astype(np.float32)).to(torch.float8_e4m3fn)
        right = e2m1(codes) * scale.float().numpy().repeat(16, 1)
        level = torch.tensor([4.0])
        tensors = {"q.weight": packed, "q.weight_scale": scale, "q.weight_scale_2": level}
        right *= 4
        if writer == "compressed-tensors":
            tensors = {"q.weight_packed": packed, "q.weight_scale": scale, "q.weight_global_scale": level}
            right /= 16
    entry = only_weight(tensors)
    assert entry.name == "q.weight"
    np.testing.assert_allclose(entry.whole(), right, rtol=1e-6)


@pytest.mark.parametrize("dtype", [*FLOAT8, "float8_e8m0fnu"])
def test_every_float_of_8_bits_is_widened_as_torch_widens_it(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    right = torch.from_numpy(codes).view(getattr(torch, dtype)).to(torch.float32).numpy()
    widened = without_8_bits(codes.view(DTYPES[dtype]), dtype)
    assert widened.dtype == np.float32
    assert np.array_equal(np.isnan(widened), np.isnan(right))
    assert np.array_equal(widened.view(np.uint32)[~np.isnan(right)], right.view(np.uint32)[~np.isnan(right)])
