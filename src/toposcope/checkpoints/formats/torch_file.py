"""One file written by ``torch.save``; unpickled with ``weights_only=True``, so nothing in it is executed."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toposcope.checkpoints.formats import Entry
from toposcope.errors import ToposcopeError

ENDINGS = {".pt", ".pth", ".bin", ".ckpt"}
WEIGHT_KEYS = ("model_state_dict", "state_dict", "model")


def claims(path: Path) -> bool:
    """By its ending."""
    return path.suffix in ENDINGS and path.is_file()


def entries(path: Path) -> list[Entry]:
    """List the tensors; their data is memory-mapped and stays on disk until read."""
    weights = _weights(_load(path))
    if not weights:
        raise ToposcopeError(f"{path}: no tensors at the top level or under {', '.join(WEIGHT_KEYS)}")
    return [
        Entry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.detach)
        for name, tensor in weights.items()
    ]


def _load(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocol, of files that are then refused
            return _unpickle(path)
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and "global" in str(error).lower():
            raise ToposcopeError(
                f"{path}: holds a pickled object other than tensors, or is damaged; nothing was executed. "
                "Save its state_dict() alone"
            ) from error
        raise ToposcopeError(f"{path}: damaged, or not a torch file; fetch or save it again") from error


def _unpickle(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        # Files from before torch 1.6 are not zip archives and cannot be mapped.
        if "mmap can only be used" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)


def _weights(content: object) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        return {}
    for key in WEIGHT_KEYS:
        if isinstance(content.get(key), Mapping):
            return _tensors(content[key])
    return _tensors(content)


def _tensors(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
