"""Packed weights are read as the numbers that the library which packed them computes with, or refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packed_weights import FLOAT8, decoded, only_refusal, only_weight, random_codes, seeds, words_of
from property_examples import examples
from safetensors.torch import save_file
from torch import Tensor

from toposcope.checkpoints import formats
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.checkpoints.quantisation import dequantised
from toposcope.checkpoints.sources import CheckpointError, LocalSource


def autogptq_three_bits(codes: NDArray[Any]) -> NDArray[np.uint32]:
    """Pack 32 codes of 3 bits as AutoGPTQ does, which splits two of them between words."""
    packed = np.zeros((3, codes.shape[1]), np.uint32)
    code = codes.astype(np.uint32)
    for j in range(10):
        packed[0] |= code[j] << np.uint32(3 * j)
        packed[1] |= code[j + 11] << np.uint32(3 * j + 1)
        packed[2] |= code[j + 22] << np.uint32(3 * j + 2)
    packed[0] |= code[10] << np.uint32(30)
    packed[1] |= (code[10] >> 2) & 1
    packed[1] |= code[21] << np.uint32(31)
    packed[2] |= (code[21] >> 1) & 3
    return packed


def gptq(rng: np.random.Generator, bits: int, n_out: int, n_in: int, groups: NDArray[Any], offset: int) -> Any:
    """A weight of GPTQ, and what it stands for."""
    n_groups = groups.max() + 1
    codes, zeros = random_codes(rng, bits, n_in, n_out), random_codes(rng, bits, n_groups, n_out)
    scales = rng.random((n_groups, n_out)).astype(np.float16)
    stored = (zeros - offset) % (1 << bits)
    tensors = {
        "h.0.up.qweight": words_of(codes, bits),
        "h.0.up.qzeros": words_of(stored.T, bits).T.contiguous(),
        "h.0.up.scales": torch.from_numpy(scales),
        "h.0.up.g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    right = (codes - zeros[groups]).T * scales[groups].T.astype(np.float32)
    return tensors, right


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@given(seed=seeds, version=st.sampled_from(["gptq", "gptq_v2", None]), acts=st.booleans())
@examples(15)
def test_gptq(bits: int, seed: int, version: str | None, acts: bool) -> None:
    rng = np.random.default_rng(seed)
    groups = np.arange(64) // 16
    groups = rng.permutation(groups) if acts else groups
    tensors, right = gptq(rng, bits, 32, 64, groups, 0 if version == "gptq_v2" else 1)
    config = {"quant_method": "gptq", "bits": bits} | ({"checkpoint_format": version} if version else {})
    entry = only_weight(tensors, config)
    assert (entry.name, entry.shape) == ("h.0.up.weight", (32, 64))
    np.testing.assert_allclose(entry.whole(), right, rtol=1e-6)
    if not acts:
        del tensors["h.0.up.g_idx"]
        np.testing.assert_allclose(only_weight(tensors, {"bits": bits} | config).whole(), right, rtol=1e-6)


def test_three_bits_are_packed_as_autogptq_packs_them() -> None:
    codes = random_codes(np.random.default_rng(1), 3, 32, 5)
    assert np.array_equal(words_of(codes, 3).numpy().view(np.uint32), autogptq_three_bits(codes))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "no config.json or quantize_config.json"),
        ({"quant_method": "gptq", "bits": 8}, "states 8 bits"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "'marlin'"),
        ({"quant_method": "gptq", "is_marlin_format": True}, "'marlin'"),
        ({"quant_method": "auto-round", "packing_format": "auto_round"}, "'auto_round'"),
        ({"quant_method": {"not": "a word"}}, "no config.json"),
    ],
)
def test_gptq_of_an_unknown_version_is_refused(config: dict[str, Any], words: str) -> None:
    tensors, _ = gptq(np.random.default_rng(0), 4, 32, 64, np.zeros(64, int), 1)
    assert words in only_refusal(tensors, config)
    assert decoded(tensors, config).refused_shapes == {"h.0.up.qweight": (32, 64)}


@pytest.mark.parametrize("group", [-1, 4, 2**31 - 1])
def test_a_group_without_scales_is_refused_when_it_is_read(group: int) -> None:
    tensors, _ = gptq(np.random.default_rng(0), 4, 32, 64, np.arange(64) // 16, 1)
    tensors["h.0.up.g_idx"][7] = group
    (entry,) = decoded(tensors, {"bits": 4}).entries
    with pytest.raises(CheckpointError, match=r"h\.0\.up\.qweight: g_idx names groups") as caught:
        entry.whole()
    assert caught.value.kind == "damaged"


@given(seed=seeds, n_groups=st.sampled_from([1, 2, 8]), known=st.booleans())
@examples(20)
def test_awq(seed: int, n_groups: int, known: bool) -> None:
    rng = np.random.default_rng(seed)
    codes, zeros = random_codes(rng, 4, 32, 24), random_codes(rng, 4, n_groups, 24)
    scales = rng.random((n_groups, 24)).astype(np.float16)

    def packed(values: NDArray[Any]) -> Tensor:
        words = np.zeros((len(values), 3), np.uint32)
        for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            words |= values[:, column::8].astype(np.uint32) << np.uint32(4 * place)
        return torch.from_numpy(words.view(np.int32))

    tensors = {"q.qweight": packed(codes), "q.qzeros": packed(zeros), "q.scales": torch.from_numpy(scales)}
    entry = only_weight(tensors, {"quant_method": "awq", "bits": 4, "version": "gemm"} if known else {})
    size = 32 // n_groups
    right = (codes - zeros.repeat(size, 0)).T * scales.repeat(size, 0).T.astype(np.float32)
    assert entry.name == "q.weight"
    np.testing.assert_allclose(entry.whole(), right, rtol=1e-6)
    assert "'gemv'" in only_refusal(tensors, {"quant_method": "awq", "version": "GEMV"})


@given(seed=seeds, shape=st.tuples(st.integers(1, 9), st.integers(1, 9)))
@examples(20)
def test_bitsandbytes_int8(seed: int, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    codes, largest = rng.integers(-127, 128, shape).astype(np.int8), rng.random(shape[0]).astype(np.float32)
    tensors = {"q.weight": torch.from_numpy(codes), "q.SCB": torch.from_numpy(largest)}
    tensors["q.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    right = codes * largest[:, None].astype(float) / 127
    np.testing.assert_allclose(only_weight(tensors).whole(), right, rtol=1e-6)


def test_another_layout_of_bitsandbytes_int8_is_refused_when_it_is_read() -> None:
    tensors = {"q.weight": torch.ones(4, 4, dtype=torch.int8), "q.SCB": torch.ones(4)}
    (entry,) = decoded(tensors | {"q.weight_format": torch.tensor(2, dtype=torch.uint8)}).entries
    with pytest.raises(CheckpointError, match=r"q\.weight: .*weight_format") as caught:
        entry.whole()
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
@given(seed=seeds, shape=st.sampled_from([(4, 96), (7, 12), (3, 20)]), block=st.sampled_from([4, 64]))
@examples(10)
def test_bitsandbytes_four_bits(
    nested: bool, storage: torch.dtype, seed: int, shape: tuple[int, int], block: int
) -> None:
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    codes, table = random_codes(rng, 4, count), rng.standard_normal(16).astype(np.float32)
    n_blocks = -(-count // block)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": list(shape)}
    octets = torch.from_numpy((codes[0::2] << 4 | codes[1::2]).astype(np.uint8))
    tensors = {"q.weight": octets.view(storage)[:, None], "q.weight.quant_map": torch.from_numpy(table)}
    if nested:
        inner, outer = rng.standard_normal(256).astype(np.float32), rng.random(-(-n_blocks // 3)).astype(np.float32)
        absmax = rng.integers(0, 256, n_blocks).astype(np.uint8)
        state |= {"nested_blocksize": 3, "nested_offset": 0.25, "nested_dtype": "float32"}
        tensors |= {"q.weight.nested_absmax": torch.from_numpy(outer)}
        tensors |= {"q.weight.nested_quant_map": torch.from_numpy(inner)}
        levels = np.array([inner[a] * outer[k // 3] + 0.25 for k, a in enumerate(absmax)])
    else:
        absmax = levels = rng.random(n_blocks).astype(np.float32)
    tensors["q.weight.absmax"] = torch.from_numpy(absmax)
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    tensors["q.weight.quant_state.bitsandbytes__nf4"] = text
    right = np.array([table[c] * levels[k // block] for k, c in enumerate(codes)]).reshape(shape)
    entry = only_weight(tensors)
    np.testing.assert_allclose(entry.whole(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "state",
    [
        '{"shape": [1000000, 1000000], "blocksize": 64}',
        '{"shape": [4, 8], "blocksize": 0}',
        '{"shape": [4, 8], "blocksize": 1' + "0" * 5000 + "}",
        '{"shape": [4, true], "blocksize": 64}',
        '{"shape": [4, 8], "blocksize": 8, "nested_offset": 1' + "0" * 400 + "}",
        "[" * 60000,
        "[1]",
        "\x00",
    ],
)
def test_a_hostile_state_of_bitsandbytes_is_refused(state: str) -> None:
    tensors = {"q.weight": torch.zeros(16, 1, dtype=torch.uint8), "q.weight.absmax": torch.ones(1)}
    tensors["q.weight.quant_map"] = torch.ones(16)
    tensors["q.weight.quant_state.bitsandbytes__fp4"] = torch.tensor(list(state.encode()), dtype=torch.uint8)
    assert "quant_state" in only_refusal(tensors)


def test_a_block_larger_than_the_weight_takes_no_memory() -> None:
    state = torch.tensor(list(b'{"shape": [4, 8], "blocksize": 9000000000000}'), dtype=torch.uint8)
    tensors = {"q.weight": torch.zeros(16, 1, dtype=torch.uint8), "q.weight.absmax": torch.ones(1)}
    tensors |= {"q.weight.quant_map": torch.ones(16), "q.weight.quant_state.bitsandbytes__fp4": state}
    assert (only_weight(tensors).whole() == 1).all()


@given(
    seed=seeds, bits=st.sampled_from([2, 4, 8]), zeros=st.sampled_from(["none", "plain", "packed"]), acts=st.booleans()
)
@examples(30)
def test_compressed_tensors(seed: int, bits: int, zeros: str, acts: bool) -> None:
    rng = np.random.default_rng(seed)
    n_out, n_in, half = 10, 48, 1 << (bits - 1)
    codes, zero = rng.integers(-half, half, (n_out, n_in)), rng.integers(-half, half, (n_out, 3))
    scale = rng.random((n_out, 3)).astype(np.float32)
    groups = np.arange(n_in) // 16
    groups = rng.permutation(groups) if acts else groups
    tensors = {
        "q.weight_packed": words_of((codes + half).T, bits).T.contiguous(),
        "q.weight_scale": torch.from_numpy(scale),
        "q.weight_shape": torch.tensor([n_out, n_in]),
    }
    if acts:
        tensors["q.weight_g_idx"] = torch.from_numpy(groups)
    if zeros == "plain":
        tensors["q.weight_zero_point"] = torch.from_numpy(zero.astype(np.int8))
    if zeros == "packed":
        tensors["q.weight_zero_point"] = words_of(zero + half, bits)
    right = (codes - (zero[:, groups] if zeros != "none" else 0)) * scale[:, groups]
    config = {"config_groups": {"group_0": {"weights": {"num_bits": bits, "group_size": 16}}}}
    np.testing.assert_allclose(only_weight(tensors, config).whole(), right, rtol=1e-5, atol=1e-7)


def test_the_stored_shape_of_compressed_tensors_cuts_off_padding_and_is_not_believed_further() -> None:
    tensors = {"q.weight_packed": torch.zeros(4, 2, dtype=torch.int32), "q.weight_scale": torch.ones(4, 1)}
    config = {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    assert only_weight(tensors | {"q.weight_shape": torch.tensor([4, 13])}, config).shape == (4, 13)
    for stated in ([4, 2**62], [4, 0], [-4, 13], [5, 13], [4, 13, 1], [4, 17]):
        assert "compressed-tensors" in only_refusal(tensors | {"q.weight_shape": torch.tensor(stated)}, config)
    odd = {"config_groups": {"group_0": {"weights": {"num_bits": ["4"]}}, "other": 1}}
    assert "do not fit" in only_refusal(tensors | {"q.weight_shape": torch.tensor([4, 13])}, odd)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_mlx_is_read_as_transformers_reads_it(bits: int) -> None:
    metal = pytest.importorskip("transformers.integrations.metal_quantization")
    packed, scales, biases = metal._affine_quantize_tensor(torch.randn(6, 64), 32, bits)
    right = metal._affine_dequantize_tensor(packed, scales, biases, 32, bits).numpy()
    tensors = {"h.0.q.weight": packed, "h.0.q.scales": scales, "h.0.q.biases": biases}
    np.testing.assert_allclose(only_weight(tensors, {"bits": bits, "group_size": 32}).whole(), right, rtol=1e-6)
    other = {"bits": 3, "group_size": 64, "model.h.0.q": {"bits": bits, "group_size": 32}}
    np.testing.assert_allclose(only_weight(tensors, other).whole(), right, rtol=1e-6)
    assert "no config.json" in only_refusal(tensors)


def test_mlx_of_six_bits() -> None:
    codes = random_codes(np.random.default_rng(0), 6, 4, 64)
    packed = words_of(codes.T, 6).T.contiguous().view(torch.uint32)
    tensors = {"q.weight": packed, "q.scales": torch.full((4, 1), 0.5), "q.biases": torch.full((4, 1), -3.0)}
    assert np.array_equal(only_weight(tensors, {"bits": 6, "group_size": 64}).whole(), codes * 0.5 - 3)


def test_bitnet_is_read_as_transformers_reads_it() -> None:
    bitnet = pytest.importorskip("transformers.integrations.bitnet")
    ternary = torch.randint(-1, 2, (12, 5), generator=torch.Generator().manual_seed(0))
    packed = bitnet.pack_weights(ternary.clone())
    tensors = {"q.weight": packed, "q.weight_scale": torch.tensor([4.0])}
    divided = only_weight(tensors, {"quant_method": "bitnet"}).whole()
    assert np.array_equal(divided, ternary.numpy() / 4)
    multiplied = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
    assert np.array_equal(only_weight(tensors, multiplied).whole(), ternary.numpy() * 4)
    tensors["q.weight"] = ternary.to(torch.bfloat16)
    assert np.array_equal(only_weight(tensors, multiplied).whole(), ternary.numpy() * 4)
    assert "BitNet" in only_refusal(tensors | {"q.weight": packed})


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (
            {"q.W_q": (torch.uint8, (4, 8)), "q.scale": (torch.float32, (8, 1)), "q.zero": (torch.float32, (8, 1))},
            {},
            "HQQ",
        ),
        ({"q.codes": (torch.int16, (4, 2, 1)), "q.codebooks": (torch.float16, (1, 9, 1, 8))}, {}, "AQLM"),
        ({"q.Qidxs": (torch.int16, (4, 2)), "q.SU": (torch.float32, (8, 1))}, {}, "QuIP#"),
        ({"q.B": (torch.int32, (4, 2)), "q.s": (torch.float16, (4, 2))}, {}, "Marlin"),
        ({"q.weight": (torch.int8, (4, 2)), "q.weight_scales": (torch.float16, (2,))}, {}, "EETQ"),
        ({"q.weight": (torch.int8, (4, 2)), "q.weight_scale": (torch.float16, (3,))}, {}, "do not fit"),
        ({"q.weight": (torch.int8, (4, 2))}, {}, "nothing next to it"),
        ({"q.qweight": (torch.int32, (4, 2)), "q.scales": (torch.float16, (4, 2))}, {"quant_method": "gptq"}, "GPTQ"),
        ({"q.weight": (torch.uint8, (8, 1)), "q.weight.absmax": (torch.float32, (1,))}, {}, "quant_state is missing"),
        (
            {"q.weight": (torch.uint8, (8, 8)), "q.weight_scale": (torch.float32, (8, 1))},
            {"quant_method": "gemma"},
            "Gemma",
        ),
        ({"q.weight": (torch.uint32, (8, 8)), "q.scales": (torch.float32, (8, 1))}, {"bits": 4}, "MLX"),
        ({"q.qweight": (torch.int32, ()), "q.qzeros": (torch.int32, ()), "q.scales": (torch.float16, ())}, {}, ""),
    ],
)
def test_packed_weights_of_other_kinds_are_refused_by_name(
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]], config: dict[str, Any], words: str
) -> None:
    made = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in tensors.items()}
    if words:
        assert words in only_refusal(made, config)
    else:
        assert not decoded(made, config).how


def test_a_plain_weight_next_to_the_packed_one_is_not_replaced() -> None:
    tensors, _ = gptq(np.random.default_rng(0), 4, 32, 64, np.zeros(64, int), 1)
    found = decoded(tensors | {"h.0.up.weight": torch.zeros(32, 64)}, {"bits": 4})
    assert "stored too" in found.refused["h.0.up.qweight"]
    assert not found.how


@given(data=st.data())
@examples(60)
def test_no_mixture_of_tensors_raises_anything_else(data: st.DataObject) -> None:
    """Whatever lies next to whatever, in whichever shapes: it is read in its shape, or refused."""
    tails = (
        *("qweight", "qzeros", "scales", "g_idx", "weight", "SCB", "weight_scale", "weight_scale_inv", "weight_packed"),
        *("weight_shape", "weight_zero_point", "weight_g_idx", "weight_scale_2", "weight_global_scale", "biases"),
        *("weight.absmax", "weight.quant_map", "weight.quant_state.bitsandbytes__nf4", "x_blocks", "x_scales"),
    )
    dtypes = ("int8", "uint8", "int32", "uint32", "int64", "float16", "float32", "bfloat16", *FLOAT8, "float8_e8m0fnu")
    shapes = st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 32]), max_size=4).map(tuple)
    entries = []
    for tail in data.draw(st.lists(st.sampled_from(tails), unique=True, max_size=6)):
        shape, dtype = data.draw(shapes), data.draw(st.sampled_from(dtypes))
        content = np.zeros(shape, DTYPES[dtype])
        entries.append(Entry(f"q.{tail}", shape, dtype, lambda a, b, c=content: c[a:b] if c.ndim else c))  # type: ignore[misc]
    values: st.SearchStrategy[Any] = st.sampled_from(
        ["gptq", "awq", "bitnet", "compressed-tensors", 4, -1, 0, True, None, [], {"a": []}, 1e300]
    )
    keys = st.sampled_from(["quant_method", "bits", "group_size", "checkpoint_format", "config_groups", "q"])
    found = dequantised(entries, data.draw(st.dictionaries(keys, values)))
    for entry in found.entries:
        if entry.name in found.how:
            assert entry.whole().shape == entry.shape
    assert set(found.refused) <= {entry.name for entry in found.entries}


def test_a_plain_checkpoint_is_left_alone() -> None:
    entries = [in_memory("x", torch.zeros(2, 2))] * 3
    many = [
        Entry(f"model.layers.{k}.self_attn.q_proj.weight", (4, 4), "bfloat16", entries[0].read) for k in range(200_000)
    ]
    found = dequantised(many, {})
    assert all(given is kept for given, kept in zip(many, found.entries, strict=True))


def test_nothing_of_a_file_but_its_header_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, right = gptq(np.random.default_rng(0), 4, 32, 64, np.arange(64) // 16, 1)
    save_file(tensors | {"norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    source = LocalSource(tmp_path / "model.safetensors")
    entries = formats.entries(source.spec, source.files())
    reads: list[tuple[int, int]] = []
    counted = [Entry(e.name, e.shape, e.dtype, lambda a, b, e=e: reads.append((a, b)) or e.read(a, b)) for e in entries]  # type: ignore[misc, func-returns-value]
    found = dequantised(counted, {"bits": 4})
    assert not reads
    weights = {entry.name: entry for entry in found.entries}
    assert list(weights) == [e.name.replace("qweight", "weight") for e in entries if e.name not in found.parts]
    np.testing.assert_allclose(weights["h.0.up.weight"].whole(), right, rtol=1e-6)
    assert weights["norm.weight"] is next(e for e in counted if e.name == "norm.weight")
