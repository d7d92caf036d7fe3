"""The parameters of a model in training, by the names and roles that a checkpoint of it would have."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny_models import KINDS, made
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.family import ModelSize
from toposcope.family.model import GPT
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.parameters import layout, unmeasured, unwrapped, watched

FUSED_EXPERTS = {"mixtral"}
"""Held as tensors of three dimensions, saved as matrices."""


def described(layers: Any) -> list[tuple[Any, ...]]:
    return [(x.name, x.role, x.transposed, x.shape, x.dtype) for x in layers]


def compiled(module: nn.Module) -> nn.Module:
    made: Any = torch.compile(module)
    assert isinstance(made, nn.Module)
    return made


def small_gpt() -> GPT:
    return GPT(ModelSize(hidden=16, layers=2, heads=2))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - FUSED_EXPERTS))
def test_layers_are_those_of_the_checkpoint_that_transformers_saves(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = made(kind)
    model.save_pretrained(tmp_path)
    # a live run reads plain matrices only
    saved = [layer for layer in Checkpoint(tmp_path, 0).analysed() if layer.tensor]
    assert described(layout(model)) == described(saved)
    parameters = watched(model)
    for layer in saved:
        assert torch.equal(parameters[layer.name].detach(), torch.from_numpy(layer.read()))


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", ["plain", "compiled", "data parallel", "blocks compiled and checkpointed"])
def test_layers_are_those_of_the_checkpoint_of_the_family(wrapped: str, tmp_path: Path) -> None:
    plain = small_gpt()
    weights = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    model: nn.Module = plain
    if wrapped == "compiled":
        model = compiled(plain)
    elif wrapped == "data parallel":
        model = nn.DataParallel(plain)
    elif wrapped == "blocks compiled and checkpointed":
        for k, block in enumerate(plain.layers):
            plain.layers[k] = compiled(checkpoint_wrapper(block))
    saved = Checkpoint(tmp_path, 0)
    assert described(layout(model)) == described(saved.analysed())
    parameters = watched(model)
    assert len(parameters) == len(list(plain.parameters()))
    assert all(parameters[layer.name].shape == layer.shape for layer in saved.analysed())
    assert "head.weight" in parameters
    assert "token_emb.weight" not in parameters
    assert unwrapped(model) is plain


def test_hashes_are_those_of_the_saved_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = made("gpt2", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    hashes = {layer.name: layer.content_hash() for layer in Checkpoint(tmp_path, 0).analysed()}
    assert {layer.name: layer.content_hash() for layer in layout(model)} == hashes


def test_a_part_called_module_is_no_wrapper() -> None:
    model = nn.ModuleDict({"module": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
    assert unwrapped(model) is model
    assert unwrapped(nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))).__class__ is nn.Sequential


def test_frozen_parameters_are_watched() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    assert set(watched(model)) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_what_cannot_be_measured_is_left_out_with_a_reason() -> None:
    model = nn.ModuleDict(
        {
            "good": nn.Linear(3, 4),
            "meta": nn.Linear(3, 4, device="meta"),
            "lazy": nn.LazyLinear(4),
            "bits": nn.ParameterList([nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)]),
            "empty": nn.ParameterList([nn.Parameter(torch.zeros(0, 4))]),
        }
    )
    reasons = unmeasured(model)
    assert set(watched(model)) == {"good.weight", "good.bias"}
    assert reasons["bits.0"] == "its dtype is uint8"
    assert reasons["meta.weight"] == reasons["lazy.weight"] == "it is not initialised yet"
    assert reasons["empty.0"] == "it is empty"
    assert [layer.name for layer in layout(model)] == ["good.weight"]


def test_a_model_without_matrices_has_no_layers() -> None:
    assert layout(nn.LayerNorm(4)) == []


@pytest.mark.parametrize("wanted", [7, ["mlp", 3], [None]])
def test_what_is_no_name_is_refused_before_training(wanted: Any) -> None:
    for keyword in ("layers", "activations"):
        with pytest.raises(ToposcopeError, match=f"{keyword}: .* is neither a name nor a list of names"):
            Monitor(**{keyword: wanted, "batch": torch.zeros(1)})
