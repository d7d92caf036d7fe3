"""What the tests of this room share: weights, a writer for every format, and the shape of an error."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from toposcope.errors import ToposcopeError

Weights = dict[str, Tensor]
Writer = Callable[[Path, int, Weights], Path]


@contextmanager
def refused(path: Path, *words: str) -> Iterator[None]:
    """Expect the one error of the library: one readable line that names the file at fault and holds the words."""
    with pytest.raises(ToposcopeError) as caught:
        yield
    message = str(caught.value)
    assert message.splitlines() == [message]
    assert str(path) in message
    # A message that quotes a file's content at length is no message.
    assert len(message) - len(str(path)) < 400
    for word in words:
        assert word in message


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0, dtype: torch.dtype = torch.float32) -> Weights:
    """Tensors of these shapes, by name."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def family_weights(seed: int = 0, dtype: torch.dtype = torch.float32) -> Weights:
    """A small model of our own family, biases and norms included."""
    shapes: dict[str, tuple[int, ...]] = {"token_emb.weight": (9, 4), "pos_emb.weight": (6, 4), "head.weight": (9, 4)}
    for k in range(2):
        shapes |= {
            f"layers.{k}.ln1.weight": (4,),
            f"layers.{k}.attn.qkv.weight": (12, 4),
            f"layers.{k}.attn.qkv.bias": (12,),
            f"layers.{k}.attn.proj.weight": (4, 4),
            f"layers.{k}.mlp.fc1.weight": (16, 4),
            f"layers.{k}.mlp.fc2.weight": (4, 16),
        }
    return random_weights(shapes, seed, dtype)


ANALYSED = [
    "head.weight",
    *(f"layers.{k}.{name}.weight" for k in range(2) for name in ("attn.proj", "attn.qkv", "mlp.fc1", "mlp.fc2")),
]
"""The layers of `family_weights` that are measured, in order."""


def torch_file(key: str | None = None, suffix: str = ".pt", zipped: bool = True) -> Writer:
    """``step_000100.pt``, its weights at the top level or under a key."""

    def write(folder: Path, step: int, weights: Weights) -> Path:
        path = folder / f"step_{step:06d}{suffix}"
        content: Any = weights
        if key is not None:
            content = {"step": step, key: weights, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3, 3)}}}}
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        return path

    return write


def safetensors_file(folder: Path, step: int, weights: Weights) -> Path:
    """``step_000100.safetensors``."""
    path = folder / f"step_{step:06d}.safetensors"
    save_file(weights, path)
    return path


def model_folder(suffix: str, *, name: str = "checkpoint-{}", n_shards: int = 1) -> Writer:
    """``checkpoint-100``, a model folder as transformers writes it, with what else a Trainer leaves there."""
    stem, save = ("model", save_file) if suffix == ".safetensors" else ("pytorch_model", torch.save)

    def write(folder: Path, step: int, weights: Weights) -> Path:
        path = folder / name.format(step)
        path.mkdir()
        torch.save({"state": {}}, path / "optimizer.pt")
        (path / "config.json").write_text('{"model_type": "ours"}')
        if n_shards == 1:
            save(weights, path / f"{stem}{suffix}")
            return path
        weight_map: dict[str, str] = {}
        for k in range(n_shards):
            part = list(weights)[k::n_shards]
            shard = f"{stem}-{k + 1:05d}-of-{n_shards:05d}{suffix}"
            save({key: weights[key] for key in part}, path / shard)
            weight_map |= dict.fromkeys(part, shard)
        (path / f"{stem}{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return path

    return write


WRITERS: dict[str, Writer] = {
    "pt": torch_file(),
    "pt model_state_dict": torch_file("model_state_dict"),
    "pt state_dict": torch_file("state_dict"),
    "pt model": torch_file("model"),
    "pt of torch before 1.6": torch_file("model_state_dict", zipped=False),
    "pth": torch_file(suffix=".pth"),
    "bin": torch_file(suffix=".bin"),
    "ckpt": torch_file("state_dict", suffix=".ckpt"),
    "safetensors": safetensors_file,
    "checkpoint-N safetensors": model_folder(".safetensors"),
    "stepN safetensors": model_folder(".safetensors", name="step{}"),
    "checkpoint-N sharded safetensors": model_folder(".safetensors", n_shards=3),
    "checkpoint-N bin": model_folder(".bin"),
    "checkpoint-N sharded bin": model_folder(".bin", n_shards=3),
}
every_format = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
