"""A series of three small checkpoints, as a command is given one."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from small_checkpoints import random_weights

SHAPES = {"token_emb.weight": (20, 6), "layers.0.mlp.fc1.weight": (14, 6), "layers.0.mlp.fc2.weight": (6, 14)}


def weights(seed: int) -> dict[str, torch.Tensor]:
    """The weights of one checkpoint."""
    return random_weights(SHAPES, seed)


def write_series(folder: Path, seed: int = 0) -> Path:
    """Three checkpoints."""
    folder.mkdir(parents=True)
    for step in (0, 10, 20):
        save_file(weights(100 * seed + step), folder / f"step_{step:03d}.safetensors")
    return folder
