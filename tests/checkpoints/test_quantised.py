"""Floats of 8 bits are read with their scales; packed weights are refused, and never measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from safetensors.torch import save_file
from torch import Tensor

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.dtypes import DTYPES, without_8_bits
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.checkpoints.quantisation import Quantised, unquantised
from toposcope.checkpoints.sources import CheckpointError

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
FP8 = torch.float8_e4m3fn


def read(tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> Quantised:
    """The tensors of a checkpoint as they are read."""
    content = {"quantization_config": config} if config else {}
    entries = [in_memory(name, tensor) for name, tensor in tensors.items()]
    return unquantised(entries, lambda file: content if file == "config.json" else {})


def only_weight(tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> Entry:
    """The one weight that all the tensors stand for; its rows are the same however they are read."""
    found = read(tensors, config)
    assert found.refused == {}
    (entry,) = found.entries
    assert set(found.how) == {entry.name}
    whole = entry.whole()
    assert whole.dtype == np.float32
    assert whole.shape == entry.shape
    cut = entry.shape[0] // 3
    for start, stop in ((0, cut), (cut, entry.shape[0]), (cut, cut + 1)):
        assert np.array_equal(entry.read(start, stop), whole[start:stop], equal_nan=True)
    return entry


# Floats of 8 bits


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    dtype=st.sampled_from(FLOAT8),
    scale_dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e8m0fnu, torch.uint8]),
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
    is_exponent = scale_dtype is torch.uint8  # of powers of two
    scale = torch.rand(stored, generator=generator).add(0.1)
    scale = scale.to(torch.float8_e8m0fnu if is_exponent else scale_dtype)
    weight = torch.randn(shape, generator=generator).to(getattr(torch, dtype))
    grid = scale.to(torch.float32).numpy()
    grid = grid[:, None] if grid.ndim == 1 else grid.reshape(stored or (1, 1))
    spread = grid if kind != "blocks" else grid.repeat(128, 0).repeat(128, 1)[:n_out, :n_in]
    right = weight.to(torch.float32).numpy() * spread
    name = "weight_scale_inv" if kind == "blocks" else "weight_scale"
    tensors = {"q.weight": weight, f"q.{name}": scale.view(torch.uint8) if is_exponent else scale}
    np.testing.assert_array_equal(only_weight(tensors).whole(), right)


@pytest.mark.parametrize(
    ("weight", "scale", "plain"),
    [
        ("q.weight", "q.weight_scale_inv", "q.weight"),
        ("q.weight", "q.weight_scale", "q.weight"),
        ("q.weight", "q.scale_weight", "q.weight"),
        ("q.weight", "q.qscale_weight", "q.weight"),
        ("q.weight", "q.scale", "q.weight"),
        ("experts.gate_up_proj", "experts.gate_up_proj_scale_inv", "experts.gate_up_proj"),
        ("q.weight._data", "q.weight._scale", "q.weight"),
        ("q._weight_qdata", "q._weight_scale", "q.weight"),
        ("q.weight:qdata", "q.weight:scale", "q.weight"),
    ],
)
def test_scales_are_recognised_by_every_name(weight: str, scale: str, plain: str) -> None:
    stored = torch.randn(4, 6).to(FP8)
    found = read({weight: stored, scale: torch.tensor(3.0), "q.input_scale": torch.tensor(2.0)})
    entry = next(e for e in found.entries if e.name == plain)
    assert np.array_equal(entry.whole(), stored.float().numpy() * 3)
    assert found.how == {plain: "fp8, one scale"}
    assert scale in found.parts


@pytest.mark.parametrize(
    "config",
    [{"weight_block_size": [64, 32]}, {"config_groups": {"a": {"weights": {"block_structure": [64, 32]}}}}],
)
def test_blocks_follow_the_configuration(config: dict[str, Any]) -> None:
    weight, scale = torch.ones(180, 64).to(FP8), torch.tensor([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]])
    entry = only_weight({"q.weight": weight, "q.weight_scale_inv": scale}, config)
    assert np.array_equal(entry.whole(), scale.numpy().repeat(64, 0).repeat(32, 1)[:180])


@pytest.mark.parametrize("sizes", [(3,), (3, 1, 1), (3, 8, 1), (3, 2, 2), (3, 8, 2)])
def test_experts_of_scaled_floats(sizes: tuple[int, ...]) -> None:
    weight, scale = torch.randn(3, 8, 4).to(FP8), torch.rand(sizes)
    full = scale.reshape(sizes + (1,) * (3 - len(sizes)))
    for axis in (1, 2):
        full = full.repeat_interleave(weight.shape[axis] // full.shape[axis], axis)
    entry = only_weight({"e.down_proj": weight, "e.down_proj_scale_inv": scale})
    assert np.array_equal(entry.whole(), (weight.float() * full).numpy())


def test_floats_of_8_bits_without_a_scale() -> None:
    weight = torch.randn(4, 6).to(torch.float8_e5m2)
    alone = read({"q.weight": weight})
    assert alone.entries[0].dtype == "float8_e5m2"
    assert not alone.refused
    assert not alone.how
    assert "without the scale" in read({"q.weight": weight}, {"quant_method": "fp8"}).refused["q.weight"]
    among = read({"q.weight": weight, "k.weight": weight, "k.weight_scale": torch.tensor(2.0)})
    assert (list(among.refused), list(among.how)) == (["q.weight"], ["k.weight"])


@pytest.mark.parametrize("scale", [torch.ones(3), torch.ones(2, 4), torch.ones(4, dtype=torch.int32)], ids=str)
def test_a_scale_that_does_not_fit_is_refused(scale: Tensor) -> None:
    tensors = {"q.weight": torch.ones(4, 6).to(FP8), "q.weight_scale": scale}
    assert "does not fit" in read(tensors).refused["q.weight"]


@pytest.mark.parametrize("dtype", [*FLOAT8, "float8_e8m0fnu"])
def test_every_float_of_8_bits_is_widened_as_torch_widens_it(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    right = torch.from_numpy(codes).view(getattr(torch, dtype)).to(torch.float32).numpy()
    widened = without_8_bits(codes.view(DTYPES[dtype]), dtype)
    assert widened.dtype == np.float32
    assert np.array_equal(np.isnan(widened), np.isnan(right))
    assert np.array_equal(widened.view(np.uint32)[~np.isnan(right)], right.view(np.uint32)[~np.isnan(right)])


# Packed weights

OUT, IN = 64, 128
GROUPS = IN // 32
U8, I8, I16, I32, I64, U32 = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint32
F16, F32, BF16, E4M3, E8M0 = torch.float16, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e8m0fnu
WORDS = {"qweight": (I32, IN // 8, OUT), "qzeros": (I32, GROUPS, OUT // 8), "scales": (F16, GROUPS, OUT)}
COLUMNS = WORDS | {"qweight": (I32, IN, OUT // 8)}
PAIRS, BYTES, ROWS = (U8, OUT, IN // 2), (I8, OUT, IN), (F16, OUT, 1)
FOUR_BITS = {
    "weight": (U8, OUT * IN // 2, 1),
    "weight.quant_map": (F32, 16),
    "weight.quant_state.bitsandbytes__nf4": (U8, 90),
}
Layout = dict[str, tuple[Any, ...]]
LAYOUTS: list[tuple[Layout, dict[str, Any]]] = [  # the packed weight comes first
    (WORDS | {"g_idx": (I32, IN), "bias": (F16, OUT)}, {"quant_method": "gptq", "bits": 4}),
    (WORDS | {"g_idx": (I32, IN)}, {}),
    (WORDS, {}),
    (COLUMNS, {"quant_method": "awq", "bits": 4}),
    ({"weight": BYTES, "SCB": (F32, OUT), "weight_format": (U8,)}, {}),
    (FOUR_BITS | {"weight.absmax": (F32, OUT * IN // 64)}, {}),
    # Its codes may be stored as any dtype.
    (FOUR_BITS | {"weight": (BF16, OUT * IN // 4, 1), "weight.absmax": (U8, 128)}, {}),
    ({"experts.up_blocks": (U8, 2, OUT, 4, 16), "experts.up_scales": (U8, 2, OUT, 4)}, {}),
    ({"weight": PAIRS, "weight_scale": (U8, OUT, IN // 32)}, {"quant_method": "quark"}),
    ({"weight": (I8, OUT, IN // 2), "scale": (E8M0, OUT, IN // 32)}, {"quant_method": "fp8"}),
    ({"weight": PAIRS, "weight_scale": (E4M3, OUT, 8), "weight_scale_2": (F32,)}, {}),
    ({"weight_packed": PAIRS, "weight_scale": (E4M3, OUT, 8), "weight_global_scale": (F32,)}, {}),
    ({"weight_packed": (I32, OUT, 16), "weight_scale": (BF16, OUT, 4), "weight_shape": (I64, 2)}, {}),
    ({"compressed": (BF16, OUT, 64), "bitmask": (U8, OUT, 16)}, {}),
    ({"weight": (U32, OUT, 16), "scales": (BF16, OUT, 4), "biases": (BF16, OUT, 4)}, {"bits": 4}),
    ({"weight": (U8, OUT // 4, IN), "weight_scale": (BF16, 1)}, {"quant_method": "bitnet"}),
    ({"weight": (BF16, OUT, IN), "weight_scale": (BF16, 1)}, {"quant_method": "bitnet"}),
    ({"weight": (BF16, OUT, IN), "weight_scale": (BF16, OUT, 4)}, {}),
    ({"weight": BYTES, "weight_scale": ROWS, "weight_zero_point": (I8, OUT, 1)}, {}),
    ({"weight._data": BYTES, "weight._scale": ROWS}, {}),
    ({"weight._data._data": PAIRS, "weight._scale": ROWS, "weight._shift": ROWS}, {}),
    ({"_weight_qdata": BYTES, "_weight_scale": ROWS}, {}),
    ({"weight": (I8, IN, OUT), "weight_scales": (F16, OUT)}, {"quant_method": "eetq"}),
    ({"W_q": PAIRS, "scale": (F16, 128, 1), "zero": (F16, 128, 1)}, {}),
    ({"W_q": (BF16, OUT, 32), "meta.scale": (F16, 128, 1), "meta.zero": (F16, 128, 1)}, {}),
    ({"codes": (I16, OUT, 16, 1), "codebooks": (F16, 1, 256, 1, 8), "scales": (F16, OUT, 1, 1)}, {}),
    ({"Qidxs": (I64, OUT, 2), "SU": (F16, IN), "SV": (F16, OUT)}, {}),
    ({"q_weight": (I32, 16, OUT), "q_scale": (I32, 4, 8), "q_scale_max": (F16, 4)}, {}),
    ({"qweight": PAIRS, "scales": (U8, OUT, 4), "forward_hadamard_matrix": (F16, 9, 9)}, {}),
    ({"weight": BYTES}, {}),
    ({"idx": (U8, OUT, IN), "lut": (F16, OUT, 16)}, {}),
    ({"blob": PAIRS}, {"quant_method": "tbq"}),
]


@pytest.mark.parametrize(("layout", "config"), LAYOUTS, ids=[next(iter(layout)) for layout, _ in LAYOUTS])
def test_packed_weights_are_refused(layout: Layout, config: dict[str, Any], tmp_path: Path) -> None:
    plain = {"model.embed_tokens.weight": torch.ones(50, OUT), "lm_head.weight": torch.zeros(50, OUT)}
    packed = {f"model.layers.0.mlp.up_proj.{n}": torch.zeros(shape).to(dtype) for n, (dtype, *shape) in layout.items()}
    save_file(plain | packed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config} if config else {}))
    checkpoint = Checkpoint(tmp_path, 0)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.analysed()
    line = str(caught.value)
    weight = next(iter(packed))
    method = config.get("quant_method", "fp8")
    scheme = "in an unknown scheme" if method == "fp8" else f"by {method}"
    assert f"{weight}: packed {scheme}" in line
    assert "model.dequantize()" in line
    assert {layer.name for layer in checkpoint.layers()} == plain.keys()
    n_bits = 8 * packed[weight].element_size() if packed[weight].is_floating_point() else config.get("bits", 8)
    size = packed[weight].nbytes * 8 // n_bits
    assert checkpoint.weights.refused_sizes == {weight: size}
    assert f"{100 * 3200 / (6400 + size):.0f}% of the parameters could be measured" in line


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "beside"),
    [
        ("attn.relative_position_index", I32, (49, 49), "attn.logit_scale"),
        ("attn.bias", U8, (1, 1, 64, 64), "attn.scale"),
        ("embeddings.position_ids", I64, (1, 512), "embeddings.scale"),
        ("gate.tid2eid", I32, (100, 4), "gate.weight"),
        ("X_train", U8, (100, 28), "scale"),
        ("bn.num_batches_tracked", I64, (), "bn.scale"),
    ],
)
def test_whole_numbers_that_are_no_weights(name: str, dtype: Any, shape: tuple[int, ...], beside: str) -> None:
    assert not read({name: torch.zeros(shape, dtype=dtype), beside: torch.ones(3)}).refused


@given(data=st.data())
@examples(60)
def test_no_mixture_of_tensors_raises_anything_else(data: st.DataObject) -> None:
    """Whatever lies next to whatever, in whichever shapes: it is read in its shape, or refused."""
    tails = """
    qweight qzeros scales g_idx weight SCB weight_scale weight_scale_inv weight_packed weight_shape weight_scale_2
    weight_zero_point weight_global_scale biases weight._data weight.absmax weight.quant_map x_blocks x_scales
    _weight_qdata _weight_scale weight:qdata
    """.split()
    dtypes = ("int8", "uint8", "int32", "uint32", "int64", "float16", "float32", "bfloat16", *FLOAT8, "float8_e8m0fnu")
    shapes = st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 32]), max_size=4).map(tuple)
    entries = []
    for tail in data.draw(st.lists(st.sampled_from(tails), unique=True, max_size=6)):
        shape, dtype = data.draw(shapes), data.draw(st.sampled_from(dtypes))
        content = np.zeros(shape, DTYPES[dtype])
        entries.append(Entry(f"q.{tail}", shape, dtype, lambda a, b, c=content: c[a:b] if c.ndim else c))  # type: ignore[misc]
    values: st.SearchStrategy[Any] = st.sampled_from(
        ["gptq", "fp8", 4, -1, 0, True, None, [], [0, 0], {"a": []}, 1e300]
    )
    keys = st.sampled_from(["quant_method", "bits", "weight_block_size", "config_groups", "q"])
    config = data.draw(st.dictionaries(keys, values))
    found = unquantised(entries, lambda _: {"quantization_config": config})
    for entry in found.entries:
        if entry.name in found.how:
            assert entry.whole().shape == entry.shape
    assert found.refused.keys() == found.sizes.keys() <= {entry.name for entry in found.entries}


def test_a_plain_checkpoint_is_left_alone() -> None:
    entry = in_memory("x", torch.zeros(2, 2))
    many = [Entry(f"layers.{k}.q_proj.weight", (4, 4), "bfloat16", entry.read) for k in range(200_000)]
    assert all(given is kept for given, kept in zip(many, unquantised(many, lambda _: {}).entries, strict=True))


@pytest.mark.parametrize("is_sharded", [False, True])
def test_what_is_left_unread_in_a_folder_is_counted(is_sharded: bool, tmp_path: Path) -> None:
    packed = torch.quantize_per_tensor(torch.ones(8, 4), 0.1, 0, torch.qint8)
    name = "pytorch_model-00001-of-00001.bin" if is_sharded else "pytorch_model.bin"
    torch.save({"a.weight": torch.ones(8, 4), "b.weight": packed}, tmp_path / name)
    if is_sharded:
        index = {"weight_map": {"a.weight": name, "b.weight": name}}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"b\.weight: .*50% of the parameters could be measured"):
        Checkpoint(tmp_path, 0).analysed()
