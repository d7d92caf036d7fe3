"""What each layer is for, by its name, and which way round GPT-2 stores it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import Weights, random_weights

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.roles import BY_NAME, OWN_RULE, UNKNOWN, checked, plain_names, recognised, role_of
from toposcope.checkpoints.sources import LocalSource
from toposcope.errors import ToposcopeError

ROLES: dict[str, str] = {
    "embed": """
token_emb.weight transformer.wte.weight wte.weight gpt_neox.embed_in.weight transformer.word_embeddings.weight
model.decoder.embed_tokens.weight model.embed_tokens.weight tok_embeddings.weight embeddings.weight
model.embeddings.weight backbone.embeddings.weight backbone.embedding.weight rwkv.embeddings.weight
bert.embeddings.word_embeddings.weight shared.weight decoder.embed_tokens.weight transformer.tokens_embed.weight
token_embedding_table.weight embed.W_E transformer.wte.embedding token_emb.emb.weight tok_emb.weight embedding.weight
src_embed.0.lut.weight token_embd.weight language_model.embedding.word_embeddings.weight embed.weight
value_embeds.0.weight
    """,
    "pos_embed": """
pos_emb.weight transformer.wpe.weight model.decoder.embed_positions.weight bert.embeddings.position_embeddings.weight
bert.embeddings.token_type_embeddings.weight encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight
transformer.positions_embed.weight position_embedding_table.weight pos_embed.W_pos transformer.wpe.embedding
pos_emb.emb.weight language_model.embedding.position_embeddings.weight
    """,
    "attn.qkv": """
layers.0.attn.qkv.weight transformer.h.0.attn.c_attn.weight gpt_neox.layers.0.attention.query_key_value.weight
transformer.h.0.self_attention.query_key_value.weight model.layers.0.self_attn.qkv_proj.weight
layers.0.attention.qkv_linear.wqkv.weight transformer.blocks.0.att_proj.weight blocks.0.attention.w_qkv.weight
transformer.h.0.attn.attn.weight transformer.h.0.attn.qkv.weight transformer.blocks.0.attn.Wqkv.weight
model.layers.0.self_attn.kv_a_proj_with_mqa.weight model.layers.0.self_attn.kv_b_proj.weight
transformer.h.0.attn.c_attn.kernel encoder.layers.0.self_attn.in_proj_weight
decoder.layers.0.self_attention.linear_qkv.weight blocks.0.attn.qkv_w
    """,
    "attn.q": """
transformer.h.0.attn.c_q.weight transformer.h.0.attn.attention.q_proj.weight transformer.h.0.attn.q_proj.weight
model.decoder.layers.0.self_attn.q_proj.weight model.layers.0.self_attn.q_proj.weight layers.0.attention.wq.weight
layers.0.attention.qkv_linear.wq.weight model.transformer.blocks.0.q_proj.weight blocks.0.attention.w_q.weight
model.layers.0.self_attn.q_a_proj.weight model.layers.0.self_attn.q_b_proj.weight
rwkv.blocks.0.attention.receptance.weight backbone.blocks.0.mlstm_layer.q.weight
bert.encoder.layer.0.attention.self.query.weight encoder.block.0.layer.0.SelfAttention.q.weight
blocks.0.sa.heads.0.query.weight blocks.0.attn.W_Q params.encoderblock_0.SelfAttention_0.query.kernel
attn_layers.layers.0.1.to_q.weight trf_blocks.0.att.W_query.weight blk.0.attn_q.weight block_0_Wq
encoder.layer.0.attention.projection_query.weight
    """,
    "attn.k": """
transformer.h.0.attn.c_k.weight transformer.h.0.attn.attention.k_proj.weight transformer.h.0.attn.k_proj.weight
model.decoder.layers.0.self_attn.k_proj.weight model.layers.0.self_attn.k_proj.weight layers.0.attention.wk.weight
model.transformer.blocks.0.k_proj.weight blocks.0.attention.w_k.weight rwkv.blocks.0.attention.key.weight
backbone.blocks.0.mlstm_layer.k.weight bert.encoder.layer.0.attention.self.key.weight blocks.0.sa.heads.0.key.weight
blocks.0.attn.W_K attn_layers.layers.0.1.to_k.weight trf_blocks.0.att.W_key.weight blk.0.attn_k.weight block_0_Wk
    """,
    "attn.v": """
transformer.h.0.attn.c_v.weight transformer.h.0.attn.attention.v_proj.weight transformer.h.0.attn.v_proj.weight
model.decoder.layers.0.self_attn.v_proj.weight model.layers.0.self_attn.v_proj.weight layers.0.attention.wv.weight
model.transformer.blocks.0.v_proj.weight blocks.0.attention.w_v.weight rwkv.blocks.0.attention.value.weight
backbone.blocks.0.mlstm_layer.v.weight bert.encoder.layer.0.attention.self.value.weight
decoder.block.0.layer.1.EncDecAttention.v.weight blocks.0.sa.heads.0.value.weight blocks.0.attn.W_V
trf_blocks.0.att.W_value.weight blk.0.attn_v.weight block_0_Wv
    """,
    "attn.out": """
layers.10.attn.proj.weight h.0.attn.c_proj.weight transformer.h.0.attn.c_proj.weight
transformer.h.0.attn.attention.out_proj.weight transformer.h.0.attn.out_proj.weight
gpt_neox.layers.0.attention.dense.weight transformer.h.0.self_attention.dense.weight
decoder.layers.0.self_attn.out_proj.weight model.layers.0.self_attn.o_proj.weight layers.0.attention.wo.weight
transformer.blocks.0.attn_out.weight blocks.0.attention.w_out.weight transformer.h.0.attn.proj.weight
model.layers.0.self_attn.dense.weight transformer.blocks.0.attn.out_proj.weight rwkv.blocks.0.attention.output.weight
backbone.blocks.0.mlstm_layer.out_proj.weight bert.encoder.layer.0.attention.output.dense.weight
encoder.block.0.layer.0.SelfAttention.o.weight blocks.0.sa.proj.weight blocks.0.attn.W_O
params.encoderblock_0.SelfAttention_0.out.kernel attn_layers.layers.0.1.to_out.weight trf_blocks.0.att.out_proj.weight
encoder.layers.0.self_attn.out_proj.weight blk.0.attn_output.weight decoder.layers.0.self_attention.linear_proj.weight
blocks.0.attn.c_proj.weight block_0_Wo h0_attn_o
    """,
    "mlp.in": """
layers.0.mlp.fc1.weight transformer.h.11.mlp.c_fc.weight transformer.h.0.mlp.c_fc.weight
transformer.h.0.mlp.fc_in.weight gpt_neox.layers.5.mlp.dense_h_to_4h.weight transformer.h.0.mlp.dense_h_to_4h.weight
model.decoder.layers.0.fc1.weight model.layers.31.mlp.gate_proj.weight model.layers.31.mlp.up_proj.weight
model.layers.0.mlp.gate_up_proj.weight layers.0.feed_forward.w1.weight layers.0.feed_forward.w3.weight
layers.1.moe.shared_experts.w1.weight model.layers.0.block_sparse_moe.experts.3.w1.weight
model.layers.0.block_sparse_moe.experts.3.w3.weight model.layers.0.mlp.experts.63.gate_proj.weight
model.layers.0.mlp.experts.63.up_proj.weight model.layers.0.mlp.shared_expert.gate_proj.weight
transformer.blocks.0.ff_proj.weight transformer.blocks.0.up_proj.weight blocks.0.feed_forward.w1.weight
blocks.0.feed_forward.w3.weight transformer.h.0.mlp.fc.weight transformer.h.0.mlp.fc_1.weight
transformer.h.0.mlp.fc_2.weight transformer.h.0.mlp.experts.2.fc_1.weight backbone.layers.0.mixer.in_proj.weight
model.layers.0.mlp.fc1.weight transformer.blocks.0.ffn.up_proj.weight rwkv.blocks.0.feed_forward.key.weight
rwkv.blocks.0.feed_forward.receptance.weight model.layers.0.mamba.in_proj.weight
model.layers.1.feed_forward.experts.gate_up_proj backbone.blocks.0.ffn.proj_up_gate.weight
backbone.blocks.0.ffn.proj_up.weight bert.encoder.layer.0.intermediate.dense.weight
encoder.block.0.layer.1.DenseReluDense.wi_0.weight blocks.0.mlp.W_in encoder.layers.0.linear1.weight
encoder.layers.0.feed_forward.w_1.weight blk.0.ffn_gate.weight blk.0.ffn_up.weight
decoder.layers.0.mlp.linear_fc1.weight blocks.0.mlp.c_fc.weight decoder.layers.0.fc1.weight block_0_W1 layer_3_ffn_w1
encoder.layers.0.feed_forward.intermediate_dense.weight
    """,
    "mlp.out": """
layers.0.mlp.fc2.weight transformer.h.11.mlp.c_proj.weight transformer.h.0.mlp.c_proj.weight
transformer.h.27.mlp.fc_out.weight gpt_neox.layers.5.mlp.dense_4h_to_h.weight transformer.h.0.mlp.dense_4h_to_h.weight
model.decoder.layers.0.fc2.weight model.layers.31.mlp.down_proj.weight layers.0.feed_forward.w2.weight
model.layers.0.block_sparse_moe.experts.3.w2.weight layers.0.feed_forward.experts.7.w2.weight
model.layers.0.mlp.experts.63.down_proj.weight model.layers.0.mlp.shared_expert.down_proj.weight
transformer.blocks.0.ff_out.weight blocks.0.feed_forward.w2.weight transformer.h.0.mlp.proj.weight
transformer.h.0.mlp.experts.2.proj.weight backbone.layers.0.mixer.out_proj.weight model.layers.0.mlp.fc2.weight
transformer.blocks.0.ffn.down_proj.weight rwkv.blocks.0.feed_forward.value.weight model.layers.0.mamba.out_proj.weight
backbone.blocks.0.ffn.proj_down.weight bert.encoder.layer.0.output.dense.weight
encoder.block.0.layer.1.DenseReluDense.wo.weight blocks.0.mlp.W_out encoder.layers.0.linear2.weight
encoder.layers.0.feed_forward.w_2.weight blk.0.ffn_down.weight decoder.layers.0.mlp.linear_fc2.weight block_0_W2
layer.4.transformer.layer.2.output.dense.weight
    """,
    "head": """
head.weight lm_head.weight embed_out.weight output.weight model.output.weight transformer.ff_out.weight
lm_head.w_out.weight cls.predictions.decoder.weight unembed.W_U to_logits.weight out_head.weight fc_out.weight
generator.proj.weight output_layer.weight decoder.output_projection.weight classifier.out_proj.weight hidden2tag.weight
classification_head.out_proj.weight
    """,
    "conv": """
backbone.layers.0.mixer.conv1d.weight
    """,
    "other": """
model.decoder.project_in.weight model.decoder.project_out.weight layers.1.moe.router.gate.weight
model.layers.0.block_sparse_moe.gate.weight layers.0.feed_forward.gate.weight model.layers.0.mlp.gate.weight
model.layers.0.mlp.shared_expert_gate.weight backbone.layers.0.mixer.x_proj.weight
backbone.layers.0.mixer.dt_proj.weight backbone.layers.0.mixer.A_log model.layers.3.mlp.gate.weight
model.layers.0.mamba.x_proj.weight model.layers.0.mamba.A_log model.layers.1.feed_forward.router.weight
backbone.blocks.0.mlstm_layer.ogate_preact.weight cls.predictions.transform.dense.weight
    """,
}


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


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."])
def test_names_of_a_role(role: str, prefix: str) -> None:
    names = ROLES[role].split()
    assert {name: recognised(prefix + name) for name in names} == dict.fromkeys(names, (role, BY_NAME))


@pytest.mark.parametrize("ending", [".bias", ".weight_scale", ".weight.lora_A"])
def test_what_is_no_matrix_has_no_role(ending: str) -> None:
    for name in " ".join(ROLES.values()).replace(".weight", ending).split():
        assert not name.endswith(ending) or recognised(name) == ("other", UNKNOWN)


# Rules of one's own


def test_own_rules_come_first() -> None:
    own = [("key", "attn.k"), (r"c_fc\.weight$", "other")]
    assert recognised("blocks.0.att.key.weight", own) == ("attn.k", OWN_RULE)
    assert recognised("transformer.h.0.mlp.c_fc.weight", own) == ("other", OWN_RULE)
    assert recognised("transformer.h.0.mlp.c_proj.weight", own) == ("mlp.out", BY_NAME)
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
    # Names that would become one stay.
    assert plain_names(["module.w", "w"]) == ["module.w", "w"]


@pytest.mark.parametrize(
    "name",
    [
        *("weight", "", "stem.weight", "overhead.weight", "blocks.0.mystery.weight"),
        # a word of a role within another word, or in another place
        *("output_norm_proj.weight", "headphones.weight", "keypoint_head.weight", "value_loss_net.weight"),
        *("out_proj.weight", "patch_embeddings.3.projection.weight", "quantizer.quantizers.0.in_proj.weight"),
        *("layers.0.attn.value_residual_mix.weight", "policy.value.weight", "actor.mlp.value.weight", "key.weight"),
        # of an MLP that is no part of a block, and modules that are only counted, from 0
        *("W1", "W3", "fc1.weight", "actor.fc2.weight", "mlp_head.fc1.weight", "projector.linear_1.weight"),
        *("params.Block_2.MlpBlock_0.Dense_1.kernel", "lm/h0_mlp/~/linear_1.w"),
        *("capa.0.salida.weight", "выход.weight", "出力.weight"),
        # the beginning or the end of a known name is not that name
        *("lm_head.weight_scale", "head.bias", "layers.0.attn.qkv.weight.lora_A"),
    ],
)
def test_unknown_names_are_other(name: str) -> None:
    assert recognised(name) == ("other", UNKNOWN)


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
        # two that agree overrule nn.Linear, as of PaddlePaddle; one does not
        ({"layers.0.attn.qkv.weight": (4, 12), "lm_head.weight": (4, 11)}, True),
        ({"layers.0.attn.qkv.weight": (4, 12)}, False),
    ],
)
def test_the_width_decides_which_way_round_conv1d_is(
    shapes: dict[str, tuple[int, ...]], turned: bool, tmp_path: Path
) -> None:
    layers = saved(tmp_path, random_weights({"wte.weight": (11, 4), **shapes})).layers()
    assert {layer.name for layer in layers if layer.transposed} == (set(shapes) if turned else set())


# Order


def test_layers_are_in_natural_order(tmp_path: Path) -> None:
    parts = "0.mlp.fc1 2.attn.qkv 2.mlp.fc1 9.mlp.fc1 10.mlp.fc1 10.mlp.fc2 100.mlp.fc1".split()
    names = ["head.weight", *(f"layers.{part}.weight" for part in parts)]
    for suffix in (".safetensors", ".pt"):
        path = tmp_path / f"step_1{suffix}"
        weights = {name: torch.full((2, 2), float(k)) for k, name in sorted(enumerate(names), key=lambda pair: pair[1])}
        (save_file if suffix == ".safetensors" else torch.save)(weights, path)
        layers = one(path).layers()
        assert [layer.name for layer in layers] == names
        assert [float(layer.read()[0, 0]) for layer in layers] == list(range(len(names)))
