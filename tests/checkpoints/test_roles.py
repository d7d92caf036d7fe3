"""What each layer is for, which way round it is stored, and the head that is tied to the embedding."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import Weights, family_weights, model_folder, random_weights, refused

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.roles import role_of, stored_transposed

ROLES = {
    "ours": {
        "token_emb.weight": "embed",
        "pos_emb.weight": "pos_embed",
        "layers.0.attn.qkv.weight": "attn.qkv",
        "layers.10.attn.proj.weight": "attn.out",
        "layers.0.mlp.fc1.weight": "mlp.in",
        "layers.0.mlp.fc2.weight": "mlp.out",
        "head.weight": "head",
    },
    "GPT-2": {
        "transformer.wte.weight": "embed",
        "wte.weight": "embed",
        "transformer.wpe.weight": "pos_embed",
        "transformer.h.0.attn.c_attn.weight": "attn.qkv",
        "h.0.attn.c_proj.weight": "attn.out",
        "transformer.h.11.mlp.c_fc.weight": "mlp.in",
        "transformer.h.11.mlp.c_proj.weight": "mlp.out",
        "lm_head.weight": "head",
    },
    "GPT-NeoX": {
        "gpt_neox.embed_in.weight": "embed",
        "gpt_neox.layers.0.attention.query_key_value.weight": "attn.qkv",
        "gpt_neox.layers.0.attention.dense.weight": "attn.out",
        "gpt_neox.layers.5.mlp.dense_h_to_4h.weight": "mlp.in",
        "gpt_neox.layers.5.mlp.dense_4h_to_h.weight": "mlp.out",
        "embed_out.weight": "head",
    },
    "Llama": {
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
}
"""Names as the models' own code writes them."""


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


def saved(folder: Path, weights: Weights) -> Checkpoint:
    save_file(weights, folder / "step_1.safetensors")
    return Checkpoint(folder / "step_1.safetensors", 1)


# Roles


@pytest.mark.parametrize("family", ROLES)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module."])
def test_roles_of_a_family(family: str, prefix: str) -> None:
    names = ROLES[family]
    assert {name: role_of(prefix + name) for name in names} == names


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
    ],
)
def test_unknown_names_are_other(name: str) -> None:
    assert role_of(name) == "other"


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
        assert torch.equal(conv1d.matrix(), linear.matrix())
        assert torch.equal(linear.matrix(), linear.read())
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
    assert heads(Checkpoint(tmp_path / "step_1.pt", 1)) == [("head.weight", "head")]


def test_a_tied_head_that_is_not_stored_counts_once(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, without_head())
    assert heads(checkpoint) == [("token_emb.weight", "head")]
    assert [layer.role for layer in checkpoint.layers()].count("embed") == 0
    # The matrix and its name are as stored; the role alone is another.
    head = next(layer for layer in checkpoint.layers() if layer.role == "head")
    assert torch.equal(head.matrix(), family_weights()["token_emb.weight"])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"tie_word_embeddings": False}, []),
        ({"tie_word_embeddings": True}, [("token_emb.weight", "head")]),
        ({"model_type": "gpt2"}, [("token_emb.weight", "head")]),
    ],
)
def test_the_configuration_tells_whether_the_head_is_tied(
    config: dict[str, object], expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    folder = model_folder(".safetensors")(tmp_path, 1, without_head())
    (folder / "config.json").write_text(json.dumps(config))
    assert heads(Checkpoint(folder, 1)) == expected
    # A stored head counts, whatever the configuration says.
    save_file(family_weights(), folder / "model.safetensors")
    assert heads(Checkpoint(folder, 1)) == [("head.weight", "head")]


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
    with refused(checkpoint.path, "nothing to measure"):
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
        layers = Checkpoint(path, 1).layers()
        assert [layer.name for layer in layers] == names
        assert [float(layer.read()[0, 0]) for layer in layers] == list(range(len(names)))
