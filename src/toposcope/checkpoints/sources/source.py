"""What a source is: a place where files lie, and files that are read by ranges of bytes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError

Bytes = NDArray[np.uint8]

MOST_FILES = 1_000_000
"""A place with more files than this is no series of checkpoints, but a disk."""
DEPTH = 3
"""Folders, one in the other, that are looked into below a place: those of ``runs/small-1/checkpoints/step_1.pt``."""


class CheckpointError(ToposcopeError):
    """A checkpoint that is not whole or not safe, of a kind the doctor can name.

    Attributes
    ----------
    kind : str
        ``missing shard``, ``index``, ``truncated``, ``unsafe``, ``damaged``, ``changed`` or ``unreachable``.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[type["CheckpointError"], tuple[str, str]]:
        # An exception that crosses processes is made anew from what it was called with.
        return type(self), (str(self), self.kind)


class StoredFile(Protocol):
    """One file of a source.

    Attributes
    ----------
    location : str
        What messages call it; holds no password.
    size : int
        Bytes.
    version : str
        Changes when the content may have changed.
    sha256 : str
        Of the whole file, as its source publishes it; empty if it publishes none.
    """

    @property
    def location(self) -> str:
        """What messages call it."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def version(self) -> str:
        """What changes with the content."""
        ...

    @property
    def sha256(self) -> str:
        """The published hash, or nothing."""
        ...

    def read(self, start: int, stop: int) -> Bytes:
        """Read bytes ``start`` to ``stop``: exactly these, or an error.

        Raises
        ------
        CheckpointError
            If the file is shorter, has changed since it was listed, or cannot be reached.
        """
        ...


Files = Mapping[str, StoredFile]
"""Files by their names relative to a source, parts joined by ``/``."""


class Source(Protocol):
    """Where files lie: small, comparable and picklable; nothing is opened before `files` is asked for.

    Attributes
    ----------
    spec : str
        Text that opens the same place again, and what messages call it; holds no password.
    """

    @property
    def spec(self) -> str:
        """Text that opens the place again."""
        ...

    def files(self) -> Files:
        """List the files, hidden folders left out and at most `DEPTH` folders down, without reading any."""
        ...

    def child(self, name: str) -> "Source":
        """Return the place of a file or folder below this one."""
        ...

    def beside(self, name: str) -> StoredFile | None:
        """Return a file in the folder in which this place, a file, lies; None if it is not there."""
        ...


@dataclass(frozen=True)
class Access:
    """How remote bytes are come by.

    Attributes
    ----------
    keep : int or None
        Bytes of what was fetched that may lie on this disk, the least lately used leaving first; 0 keeps nothing, None
        everything.
    offline : bool
        Only what was kept; the network is not touched.
    folder : Path or None
        Where fetched bytes are kept; ``~/.cache/toposcope``, or what ``TOPOSCOPE_CACHE`` names, if None.
    """

    keep: int | None = 10 * 10**9
    offline: bool = False
    folder: Path | None = None


def fingerprint(files: Files) -> str:
    """Return a digest of names, sizes and versions, to know unchanged files without reading them."""
    told = "\x1f".join(f"{name}:{file.size}:{file.version}" for name, file in sorted(files.items()))
    return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()


def check_range(location: str, start: int, stop: int, size: int) -> None:
    """Refuse a range that the file does not hold."""
    if not 0 <= start <= stop <= size:
        raise CheckpointError(
            f"{location}: truncated: it ends at byte {size}, {stop} are needed; fetch or save it again", "truncated"
        )
