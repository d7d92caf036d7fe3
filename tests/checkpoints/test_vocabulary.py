"""Which matrix is the head: a stored one, the embedding itself for a reason, or none that is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import Weights, family_weights, model_folder, refused

from toposcope.checkpoints import Checkpoint, roles
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.inventory import Inventory
from toposcope.checkpoints.vocabulary import BY_CONFIGURATION, TIED, TIED_BIAS, with_head
from toposcope.checkpoints.weights import weights_of

WILD = Path(__file__).parents[3] / "shared" / "data" / "wild"
EMBEDDING = {"embed.weight": (50, 8)}
BLOCK = {"layers.0.attn.q_proj.weight": (8, 8), "layers.0.mlp.fc1.weight": (20, 8), "layers.0.mlp.fc2.weight": (8, 20)}
MODEL = {**EMBEDDING, **BLOCK}
ENCODER = {
    "embeddings.word_embeddings.weight": (50, 8),
    "encoder.layer.0.attention.self.query.weight": (8, 8),
    "encoder.layer.0.output.dense.weight": (8, 20),
}


def head_of(shapes: dict[str, tuple[int, ...]], **config: Any) -> tuple[str, str, str]:
    """Name of the head and how it was recognised, and the remark if there is none."""
    rng = np.random.default_rng(0)
    listed = []
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(np.float32)
        listed.append(Entry(name, shape, "float32", lambda a, b, array=array: array[a:b]))  # type: ignore[misc]
    found = weights_of(listed, (), lambda name: config if name == "config.json" else {})
    heads = [(m.name, m.why) for m in found.matrices if m.role == "head"]
    assert len(heads) < 2
    return (*(heads or [("", "")])[0], " ".join(remark for remark in found.remarks if "no head is known" in remark))


# Tied


@pytest.mark.parametrize(
    ("shapes", "config", "why"),
    [
        (MODEL, {}, TIED),
        (MODEL, {"model_type": "gpt2"}, TIED),
        (MODEL, {"tie_word_embeddings": True}, BY_CONFIGURATION),
        ({**MODEL, "per_layer_projection.weight": (9, 8)}, {"architectures": ["GemmaForCausalLM"]}, BY_CONFIGURATION),
        # a vector in place of the projection of another width
        ({**MODEL, "project_in.weight": (8, 5), "pos_emb.weight": (7, 8)}, {}, TIED),
        ({"embed": (50, 8), "block_0_Wq": (8, 8), "block_0_W1": (8, 20), "block_1_Wq": (8, 8)}, {}, TIED),
        ({**EMBEDDING, "rnn.weight_ih_l0": (32, 8), "rnn.weight_hh_l0": (32, 8)}, {}, TIED),
        ({**EMBEDDING, "backbone.layers.0.mixer.in_proj.weight": (32, 8)}, {}, TIED),
        ({**ENCODER, "cls.predictions.transform.dense.weight": (8, 8), "cls.predictions.bias": (50,)}, {}, TIED_BIAS),
        ({**ENCODER, "lm_head.dense.weight": (8, 8), "lm_head.bias": (50,), "pooler.weight": (8, 8)}, {}, TIED_BIAS),
        ({**EMBEDDING, "layers.0.mlp.fc1.weight": (20, 8)}, {}, TIED),
        ({**MODEL, "embed_tokens_per_layer.weight": (50, 4)}, {}, TIED),
    ],
)
def test_an_embedding_is_the_head_for_a_reason(
    shapes: dict[str, tuple[int, ...]], config: dict[str, Any], why: str
) -> None:
    table = next(iter(shapes))
    assert head_of(shapes, **config) == (table, why, "")


# Not tied


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (
            {
                **EMBEDDING,
                "lstm.weight_hh_l0": (32, 8),
                "lstm.weight_hh_l0_reverse": (32, 8),
                "tagger.weight": (17, 16),
            },
            "",
        ),
        ({**EMBEDDING, "lstm.weight_hh_l0": (32, 8), "lstm.weight_hh_l0_reverse": (32, 8)}, "recurrent"),
        ({**EMBEDDING, "lstm.weight_hh_l0": (64, 16)}, "recurrent"),
        ({**ENCODER, "classifier.dense.weight": (8, 8), "classifier.scorer.weight": (3, 8)}, "classifier.dense"),
        (ENCODER, "encoder alone"),
        ({**MODEL, "token_type_embeddings.weight": (2, 8)}, "encoder alone"),
        ({**MODEL, "text_projection": (8, 6)}, "text_projection"),
        ({**MODEL, "value.1.weight": (1, 8)}, "value"),
        ({**MODEL, "stats.weight": (12, 8, 1)}, "stats"),
        ({"user_emb.weight": (40, 8), "item_emb.weight": (50, 8), **BLOCK}, "several tables"),
        ({**EMBEDDING, "fc1.weight": (20, 8), "fc2.weight": (3, 20)}, "may be the output"),
        ({**EMBEDDING, "layers.0.weight": (20, 8)}, "may be the output"),
    ],
)
def test_an_embedding_without_a_reason_stays_one_and_a_sentence_says_so(
    shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    name, _, remark = head_of(shapes)
    assert not name
    assert words in remark
    assert "--role REGEX=head" in remark


@pytest.mark.parametrize(
    ("shapes", "config"),
    [
        (MODEL, {"tie_word_embeddings": False}),
        (MODEL, {"architectures": ["LlamaForCausalLM"], "text_config": {"tie_word_embeddings": False}}),
        (MODEL, {"architectures": ["XLMForSequenceClassification"], "tie_word_embeddings": True}),
        (ENCODER, {"architectures": ["BertModel"]}),
    ],
)
def test_a_configuration_denies_a_tied_head(shapes: dict[str, tuple[int, ...]], config: dict[str, Any]) -> None:
    assert head_of(shapes, **config) == ("", "", "")


def test_a_classifier_by_hand_beside_the_configuration_of_a_language_model() -> None:
    name, _, remark = head_of({**MODEL, "cls_fc.weight": (2, 8)}, architectures=["GPT2LMHeadModel"])
    assert not name
    assert "cls_fc.weight may be the output instead" in remark


def test_packed_weights_may_be_the_head() -> None:
    entries = [Entry(name, shape, "float32", lambda a, b: np.ones((b - a, 8))) for name, shape in MODEL.items()]
    found = weights_of(entries, (("embed", "embed"),), lambda name: {"tie_word_embeddings": False}).matrices
    for unread, is_known in (["layers.0.attn.k_proj.weight"], True), (["output.weight"], False):
        layers, remarks = with_head(found, {}, entries, lambda name: {}, unread)
        assert (any(m.role == "head" for m in layers), not remarks) == (is_known, is_known)


# Stored under a name that does not say so


@pytest.mark.parametrize(
    ("name", "shape", "more"),
    [
        ("out_proj.weight", (50, 8), {}),
        ("anything", (8, 50), {}),
        ("module.readout.weight", (50, 8), {"module.readout.bias": (50,)}),
        ("readout.weight", (50, 30), {"readout.bias": (50,)}),
    ],
)
def test_a_matrix_outside_the_blocks_with_a_row_for_each_token_is_the_head(
    name: str, shape: tuple[int, ...], more: dict[str, tuple[int, ...]]
) -> None:
    assert head_of({**MODEL, name: shape, **more}) == (name, "shape", "")
    # in a block it is not
    assert head_of({**MODEL, f"layers.1.{name}": shape})[1] == TIED


@pytest.mark.skipif(not WILD.exists(), reason="needs the reference checkpoints, which are not part of the project")
@pytest.mark.parametrize(
    ("file", "head", "table"),
    [
        ("head_bilstm_tagger.pt", None, "word_embeddings.weight"),
        ("head_out_proj.npz", "out_proj.weight", "token_embedding.weight"),
        ("head_roberta_classifier.pt", None, "roberta.embeddings.word_embeddings.weight"),
        ("torchao_int8.pt", None, "embed_tokens.weight"),
    ],
)
def test_reference_checkpoints(file: str, head: str | None, table: str) -> None:
    found = {layer.name: layer for layer in Inventory.of(Checkpoint(WILD / "evidence" / file, 0)).layers}
    assert not found[table].measured
    assert found[table].role == "embed"
    assert head is None or found[head].role == "head"


@pytest.mark.parametrize("names", ["C W1 W2 b2 bngain bnbias", "0 1 2 3 4 5"])
def test_a_table_by_hand_of_which_several_rows_are_read(names: str) -> None:
    shapes = [(27, 10), (30, 44), (44, 27), (27,), (1, 44), (1, 44)]
    listed = [
        Entry(name, shape, "float32", lambda a, b, shape=shape: np.ones((b - a, *shape[1:])))  # type: ignore[misc]
        for name, shape in zip(names.split(), shapes, strict=True)
    ]
    found = weights_of(listed, (), lambda name: {}).matrices
    assert [(m.role, m.transposed) for m in found] == [("embed", False), ("other", True), ("head", True)]


def test_an_autoencoder_has_no_embedding() -> None:
    shapes = {"encoder.weight": (20, 50), "encoder.bias": (20,), "decoder.weight": (50, 20), "decoder.bias": (50,)}
    listed = [Entry(name, shape, "float32", lambda a, b: np.ones((b - a, 8))) for name, shape in shapes.items()]
    assert {m.role for m in weights_of(listed, (), lambda name: {}).matrices} == {"other", "head"}


# In files


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
    save_file(without_head(), tmp_path / "step_1.safetensors")
    checkpoint = Checkpoint(tmp_path / "step_1.safetensors", 1)
    assert heads(checkpoint) == [("token_emb.weight", "head")]
    assert not any(layer.role in roles.NOT_ANALYSED - {"pos_embed"} for layer in checkpoint.layers())
    # The matrix and its name are as stored; the role alone is another.
    head = next(layer for layer in checkpoint.layers() if layer.role == "head")
    assert np.array_equal(head.matrix(), family_weights()["token_emb.weight"].numpy())


def test_the_configuration_may_lie_in_the_folder_or_beside_a_file(tmp_path: Path) -> None:
    folder = model_folder(".safetensors")(tmp_path, 1, without_head())
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    assert heads(Checkpoint(folder, 1)) == []
    # A stored head counts, whatever the configuration says.
    save_file(family_weights(), folder / "model.safetensors")
    assert heads(Checkpoint(folder, 1)) == [("head.weight", "head")]
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": false}')
    save_file(without_head(), tmp_path / "step_1.safetensors")
    assert heads(Checkpoint(tmp_path / "step_1.safetensors", 1)) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\udcff"])
def test_a_broken_configuration_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    save_file(without_head(), tmp_path / "step_1.safetensors")
    with refused(tmp_path / "config.json"):
        Checkpoint(tmp_path / "step_1.safetensors", 1).layers()
