"""Pruned and normalised weights are read as the model computes them, whatever parts torch stores."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from toposcope.checkpoints import Checkpoint


class Halved(nn.Module):
    """A parametrisation of one's own."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


def pruned(layer: nn.Linear) -> None:
    prune.l1_unstructured(layer, "weight", amount=0.4)  # type: ignore[no-untyped-call]


def settled(layer: nn.Linear, normalise: Callable[[nn.Linear], object]) -> None:
    """Normalise the weight; some passes settle the vectors of a spectral norm, and evaluation keeps them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normalise(layer)
    layer.train()
    for _ in range(20):
        layer(torch.randn(2, layer.in_features))
    layer.eval()
    layer(torch.randn(2, layer.in_features))


WAYS: dict[str, tuple[Callable[[nn.Linear], object], str]] = {
    "pruned": (pruned, "pruned"),
    "weight norm": (parametrizations.weight_norm, "weight norm"),
    "weight norm by columns": (lambda layer: parametrizations.weight_norm(layer, dim=1), "weight norm"),
    "weight norm, before torch 2": (lambda layer: settled(layer, nn.utils.weight_norm), "weight norm"),
    "spectral norm": (lambda layer: settled(layer, parametrizations.spectral_norm), "spectral norm"),
    "spectral norm, before torch 2": (lambda layer: settled(layer, nn.utils.spectral_norm), "spectral norm"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_weight_is_what_the_model_computes(way: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"fc1": nn.Linear(7, 12), "plain": nn.Linear(12, 7)})
    apply, how = WAYS[way]
    apply(model["fc1"])  # type: ignore[arg-type]
    torch.save(model.state_dict(), tmp_path / "step_1.pt")
    found = {layer.name: layer for layer in Checkpoint(tmp_path / "step_1.pt", 1).analysed()}
    assert sorted(found) == ["fc1.weight", "plain.weight"]
    weight = model["fc1"].weight
    assert isinstance(weight, torch.Tensor)
    expected = torch.Tensor.detach(weight).numpy()
    assert np.allclose(found["fc1.weight"].matrix(), expected, atol=1e-6)
    assert (found["fc1.weight"].how, found["plain.weight"].how) == (how, "")
    assert np.array_equal(found["fc1.weight"].read(3, 5), found["fc1.weight"].read()[3:5])


@pytest.mark.parametrize(
    "apply",
    [lambda layer: parametrize.register_parametrization(layer, "weight", Halved()), parametrizations.orthogonal],
    ids=["one's own", "orthogonal"],
)
def test_a_parametrisation_that_is_not_known_is_not_measured_but_counted(
    apply: Callable[[nn.Module], object], tmp_path: Path
) -> None:
    layers = nn.ModuleDict({"fc1": nn.Linear(5, 6, bias=False), "fc2": nn.Linear(6, 5, bias=False)})
    apply(layers["fc1"])
    torch.save(layers.state_dict(), tmp_path / "step_1.pt")
    checkpoint = Checkpoint(tmp_path / "step_1.pt", 1)
    assert [layer.name for layer in checkpoint.analysed()] == ["fc2.weight"]
    assert (
        "stored before a parametrisation that is not known 50% (fc1.weight)" in checkpoint.weights.coverage().sentence()
    )
    assert any("not measured: fc1.weight" in note for note in checkpoint.notes)


def test_parts_that_do_not_fit_stay_as_they_are(tmp_path: Path) -> None:
    tensors = {"a.weight_v": torch.ones(4, 3), "a.weight_g": torch.ones(4, 3), "b.weight_orig": torch.ones(4, 3)}
    torch.save(tensors, tmp_path / "step_1.pt")
    assert all(layer.how == "" for layer in Checkpoint(tmp_path / "step_1.pt", 1).layers())
