"""Protocols of sources: a place that holds files, and a file that is read by ranges of bytes."""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError

Bytes = NDArray[np.uint8]
MAX_FILES = 1_000_000  # of one place; a series of checkpoints has fewer
MAX_DEPTH = 3  # levels of folders that are listed below a place: those of ``runs/small-1/checkpoints/step_1.pt``


class CheckpointError(ToposcopeError):
    """A checkpoint that is incomplete, unsafe or unreachable.

    Attributes
    ----------
    kind : str
        ``missing shard``, ``index``, ``truncated``, ``unsafe``, ``damaged``, ``unsupported`` (whole, and in a form that
        is not read), ``changed`` or ``unreachable``.
    """

    def __init__(self, message: str, kind: str) -> None:
        # a name from a file may be anything
        super().__init__(message if message.isprintable() else ascii(message)[1:-1])
        self.kind = kind

    def __reduce__(self) -> tuple[type["CheckpointError"], tuple[str, str]]:
        # Pickling an exception repeats the call of its constructor.
        return type(self), (str(self), self.kind)


def fault(kind: str, place: "StoredFile | Path | str", reason: str) -> CheckpointError:
    """Return the error of a kind that names a place or a file of it, and says what is wrong."""
    location = str(place) if isinstance(place, str | Path) else place.location
    return CheckpointError(f"{location}: {reason}", kind)


def damaged(place: "StoredFile | Path | str", reason: str, fix: str = "fetch or save it again") -> CheckpointError:
    """Return the error of a file that holds something else than its format says."""
    return malformed(place, f"damaged: {reason}; {fix}")


def truncated(place: "StoredFile | Path | str", reason: str, fix: str = "fetch or save it again") -> CheckpointError:
    """Return the error of a file that ends too early."""
    return fault("truncated", place, f"truncated or damaged: {reason}; {fix}")


malformed = partial(fault, "damaged")  # damaged, or never what it seems
unsupported = partial(fault, "unsupported")  # whole, but cannot be read
incomplete = partial(fault, "missing shard")  # a part is missing
unreachable = partial(fault, "unreachable")  # cannot be read now


class StoredFile(Protocol):
    """One file of a source."""

    @property
    def location(self) -> str:
        """Its name in messages; holds no password."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def version(self) -> str:
        """Changes when the content may have changed."""

    @property
    def sha256(self) -> str:
        """Of the whole file, as published by its source, or an empty text."""

    def read(self, start: int, stop: int) -> Bytes:
        """Read bytes ``start`` to ``stop``, exactly; CheckpointError if it is shorter, changed or out of reach."""


class MadeFile:
    """A file (see `StoredFile`) whose tensors are made when they are read: it has entries rather than bytes."""

    def entries(self) -> list[Any]:
        """Return its tensors, each an `Entry`."""
        raise NotImplementedError


Files = Mapping[str, StoredFile]  # files by their paths relative to a source, with ``/``


class Source(Protocol):
    """A place that holds files: small, comparable and picklable; nothing is opened before `files` is called."""

    @property
    def spec(self) -> str:
        """Text that opens the same place again, also used in messages; holds no password."""

    def files(self) -> Files:
        """List the files up to `MAX_DEPTH` folders down, without hidden folders and without reading any."""

    def child(self, name: str) -> "Source":
        """Return the place of a file or folder inside this one."""

    def beside(self, name: str) -> StoredFile | None:
        """Return a file in the folder of this place, which is a file; None if there is no such file."""


@dataclass(frozen=True)
class Access:
    """How remote bytes are fetched and cached.

    Attributes
    ----------
    keep : int or None
        Size of the cache on disk in bytes; the least recently used ranges are dropped first. 0 caches nothing, None
        everything.
    offline : bool
        Use only the cache, not the network.
    folder : Path or None
        Of the cache; if None, that of the environment variable ``TOPOSCOPE_CACHE``, or ``~/.cache/toposcope``.
    """

    keep: int | None = 10 * 10**9
    offline: bool = False
    folder: Path | None = None


def fingerprint(files: Files) -> str:
    """Return a digest of names, sizes and versions, to know unchanged files without reading them."""
    text = "\x1f".join(f"{name}:{file.size}:{file.version}" for name, file in sorted(files.items()))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


@contextmanager
def opened(path: Path, location: str, size: int, version: str) -> Iterator[int]:
    """Open a file of this machine, which must be as it was when it was listed, and yield its descriptor."""
    try:
        # A pipe that took the place of the file would block.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            status = os.fstat(file)
            if (status.st_size, str(status.st_mtime_ns)) != (size, version):
                raise CheckpointError(f"{location}: changed while it was in use; run the same command again", "changed")
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise unreachable(location, f"cannot be read: {error.strerror or error}") from error


def check_range(location: str, start: int, stop: int, size: int) -> None:
    """Refuse a range that exceeds the file."""
    if not 0 <= start <= stop <= size:
        raise truncated(location, f"it ends at byte {size}, {stop} are needed")


def is_relative_name(name: str) -> bool:
    """Return whether a path is relative, printable, and stays in its folder."""
    plain = name.isprintable() and "\\" not in name and len(name) < 1024
    return plain and not any(part in ("", ".", "..") for part in name.split("/"))


class RangeStream(io.RawIOBase):
    """A raw stream over a stored file or a part of it; wrap it in `io.BufferedReader`."""

    def __init__(self, file: StoredFile, start: int = 0, stop: int | None = None) -> None:
        super().__init__()
        self._file, self._start = file, start
        self._length = (file.size if stop is None else stop) - start
        self._position = 0

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:  # noqa: D102
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if self._position < 0:
            raise OSError(22, "seek before the beginning")
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: D102
        count = max(0, min(len(buffer), self._length - self._position))
        if count:
            begin = self._start + self._position
            buffer[:count] = self._file.read(begin, begin + count).tobytes()
            self._position += count
        return count
