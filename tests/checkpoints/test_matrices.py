"""What of a checkpoint is measured, in which layout; whatever the names, layouts, wrappers and buffers around it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from odd_models import STYLES, Size, Stored, buffers
from property_examples import examples
from safetensors.torch import save_file

from toposcope.checkpoints import Checkpoint, roles, series
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.inventory import Inventory
from toposcope.checkpoints.weights import Weights, weights_of

WILD = Path(__file__).parents[3] / "shared" / "data" / "wild"


def entries(tensors: dict[str, np.ndarray[Any, Any]]) -> list[Entry]:
    """Tensors in memory, in the order of a checkpoint."""
    return [
        Entry(name, array.shape, str(array.dtype), lambda a, b, array=array: array[a:b])  # type: ignore[misc]
        for name, array in tensors.items()
    ]


def weights(tensors: dict[str, np.ndarray[Any, Any]], **config: Any) -> Weights:
    return weights_of(entries(tensors), (), lambda name: config if name == "config.json" else {})


def measured(found: Weights) -> dict[str, np.ndarray[Any, Any]]:
    """The measured matrices as (outputs, inputs)."""
    return {
        m.name: m.entry.whole().T if m.transposed else m.entry.whole()
        for m in found.matrices
        if m.role not in roles.NOT_ANALYSED
    }


def assert_right(found: Weights, stored: Stored) -> None:
    got = measured(found)
    assert sorted(got) == sorted(stored.right)
    for name, matrix in stored.right.items():
        assert np.array_equal(got[name], matrix), name


SIZES = st.builds(
    lambda heads, head, mlp, vocabulary, context, blocks, experts: Size(
        heads * head, heads, mlp, vocabulary, context, blocks, experts
    ),
    heads=st.integers(2, 4),
    head=st.sampled_from([2, 4, 6]),
    mlp=st.integers(27, 40),
    vocabulary=st.integers(41, 60),
    context=st.integers(5, 26),
    blocks=st.integers(1, 3),
    experts=st.just(0),
)


@examples(150)
@given(style=st.sampled_from(sorted(STYLES)), size=SIZES, seed=st.integers(0, 2**31), prefix=st.booleans())
def test_every_style_is_read_as_its_plain_matrices(style: str, size: Size, seed: int, prefix: bool) -> None:
    # Of heads with two equal axes nothing but the usual names tells which is which.
    rng = np.random.default_rng(seed)
    experts = int(rng.integers(2, 6)) if style in {"llama", "experts_turned"} else 0
    stored = STYLES[style](Size(**{**size.__dict__, "experts": experts}), rng)
    tensors = dict(stored.tensors) | buffers(size, rng)
    assert_right(weights(tensors, tie_word_embeddings=False), stored)


@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_style_from_files(style: str, dtype: torch.dtype, tmp_path: Path) -> None:
    stored = STYLES[style](Size(), np.random.default_rng(0))
    tensors = {f"_orig_mod.{name}": torch.from_numpy(array.copy()).to(dtype) for name, array in stored.tensors.items()}
    save_file(tensors, tmp_path / "step_10.safetensors")
    torch.save({"model": tensors}, tmp_path / "step_20.pt")
    for checkpoint in series(tmp_path):
        layers = {layer.name: layer for layer in checkpoint.analysed()}
        assert sorted(layers) == sorted(stored.right)
        for name, matrix in stored.right.items():
            expected = torch.from_numpy(matrix.copy()).to(dtype).float().numpy()
            assert np.array_equal(layers[name].matrix(), expected), name
    first, second = ({layer.name: layer.content_hash() for layer in c.analysed()} for c in series(tmp_path))
    assert first == second


# Kinds of which a generator of whole models has too few


def r(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


BLOCK = {"embed_tokens.weight": r(31, 12), "layers.0.norm.weight": r(12), "layers.0.mlp.up_proj.weight": r(28, 12)}
UP, TIED = "layers.0.mlp.up_proj.weight", "embed_tokens.weight"
"""What is measured of `BLOCK`: the embedding is the tied head."""
CASES: dict[str, tuple[dict[str, np.ndarray[Any, Any]], set[str], set[str]]] = {
    "convolutions of one tap are linear maps": (
        {**BLOCK, "layers.0.ffn.w_1.weight": r(28, 12, 1), "layers.0.ffn.w_2.weight": r(12, 28, 3)},
        {UP, TIED, "layers.0.ffn.w_1.weight"},
        set(),
    ),
    "haiku": (
        {"lm/~/embed.embeddings": r(31, 12), "lm/h0_attn/query.w": r(12, 12), "lm/h0_mlp/linear.w": r(12, 48)},
        {"lm/~/embed.embeddings", "lm/h0_attn/query.w", "lm/h0_mlp/linear.w"},
        {"lm/h0_attn/query.w", "lm/h0_mlp/linear.w"},
    ),
    "names joined by slashes": (
        {"params/decoder/layers_0/mlp/Dense_0/kernel": r(12, 12), "params/norm/scale": r(12)},
        {"params/decoder/layers_0/mlp/Dense_0/kernel"},
        {"params/decoder/layers_0/mlp/Dense_0/kernel"},
    ),
    "arrays in variables": (
        {
            "embed.embedding.value": r(31, 12),
            "blocks.0.linear1.kernel.value": r(12, 28),
            "head.kernel.value": r(12, 31),
        },
        {"blocks.0.linear1.kernel.value", "head.kernel.value"},
        {"blocks.0.linear1.kernel.value", "head.kernel.value"},
    ),
    "layers stacked by a scan are not heads": (
        {**BLOCK, "blocks.attn.q_proj.kernel": r(3, 12, 20), "blocks.attn.c_proj.kernel": r(3, 12, 12)},
        {UP, TIED},
        set(),
    ),
    "a bias shows the outputs": (
        {"W1": r(30, 200), "b1": r(200), "W2": r(200, 27), "b2": r(27), "net.fc.w": r(20, 10), "net.fc.b": r(20)},
        {"W1", "W2", "net.fc.w"},
        {"W1", "W2"},
    ),
    "flat names of TransformerLens are no evidence": (
        {"W_Q": r(12, 12), "W_O": r(12, 12), "W_in": r(12, 28), "W_out": r(28, 12)},
        {"W_Q", "W_O", "W_in", "W_out"},
        set(),
    ),
    "grouped heads of TransformerLens": (
        {"embed.W_E": r(31, 12), "blocks.0.attn._W_K": r(1, 12, 3), "unembed.W_U": r(12, 31)},
        {"blocks.0.attn._W_K", "unembed.W_U"},
        {"blocks.0.attn._W_K", "unembed.W_U"},
    ),
    "a decay that is learned": (
        {**BLOCK, "layers.0.att.time_decay_w1": r(12, 16)},
        {UP, TIED, "layers.0.att.time_decay_w1"},
        set(),
    ),
    "a linear map called an embedding": (
        {**BLOCK, "patch_embed.weight": r(20, 48), "patch_embed.bias": r(20), "input_emb_proj.weight": r(12, 9)},
        {UP, "patch_embed.weight", "input_emb_proj.weight"},
        set(),
    ),
    "a linear map without a bias called one": (
        {"emb.weight": r(16, 40), "h.weight": r(16, 16), "h.bias": r(16), "o.weight": r(40, 16), "o.bias": r(40)},
        {"emb.weight", "h.weight", "o.weight"},
        set(),
    ),
    "copies": (
        {**BLOCK, **{f"teacher.{n}": w for n, w in BLOCK.items()}, "layers.0.mlp.up_proj.weight_ema": r(28, 12)},
        {UP, TIED},
        set(),
    ),
    "targets of a policy, after Stable-Baselines3": (
        {f"{net}.0.weight": r(16, n) for n, kind in ((4, "critic"), (5, "q_net")) for net in (kind, f"{kind}_target")},
        {"critic.0.weight", "q_net.0.weight"},
        set(),
    ),
    "data beside a model": (
        {
            "net.0.weight": r(8, 4),
            "net.2.weight": r(3, 8),
            "X_train": r(120, 4),
            "y_train": r(120, 3),
            "Y": r(90, 3),
            "layers.0.grid": r(3, 12),
            "bank": r(31, 37),
        },
        {"net.0.weight", "net.2.weight"},
        set(),
    ),
    "copies and moments by hand": (
        {f"{prefix}W{k}": r(7 + k, 6) for prefix in ("", "best_", "target_", "v_d", "m") for k in (1, 2)},
        {"W1", "W2"},
        set(),
    ),
    "data beside matrices by hand": (
        {"U": r(8, 4), "theta2": r(8, 3), "X": r(120, 4), "y_test": r(30, 3)},
        {"U", "theta2"},
        set(),
    ),
    "averages without dots, momentum encoders": (
        {
            **BLOCK,
            "model_ema.layers0mlpup_projweight": r(28, 12),
            "encoder_q.fc.weight": r(6, 5),
            "encoder_k.fc.weight": r(6, 5),
        },
        {UP, "encoder_q.fc.weight"},
        set(),
    ),
    "a module called lora of the model's own": (
        {**BLOCK, "layers.0.attn.w_lora.lora.0.weight": r(6, 12), "layers.0.attn.w_lora.lora.2.weight": r(12, 6)},
        {UP, TIED, "layers.0.attn.w_lora.lora.0.weight", "layers.0.attn.w_lora.lora.2.weight"},
        set(),
    ),
    "a module called ema": ({**BLOCK, "ema.fc.weight": r(5, 6)}, {UP, "ema.fc.weight"}, set()),
    "matrices that begin as the identity or a triangle": (
        {**BLOCK, "layers.0.recurrent": np.eye(20, dtype=np.float32), "layers.0.mixing": np.tril(_ones(20, 20))},
        {UP, TIED, "layers.0.recurrent", "layers.0.mixing"},
        set(),
    ),
    "an encoder and a decoder of other widths": (
        {"encoder.weight": r(31, 10), "rnn.weight_ih_l0": r(64, 10), "decoder.weight": r(31, 16)},
        {"rnn.weight_ih_l0", "decoder.weight"},
        set(),
    ),
    "a classifier has no tied head": ({**BLOCK, "score.weight": r(2, 12)}, {UP, "score.weight"}, set()),
    "another output": ({**BLOCK, "reward_fc.weight": r(3, 12)}, {UP, "reward_fc.weight"}, set()),
    "masks of the shape of their weights": (
        {
            **BLOCK,
            "layers.0.mlp.up_proj.weight_mask": (r(28, 12) > 0).astype(np.float32),
            "attn_local_mask": _ones(12, 12),
        },
        {UP, TIED},
        set(),
    ),
    "norms of each head, and biases": (
        {**BLOCK, "layers.0.attn.q_norm.weight": r(3, 4), "layers.0.attn.b_qkv": r(3, 12)},
        {UP, TIED},
        set(),
    ),
    "learned tokens and positions": (
        {
            **BLOCK,
            "register_tokens": r(4, 12),
            "Er": r(17, 3),
            "layers.0.attn.rel_bias.weight": r(32, 4),
            "embed2.weight": r(31, 5),
        },
        {UP, TIED},
        set(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_measured_and_turned(case: str) -> None:
    tensors, names, turned = CASES[case]
    found = weights(tensors)
    assert set(measured(found)) == names
    assert {m.name for m in found.matrices if m.transposed and m.name in names} == turned


# Never by values alone


@pytest.mark.parametrize(
    "name", ["mlp.up_proj.weight", "mlp.W_in", "mlp.w1", "anything.weight", "h.0.attn.bias.weight"]
)
@pytest.mark.parametrize("kind", ["zero", "ternary", "triangle", "sinusoid", "constant"])
def test_a_weight_stays_one_whatever_it_holds(name: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    held = {
        "zero": np.zeros((16, 16)),
        "ternary": rng.integers(-1, 2, (16, 16)),
        "triangle": np.tril(np.ones((16, 16))),
        "sinusoid": np.sin(np.outer(np.arange(16), np.linspace(0.1, 1, 16))),
        "constant": np.ones((16, 16)),
    }[kind].astype(np.float32)
    assert list(measured(weights({name: held}))) == [name]


@pytest.mark.parametrize("name", ["attn.mask", "attn.rope", "attn.causal", "scorer.index"])
@pytest.mark.parametrize("rows", [slice(None), 0, 1, 8, 15])
def test_a_parameter_with_the_name_of_a_buffer_is_a_weight_if_its_shape_and_values_are_of_one(
    rows: int | slice, name: str
) -> None:
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    held = (weight > 0).astype(np.float32)
    held[rows] = weight[rows]
    tensors = {"attn.q_proj.weight": weight, name: held}
    assert sorted(measured(weights(tensors))) == sorted(tensors)


def test_a_checkpoint_has_the_same_layers_alone_and_in_a_series(tmp_path: Path) -> None:
    """A frozen layer, one that is zero at first, and one that never changes are layers at every step."""
    rng = np.random.default_rng(0)
    for step in range(4):
        stored = STYLES["raw_parameters"](Size(), np.random.default_rng(1))
        tensors = {name: torch.from_numpy(array.copy()) for name, array in stored.tensors.items()}
        tensors["layers.0.mlp.w2"] *= step
        tensors["layers.0.attn.wq"] = torch.from_numpy(np.tril(np.ones((12, 12), np.float32)))
        tensors["extra"] = torch.from_numpy(rng.standard_normal((12, 12)).astype(np.float32)) * step
        save_file(tensors, tmp_path / f"step_{step}.safetensors")
    opened = series(tmp_path)
    alone = [[layer.name for layer in Checkpoint(tmp_path / f"step_{k}.safetensors", k).analysed()] for k in range(4)]
    assert alone == [[layer.name for layer in checkpoint.analysed()] for checkpoint in opened]
    assert all(names == alone[0] for names in alone)


# What is measured of the parameters


def test_the_share_that_is_measured_is_said_and_the_rest_named(tmp_path: Path) -> None:
    stored = STYLES["lecture"](Size(), np.random.default_rng(0))
    tensors = {name: torch.from_numpy(array.copy()) for name, array in stored.tensors.items()}
    tensors["stack.weight"] = torch.ones(40, 40, 3)
    save_file(tensors, tmp_path / "step_1.safetensors")
    checkpoint = Checkpoint(tmp_path / "step_1.safetensors", 1)
    n = sum(m.size for m in stored.right.values())
    whole = n + sum(t.size for t in stored.tables.values()) + 2 * 12 + 4800
    coverage = checkpoint.weights.coverage()
    assert (coverage.measured, coverage.total, coverage.layers) == (n, whole, len(stored.right))
    said = coverage.sentence()
    assert said.startswith(f"{100 * n / whole:.1f}% of the parameters are measured, in {len(stored.right)} matrices")
    assert "tensors of 3 axes" in said
    assert "(stack.weight)" in said
    assert "embeddings" in said
    inventory = Inventory.of(checkpoint)
    assert inventory.parameters == whole
    assert inventory.coverage == said
    assert {o.what for o in inventory.others} == {"mask", "bias, norm or other vector", "3 axes"}


def test_convolutions_are_unfolded_with_a_row_for_each_output() -> None:
    torch.manual_seed(0)
    parts = {"conv1": torch.nn.Conv2d(1, 6, 5), "conv2": torch.nn.Conv2d(6, 16, 5), "fc": torch.nn.Linear(256, 10)}
    lenet = {f"{n}.{k}": v.detach().numpy() for n, part in parts.items() for k, v in part.named_parameters()}
    found = {matrix.name: matrix for matrix in weights(lenet).matrices}
    assert {name: matrix.role for name, matrix in found.items() if matrix.how} == {
        "conv1.weight": "conv",
        "conv2.weight": "conv",
    }
    assert len(found) == 3
    for name, matrix in found.items():
        np.testing.assert_array_equal(matrix.matrix(), lenet[name].reshape(len(lenet[name]), -1))
    turned = {"up.weight": r(6, 4, 2, 2), "up.bias": r(4), "Conv_0/kernel": r(3, 3, 4, 8), "line.weight": r(5, 4, 3)}
    turned |= {"line.bias": r(5)}
    rows = {matrix.name: matrix.matrix() for matrix in weights(turned).matrices}
    np.testing.assert_array_equal(rows["up.weight"], np.moveaxis(turned["up.weight"], 1, 0).reshape(4, -1))
    (kernel,) = (matrix for name, matrix in rows.items() if name.startswith("Conv_0"))
    np.testing.assert_array_equal(kernel, turned["Conv_0/kernel"].reshape(-1, 8).T)
    np.testing.assert_array_equal(rows["line.weight"], turned["line.weight"].reshape(5, -1))


# Every family that transformers builds


def _built() -> list[tuple[str, torch.nn.Module, dict[str, Any]]]:
    """Each language model of transformers, of few layers, without memory for its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
    from transformers.models.auto import modeling_auto as auto

    kinds = (
        (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, AutoModelForCausalLM),
        (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, AutoModelForMaskedLM),
        (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, AutoModelForSeq2SeqLM),
    )
    models = []
    for names, builder in kinds:
        for name in names:
            try:
                config = AutoConfig.for_model(name)
                for attribute in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"):
                    if isinstance(getattr(config, attribute, None), int):
                        setattr(config, attribute, 2)
                with torch.device("meta"):
                    models.append((name, builder.from_config(config), {"tie_word_embeddings": False}))
            except Exception:  # noqa: BLE001 - some need packages, or more than their defaults
                continue
    return models


@pytest.mark.slow
def test_linear_maps_and_tables_of_every_family_of_transformers() -> None:
    """Each ``nn.Linear`` is a layer as stored, each ``Conv1D`` a turned one, each ``nn.Embedding`` is not measured."""
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    models, wrong = _built(), []
    assert len(models) > 150
    for family, model, config in models:
        listed = [
            Entry(name, tuple(t.shape), str(t.dtype).removeprefix("torch."), _no_values)
            for name, t in model.state_dict().items()
            if t.is_floating_point()
        ]
        found = weights_of(listed, (), lambda name, config=config: config if name == "config.json" else {})  # type: ignore[misc]
        layers = {m.tensor: m for m in found.matrices}
        for name, module in model.named_modules():
            layer = layers.get(f"{name}.weight")
            if type(module) is torch.nn.Linear and (
                layer is None or layer.transposed or layer.role in roles.NOT_ANALYSED
            ):
                wrong.append((family, name, "linear"))
            if isinstance(module, Conv1D) and (layer is None or not layer.transposed):
                wrong.append((family, name, "Conv1D"))
            if isinstance(module, torch.nn.Embedding) and layer is not None and layer.role not in roles.NOT_ANALYSED:
                wrong.append((family, name, "embedding"))
    # A linear map that makes relative positions is called a table of them, and so is a vocabulary called w.
    assert {name.rpartition(".")[2] for _, name, _ in wrong} <= {"relative_pos_embeddings", "w"}
    assert len(wrong) < 12


def test_a_tensor_of_very_many_experts_is_not_taken_apart() -> None:
    found = weights({"fc1.weight": r(128, 64), "mlp.experts.gate_up_proj": r((1 << 16) + 1, 1, 2)})
    assert [m.name for m in found.matrices] == ["fc1.weight"]
    assert "tensors of 3 axes" in found.coverage().rest


def _no_values(start: int, stop: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((stop - start, 1)).astype(np.float32)


# Inputs from outside, with values computed by SciPy's spanning trees


@pytest.mark.skipif(not WILD.exists(), reason="needs the reference checkpoints, which are not part of the project")
@pytest.mark.parametrize("file", ["lecture/model.pt", "tl/model.pt", "rope/model.pt"])
def test_reference_checkpoints(file: str) -> None:
    import toposcope as ts

    right = json.loads((WILD / "right.json").read_text())[file]
    layers = {layer.name: layer for layer in series(WILD / "checkpoints" / file)[0].analysed()}
    assert sorted(layers) == sorted(right)
    for name, values in right.items():
        matrix = layers[name].matrix()
        assert list(matrix.shape) == values["shape"]
        assert ts.neural_persistence(matrix).mean == pytest.approx(values["np_mean"], abs=1e-8)
        assert np.linalg.norm(matrix) == pytest.approx(values["frobenius_norm"], rel=1e-6)
        (h0, *_) = ts.rips(matrix, max_dimension=0)
        assert h0.lifetimes.sum() == pytest.approx(values["H0.total"], rel=1e-6)


@pytest.mark.parametrize(
    ("shapes", "is_convolution"),
    [
        ({"net.0.weight": (32, 16, 3), "net.0.bias": (32,)}, True),
        ({"net.0.weight": (8, 4, 3, 3)}, True),
        ({"net.0.kernel": (3, 3, 4, 8), "net.0.bias": (8,)}, True),
        ({"blocks.dense.kernel": (6, 64, 256), "blocks.dense.bias": (6, 256)}, False),  # stacked layers
        ({"blocks.dense.weight": (6, 64, 16), "blocks.dense.bias": (6, 64)}, False),
        ({"blocks.proj.weight": (4, 8, 64, 64)}, False),
        ({"bilinear.weight": (7, 32, 48), "bilinear.bias": (7,)}, False),
        ({"net.0.weight": (32, 16, 3)}, False),  # nothing tells it from three matrices
    ],
)
def test_convolutions_without_their_name_need_evidence(
    shapes: dict[str, tuple[int, ...]], is_convolution: bool, tmp_path: Path
) -> None:
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    found = [layer.role for layer in Checkpoint(tmp_path / "model.safetensors", 0).layers()]
    assert found.count("conv") == is_convolution
