"""One checkpoint: its layers, named and with roles, none of them read before it is asked for."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from toposcope.checkpoints import formats, roles
from toposcope.errors import ToposcopeError


@dataclass(frozen=True)
class Layer:
    """One weight matrix of a checkpoint.

    Attributes
    ----------
    name : str
        The tensor's name in the file.
    role : str
        See METHODS 1.
    shape : tuple of int
        As stored.
    dtype : str
    transposed : bool
        Stored as (inputs, outputs).
    source : str
        The checkpoint, for messages.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    transposed: bool
    source: str
    _read: Callable[[], Tensor]

    @property
    def n_bytes(self) -> int:
        """Size of the stored data."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * int(getattr(torch, self.dtype).itemsize)

    def read(self) -> Tensor:
        """Read the tensor as stored, on the CPU."""
        try:
            return self._read()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ToposcopeError(f"{self.source}: layer {self.name} cannot be read: {reason}") from error

    def matrix(self) -> Tensor:
        """Read the matrix with one neuron a row, its incoming weights along the columns."""
        tensor = self.read()
        return tensor.T if self.transposed else tensor

    def content_hash(self) -> str:
        """Return the SHA-256 of dtype, shape and bytes; equal weights have equal hashes in every format."""
        digest = hashlib.sha256(f"{self.dtype}{list(self.shape)}".encode())
        digest.update(self.read().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a run at one step.

    Attributes
    ----------
    path : Path
        A file or a model folder.
    step : int
    """

    path: Path
    step: int

    def __reduce__(self) -> tuple[type["Checkpoint"], tuple[Path, int]]:
        # Open files stay behind when a checkpoint is handed to another process.
        return type(self), (self.path, self.step)

    @cached_property
    def _layers(self) -> list[Layer]:
        entries = [e for e in formats.entries(self.path) if _is_matrix(e)]
        transposed = roles.stored_transposed({e.name: e.shape for e in entries})
        layers = [
            Layer(e.name, roles.role_of(e.name), e.shape, e.dtype, e.name in transposed, str(self.path), e.read)
            for e in entries
        ]
        return sorted(_with_tied_head(layers, self.path), key=lambda layer: _natural(layer.name))

    def layers(self) -> list[Layer]:
        """Return every 2-D floating-point weight, in the natural order of their names; no data is read."""
        return list(self._layers)

    def analysed(self) -> list[Layer]:
        """Return the layers measured by default: all but embeddings and positions, a tied head once (METHODS 1).

        Raises
        ------
        ToposcopeError
            If there is none.
        """
        found = [layer for layer in self._layers if layer.role not in roles.NOT_ANALYSED]
        if not found:
            raise ToposcopeError(f"{self.path}: no 2-D weight besides embeddings; there is nothing to measure")
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Read every tensor, matrices or not, by name."""
        return {entry.name: entry.read() for entry in formats.entries(self.path)}

    def n_parameters(self) -> int:
        """Count the floating-point numbers stored, masks and rotary tables left out, a tied head once.

        From the header, but for the head and the embedding where both are stored in one shape: these are compared.
        """
        entries = [e for e in formats.entries(self.path) if _is_float(e) and not _BUFFER.search(e.name)]
        count = sum(math.prod(e.shape) for e in entries)
        by_role = {layer.role: layer for layer in self._layers if layer.role in ("head", "embed")}
        head, embedding = by_role.get("head"), by_role.get("embed")
        if head and embedding and head.shape == embedding.shape and head.content_hash() == embedding.content_hash():
            count -= math.prod(head.shape)
        return count

    def fingerprint(self) -> str:
        """Return name, size and time of change of the files, to know an unchanged checkpoint without reading it."""
        files = sorted(p for p in self.path.iterdir() if p.is_file()) if self.path.is_dir() else [self.path]
        return ";".join(f"{f.name}:{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files)


_BUFFER = re.compile(r"(attn|attention)\.(bias|masked_bias)$|inv_freq$")
"""Causal masks and rotary tables, which old files of GPT-2 and GPT-NeoX store beside the weights."""


def _is_float(entry: formats.Entry) -> bool:
    return entry.dtype.startswith(("float", "bfloat"))


def _is_matrix(entry: formats.Entry) -> bool:
    return len(entry.shape) == 2 and _is_float(entry) and 0 not in entry.shape and not entry.name.endswith("bias")


def _with_tied_head(layers: list[Layer], path: Path) -> list[Layer]:
    """Give the embedding the role of the head where the file stores no head of its own: the two are one matrix."""
    embeddings = [layer for layer in layers if layer.role == "embed"]
    if any(layer.role == "head" for layer in layers) or len(embeddings) != 1 or not _may_be_tied(path):
        return layers
    return [replace(layer, role="head") if layer is embeddings[0] else layer for layer in layers]


def _may_be_tied(path: Path) -> bool:
    config = (path if path.is_dir() else path.parent) / "config.json"
    try:
        return json.loads(config.read_bytes()).get("tie_word_embeddings", True) is not False
    except FileNotFoundError:
        return True
    except (ValueError, AttributeError, OSError) as error:
        raise ToposcopeError(f"{config}: not a model configuration ({error}); fetch it again, or remove it") from error


def _natural(name: str) -> list[tuple[int, str]]:
    """Order ``layers.2`` before ``layers.10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
