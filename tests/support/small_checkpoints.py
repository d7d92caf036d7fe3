"""What the tests of this room share: weights, a writer for every format, and the shape of an error."""

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from toposcope.errors import ToposcopeError

Weights = dict[str, Tensor]
Writer = Callable[[Path, int, Weights], Path]


@contextmanager
def refused(path: Path, *words: str) -> Iterator[None]:
    """Expect the one error of the library: one readable line that names the file at fault and holds the words."""
    with pytest.raises(ToposcopeError) as caught:
        yield
    assert_refused(caught.value, path, *words)


def assert_refused(error: ToposcopeError, path: Path, *words: str) -> None:
    """One readable line that names the file at fault and holds the words."""
    message = str(error)
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


OPTIMIZER = {"state": {0: {"exp_avg": torch.zeros(3, 3), "step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}


def torch_file(key: str | None = None, suffix: str = ".pt", zipped: bool = True, prefix: str = "") -> Writer:
    """``step_000100.pt``, its weights at the top level or under a key."""

    def write(folder: Path, step: int, weights: Weights) -> Path:
        path = folder / f"step_{step:06d}{suffix}"
        content: Any = {prefix + name: tensor for name, tensor in weights.items()}
        if key is not None:
            content = {"step": step, key: content, "optimizer": OPTIMIZER}
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        return path

    return write


def lightning_file(folder: Path, step: int, weights: Weights) -> Path:
    """``epoch=3-step=100.ckpt``, its names under the attribute that holds the model."""
    path = folder / f"epoch=3-step={step}.ckpt"
    content = {
        "epoch": 3,
        "global_step": step,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{name}": tensor for name, tensor in weights.items()},
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {},
        "optimizer_states": [OPTIMIZER],
        "lr_schedulers": [],
        "hparams_name": "args",
        "hyper_parameters": argparse.Namespace(lr=0.1, folder=Path("data")),
    }
    torch.save(content, path)
    return path


def nanogpt_file(folder: Path, step: int, weights: Weights) -> Path:
    """``ckpt_100.pt``, of a compiled model."""
    path = folder / f"ckpt_{step}.pt"
    content = {
        "model": {f"_orig_mod.{name}": tensor for name, tensor in weights.items()},
        "optimizer": OPTIMIZER,
        "model_args": {"n_layer": 2, "bias": False},
        "iter_num": step,
        "best_val_loss": torch.tensor(3.5),
        "config": {"dataset": "text", "learning_rate": 6e-4},
    }
    torch.save(content, path)
    return path


def composer_file(folder: Path, step: int, weights: Weights) -> Path:
    """``ep0-ba100-rank0.pt``."""
    path = folder / f"ep0-ba{step}-rank0.pt"
    torch.save({"state": {"model": weights, "optimizers": {"AdamW": OPTIMIZER}, "seed": 1}, "rng": []}, path)
    return path


def distributed_folder(*keys: str, name: str = "step-{}", prefix: str = "", one_file: bool = True) -> Writer:
    """``step-100``, a folder of torch.distributed.checkpoint, written by this one process."""

    def write(folder: Path, step: int, weights: Weights) -> Path:
        path = folder / name.format(step)
        content: Any = {prefix + name: tensor for name, tensor in weights.items()}
        beside: Any = {"optimizer": OPTIMIZER, "train_state": {"step": torch.tensor(step)}}
        for k, key in enumerate(reversed(keys)):
            content = {key: content} | (beside if k == 0 else {})
        if not keys:
            content |= beside
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group
            save(content, storage_writer=FileSystemWriter(path, single_file_per_rank=one_file), no_dist=True)
        return path.parent if name.count("/") else path

    return write


def lightning_folder(folder: Path, step: int, weights: Weights) -> Path:
    """``epoch=3-step=100.ckpt``, a folder as Lightning's FSDP strategy leaves it."""
    path = distributed_folder("model", name="epoch=3-step={}.ckpt", prefix="model.")(folder, step, weights)
    torch.save({"pytorch-lightning_version": "2.5.0", "global_step": step}, path / "meta.pt")
    return path


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
    "pt module of DistributedDataParallel": torch_file("module", prefix="module."),
    "pt state_dict of torch before 1.6": torch_file("state_dict", zipped=False, prefix="module._orig_mod."),
    "Lightning": lightning_file,
    "nanoGPT": nanogpt_file,
    "Composer": composer_file,
    "torchtitan": distributed_folder(),
    "OLMo-core": distributed_folder("model", name="step{}/model_and_optim"),
    "accelerate": distributed_folder("model", name="checkpoint-{}/pytorch_model_fsdp_0"),
    "Composer folder": distributed_folder("state", "model", name="ep0-ba{}", one_file=False),
    "distributed app": distributed_folder("app", "model"),
    "Lightning folder": lightning_folder,
    "safetensors": safetensors_file,
    "checkpoint-N safetensors": model_folder(".safetensors"),
    "stepN safetensors": model_folder(".safetensors", name="step{}"),
    "checkpoint-N sharded safetensors": model_folder(".safetensors", n_shards=3),
    "checkpoint-N bin": model_folder(".bin"),
    "checkpoint-N sharded bin": model_folder(".bin", n_shards=3),
}
every_format = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
