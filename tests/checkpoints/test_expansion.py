"""A few bytes do not become gigabytes."""

from pathlib import Path

import pytest
import torch
from small_checkpoints import refused

from toposcope.checkpoints import Checkpoint


def test_a_matrix_without_strides_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step_1.pt"
    torch.save({"w": torch.ones(64).as_strided((16384, 16384), (0, 0))}, path)
    assert path.stat().st_size < 2000
    with refused(path, "by repeating them"):
        Checkpoint(path, 1).layers()


def test_many_matrices_without_strides_are_refused(tmp_path: Path) -> None:
    path, few = tmp_path / "step_1.pt", torch.ones(64)
    torch.save({f"layers.{k}.w": few.as_strided((2048, 2048), (0, 0)) for k in range(40)}, path)
    with refused(path, "many tensors of the same numbers"):
        Checkpoint(path, 1).layers()


@pytest.mark.parametrize("legacy", [False, True])
def test_masks_and_shared_layers_are_read(legacy: bool, tmp_path: Path) -> None:
    path, shared = tmp_path / "step_1.pt", torch.randn(2048, 2048)
    weights = {f"layers.{k}.w": shared for k in range(24)}
    torch.save(
        {**weights, "mask": torch.ones(1, 1).expand(2048, 2048)}, path, _use_new_zipfile_serialization=not legacy
    )
    layers = {layer.name: layer for layer in Checkpoint(path, 1).layers()}
    assert len(layers) == 24
    assert layers["layers.23.w"].shape == (2048, 2048)
