"""Circuits and maps of attention in any layout: what the model itself computes, or one line of why not."""

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
from property_examples import examples
from safetensors.torch import save_file

import toposcope as ts
from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.attention import CIRCUITS, AttentionFacts, CircuitLayer, attention_circuits, facts_of
from toposcope.checkpoints.in_memory import CheckpointInMemory
from toposcope.checkpoints.roles import role_of
from toposcope.errors import ToposcopeError
from toposcope.family import ModelSize, build
from toposcope.family.model import Attention
from toposcope.homology.circuits import Circuit, circuit_statistics
from toposcope.models import Origin
from toposcope.models.loading import attention_facts

Array = NDArray[np.float64]
D, HEADS, WIDTH = 12, 4, 3
B = "transformer.h.0"


def stored(layout: str, q: Array, k: Array, v: Array, o: Array) -> dict[str, Array]:
    """One block in a layout; q, k, v have shape (heads, width, D + 1), their biases last, and o (D, heads width)."""
    rng = np.random.default_rng(7)
    norm = {f"{B}.ln_1.weight": rng.uniform(0.5, 2, D), f"{B}.ln_1.bias": rng.normal(size=D)}
    norm |= {"transformer.wpe.weight": rng.normal(size=(9, D)), "transformer.wte.weight": rng.normal(size=(17, D))}
    if layout in {"stacked", "grouped"}:
        fused = np.concatenate([q, k, v]) if layout == "stacked" else np.stack([q, k, v], axis=1)
        flat = fused.reshape(-1, D + 1)
        W = flat[:, :-1].T if layout == "stacked" else flat[:, :-1]
        name = f"{B}.attn.{'c_attn' if layout == 'stacked' else 'query_key_value'}"
        out = f"{B}.attn.c_proj.weight" if layout == "stacked" else f"{B}.attn.dense.weight"
        return {**norm, f"{name}.weight": W, f"{name}.bias": flat[:, -1], out: o.T if layout == "stacked" else o}
    if layout == "heads apart":
        parts = {f"blocks.0.attn.W_{c}": x[..., :-1].transpose(0, 2, 1) for c, x in zip("QKV", (q, k, v), strict=True)}
        parts |= {f"blocks.0.attn.b_{c}": x[..., -1] for c, x in zip("QKV", (q, k, v), strict=True)}
        tables = {"pos_embed.W_pos": norm["transformer.wpe.weight"], "embed.W_E": norm["transformer.wte.weight"]}
        tables |= {"blocks.0.ln1.w": norm[f"{B}.ln_1.weight"], "blocks.0.ln1.b": norm[f"{B}.ln_1.bias"]}
        return {**tables, **parts, "blocks.0.attn.W_O": o.T.reshape(HEADS, WIDTH, D)}
    parts = {f"{B}.attn.{c}_proj.weight": x[..., :-1].reshape(-1, D) for c, x in zip("qkv", (q, k, v), strict=True)}
    parts |= {f"{B}.attn.{c}_proj.bias": x[..., -1].ravel() for c, x in zip("qkv", (q, k, v), strict=True)}
    return {**norm, **parts, f"{B}.attn.out_proj.weight": o}


FACTS = {
    "stacked": AttentionFacts(HEADS, HEADS, positions="static", norm="layer", fused="stacked"),
    "grouped": AttentionFacts(HEADS, HEADS, positions="static", norm="layer", fused="grouped"),
    "split": AttentionFacts(HEADS, HEADS, positions="static", norm="layer"),
    "shared keys": AttentionFacts(HEADS, 2, positions="static", norm="layer"),
    "one key": AttentionFacts(HEADS, 1, positions="static", norm="rms"),
    "heads apart": AttentionFacts(),
}


def circuits(tensors: dict[str, Any], facts: AttentionFacts) -> dict[str, list[Circuit]]:
    checkpoint = CheckpointInMemory(
        "memory", {n: torch.as_tensor(np.ascontiguousarray(x)) for n, x in tensors.items()}, {}
    )
    found = {}
    for name, layer in attention_circuits(checkpoint, facts).items():
        assert isinstance(layer, CircuitLayer), layer
        assert not layer.flag
        found[CIRCUITS[role_of(name)]] = layer.read()
    return found


@pytest.mark.parametrize("layout", FACTS)
@examples(15)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_basis_of_condition_100_moves_a_number_in_any_layout(layout: str, seed: int) -> None:
    rng, n_keys = np.random.default_rng(seed), FACTS[layout].keys or HEADS
    q, k, v = (rng.normal(size=(n, WIDTH, D + 1)) for n in (HEADS, n_keys, n_keys))
    o = rng.normal(size=(D, HEADS, WIDTH))
    moved = [np.empty_like(x) for x in (q, k, v, o)]
    for g in range(n_keys):
        U, V, X, Y = (np.linalg.qr(rng.normal(size=(WIDTH, WIDTH))).Q for _ in range(4))
        A, C = (left * np.geomspace(1, 100, WIDTH) @ right for left, right in ((U, V), (X, Y)))
        moved[1][g], moved[2][g] = A @ k[g], C @ v[g]
        for h in range(g * HEADS // n_keys, (g + 1) * HEADS // n_keys):
            moved[0][h], moved[3][:, h] = np.linalg.inv(A).T @ q[h], o[:, h] @ np.linalg.inv(C)
    first, second = (
        circuits(stored(layout, a, b, c, d.reshape(D, -1)), FACTS[layout]) for a, b, c, d in ((q, k, v, o), moved)
    )
    for kind, heads in first.items():
        assert len(heads) == HEADS
        for one, other in zip(heads, second[kind], strict=True):
            assert circuit_statistics(other, "") == pytest.approx(circuit_statistics(one, ""), rel=1e-10, abs=0)
    if FACTS[layout].norm == "rms":
        return
    gain, shift = (stored("split", q, k, v, o)[f"{B}.ln_1.{part}"] for part in ("weight", "bias"))
    folded = gain[:, None] * (np.eye(D) - 1 / D)
    for h, circuit in enumerate(first["QK"]):
        query, key = (
            np.column_stack([x[:, :-1] @ folded, x[:, :-1] @ shift + x[:, -1]]) for x in (q[h], k[h * n_keys // HEADS])
        )
        np.testing.assert_allclose(circuit.left @ circuit.right, query.T @ key, rtol=0, atol=1e-10)


SMALL = {"vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 0}
WIDE = SMALL | {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
SHARED = WIDE | {"num_key_value_heads": 2, "head_dim": 12}
N_EMBD = {"n_embd": 48, "n_layer": 1, "n_head": 4, "vocab_size": 97, "n_positions": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": N_EMBD,
    "gpt_bigcode": N_EMBD,
    "gptj": {**N_EMBD, "rotary_dim": 8},
    "bloom": {"hidden_size": 48, "n_layer": 1, "n_head": 4, "vocab_size": 97},
    "opt": {**WIDE, "ffn_dim": 64, "word_embed_proj_dim": 48},
    "gpt_neox": {**WIDE, "rotary_pct": 0.5},
    "falcon": WIDE,
    "falcon new": {**WIDE, "num_kv_heads": 2, "new_decoder_architecture": True},
    "phi": {**WIDE, "partial_rotary_factor": 0.5},
    "phi3": {**WIDE, "num_key_value_heads": 2},
    **dict.fromkeys(("llama", "qwen2", "gemma", "cohere", "olmo"), SHARED),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_circuits_give_the_attention_of_the_model_itself(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family.partition(" ")[0], **FAMILIES[family])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path, 0)
    facts = attention_facts(checkpoint, Origin())
    (scores,) = (
        layer
        for name, layer in attention_circuits(checkpoint, facts).items()
        if "q" in name.split(".")[-2] or "attn.c_attn" in name
    )
    assert isinstance(scores, CircuitLayer)
    seen: list[torch.Tensor] = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in {"ln_1", "input_layernorm", "self_attn_layer_norm", "ln_attn"}:
            module.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    tokens = torch.arange(3, 23)[None]
    with torch.no_grad():
        shares = model(tokens, output_attentions=True).attentions[0][0].double().numpy()
    x = seen[0][0].detach().double().numpy()
    x = x - x.mean(axis=1, keepdims=True) if facts.norm.endswith("layer") else x
    epsilon = next(
        (e for n in ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps") if (e := getattr(config, n, 0))), 1e-5
    )
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon)
    for h, circuit in enumerate(scores.read()):
        inputs = np.column_stack([x, np.ones(len(x))])[:, : circuit.right.shape[1]]
        q, k = (rotated(inputs @ factor, circuit, config) for factor in (circuit.left, circuit.right.T))
        left = np.log(shares[h, -1]) - k @ q[-1] / math.sqrt(circuit.right.shape[0])  # a constant, and of ALiBi a line
        assert np.abs(np.diff(left, n=2 if family == "bloom" else 1)).max() < 1e-4


def rotated(x: Array, circuit: Circuit, config: Any) -> Array:
    """Turn pairs by the token's place, slower from pair to pair."""
    turned, (i, j) = x.copy(), circuit.pairs.T
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)
    angle = np.arange(len(x))[:, None] * theta ** (-np.arange(len(i)) / max(1, len(i)))
    turned[:, i] = x[:, i] * np.cos(angle) - x[:, j] * np.sin(angle)
    turned[:, j] = x[:, i] * np.sin(angle) + x[:, j] * np.cos(angle)
    return turned


# What is unknown


def llama(width: int = 12, keys: int = 2) -> dict[str, torch.Tensor]:
    shapes = {"q_proj": (width, 12), "k_proj": (3 * keys, 12), "v_proj": (3 * keys, 12), "o_proj": (12, width)}
    place = "model.layers.0.self_attn"
    tensors = {f"{place}.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    tables = {"model.embed_tokens.weight": torch.randn(31, 12), "lm_head.weight": torch.randn(31, 12)}
    return {**tables, **tensors, "model.layers.0.input_layernorm.weight": torch.ones(12)}


CONFIG = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 12}
NORMED = {"model.layers.0.self_attn.q_norm.weight": torch.ones(3)}
REFUSED: dict[str, tuple[dict[str, Any] | None, dict[str, torch.Tensor], str]] = {
    "no configuration": (None, llama(), "number of heads is unknown"),
    "zero heads": ({**CONFIG, "num_attention_heads": 0}, llama(), "number of heads is unknown"),
    "odd heads": ({**CONFIG, "num_attention_heads": 5, "num_key_value_heads": 5}, llama(), "are not 5 heads"),
    "keys that do not divide": ({**CONFIG, "num_key_value_heads": 3}, llama(), "cannot share 3 keys"),
    "another width": ({**CONFIG, "head_dim": 6}, llama(), "not of 6"),
    "normalised": (CONFIG, {**llama(), **NORMED}, "queries and keys are normalised"),
    "another family": ({**CONFIG, "model_type": "smollm3"}, llama(), "unknown of its family"),
    "no family": ({**CONFIG, "model_type": ["llama"]}, llama(), "unknown of its family"),
    "clipped": ({**CONFIG, "clip_qkv": 8.0}, llama(), "clip_qkv"),
    "part of a head": ({**CONFIG, "model_type": "phi"}, llama(), "unknown of its family"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_unknown_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    config, tensors, reason = REFUSED[case]
    save_file(tensors, tmp_path / "model.safetensors")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = Checkpoint(tmp_path, 0)
    found = attention_circuits(checkpoint, attention_facts(checkpoint, Origin()))
    query = found["model.layers.0.self_attn.q_proj.weight"]
    assert isinstance(query, ToposcopeError)
    assert reason in str(query)
    assert len(str(query).splitlines()) == 1
    if case in {"normalised", "clipped", "another family"}:  # outputs do not depend on these
        assert isinstance(found["model.layers.0.self_attn.o_proj.weight"], CircuitLayer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_checkpoint_by_the_command(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {name: tensor.to(torch.bfloat16).to(torch.float16).to(dtype) for name, tensor in llama().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    frame = ts.measure(tmp_path, probes=["attention_circuits"])
    rows = {
        (row["layer"].split(".")[-2], row["statistic"]): row["value"]
        for row in frame.to_dicts()
        if row["layer"] != "network"
    }
    W = {name: tensors[f"model.layers.0.self_attn.{name}_proj.weight"].double().numpy() for name in "qkvo"}
    for h in range(4):
        M = W["o"][:, 3 * h : 3 * h + 3] @ W["v"][3 * (h // 2) : 3 * (h // 2) + 3]
        assert rows["o_proj", f"circuit_norm@head.{h:02d}"] == pytest.approx(np.linalg.norm(M))
    assert rows["o_proj", "circuit_norm"] == pytest.approx(
        np.mean([rows["o_proj", f"circuit_norm@head.{h:02d}"] for h in range(4)])
    )
    assert {"pair_norm", "pair_rank", "H0.total"} <= {name for layer, name in rows if layer == "q_proj"}
    assert "np_mean" not in {name for layer, name in rows if layer == "q_proj"}


@pytest.mark.parametrize("content", [{}, {"text_config": [1], "rope_parameters": 3, "num_attention_heads": True}])
def test_a_configuration_that_says_nothing(content: dict[str, Any]) -> None:
    assert facts_of(content) == AttentionFacts(norm="unknown")


def test_maps_of_a_model_are_those_it_attends_with() -> None:
    attention = build(ModelSize(hidden=16, layers=1, heads=2, context=24), initial_scale=10).layers[0].attn
    assert isinstance(attention, Attention)
    x = torch.randn(3, 24, 16)
    with torch.no_grad():
        value = attention.qkv(x)[..., 32:].view(3, 24, 2, 8).transpose(1, 2)
        mixed = attention.proj((attention.shares(x) @ value).transpose(1, 2).reshape(3, 24, 16))
        assert torch.allclose(mixed, attention(x), atol=1e-5)
