"""What each layer is for, which way round it is stored, and the head that is tied to the embedding."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import Weights, family_weights, model_folder, random_weights, refused

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.roles import BY_NAME, OWN_RULE, UNKNOWN, checked, plain_names, recognised, role_of
from toposcope.checkpoints.sources import LocalSource
from toposcope.errors import ToposcopeError

ROLES: dict[str, dict[str, str]] = {
    "ours and the published study": {
        "token_emb.weight": "embed",
        "pos_emb.weight": "pos_embed",
        "layers.0.attn.qkv.weight": "attn.qkv",
        "layers.10.attn.proj.weight": "attn.out",
        "layers.0.mlp.fc1.weight": "mlp.in",
        "layers.0.mlp.fc2.weight": "mlp.out",
        "head.weight": "head",
    },
    "GPT-2, nanoGPT": {
        "transformer.wte.weight": "embed",
        "wte.weight": "embed",
        "transformer.wpe.weight": "pos_embed",
        "transformer.h.0.attn.c_attn.weight": "attn.qkv",
        "h.0.attn.c_proj.weight": "attn.out",
        "transformer.h.11.mlp.c_fc.weight": "mlp.in",
        "transformer.h.11.mlp.c_proj.weight": "mlp.out",
        "lm_head.weight": "head",
    },
    "nanochat": {
        "transformer.wte.weight": "embed",
        "transformer.h.0.attn.c_q.weight": "attn.q",
        "transformer.h.0.attn.c_k.weight": "attn.k",
        "transformer.h.0.attn.c_v.weight": "attn.v",
        "transformer.h.0.attn.c_proj.weight": "attn.out",
        "transformer.h.0.mlp.c_fc.weight": "mlp.in",
        "transformer.h.0.mlp.c_proj.weight": "mlp.out",
        "lm_head.weight": "head",
    },
    "GPT-Neo (TinyStories)": {
        "transformer.wte.weight": "embed",
        "transformer.wpe.weight": "pos_embed",
        "transformer.h.0.attn.attention.q_proj.weight": "attn.q",
        "transformer.h.0.attn.attention.k_proj.weight": "attn.k",
        "transformer.h.0.attn.attention.v_proj.weight": "attn.v",
        "transformer.h.0.attn.attention.out_proj.weight": "attn.out",
        "transformer.h.0.mlp.c_fc.weight": "mlp.in",
        "transformer.h.0.mlp.c_proj.weight": "mlp.out",
    },
    "GPT-J": {
        "transformer.wte.weight": "embed",
        "transformer.h.0.attn.q_proj.weight": "attn.q",
        "transformer.h.0.attn.k_proj.weight": "attn.k",
        "transformer.h.0.attn.v_proj.weight": "attn.v",
        "transformer.h.0.attn.out_proj.weight": "attn.out",
        "transformer.h.0.mlp.fc_in.weight": "mlp.in",
        "transformer.h.27.mlp.fc_out.weight": "mlp.out",
        "lm_head.weight": "head",
    },
    "GPT-NeoX (Pythia)": {
        "gpt_neox.embed_in.weight": "embed",
        "gpt_neox.layers.0.attention.query_key_value.weight": "attn.qkv",
        "gpt_neox.layers.0.attention.dense.weight": "attn.out",
        "gpt_neox.layers.5.mlp.dense_h_to_4h.weight": "mlp.in",
        "gpt_neox.layers.5.mlp.dense_4h_to_h.weight": "mlp.out",
        "embed_out.weight": "head",
    },
    "Bloom, Falcon": {
        "transformer.word_embeddings.weight": "embed",
        "transformer.h.0.self_attention.query_key_value.weight": "attn.qkv",
        "transformer.h.0.self_attention.dense.weight": "attn.out",
        "transformer.h.0.mlp.dense_h_to_4h.weight": "mlp.in",
        "transformer.h.0.mlp.dense_4h_to_h.weight": "mlp.out",
    },
    "OPT": {
        "model.decoder.embed_positions.weight": "pos_embed",
        "model.decoder.embed_tokens.weight": "embed",
        "model.decoder.layers.0.fc1.weight": "mlp.in",
        "model.decoder.layers.0.fc2.weight": "mlp.out",
        "model.decoder.layers.0.self_attn.q_proj.weight": "attn.q",
        "model.decoder.layers.0.self_attn.k_proj.weight": "attn.k",
        "model.decoder.layers.0.self_attn.v_proj.weight": "attn.v",
        "decoder.layers.0.self_attn.out_proj.weight": "attn.out",
        "model.decoder.project_in.weight": "other",
        "model.decoder.project_out.weight": "other",
        "lm_head.weight": "head",
    },
    "Llama, Mistral, Qwen, OLMo, OLMo 2 and 3": {
        "model.embed_tokens.weight": "embed",
        "model.layers.0.self_attn.q_proj.weight": "attn.q",
        "model.layers.0.self_attn.k_proj.weight": "attn.k",
        "model.layers.0.self_attn.v_proj.weight": "attn.v",
        "model.layers.0.self_attn.o_proj.weight": "attn.out",
        "model.layers.31.mlp.gate_proj.weight": "mlp.in",
        "model.layers.31.mlp.up_proj.weight": "mlp.in",
        "model.layers.31.mlp.down_proj.weight": "mlp.out",
        "lm_head.weight": "head",
    },
    "Phi-3": {
        "model.layers.0.self_attn.qkv_proj.weight": "attn.qkv",
        "model.layers.0.mlp.gate_up_proj.weight": "mlp.in",
    },
    "Llama as Meta stores it, torchtitan": {
        "tok_embeddings.weight": "embed",
        "layers.0.attention.wq.weight": "attn.q",
        "layers.0.attention.wk.weight": "attn.k",
        "layers.0.attention.wv.weight": "attn.v",
        "layers.0.attention.qkv_linear.wq.weight": "attn.q",
        "layers.0.attention.qkv_linear.wqkv.weight": "attn.qkv",
        "layers.0.attention.wo.weight": "attn.out",
        "layers.0.feed_forward.w1.weight": "mlp.in",
        "layers.0.feed_forward.w3.weight": "mlp.in",
        "layers.0.feed_forward.w2.weight": "mlp.out",
        "layers.1.moe.shared_experts.w1.weight": "mlp.in",
        "layers.1.moe.router.gate.weight": "other",
        "output.weight": "head",
        "model.output.weight": "head",
    },
    "Mixtral": {
        "model.layers.0.block_sparse_moe.experts.3.w1.weight": "mlp.in",
        "model.layers.0.block_sparse_moe.experts.3.w3.weight": "mlp.in",
        "model.layers.0.block_sparse_moe.experts.3.w2.weight": "mlp.out",
        "model.layers.0.block_sparse_moe.gate.weight": "other",
        "layers.0.feed_forward.experts.7.w2.weight": "mlp.out",
        "layers.0.feed_forward.gate.weight": "other",
    },
    "OLMoE, Qwen2-MoE, Qwen3-MoE": {
        "model.layers.0.mlp.experts.63.gate_proj.weight": "mlp.in",
        "model.layers.0.mlp.experts.63.up_proj.weight": "mlp.in",
        "model.layers.0.mlp.experts.63.down_proj.weight": "mlp.out",
        "model.layers.0.mlp.shared_expert.gate_proj.weight": "mlp.in",
        "model.layers.0.mlp.shared_expert.down_proj.weight": "mlp.out",
        "model.layers.0.mlp.gate.weight": "other",
        "model.layers.0.mlp.shared_expert_gate.weight": "other",
    },
    "OLMo 1": {
        "transformer.wte.weight": "embed",
        "transformer.blocks.0.att_proj.weight": "attn.qkv",
        "model.transformer.blocks.0.q_proj.weight": "attn.q",
        "model.transformer.blocks.0.k_proj.weight": "attn.k",
        "model.transformer.blocks.0.v_proj.weight": "attn.v",
        "transformer.blocks.0.attn_out.weight": "attn.out",
        "transformer.blocks.0.ff_proj.weight": "mlp.in",
        "transformer.blocks.0.up_proj.weight": "mlp.in",
        "transformer.blocks.0.ff_out.weight": "mlp.out",
        "transformer.ff_out.weight": "head",
    },
    "OLMo-core": {
        "embeddings.weight": "embed",
        "model.embeddings.weight": "embed",
        "blocks.0.attention.w_q.weight": "attn.q",
        "blocks.0.attention.w_k.weight": "attn.k",
        "blocks.0.attention.w_v.weight": "attn.v",
        "blocks.0.attention.w_qkv.weight": "attn.qkv",
        "blocks.0.attention.w_out.weight": "attn.out",
        "blocks.0.feed_forward.w1.weight": "mlp.in",
        "blocks.0.feed_forward.w2.weight": "mlp.out",
        "blocks.0.feed_forward.w3.weight": "mlp.in",
        "lm_head.w_out.weight": "head",
    },
    "LitGPT": {
        "transformer.wte.weight": "embed",
        "transformer.h.0.attn.attn.weight": "attn.qkv",
        "transformer.h.0.attn.qkv.weight": "attn.qkv",
        "transformer.h.0.attn.proj.weight": "attn.out",
        "transformer.h.0.mlp.fc.weight": "mlp.in",
        "transformer.h.0.mlp.fc_1.weight": "mlp.in",
        "transformer.h.0.mlp.fc_2.weight": "mlp.in",
        "transformer.h.0.mlp.proj.weight": "mlp.out",
        "transformer.h.0.mlp.experts.2.fc_1.weight": "mlp.in",
        "transformer.h.0.mlp.experts.2.proj.weight": "mlp.out",
        "lm_head.weight": "head",
    },
    "Mamba, Mamba-2": {
        "backbone.embeddings.weight": "embed",
        "backbone.embedding.weight": "embed",
        "backbone.layers.0.mixer.in_proj.weight": "mlp.in",
        "backbone.layers.0.mixer.out_proj.weight": "mlp.out",
        "backbone.layers.0.mixer.conv1d.weight": "conv",
        "backbone.layers.0.mixer.x_proj.weight": "other",
        "backbone.layers.0.mixer.dt_proj.weight": "other",
        "backbone.layers.0.mixer.A_log": "other",
        "lm_head.weight": "head",
    },
    "Phi": {
        "model.layers.0.self_attn.dense.weight": "attn.out",
        "model.layers.0.mlp.fc1.weight": "mlp.in",
        "model.layers.0.mlp.fc2.weight": "mlp.out",
    },
    "MPT": {
        "transformer.blocks.0.attn.Wqkv.weight": "attn.qkv",
        "transformer.blocks.0.attn.out_proj.weight": "attn.out",
        "transformer.blocks.0.ffn.up_proj.weight": "mlp.in",
        "transformer.blocks.0.ffn.down_proj.weight": "mlp.out",
    },
    "DeepSeek, latent attention": {
        "model.layers.0.self_attn.q_a_proj.weight": "attn.q",
        "model.layers.0.self_attn.q_b_proj.weight": "attn.q",
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": "attn.qkv",
        "model.layers.0.self_attn.kv_b_proj.weight": "attn.qkv",
        "model.layers.3.mlp.gate.weight": "other",
    },
    "RWKV": {
        "rwkv.embeddings.weight": "embed",
        "rwkv.blocks.0.attention.receptance.weight": "attn.q",
        "rwkv.blocks.0.attention.key.weight": "attn.k",
        "rwkv.blocks.0.attention.value.weight": "attn.v",
        "rwkv.blocks.0.attention.output.weight": "attn.out",
        "rwkv.blocks.0.feed_forward.key.weight": "mlp.in",
        "rwkv.blocks.0.feed_forward.receptance.weight": "mlp.in",
        "rwkv.blocks.0.feed_forward.value.weight": "mlp.out",
        "head.weight": "head",
    },
    "Jamba": {
        "model.layers.0.mamba.in_proj.weight": "mlp.in",
        "model.layers.0.mamba.out_proj.weight": "mlp.out",
        "model.layers.0.mamba.x_proj.weight": "other",
        "model.layers.0.mamba.A_log": "other",
        "model.layers.1.feed_forward.router.weight": "other",
        "model.layers.1.feed_forward.experts.gate_up_proj": "mlp.in",
    },
    "xLSTM": {
        "backbone.embeddings.weight": "embed",
        "backbone.blocks.0.mlstm_layer.q.weight": "attn.q",
        "backbone.blocks.0.mlstm_layer.k.weight": "attn.k",
        "backbone.blocks.0.mlstm_layer.v.weight": "attn.v",
        "backbone.blocks.0.mlstm_layer.ogate_preact.weight": "other",
        "backbone.blocks.0.mlstm_layer.out_proj.weight": "attn.out",
        "backbone.blocks.0.ffn.proj_up_gate.weight": "mlp.in",
        "backbone.blocks.0.ffn.proj_up.weight": "mlp.in",
        "backbone.blocks.0.ffn.proj_down.weight": "mlp.out",
    },
    "BERT": {
        "bert.embeddings.word_embeddings.weight": "embed",
        "bert.embeddings.position_embeddings.weight": "pos_embed",
        "bert.embeddings.token_type_embeddings.weight": "pos_embed",
        "bert.encoder.layer.0.attention.self.query.weight": "attn.q",
        "bert.encoder.layer.0.attention.self.key.weight": "attn.k",
        "bert.encoder.layer.0.attention.self.value.weight": "attn.v",
        "bert.encoder.layer.0.attention.output.dense.weight": "attn.out",
        "bert.encoder.layer.0.intermediate.dense.weight": "mlp.in",
        "bert.encoder.layer.0.output.dense.weight": "mlp.out",
        "cls.predictions.transform.dense.weight": "other",
        "cls.predictions.decoder.weight": "head",
    },
    "T5": {
        "shared.weight": "embed",
        "encoder.block.0.layer.0.SelfAttention.q.weight": "attn.q",
        "encoder.block.0.layer.0.SelfAttention.o.weight": "attn.out",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": "pos_embed",
        "encoder.block.0.layer.1.DenseReluDense.wi_0.weight": "mlp.in",
        "encoder.block.0.layer.1.DenseReluDense.wo.weight": "mlp.out",
        "decoder.block.0.layer.1.EncDecAttention.v.weight": "attn.v",
        "decoder.embed_tokens.weight": "embed",
    },
    "OpenAI GPT": {
        "transformer.tokens_embed.weight": "embed",
        "transformer.positions_embed.weight": "pos_embed",
    },
    "a lecture's GPT": {
        "token_embedding_table.weight": "embed",
        "position_embedding_table.weight": "pos_embed",
        "blocks.0.sa.heads.0.key.weight": "attn.k",
        "blocks.0.sa.heads.0.query.weight": "attn.q",
        "blocks.0.sa.heads.0.value.weight": "attn.v",
        "blocks.0.sa.proj.weight": "attn.out",
        "lm_head.weight": "head",
    },
    "TransformerLens": {
        "embed.W_E": "embed",
        "pos_embed.W_pos": "pos_embed",
        "blocks.0.attn.W_Q": "attn.q",
        "blocks.0.attn.W_K": "attn.k",
        "blocks.0.attn.W_V": "attn.v",
        "blocks.0.attn.W_O": "attn.out",
        "blocks.0.mlp.W_in": "mlp.in",
        "blocks.0.mlp.W_out": "mlp.out",
        "unembed.W_U": "head",
    },
    "Flax": {
        "transformer.wte.embedding": "embed",
        "transformer.wpe.embedding": "pos_embed",
        "transformer.h.0.attn.c_attn.kernel": "attn.qkv",
        "params.encoderblock_0.SelfAttention_0.query.kernel": "attn.q",
        "params.encoderblock_0.SelfAttention_0.out.kernel": "attn.out",
    },
    "x-transformers": {
        "token_emb.emb.weight": "embed",
        "pos_emb.emb.weight": "pos_embed",
        "attn_layers.layers.0.1.to_q.weight": "attn.q",
        "attn_layers.layers.0.1.to_k.weight": "attn.k",
        "attn_layers.layers.0.1.to_out.weight": "attn.out",
        "to_logits.weight": "head",
    },
    "a book's GPT": {
        "tok_emb.weight": "embed",
        "pos_emb.weight": "pos_embed",
        "trf_blocks.0.att.W_query.weight": "attn.q",
        "trf_blocks.0.att.W_key.weight": "attn.k",
        "trf_blocks.0.att.W_value.weight": "attn.v",
        "trf_blocks.0.att.out_proj.weight": "attn.out",
        "out_head.weight": "head",
    },
    "nn.TransformerEncoder": {
        "encoder.layers.0.self_attn.in_proj_weight": "attn.qkv",
        "encoder.layers.0.self_attn.out_proj.weight": "attn.out",
        "encoder.layers.0.linear1.weight": "mlp.in",
        "encoder.layers.0.linear2.weight": "mlp.out",
        "embedding.weight": "embed",
        "fc_out.weight": "head",
    },
    "the annotated transformer": {
        "src_embed.0.lut.weight": "embed",
        "encoder.layers.0.feed_forward.w_1.weight": "mlp.in",
        "encoder.layers.0.feed_forward.w_2.weight": "mlp.out",
        "generator.proj.weight": "head",
    },
    "GGUF": {
        "token_embd.weight": "embed",
        "blk.0.attn_q.weight": "attn.q",
        "blk.0.attn_k.weight": "attn.k",
        "blk.0.attn_v.weight": "attn.v",
        "blk.0.attn_output.weight": "attn.out",
        "blk.0.ffn_gate.weight": "mlp.in",
        "blk.0.ffn_up.weight": "mlp.in",
        "blk.0.ffn_down.weight": "mlp.out",
        "output.weight": "head",
    },
    "Megatron": {
        "language_model.embedding.word_embeddings.weight": "embed",
        "language_model.embedding.position_embeddings.weight": "pos_embed",
        "decoder.layers.0.self_attention.linear_qkv.weight": "attn.qkv",
        "decoder.layers.0.self_attention.linear_proj.weight": "attn.out",
        "decoder.layers.0.mlp.linear_fc1.weight": "mlp.in",
        "decoder.layers.0.mlp.linear_fc2.weight": "mlp.out",
        "output_layer.weight": "head",
    },
    "modded-nanogpt": {
        "embed.weight": "embed",
        "value_embeds.0.weight": "embed",
        "blocks.0.attn.qkv_w": "attn.qkv",
        "blocks.0.attn.c_proj.weight": "attn.out",
        "blocks.0.mlp.c_fc.weight": "mlp.in",
    },
    "fairseq": {
        "decoder.embed_tokens.weight": "embed",
        "decoder.layers.0.self_attn.out_proj.weight": "attn.out",
        "decoder.layers.0.fc1.weight": "mlp.in",
        "decoder.output_projection.weight": "head",
    },
}
"""Names as transformers and the models' own code store them."""
EVERY = sorted({(name, role) for names in ROLES.values() for name, role in names.items()})


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
    assert {name: recognised(prefix + name) for name in ROLES[family]} == {
        name: (role, BY_NAME) for name, role in ROLES[family].items()
    }


def test_what_is_no_matrix_has_no_role() -> None:
    for name, _ in EVERY:
        if name.endswith(".weight"):
            for ending in ("bias", "weight_scale", "weight.lora_A"):
                assert recognised(name.removesuffix("weight") + ending) == ("other", UNKNOWN)


# Rules of one's own


def test_own_rules_come_first() -> None:
    own = [("key", "attn.k"), (r"c_fc\.weight$", "other")]
    assert recognised("blocks.0.att.key.weight", own) == ("attn.k", OWN_RULE)
    assert recognised("transformer.h.0.mlp.c_fc.weight", own) == ("other", OWN_RULE)
    assert recognised("transformer.h.0.mlp.c_proj.weight", own) == ("mlp.out", BY_NAME)
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
        *("weight", "", "stem.weight", "overhead.weight", "blocks.0.mystery.weight"),
        # the beginning or the end of a known name is not that name
        *("lm_head.weight_scale", "head.bias", "layers.0.attn.qkv.weight.lora_A"),
    ],
)
def test_unknown_names_are_other(name: str) -> None:
    assert recognised(name) == ("other", UNKNOWN)


def test_unknown_layers_are_analysed(tmp_path: Path) -> None:
    weights = {
        "mystery.weight": torch.ones(2, 3),
        "wte.weight": torch.ones(3, 3),
        "lm_head.weight": torch.ones(3, 3),
    }
    layers = saved(tmp_path, weights).analysed()
    assert [(layer.name, layer.role) for layer in layers] == [
        ("lm_head.weight", "head"),
        ("mystery.weight", "other"),
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


@pytest.mark.parametrize(
    ("shapes", "turned"),
    [
        ({"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_proj.weight": (4, 4)}, True),
        ({"h.0.attn.c_attn.weight": (12, 4), "h.0.attn.c_proj.weight": (4, 4)}, False),
        # without a fused qkv the MLP shows it, and alone nothing does
        ({"h.0.mlp.c_fc.weight": (4, 9), "h.0.attn.c_proj.weight": (4, 4)}, True),
        ({"h.0.mlp.c_fc.weight": (9, 4), "h.0.attn.c_proj.weight": (4, 4)}, False),
        ({"h.0.attn.c_proj.weight": (4, 4)}, False),
        # no other linear map is ever turned
        ({"layers.0.attn.qkv.weight": (4, 12), "lm_head.weight": (4, 12)}, False),
    ],
)
def test_the_width_decides_which_way_round_conv1d_is(
    shapes: dict[str, tuple[int, ...]], turned: bool, tmp_path: Path
) -> None:
    layers = saved(tmp_path, random_weights({"wte.weight": (11, 4), **shapes})).layers()
    assert {layer.name for layer in layers if layer.transposed} == (set(shapes) if turned else set())


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
