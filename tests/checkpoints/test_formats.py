"""Every format gives the same weights, exactly and lazily; damage is named."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from safetensors.torch import save_file
from small_checkpoints import (
    ANALYSED,
    WRITERS,
    Writer,
    every_format,
    family_weights,
    model_folder,
    random_weights,
    refused,
)
from small_checkpoints import safetensors_file as write_safetensors
from stored_tensors import tensor_of
from torch import Tensor, nn

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.checkpoints.formats import Entry, entries, is_checkpoint
from toposcope.checkpoints.formats.entry import in_memory, slice_of
from toposcope.checkpoints.sources import Bytes, LocalSource, StoredFile

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def bits(tensor: Tensor) -> Any:
    """The bytes of a tensor: unlike values, they tell -0.0 from 0.0 and one NaN from another."""
    return tensor.contiguous().view(torch.uint8).numpy()


def listed(path: Path) -> list[tuple[str, str, tuple[int, ...], str, str]]:
    """All there is to know of the analysed layers of a checkpoint."""
    layers = Checkpoint(path, 1).analysed()
    return [(layer.name, layer.role, layer.shape, layer.dtype, layer.content_hash()) for layer in layers]


# What is read


@every_format
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_same_weights_in_every_format(write: Writer, dtype: torch.dtype, tmp_path: Path) -> None:
    weights = family_weights(dtype=dtype)
    path = write(tmp_path, 100, weights)
    assert is_checkpoint(LocalSource(path).files())
    save_file(weights, tmp_path / "reference.safetensors")
    assert listed(path) == listed(tmp_path / "reference.safetensors")
    assert [name for name, *_ in listed(path)] == ANALYSED
    assert Checkpoint(path, 100).tensors().keys() == weights.keys()
    for layer in Checkpoint(path, 100).layers():
        tensor = tensor_of(layer)
        assert (tensor.dtype, tuple(tensor.shape)) == (dtype, layer.shape)
        assert_array_equal(bits(tensor), bits(weights[layer.name]))
        assert layer.n_bytes == tensor.nbytes
        assert layer.source == str(path)


@every_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_pattern_is_read_as_it_was_written(write: Writer, dtype: torch.dtype, tmp_path: Path) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(256, 256)
    (layer,) = Checkpoint(write(tmp_path, 1, {"head.weight": every.view(dtype)}), 1).analysed()
    assert torch.equal(tensor_of(layer).view(torch.int16), every)


def test_a_hash_depends_on_dtype_shape_and_every_bit() -> None:
    def hash_of(tensor: Tensor) -> str:
        return Layer("w", "other", False, "memory", in_memory("w", tensor)).content_hash()

    W = torch.arange(12.0).view(3, 4)
    different = [W, W.T, W.reshape(4, 3), W.half(), W.bfloat16(), W.double(), W.view(torch.int32), -W, W + 0]
    different[-1][2, 3] = float(np.nextafter(np.float32(11), np.float32(12)))
    assert len({hash_of(tensor) for tensor in different}) == len(different)
    assert hash_of(W.T) == hash_of(W.T.contiguous())
    assert hash_of(torch.zeros(2, 2)) != hash_of(-torch.zeros(2, 2))


def test_views_parameters_and_shared_storage(tmp_path: Path) -> None:
    wide = torch.randn(8, 6)
    weights = {"a.weight": wide.T, "b.weight": wide[2:5], "c.weight": wide[:, ::2], "d.weight": nn.Parameter(wide)}
    torch.save(weights, tmp_path / "step_1.pt")
    save_file(
        {name: tensor.detach().contiguous().clone() for name, tensor in weights.items()}, tmp_path / "plain.safetensors"
    )
    for entry in [entry for path in sorted(tmp_path.iterdir()) for entry in Checkpoint(path, 1).entries]:
        rows = [tensor_of(slice_of(entry, k, "row")) for k in range(entry.shape[0])]
        assert torch.equal(torch.stack(rows), weights[entry.name])
    assert listed(tmp_path / "step_1.pt") == listed(tmp_path / "plain.safetensors")


def test_only_floating_point_matrices_are_layers(tmp_path: Path) -> None:
    weights = {
        "a.weight": torch.ones(2, 3),
        "vector.weight": torch.ones(6),
        "conv.weight": torch.ones(2, 3, 1),
        "mask": torch.ones(2, 3, dtype=torch.bool),
        "ids": torch.ones(2, 3, dtype=torch.int64),
        "attn.bias": torch.ones(2, 3),
        "no_rows.weight": torch.ones(0, 3),
        "no_columns.weight": torch.ones(3, 0),
    }
    for name, write in WRITERS.items():
        (tmp_path / name).mkdir()
        checkpoint = Checkpoint(write(tmp_path / name, 1, weights), 1)
        assert [layer.name for layer in checkpoint.layers()] == ["a.weight", "conv.weight"], name


def test_a_fingerprint_changes_with_a_file(tmp_path: Path) -> None:
    for path in (write_safetensors(tmp_path, 1, family_weights()), model_folder(".bin")(tmp_path, 2, family_weights())):
        checkpoint = Checkpoint(path, 1)
        before = checkpoint.fingerprint()
        assert checkpoint.fingerprint() == before
        changed = path if path.is_file() else path / "pytorch_model.bin"
        os.utime(changed, ns=(1, 1))
        touched = checkpoint.fingerprint()
        changed.write_bytes(changed.read_bytes() + b"x")
        os.utime(changed, ns=(1, 1))
        assert len({before, touched, checkpoint.fingerprint()}) == 3


# Laziness


class Watched:
    """A file that remembers which bytes were read."""

    def __init__(self, file: StoredFile) -> None:
        self.location, self.size, self.version, self.sha256 = file.location, file.size, file.version, file.sha256
        self.file = file
        self.read_ranges: list[tuple[int, int]] = []

    def read(self, start: int, stop: int) -> Bytes:
        self.read_ranges.append((start, stop))
        return self.file.read(start, stop)


@every_format
def test_only_the_bytes_of_the_rows_that_are_asked_for_are_read(write: Writer, tmp_path: Path) -> None:
    weights = random_weights({"head.weight": (64, 256), "other.weight": (512, 256)})
    path = write(tmp_path, 1, weights)
    files = {name: Watched(file) for name, file in LocalSource(path).files().items()}
    head = next(entry for entry in entries(str(path), files) if entry.name.endswith("head.weight"))
    listing = sum(stop - start for file in files.values() for start, stop in file.read_ranges)
    assert listing < weights["other.weight"].nbytes
    for file in files.values():
        file.read_ranges.clear()
    assert torch.equal(tensor_of(head, 10, 12), weights["head.weight"][10:12])
    # A chunk of torch.distributed.checkpoint is an archive of its own, whose end has to be looked at.
    assert sum(stop - start for file in files.values() for start, stop in file.read_ranges) < 80_000


def test_a_layer_that_cannot_be_read_is_named() -> None:
    def read(start: int, stop: int) -> NDArray[Any]:
        raise RuntimeError("the disk\nis gone")

    layer = Layer("head.weight", "head", False, "run/step_1.pt", Entry("head.weight", (2, 2), "float32", read))
    for attempt in (layer.read, layer.matrix, layer.content_hash):
        with refused(Path("run/step_1.pt"), "head.weight", "the disk is gone"):
            attempt()


# Damage

NOT_CHECKPOINTS: dict[str, bytes] = {
    "empty": b"",
    "zeros": bytes(1000),
    "text": b"hello",
    "web page": b"<!DOCTYPE html><html><body>Not Found</body></html>",
    "error message": b'{"error": "Entry not found"}',
    "git-lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 12345\n",
    "noise": np.random.default_rng(0).bytes(3000),
    "pickled number": pickle.dumps(5),
    "pickled list": pickle.dumps([1, 2]),
    "zip without end": b"PK\x03\x04" + bytes(500),
    "a text that begins as a pickle does": b"Repository not found",
    "a pickle without a value": b"\x80\x02.",
}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".safetensors"])
@pytest.mark.parametrize("content", NOT_CHECKPOINTS.values(), ids=NOT_CHECKPOINTS)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_what_is_no_checkpoint_is_refused(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"step_1{suffix}"
    path.write_bytes(content)
    with refused(path):
        Checkpoint(path, 1).layers()


@pytest.mark.parametrize(
    "content",
    [{}, {"epoch": 3}, {"head.weight": [[1.0]]}, {"model_state_dict": {}}, torch.ones(2, 2)],
)
def test_a_torch_file_without_weights_is_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / "step_1.pt"
    torch.save(content, path)
    with refused(path, "no tensors", "model_state_dict, state_dict, model"):
        Checkpoint(path, 1).layers()


@pytest.mark.parametrize("name", ["notes.txt", "config.json", "step_1", "step_1.onnx", "step_1.pt.tmp", "folder"])
def test_other_files_and_folders_are_no_checkpoints(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "optimizer.pt").touch()
    else:
        path.touch()
    files = LocalSource(path).files()
    assert not is_checkpoint(files)
    with refused(path, "not a checkpoint in a known format"):
        entries(str(path), files)


def test_safetensors_come_before_pickles(tmp_path: Path) -> None:
    folder = model_folder(".safetensors")(tmp_path, 1, family_weights(seed=1))
    torch.save(family_weights(seed=2), folder / "pytorch_model.bin")
    save_file(family_weights(seed=1), tmp_path / "reference.safetensors")
    assert listed(folder) == listed(tmp_path / "reference.safetensors")
