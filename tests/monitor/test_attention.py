"""Attention and routing on a fixed batch, against computations of their own, in the families that people train."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from toposcope.monitor import attention
from toposcope.monitor.activations import FixedBatch
from toposcope.probes.activations import ATTENTION, ROUTING, STATISTICS

IDS = torch.randint(0, 64, (3, 24), generator=torch.Generator().manual_seed(0))
PADDED = torch.ones_like(IDS)
PADDED[0, -6:] = 0
SIZE: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0},
}
GROUPED: dict[str, Any] = SIZE | {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 8}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": (
        "GPT2LMHeadModel",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "GPTNeoX": ("GPTNeoXForCausalLM", SIZE),
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Mistral": ("MistralForCausalLM", GROUPED | {"sliding_window": 8}),
    "Qwen3": ("Qwen3ForCausalLM", GROUPED),
    "Bert": ("BertForMaskedLM", SIZE),
    "Mixtral": ("MixtralForCausalLM", GROUPED | {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "Olmoe": ("OlmoeForCausalLM", GROUPED | EXPERTS),
    "Qwen2Moe": ("Qwen2MoeForCausalLM", GROUPED | EXPERTS | {"shared_expert_intermediate_size": 16}),
    "DeepseekV3": (
        "DeepseekV3ForCausalLM",
        SIZE
        | {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
        | {"moe_intermediate_size": 16, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4}
        | {"qk_nope_head_dim": 4, "v_head_dim": 8, "num_key_value_heads": 4},
    ),
}


def family(name: str, implementation: str = "eager", **changes: Any) -> Any:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    model, options = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options | changes)
    made = getattr(transformers, model)._from_config(config, attn_implementation=implementation)
    for parameter in made.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return made


def measured(model: nn.Module, batch: Any, wanted: tuple[str, ...] = (*ATTENTION, *ROUTING)) -> Any:
    return FixedBatch(model, batch, wanted).run().statistics


def expected(logits: Tensor) -> dict[str, float]:
    """Largest logit and mean entropy of logits of shape (sequences, heads, queries, keys), for a block and by head."""
    entropy = torch.distributions.Categorical(logits=logits.double()).entropy().mean(dim=(0, 2))  # type: ignore[no-untyped-call]
    largest = logits.amax(dim=(0, 2, 3))
    found = {"attention_logit_max": float(largest.max()), "attention_entropy": float(entropy.mean())}
    for name, values in (("attention_logit_max", largest), ("attention_entropy", entropy)):
        found |= {f"{name}@head.{h:02d}": float(value) for h, value in enumerate(values)}
    return found


def causal(logits: Tensor) -> Tensor:
    return logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), -1e30)


def assert_close(found: dict[str, float], wanted: dict[str, float], tolerance: float = 1e-5) -> None:
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_gpt2_by_hand(implementation: str) -> None:
    model = family("GPT2", implementation).eval()
    found = measured(model, IDS)
    with torch.no_grad():
        states = model(IDS, output_hidden_states=True).hidden_states
        for k, block in enumerate(model.transformer.h):
            q, key, _ = block.attn.c_attn(block.ln_1(states[k])).split(32, dim=-1)
            q, key = (x.view(3, 24, 4, 8).transpose(1, 2) for x in (q, key))
            wanted = expected(causal(q @ key.transpose(-1, -2) / 8**0.5))
            wanted |= {"query_norm": float(q.norm(dim=-1).mean()), "key_norm": float(key.norm(dim=-1).mean())}
            assert_close(found[f"hidden.0{k + 1}"], wanted)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_shared_keys_and_rotation_by_hand(implementation: str) -> None:
    model = family("Llama", implementation).eval()
    found = measured(model, {"input_ids": IDS, "use_cache": True})
    rope = 1.0 / 10_000 ** (torch.arange(0, 8, 2) / 8)
    angles = torch.arange(24)[:, None] * torch.cat([rope, rope])
    with torch.no_grad():
        states = model(IDS, output_hidden_states=True).hidden_states
        for k, block in enumerate(model.model.layers):
            x = block.input_layernorm(states[k])
            q, key = (
                proj(x).view(3, 24, -1, 8).transpose(1, 2) for proj in (block.self_attn.q_proj, block.self_attn.k_proj)
            )
            q, key = (v * angles.cos() + torch.cat([-v[..., 4:], v[..., :4]], dim=-1) * angles.sin() for v in (q, key))
            wanted = expected(causal(q @ key.repeat_interleave(2, dim=1).transpose(-1, -2) / 8**0.5))
            assert_close(found[f"hidden.0{k + 1}"], wanted)


@pytest.mark.parametrize("name", FAMILIES)
def test_implementations_agree(name: str) -> None:
    batch = {"input_ids": IDS, "attention_mask": PADDED}
    eager, fused = (measured(family(name, implementation), batch) for implementation in ("eager", "sdpa"))
    assert {*ATTENTION} < eager["hidden.02"].keys()
    has_experts = name in {"Mixtral", "Olmoe", "Qwen2Moe", "DeepseekV3"}
    assert ({*ROUTING} <= eager["hidden.02"].keys()) == has_experts
    for block, values in eager.items():
        assert values.keys() == fused[block].keys()
        assert_close(fused[block], values)


def test_a_soft_cap_and_a_sink(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 8}
    FAMILIES["Gemma2"] = ("Gemma2ForCausalLM", GROUPED | options)
    assert 0.4 < measured(family("Gemma2"), IDS)["hidden.01"]["attention_logit_max"] <= 0.5
    FAMILIES["GptOss"] = ("GptOssForCausalLM", GROUPED | {"num_local_experts": 6, "num_experts_per_tok": 2})
    model = family("GptOss").eval()
    found = measured(model, IDS, STATISTICS)["hidden.01"]
    assert "attention_logit_max" not in found
    assert found["attention_entropy"] > 0
    assert "subtracts it before the softmax" in capsys.readouterr().err


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("way", ["fast", "causal", "padded"])
def test_attention_of_torch(way: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first) for _ in range(2)]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(layers)

        def forward(self, x: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor:
            for block in layers:
                x = block(x, mask, padding)
            return x

    x = torch.randn(3, 10, 16)
    future = torch.ones(10, 10).triu(1).bool()
    padding = torch.zeros(3, 10).bool()
    padding[1, 7:] = True
    mask, padded = (future if way == "causal" else None), (padding if way == "padded" else None)
    found = measured(Model(), (x if batch_first else x.transpose(0, 1), mask, padded))
    first = layers[0].self_attn
    projected = functional.linear(x, first.in_proj_weight, first.in_proj_bias).detach()
    q, key = (part.view(3, 10, 4, 4).transpose(1, 2) for part in torch.chunk(projected, 3, dim=-1)[:2])
    logits = q @ key.transpose(-1, -2) / 2
    logits = logits.masked_fill(future, -1e30) if way == "causal" else logits
    logits = logits.masked_fill(padding[:, None, None], -1e30) if way == "padded" else logits
    assert_close(found["hidden.01"], expected(logits))


class Head(nn.Module):
    """One head, written by hand."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 4, bias=False) for _ in range(3))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.fused:  # of three axes, for which torch has no kernel
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        weights = (q @ k.transpose(-2, -1) * 0.5).masked_fill(torch.ones(len(x[0]), len(x[0])).triu(1) > 0, -torch.inf)
        out: Tensor = functional.softmax(weights, dim=-1) @ v
        return out


class Block(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.heads = nn.ModuleList([Head(fused=fused) for _ in range(4)])
        self.mlp = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mlp(x + torch.cat([head(x) for head in self.heads], dim=-1))
        return out


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("length", [4, 10])  # 4 is also the width of a head
def test_heads_written_by_hand(fused: bool, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    blocks = [Block(fused=fused) for _ in range(3)]
    model = nn.Sequential(*blocks)
    x = torch.randn(3, length, 16)
    found = measured(model, x)
    with torch.no_grad():
        inputs, of_block = blocks[0](x), [module for module in blocks[1].modules() if isinstance(module, Head)]
        heads = [causal(h.query(inputs) @ h.key(inputs).transpose(-2, -1) / 2) for h in of_block]
        norms = torch.stack([h.query(inputs).norm(dim=-1).mean() for h in of_block])
    wanted = expected(torch.stack(heads, dim=1)) | {"query_norm": float(norms.mean())}
    assert_close(found["hidden.02"], wanted)
    monkeypatch.setattr(attention, "MAX_LOGITS", 8)  # in many chunks
    assert_close(measured(model, x)["hidden.02"], found["hidden.02"], 1e-6)


def test_memory_is_bounded() -> None:
    torch.manual_seed(0)
    seen: list[int] = []

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            seen.append(result.numel() if isinstance(result, Tensor) else 0)
            return result

    q, k = torch.randn(1, 8, 4096, 4), torch.randn(1, 2, 4096, 4)
    with Watched():
        found = attention.from_states(q, k, None, is_causal=True, scale=None, n_vectors=4096)
    assert max(seen) <= attention.MAX_LOGITS < 8 * 4096 * 4096
    assert found["attention_entropy"].shape == (8,)


@pytest.mark.parametrize("name", ["Mixtral", "DeepseekV3"])
def test_routing_by_hand(name: str) -> None:
    model = family(name).eval()
    block = model.model.layers[1]
    router = next(module for path, module in block.named_modules() if path.endswith("gate"))
    chosen: list[Tensor] = []
    handle = router.register_forward_hook(lambda _m, _i, output: chosen.append(output[-1]))
    found = measured(model, IDS, ROUTING)
    handle.remove()
    load = torch.bincount(chosen[0].flatten(), minlength=8 if name == "DeepseekV3" else 6).double()
    entropy = torch.distributions.Categorical(probs=load).entropy()  # type: ignore[no-untyped-call]
    assert found["hidden.02"] == pytest.approx(
        {"dead_experts": float((load == 0).double().mean()), "routing_entropy": float(entropy)}
    )
    assert bool(found["hidden.01"]) == (name == "Mixtral")  # the first block of DeepSeek is dense


def test_what_cannot_be_seen_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Linear(nn.Module):
        """Attention without a softmax."""

        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.ModuleDict({name: nn.Linear(16, 16) for name in ("q_proj", "k_proj", "v_proj")})

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (self.attn[name](x) for name in ("q_proj", "k_proj", "v_proj"))
            out: Tensor = x + q @ (k.transpose(-1, -2) @ v)
            return out

    batch = FixedBatch(nn.Sequential(Linear(), Linear()), torch.randn(2, 5, 16))
    assert batch.run().states.keys() == {"hidden.01", "hidden.02"}
    batch.run()
    assert capsys.readouterr().err.count("the attention of 0, 1 cannot be measured") == 1
