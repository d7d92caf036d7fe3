"""What a checkpoint holds, as torch reads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.dtypes import as_tensor


def tensor_of(stored: Entry | Layer, start: int = 0, stop: int | None = None) -> Tensor:
    """Some rows of a stored tensor, bit for bit."""
    entry = stored.entry if isinstance(stored, Layer) else stored
    return as_tensor(entry.whole() if stop is None and not start else entry.read(start, stop or 0), entry.dtype)


def saved(path: Path, content: object, **how: Any) -> Path:
    """Write an object with ``torch.save``."""
    torch.save(content, path, **how)
    return path


def assert_holds(found: Checkpoint, weights: Mapping[str, torch.Tensor]) -> None:
    """A checkpoint has these tensors and no others."""
    assert sorted(entry.name for entry in found.entries) == sorted(weights)
    for entry in found.entries:
        assert torch.equal(tensor_of(entry), weights[entry.name].detach())
