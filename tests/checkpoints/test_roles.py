"""What each layer is for, which way round it is stored, and the head that is tied to the embedding."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import Weights, family_weights, model_folder, random_weights, refused

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.roles import (
    OWN_RULE,
    UNKNOWN,
    checked,
    is_buffer,
    plain_names,
    recognised,
    role_of,
    stored_transposed,
)
from toposcope.checkpoints.roles import ROLES as TABLE
from toposcope.checkpoints.sources import LocalSource
from toposcope.errors import ToposcopeError

ROLES: dict[str, dict[str, tuple[str, str]]] = {
    "ours and the published study": {
        "token_emb.weight": ("embed", "this family"),
        "pos_emb.weight": ("pos_embed", "this family"),
        "layers.0.attn.qkv.weight": ("attn.qkv", "this family"),
        "layers.10.attn.proj.weight": ("attn.out", "this family"),
        "layers.0.mlp.fc1.weight": ("mlp.in", "this family"),
        "layers.0.mlp.fc2.weight": ("mlp.out", "this family"),
        "head.weight": ("head", "this family"),
    },
    "GPT-2, nanoGPT": {
        "transformer.wte.weight": ("embed", "several families"),
        "wte.weight": ("embed", "several families"),
        "transformer.wpe.weight": ("pos_embed", "several families"),
        "transformer.h.0.attn.c_attn.weight": ("attn.qkv", "GPT-2"),
        "h.0.attn.c_proj.weight": ("attn.out", "GPT-2"),
        "transformer.h.11.mlp.c_fc.weight": ("mlp.in", "GPT-2"),
        "transformer.h.11.mlp.c_proj.weight": ("mlp.out", "GPT-2"),
        "lm_head.weight": ("head", "several families"),
    },
    "nanochat": {
        "transformer.wte.weight": ("embed", "several families"),
        "transformer.h.0.attn.c_q.weight": ("attn.q", "GPT-2"),
        "transformer.h.0.attn.c_k.weight": ("attn.k", "GPT-2"),
        "transformer.h.0.attn.c_v.weight": ("attn.v", "GPT-2"),
        "transformer.h.0.attn.c_proj.weight": ("attn.out", "GPT-2"),
        "transformer.h.0.mlp.c_fc.weight": ("mlp.in", "GPT-2"),
        "transformer.h.0.mlp.c_proj.weight": ("mlp.out", "GPT-2"),
        "lm_head.weight": ("head", "several families"),
    },
    "GPT-Neo (TinyStories)": {
        "transformer.wte.weight": ("embed", "several families"),
        "transformer.wpe.weight": ("pos_embed", "several families"),
        "transformer.h.0.attn.attention.q_proj.weight": ("attn.q", "GPT-J"),
        "transformer.h.0.attn.attention.k_proj.weight": ("attn.k", "GPT-J"),
        "transformer.h.0.attn.attention.v_proj.weight": ("attn.v", "GPT-J"),
        "transformer.h.0.attn.attention.out_proj.weight": ("attn.out", "GPT-J"),
        "transformer.h.0.mlp.c_fc.weight": ("mlp.in", "GPT-2"),
        "transformer.h.0.mlp.c_proj.weight": ("mlp.out", "GPT-2"),
    },
    "GPT-J": {
        "transformer.wte.weight": ("embed", "several families"),
        "transformer.h.0.attn.q_proj.weight": ("attn.q", "GPT-J"),
        "transformer.h.0.attn.k_proj.weight": ("attn.k", "GPT-J"),
        "transformer.h.0.attn.v_proj.weight": ("attn.v", "GPT-J"),
        "transformer.h.0.attn.out_proj.weight": ("attn.out", "GPT-J"),
        "transformer.h.0.mlp.fc_in.weight": ("mlp.in", "GPT-J"),
        "transformer.h.27.mlp.fc_out.weight": ("mlp.out", "GPT-J"),
        "lm_head.weight": ("head", "several families"),
    },
    "GPT-NeoX (Pythia)": {
        "gpt_neox.embed_in.weight": ("embed", "GPT-NeoX"),
        "gpt_neox.layers.0.attention.query_key_value.weight": ("attn.qkv", "GPT-NeoX"),
        "gpt_neox.layers.0.attention.dense.weight": ("attn.out", "GPT-NeoX"),
        "gpt_neox.layers.5.mlp.dense_h_to_4h.weight": ("mlp.in", "GPT-NeoX"),
        "gpt_neox.layers.5.mlp.dense_4h_to_h.weight": ("mlp.out", "GPT-NeoX"),
        "embed_out.weight": ("head", "GPT-NeoX"),
    },
    "Bloom, Falcon": {
        "transformer.word_embeddings.weight": ("embed", "GPT-NeoX"),
        "transformer.h.0.self_attention.query_key_value.weight": ("attn.qkv", "GPT-NeoX"),
        "transformer.h.0.self_attention.dense.weight": ("attn.out", "GPT-NeoX"),
        "transformer.h.0.mlp.dense_h_to_4h.weight": ("mlp.in", "GPT-NeoX"),
        "transformer.h.0.mlp.dense_4h_to_h.weight": ("mlp.out", "GPT-NeoX"),
    },
    "OPT": {
        "model.decoder.embed_positions.weight": ("pos_embed", "OPT"),
        "model.decoder.embed_tokens.weight": ("embed", "several families"),
        "model.decoder.layers.0.fc1.weight": ("mlp.in", "OPT"),
        "model.decoder.layers.0.fc2.weight": ("mlp.out", "OPT"),
        "model.decoder.layers.0.self_attn.q_proj.weight": ("attn.q", "several families"),
        "model.decoder.layers.0.self_attn.k_proj.weight": ("attn.k", "several families"),
        "model.decoder.layers.0.self_attn.v_proj.weight": ("attn.v", "several families"),
        "decoder.layers.0.self_attn.out_proj.weight": ("attn.out", "OPT"),
        "model.decoder.project_in.weight": ("other", "OPT"),
        "model.decoder.project_out.weight": ("other", "OPT"),
        "lm_head.weight": ("head", "several families"),
    },
    "Llama, Mistral, Qwen, OLMo, OLMo 2 and 3": {
        "model.embed_tokens.weight": ("embed", "several families"),
        "model.layers.0.self_attn.q_proj.weight": ("attn.q", "several families"),
        "model.layers.0.self_attn.k_proj.weight": ("attn.k", "several families"),
        "model.layers.0.self_attn.v_proj.weight": ("attn.v", "several families"),
        "model.layers.0.self_attn.o_proj.weight": ("attn.out", "Llama"),
        "model.layers.31.mlp.gate_proj.weight": ("mlp.in", "Llama"),
        "model.layers.31.mlp.up_proj.weight": ("mlp.in", "Llama"),
        "model.layers.31.mlp.down_proj.weight": ("mlp.out", "Llama"),
        "lm_head.weight": ("head", "several families"),
    },
    "Phi-3": {
        "model.layers.0.self_attn.qkv_proj.weight": ("attn.qkv", "Llama"),
        "model.layers.0.mlp.gate_up_proj.weight": ("mlp.in", "Llama"),
    },
    "Llama as Meta stores it, torchtitan": {
        "tok_embeddings.weight": ("embed", "Llama by Meta"),
        "layers.0.attention.wq.weight": ("attn.q", "Llama by Meta"),
        "layers.0.attention.wk.weight": ("attn.k", "Llama by Meta"),
        "layers.0.attention.wv.weight": ("attn.v", "Llama by Meta"),
        "layers.0.attention.qkv_linear.wq.weight": ("attn.q", "Llama by Meta"),
        "layers.0.attention.qkv_linear.wqkv.weight": ("attn.qkv", "Llama by Meta"),
        "layers.0.attention.wo.weight": ("attn.out", "Llama by Meta"),
        "layers.0.feed_forward.w1.weight": ("mlp.in", "Llama by Meta"),
        "layers.0.feed_forward.w3.weight": ("mlp.in", "Llama by Meta"),
        "layers.0.feed_forward.w2.weight": ("mlp.out", "Llama by Meta"),
        "layers.1.moe.shared_experts.w1.weight": ("mlp.in", "Llama by Meta"),
        "layers.1.moe.router.gate.weight": ("other", "mixture of experts"),
        "output.weight": ("head", "Llama by Meta"),
        "model.output.weight": ("head", "Llama by Meta"),
    },
    "Mixtral": {
        "model.layers.0.block_sparse_moe.experts.3.w1.weight": ("mlp.in", "mixture of experts"),
        "model.layers.0.block_sparse_moe.experts.3.w3.weight": ("mlp.in", "mixture of experts"),
        "model.layers.0.block_sparse_moe.experts.3.w2.weight": ("mlp.out", "mixture of experts"),
        "model.layers.0.block_sparse_moe.gate.weight": ("other", "mixture of experts"),
        "layers.0.feed_forward.experts.7.w2.weight": ("mlp.out", "mixture of experts"),
        "layers.0.feed_forward.gate.weight": ("other", "mixture of experts"),
    },
    "OLMoE, Qwen2-MoE, Qwen3-MoE": {
        "model.layers.0.mlp.experts.63.gate_proj.weight": ("mlp.in", "mixture of experts"),
        "model.layers.0.mlp.experts.63.up_proj.weight": ("mlp.in", "mixture of experts"),
        "model.layers.0.mlp.experts.63.down_proj.weight": ("mlp.out", "mixture of experts"),
        "model.layers.0.mlp.shared_expert.gate_proj.weight": ("mlp.in", "mixture of experts"),
        "model.layers.0.mlp.shared_expert.down_proj.weight": ("mlp.out", "mixture of experts"),
        "model.layers.0.mlp.gate.weight": ("other", "mixture of experts"),
        "model.layers.0.mlp.shared_expert_gate.weight": ("other", "mixture of experts"),
    },
    "OLMo 1": {
        "transformer.wte.weight": ("embed", "several families"),
        "transformer.blocks.0.att_proj.weight": ("attn.qkv", "OLMo 1"),
        "model.transformer.blocks.0.q_proj.weight": ("attn.q", "OLMo 1"),
        "model.transformer.blocks.0.k_proj.weight": ("attn.k", "OLMo 1"),
        "model.transformer.blocks.0.v_proj.weight": ("attn.v", "OLMo 1"),
        "transformer.blocks.0.attn_out.weight": ("attn.out", "OLMo 1"),
        "transformer.blocks.0.ff_proj.weight": ("mlp.in", "OLMo 1"),
        "transformer.blocks.0.up_proj.weight": ("mlp.in", "OLMo 1"),
        "transformer.blocks.0.ff_out.weight": ("mlp.out", "OLMo 1"),
        "transformer.ff_out.weight": ("head", "OLMo 1"),
    },
    "OLMo-core": {
        "embeddings.weight": ("embed", "OLMo-core"),
        "model.embeddings.weight": ("embed", "OLMo-core"),
        "blocks.0.attention.w_q.weight": ("attn.q", "OLMo-core"),
        "blocks.0.attention.w_k.weight": ("attn.k", "OLMo-core"),
        "blocks.0.attention.w_v.weight": ("attn.v", "OLMo-core"),
        "blocks.0.attention.w_qkv.weight": ("attn.qkv", "OLMo-core"),
        "blocks.0.attention.w_out.weight": ("attn.out", "OLMo-core"),
        "blocks.0.feed_forward.w1.weight": ("mlp.in", "Llama by Meta"),
        "blocks.0.feed_forward.w2.weight": ("mlp.out", "Llama by Meta"),
        "blocks.0.feed_forward.w3.weight": ("mlp.in", "Llama by Meta"),
        "lm_head.w_out.weight": ("head", "OLMo-core"),
    },
    "LitGPT": {
        "transformer.wte.weight": ("embed", "several families"),
        "transformer.h.0.attn.attn.weight": ("attn.qkv", "LitGPT"),
        "transformer.h.0.attn.qkv.weight": ("attn.qkv", "this family"),
        "transformer.h.0.attn.proj.weight": ("attn.out", "this family"),
        "transformer.h.0.mlp.fc.weight": ("mlp.in", "LitGPT"),
        "transformer.h.0.mlp.fc_1.weight": ("mlp.in", "LitGPT"),
        "transformer.h.0.mlp.fc_2.weight": ("mlp.in", "LitGPT"),
        "transformer.h.0.mlp.proj.weight": ("mlp.out", "LitGPT"),
        "transformer.h.0.mlp.experts.2.fc_1.weight": ("mlp.in", "LitGPT"),
        "transformer.h.0.mlp.experts.2.proj.weight": ("mlp.out", "LitGPT"),
        "lm_head.weight": ("head", "several families"),
    },
    "Mamba, Mamba-2": {
        "backbone.embeddings.weight": ("embed", "Mamba"),
        "backbone.embedding.weight": ("embed", "Mamba"),
        "backbone.layers.0.mixer.in_proj.weight": ("mlp.in", "Mamba"),
        "backbone.layers.0.mixer.out_proj.weight": ("mlp.out", "Mamba"),
        "backbone.layers.0.mixer.conv1d.weight": ("conv", "Mamba"),
        "backbone.layers.0.mixer.x_proj.weight": ("other", "Mamba"),
        "backbone.layers.0.mixer.dt_proj.weight": ("other", "Mamba"),
        "backbone.layers.0.mixer.A_log": ("other", "Mamba"),
        "lm_head.weight": ("head", "several families"),
    },
}
"""Names as transformers and the models' own code store them: the role, and the rules by which it is known."""
EVERY = sorted({(name, *known) for names in ROLES.values() for name, known in names.items()})


def gpt2(d: int, *, transposed: bool) -> Weights:
    """GPT-2 with its linear maps stored as (inputs, outputs), as transformers does, or (outputs, inputs): nanoGPT."""
    weights = random_weights(
        {
            "transformer.wte.weight": (11, d),
            "transformer.wpe.weight": (5, d),
            "transformer.h.0.ln_1.weight": (d,),
            "transformer.h.0.attn.c_attn.weight": (3 * d, d),
            "transformer.h.0.attn.c_proj.weight": (d, d),
            "transformer.h.0.mlp.c_fc.weight": (4 * d, d),
            "transformer.h.0.mlp.c_proj.weight": (d, 4 * d),
        }
    )
    stored = {name: w.T.contiguous() if transposed and ".c_" in name else w for name, w in weights.items()}
    return stored | {"lm_head.weight": weights["transformer.wte.weight"].clone()}


def one(path: Path) -> Checkpoint:
    return Checkpoint(LocalSource(path), 1)


def saved(folder: Path, weights: Weights) -> Checkpoint:
    save_file(weights, folder / "step_1.safetensors")
    return one(folder / "step_1.safetensors")


# Roles


@pytest.mark.parametrize("family", ROLES)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."])
def test_roles_of_a_family(family: str, prefix: str) -> None:
    assert {name: recognised(prefix + name) for name in ROLES[family]} == ROLES[family]
    assert {name: role_of(prefix + name) for name in ROLES[family]} == {
        n: role for n, (role, _) in ROLES[family].items()
    }


def test_no_name_fits_two_rules() -> None:
    # The order of the table does not matter, so a family can be added anywhere.
    rules = [(pattern, role, family) for family, rules in TABLE.items() for pattern, role in rules]
    used = set()
    for name, *known in EVERY:
        fitting = [rule for rule in rules if re.search(rf"(?:^|\.)(?:{rule[0]})$", name)]
        assert [[role, family] for _, role, family in fitting] == [known], name
        used.update(fitting)
    assert used == set(rules)  # every rule of the table is tested


def test_what_is_no_matrix_has_no_role() -> None:
    for name, *_ in EVERY:
        for ending in ("bias", "weight_scale", "weight.lora_A", "weights"):
            assert recognised(name.removesuffix("weight") + ending) == ("other", UNKNOWN)


# Rules of one's own


def test_own_rules_come_first() -> None:
    own = [("key", "attn.k"), (r"c_fc\.weight$", "other")]
    assert recognised("blocks.0.att.key.weight", own) == ("attn.k", OWN_RULE)
    assert recognised("transformer.h.0.mlp.c_fc.weight", own) == ("other", OWN_RULE)
    assert recognised("transformer.h.0.mlp.c_proj.weight", own) == ("mlp.out", "GPT-2")
    # The first of two.
    assert role_of("a.key.weight", [("a", "embed"), ("key", "attn.k")]) == "embed"


def test_own_rules_of_a_series(tmp_path: Path) -> None:
    saved(tmp_path, {"att.key.weight": torch.ones(2, 2), "emb.weight": torch.ones(3, 2)})
    opened = series(tmp_path, roles={r"att\.key": "attn.k", "emb": "embed", "nothing": "conv"})
    # An embedding by a rule of one's own is a tied head like any other.
    assert [(layer.name, layer.role) for layer in opened[0].layers()] == [
        ("att.key.weight", "attn.k"),
        ("emb.weight", "head"),
    ]


@pytest.mark.parametrize(
    ("rules", "words"), [({"(": "head"}, "not a regular expression"), ({"key": "attention"}, "choose from embed")]
)
def test_own_rules_that_make_no_sense(rules: dict[str, str], words: str) -> None:
    with pytest.raises(ToposcopeError, match=words):
        checked(rules)


# Masks and rotary tables


@pytest.mark.parametrize(
    ("name", "buffer"),
    [
        ("transformer.h.0.attn.bias", True),
        ("h.0.attn.masked_bias", True),
        ("transformer.h.0.attn.attention.bias", True),
        ("gpt_neox.layers.0.attention.bias", True),
        ("gpt_neox.layers.0.attention.masked_bias", True),
        ("gpt_neox.layers.0.attention.rotary_emb.inv_freq", True),
        ("rotary_emb.inv_freq", True),
        # biases of maps
        ("transformer.h.0.attn.c_attn.bias", False),
        ("transformer.h.0.attn.attn.bias", False),
        ("layers.0.attn.qkv.bias", False),
        ("gpt_neox.layers.0.attention.dense.bias", False),
        ("transformer.h.0.crossattention.c_attn.bias", False),
    ],
)
def test_buffers_are_not_biases(name: str, buffer: bool) -> None:
    assert is_buffer(name) == buffer


# Wrappers


def test_the_names_wrappers_give_are_taken_off() -> None:
    wrapped = {
        "module.layers.0.w": "layers.0.w",
        "_orig_mod.layers.0.w": "layers.0.w",
        "module._orig_mod.layers.0.w": "layers.0.w",
        "_orig_mod.module.layers.0.w": "layers.0.w",
        "_fsdp_wrapped_module.layers.0._fsdp_wrapped_module._orig_mod.w": "layers.0.w",
        "layers.0._checkpoint_wrapped_module.w": "layers.0.w",
        "_forward_module.module.layers.0.w": "layers.0.w",
        # a part of the model that is called so
        "layers.0.module.w": "layers.0.module.w",
        "my_orig_mod.w": "my_orig_mod.w",
        "submodule.w": "submodule.w",
    }
    assert [plain_names([name]) for name in wrapped] == [[name] for name in wrapped.values()]


def test_names_that_would_become_one_stay() -> None:
    both = ["module.w", "w"]
    assert plain_names(both) == both


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layer.0.attention.self.query.weight",
        "classifier.weight",
        "conv1.weight",
        "weight",
        "",
        # the beginning or the end of a known name is not that name
        "lm_head.weight_scale",
        "head.weights",
        "overhead.weight",
        "head.bias",
        "layers.0.attn.qkv.weight.lora_A",
        "attn_qkv_weight",
        # what BERT, RWKV and others call so is no head and no embedding
        "encoder.layer.0.attention.output.weight",
        "blocks.0.att.output.weight",
        "bert.embeddings.weight",
        "model.encoder.layers.0.fc1.weight",
    ],
)
def test_unknown_names_are_other(name: str) -> None:
    assert recognised(name) == ("other", UNKNOWN)


def test_unknown_layers_are_analysed(tmp_path: Path) -> None:
    weights = {
        "classifier.weight": torch.ones(2, 3),
        "wte.weight": torch.ones(3, 3),
        "lm_head.weight": torch.ones(3, 3),
    }
    layers = saved(tmp_path, weights).analysed()
    assert [(layer.name, layer.role) for layer in layers] == [
        ("classifier.weight", "other"),
        ("lm_head.weight", "head"),
    ]


# The way round


@pytest.mark.parametrize("d", [1, 4])
def test_gpt2_is_stored_transposed_and_nanogpt_is_not(d: int, tmp_path: Path) -> None:
    found: dict[bool, Checkpoint] = {}
    for transposed in (True, False):
        (tmp_path / str(transposed)).mkdir()
        found[transposed] = saved(tmp_path / str(transposed), gpt2(d, transposed=transposed))
    maps = [layer.name for layer in found[True].layers() if ".c_" in layer.name]
    assert [layer.name for layer in found[True].layers() if layer.transposed] == maps
    assert not any(layer.transposed for layer in found[False].layers())
    assert [layer.name for layer in found[True].analysed()] == ["lm_head.weight", *maps]
    for conv1d, linear in zip(found[True].analysed(), found[False].analysed(), strict=True):
        assert (conv1d.name, conv1d.role) == (linear.name, linear.role)
        assert np.array_equal(conv1d.matrix(), linear.matrix())
        assert np.array_equal(linear.matrix(), linear.read())
        assert conv1d.read().shape == conv1d.shape


def test_the_fused_qkv_decides() -> None:
    conv1d, linear = "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight"
    assert stored_transposed({conv1d: (4, 12), linear: (4, 4)}) == {conv1d, linear}
    assert stored_transposed({conv1d: (12, 4), linear: (4, 4)}) == set()
    # Without it nothing tells, and other families are never turned.
    assert stored_transposed({linear: (4, 16)}) == set()
    assert stored_transposed({"layers.0.attn.qkv.weight": (4, 12), "lm_head.weight": (4, 12)}) == set()
    assert stored_transposed({conv1d: (4, 12), "wte.weight": (9, 4), "lm_head.weight": (9, 4)}) == {conv1d}
    assert stored_transposed({}) == set()


# The tied head


def without_head() -> Weights:
    return {name: w for name, w in family_weights().items() if name != "head.weight"}


def heads(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Head and embeddings among the analysed layers."""
    return [(layer.name, layer.role) for layer in checkpoint.analysed() if "layers" not in layer.name]


def test_a_tied_head_that_is_stored_counts_once(tmp_path: Path) -> None:
    weights = family_weights()
    weights["head.weight"] = weights["token_emb.weight"]
    torch.save(weights, tmp_path / "step_1.pt")
    assert heads(one(tmp_path / "step_1.pt")) == [("head.weight", "head")]


def test_a_tied_head_that_is_not_stored_counts_once(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, without_head())
    assert heads(checkpoint) == [("token_emb.weight", "head")]
    assert [layer.role for layer in checkpoint.layers()].count("embed") == 0
    # The matrix and its name are as stored; the role alone is another.
    head = next(layer for layer in checkpoint.layers() if layer.role == "head")
    assert np.array_equal(head.matrix(), family_weights()["token_emb.weight"].numpy())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"tie_word_embeddings": False}, []),
        ({"tie_word_embeddings": True}, [("token_emb.weight", "head")]),
        ({"model_type": "gpt2"}, [("token_emb.weight", "head")]),
    ],
)
def test_the_configuration_decides_whether_the_head_is_tied(
    config: dict[str, object], expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    folder = model_folder(".safetensors")(tmp_path, 1, without_head())
    (folder / "config.json").write_text(json.dumps(config))
    assert heads(one(folder)) == expected
    # A stored head counts, whatever the configuration says.
    save_file(family_weights(), folder / "model.safetensors")
    assert heads(one(folder)) == [("head.weight", "head")]


def test_the_configuration_may_lie_beside_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": false}')
    assert heads(saved(tmp_path, without_head())) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\udcff"])
def test_a_broken_configuration_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with refused(tmp_path / "config.json"):
        saved(tmp_path, without_head()).layers()


def test_two_embeddings_are_no_head(tmp_path: Path) -> None:
    weights = without_head() | {"second.token_emb.weight": torch.ones(3, 4)}
    assert heads(saved(tmp_path, weights)) == []


def test_embeddings_alone_leave_nothing_to_measure(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": false}')
    checkpoint = saved(tmp_path, {"wte.weight": torch.ones(4, 3), "wpe.weight": torch.ones(4, 3)})
    assert len(checkpoint.layers()) == 2
    with refused(Path(checkpoint.location), "nothing to measure"):
        checkpoint.analysed()


# Order


def test_layers_are_in_natural_order(tmp_path: Path) -> None:
    names = [
        "head.weight",
        "layers.0.mlp.fc1.weight",
        "layers.2.attn.qkv.weight",
        "layers.2.mlp.fc1.weight",
        "layers.9.mlp.fc1.weight",
        "layers.10.mlp.fc1.weight",
        "layers.10.mlp.fc2.weight",
        "layers.100.mlp.fc1.weight",
    ]
    for suffix in (".safetensors", ".pt"):
        path = tmp_path / f"step_1{suffix}"
        weights = {name: torch.full((2, 2), float(k)) for k, name in sorted(enumerate(names), key=lambda pair: pair[1])}
        (save_file if suffix == ".safetensors" else torch.save)(weights, path)
        layers = one(path).layers()
        assert [layer.name for layer in layers] == names
        assert [float(layer.read()[0, 0]) for layer in layers] == list(range(len(names)))
