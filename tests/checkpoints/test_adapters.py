"""Low-rank adapters are read as the change of a weight that they stand for, or refused."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from safetensors.numpy import save_file
from torch import Tensor, nn

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.adapters import Adapted, combined
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.checkpoints.sources import CheckpointError

LORA = {"peft_type": "LORA", "r": 4, "lora_alpha": 16}
PEFT = "base_model.model."


def listed(tensors: Mapping[str, Tensor]) -> list[Entry]:
    """Tensors in memory as they are listed."""
    return [in_memory(name, tensor) for name, tensor in tensors.items()]


def adapted(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Adapted:
    """An adapter as it is read; no pair is read before it is needed."""
    return combined(listed(tensors), config)


def pair(
    n_out: int = 6, n_in: int = 5, rank: int = 4, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """A and B of one module."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rank, n_in), (n_out, rank))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def change(first: Tensor, second: Tensor, scale: float) -> Tensor:
    """What an adapter adds to a weight: its answers to the unit vectors, one after another."""
    down, up = nn.Linear(first.shape[1], len(first), bias=False), nn.Linear(len(first), len(second), bias=False)
    down.weight.data, up.weight.data = first.float(), second.float()
    with torch.no_grad():
        answer: Tensor = up(down(torch.eye(first.shape[1]))).T * scale
    return answer


def assert_close(entry: Entry, right: Tensor) -> None:
    """The same numbers, in whichever blocks of rows they are read."""
    whole = entry.whole()
    assert whole.dtype == np.float32
    assert whole.flags.c_contiguous
    assert entry.shape == tuple(right.shape)
    np.testing.assert_allclose(whole, right.numpy(), rtol=1e-4, atol=1e-4)
    cut = len(whole) // 2
    np.testing.assert_allclose(np.concatenate([entry.read(0, cut), entry.read(cut, len(whole))]), whole, rtol=1e-6)


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    rank=st.integers(1, 12),
    alpha=st.one_of(st.integers(1, 64), st.floats(0.1, 64)),
    stabilised=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]),
    names=st.sampled_from(["lora_{}.weight", "lora_{}.default.weight", "lora_{}"]),
)
@examples(40)
def test_a_pair_is_its_scaled_product(
    seed: int, shape: tuple[int, int], rank: int, alpha: float, stabilised: bool, dtype: torch.dtype, names: str
) -> None:
    first, second = pair(*shape, rank, seed, dtype)
    tensors = {f"{PEFT}h.0.c_attn.{names.format(side)}": t for side, t in (("A", first), ("B", second))}
    found = adapted(tensors, {"r": rank, "lora_alpha": alpha, "use_rslora": stabilised})
    scale = alpha / (math.sqrt(rank) if stabilised else rank)
    (entry,) = found.entries
    assert not found.refused
    assert entry.name == "h.0.c_attn.weight"
    assert found.how == {entry.name: f"LoRA, rank {rank}, scale {scale:g}"}
    assert_close(entry, change(first, second, scale))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "adapter_config.json, which states its scale, is missing"),
        ({"r": 8, "lora_alpha": 16}, "states 8"),
        ({**LORA, "r": "four"}, "no positive number for 'r'"),
        ({**LORA, "lora_alpha": math.nan}, "'lora_alpha'"),
        ({**LORA, "lora_alpha": True}, "'lora_alpha'"),
        ({**LORA, "alpha_pattern": {"q": 3}}, "alpha_pattern"),
        ({**LORA, "use_dora": True}, "DoRA"),
        ({**LORA, "init_lora_weights": "pissa"}, "changed base model"),
        ({**LORA, "peft_type": "LOHA"}, "'LOHA'"),
        ({"r": 4, "rank_pattern": [4]}, ""),
    ],
)
def test_a_configuration_that_states_no_scale(config: dict[str, Any], words: str) -> None:
    first, second = pair()
    found = adapted({"q.lora_A.weight": first, "q.lora_B.weight": second}, config)
    if not words:
        assert found.how == {"q.weight": "LoRA, rank 4, scale 2 (default alpha 8)"}
        return
    assert set(found.refused) == {"q.lora_A.weight", "q.lora_B.weight"} == {entry.name for entry in found.entries}
    assert all(words in reason and "\n" not in reason for reason in found.refused.values())


@pytest.mark.parametrize("alpha", [2.0, None])
def test_pairs_of_kohya_and_diffusers(alpha: float | None) -> None:
    first, second = pair()
    tensors = {"lora_unet_q.lora_down.weight": first, "lora_unet_q.lora_up.weight": second}
    if alpha:
        tensors["lora_unet_q.alpha"] = torch.tensor(alpha)
    (entry,) = adapted(tensors, {}).entries
    assert entry.name == "lora_unet_q.weight"
    assert_close(entry, change(first, second, (alpha or 4) / 4))
    old = {"attn.to_q_lora.down.weight": first, "attn.to_q_lora.up.weight": second}
    assert [e.name for e in adapted(old, {}).entries] == ["attn.to_q.weight"]


def test_convolutions_and_embeddings_which_have_a_token_a_row() -> None:
    down, up, first, second = torch.randn(2, 3, 5, 5), torch.randn(6, 2, 1, 1), torch.randn(4, 11), torch.randn(6, 4)
    (entry,) = adapted({"conv.lora_A.weight": down, "conv.lora_B.weight": up}, {"r": 2, "lora_alpha": 2}).entries
    assert_close(entry, torch.einsum("or,rixy->oixy", up[:, :, 0, 0], down))
    (entry,) = adapted({f"{PEFT}wte.lora_embedding_A": first, f"{PEFT}wte.lora_embedding_B": second}, LORA).entries
    assert entry.name == "wte.weight"
    assert_close(entry, (second @ first).T * 4)


@pytest.mark.parametrize("name", ["q.base_layer.weight", "q.linear.weight", "q.weight"])
def test_an_adapter_in_its_model_is_the_changed_weight(name: str) -> None:
    first, second = pair()
    weight = torch.randn(6, 5)
    tensors = {"norm.weight": torch.ones(5), name: weight, "q.lora_A": first, "q.lora_B": second}
    found = adapted(tensors, LORA)
    assert [entry.name for entry in found.entries] == ["norm.weight", "q.weight"]
    assert_close(found.entries[1], weight + change(first, second, 4))
    whole = {f"{PEFT}q.lora_A.weight": first, f"{PEFT}q.lora_B.weight": second, f"{PEFT}head.weight": torch.ones(7, 3)}
    assert [entry.name for entry in adapted(whole, LORA).entries] == ["q.weight", "head.weight"]  # trained whole
    for unknown in (adapted(tensors, {}), adapted(tensors, {**LORA, "fan_in_fan_out": True})):
        assert set(unknown.refused) == {name, "q.lora_A", "q.lora_B"}


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"q.lora_A.weight": (4, 5)}, "half of a LoRA pair"),
        ({"q.lora_A.weight": (4, 5), "q.lora_B.weight": (6, 3)}, "ranks differ"),
        ({"q.lora_A.weight": (4,), "q.lora_B.weight": (6, 4)}, "form no product"),
        ({"q.lora_A.weight": (4, 0), "q.lora_B.weight": (6, 4)}, "ranks differ"),
        ({"q.lora_A.a.weight": (4, 5), "q.lora_B.a.weight": (6, 4), "q.lora_A.b.weight": (4, 5)}, "several adapters"),
        ({"q.lora_A.weight": (4, 5), "q.lora_B.weight": (6, 4), "q.lora_magnitude_vector": (6,)}, "no product of two"),
        ({"q.lora_A.weight": (4, 5), "q.lora_B.weight": (6, 4), "q.dora_scale": (6, 1)}, "no product of two"),
        ({"q.lora_A.default": (4, 5), "q.lora_B.default": (6, 4), "q.lora_E.default": (4, 1)}, "no product of two"),
        ({"q.vera_lambda_b": (6,), "q.vera_lambda_d": (4,)}, "no product of two"),
        ({"q.ia3_l": (1, 5)}, "no product of two"),
        ({"q.hada_w1_a": (6, 4), "q.hada_w1_b": (4, 5)}, "no product of two"),
        ({"q.lokr_w1": (6, 4)}, "no product of two"),
        ({"prompt_embeddings": (6, 4)}, "not read"),
        ({f"{PEFT}q.miss_block": (4, 16), f"{PEFT}q.trainable_tokens_delta": (2, 16)}, "not read"),
    ],
)
def test_what_is_no_pair_is_refused(shapes: dict[str, tuple[int, ...]], words: str) -> None:
    found = adapted({name: torch.ones(shape) for name, shape in shapes.items()}, LORA)
    assert not found.how
    assert set(found.refused) == set(shapes)
    assert all(words in reason and len(reason) < 300 for reason in found.refused.values())


def test_a_product_that_fits_no_memory_is_refused() -> None:
    def read(start: int, stop: int) -> Any:
        raise AssertionError("read while it is listed")

    shapes = {"q.lora_A.weight": (1, 10**6), "q.lora_B.weight": (10**6, 1)}
    large = [Entry(name, shape, "float32", read) for name, shape in shapes.items()]
    assert "too large" in combined(large, {"r": 1}).refused["q.lora_A.weight"]


def test_a_checkpoint_without_adapters_is_left_alone() -> None:
    entries = listed({"q.weight": torch.ones(2, 2), "explora.weight": torch.ones(2, 2), "q.alpha": torch.ones(1)})
    found = combined(entries, LORA)
    assert all(given is kept for given, kept in zip(entries, found.entries, strict=True))
    assert not (found.how)
    assert not (found.refused)


@pytest.mark.parametrize(
    ("names", "config"),
    [
        (("layers.0.q_proj.lora_a", "layers.0.q_proj.lora_b"), {"lora_parameters": {"rank": 2, "scale": 10.0}}),
        ((f"{PEFT}q_proj.lora_A.weight", f"{PEFT}q_proj.lora_B.weight"), {"peft_type": "SOME_LORA"}),
        ((f"{PEFT}q_proj.miss_block", f"{PEFT}k_proj.miss_block"), {"peft_type": "MISS"}),
        ((f"{PEFT}q_proj.lily_A.weight", f"{PEFT}embed_tokens.trainable_tokens_delta"), {}),
    ],
)
def test_an_adapter_of_another_type_is_refused_and_not_measured(
    names: tuple[str, str], config: dict[str, Any], tmp_path: Path
) -> None:
    tensors = {name: np.ones(shape, np.float32) for name, shape in zip(names, ((8, 2), (2, 8)), strict=True)}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    if config:
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="not read; merge it into its base model") as caught:
        Checkpoint(tmp_path, 0).analysed()
    assert config.get("peft_type", "") in str(caught.value)
