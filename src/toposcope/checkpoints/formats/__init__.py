"""Checkpoint formats, one a file.

A format is a module of this package with two functions; adding a format means adding its file.

- ``claims(path) -> bool``: is the file or folder at `path` one checkpoint of this format? From names alone.
- ``entries(path) -> list[Entry]``: its tensors, without reading their data.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from torch import Tensor

from toposcope.errors import ToposcopeError


@dataclass(frozen=True)
class Entry:
    """One stored tensor.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : str
        As torch names it, for example ``bfloat16``.
    read : callable
        Returns the tensor, on the CPU, as stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]


@cache
def _formats() -> list[ModuleType]:
    return [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]


def is_checkpoint(path: Path) -> bool:
    """Tell whether some format claims a path."""
    return any(f.claims(path) for f in _formats())


def entries(path: Path) -> list[Entry]:
    """Return the tensors stored in one checkpoint.

    Raises
    ------
    ToposcopeError
        If no format claims the path, or the file is damaged or unsafe.
    """
    for module in _formats():
        if module.claims(path):
            found: list[Entry] = module.entries(path)
            return found
    raise ToposcopeError(
        f"{path}: not a checkpoint in a known format (.safetensors, .pt, .pth, .bin, .ckpt or a model folder)"
    )
