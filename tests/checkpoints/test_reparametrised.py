"""Weights that torch computes from several stored tensors are named and counted, and none of these is measured."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from toposcope.checkpoints import Checkpoint


class Halved(nn.Module):
    """A parametrisation of one's own."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


WAYS: dict[str, Callable[[nn.Module], object]] = {
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.4),  # type: ignore[no-untyped-call]
    "weight norm": parametrizations.weight_norm,
    "weight norm, before torch 2": nn.utils.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "spectral norm, before torch 2": nn.utils.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "one's own": lambda layer: parametrize.register_parametrization(layer, "weight", Halved()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_weight_in_parts_is_not_measured_but_counted(way: str, tmp_path: Path) -> None:
    model = nn.ModuleDict({"fc1": nn.Linear(7, 12, bias=False), "plain": nn.Linear(12, 7, bias=False)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        WAYS[way](model["fc1"])
    torch.save(model.state_dict(), tmp_path / "step_1.pt")
    checkpoint = Checkpoint(tmp_path / "step_1.pt", 1)
    assert [layer.name for layer in checkpoint.analysed()] == ["plain.weight"]
    assert checkpoint.weights.coverage().share <= 0.5
    assert any("not measured: fc1.weight: computed by torch from several tensors" in note for note in checkpoint.notes)


def test_parts_that_do_not_fit_stay_as_they_are(tmp_path: Path) -> None:
    tensors = {"a.weight_v": torch.ones(4, 3), "a.weight_g": torch.ones(4, 3), "b.weight_orig": torch.ones(4, 3)}
    torch.save(tensors, tmp_path / "step_1.pt")
    assert len(Checkpoint(tmp_path / "step_1.pt", 1).layers()) == 3
