"""A checkpoint in memory: the tensors of a model as they are now, and the files that would lie next to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.checkpoints.sources.source import Bytes, Files

if TYPE_CHECKING:
    from torch import Tensor


class CheckpointInMemory(Checkpoint):
    """Tensors of torch, shared rather than copied; those on a GPU are fetched layer by layer."""

    def __init__(
        self,
        name: str,
        tensors: "Mapping[str, Tensor]",
        files: Mapping[str, bytes],
        *,
        only_parameters: bool = False,
    ) -> None:
        place = _Place(name, {key: _File(f"{name}/{key}", content) for key, content in files.items()})
        super().__init__(place, 0)
        listing = [in_memory(name, tensor) for name, tensor in tensors.items()]
        self.__dict__.update(_only_parameters=only_parameters, _listing=listing)


@dataclass(frozen=True)
class _File:
    """The content of a file (see `StoredFile`)."""

    location: str
    content: bytes
    version: str = ""
    sha256: str = ""

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, start: int, stop: int) -> Bytes:
        return np.frombuffer(self.content[start:stop], np.uint8)


@dataclass(frozen=True)
class _Place:
    """Where the files of such a checkpoint are (see `Source`)."""

    spec: str
    content: Files = field(default_factory=dict)

    def files(self) -> Files:
        return self.content

    def child(self, name: str) -> "_Place":
        return _Place(f"{self.spec}/{name}")

    def beside(self, _name: str) -> None:
        return None
