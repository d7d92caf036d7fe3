"""Files on this machine, mapped into memory a range at a time."""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toposcope.checkpoints.sources.source import MOST_FILES, Bytes, CheckpointError, Files, check_range
from toposcope.errors import ToposcopeError

DEPTH = 3
MAPPED = 1 << 16
"""Shorter ranges are copied: a map of its own costs more than they do."""


@dataclass(frozen=True)
class LocalFile:
    """A file as it was when it was listed (see `StoredFile`)."""

    path: Path
    size: int
    version: str
    sha256: str = ""

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> "LocalFile":
        """Return a file with its size and time of change."""
        return cls(path, status.st_size, str(status.st_mtime_ns))

    @property
    def location(self) -> str:
        """The path."""
        return str(self.path)

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range; a long one is a private map of the file, which is let go with the array."""
        check_range(self.location, start, stop, self.size)
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_size, str(status.st_mtime_ns)) != (self.size, self.version):
                    raise CheckpointError(
                        f"{self.path}: changed while it was in use; run the same command again", "changed"
                    )
                if start == stop:
                    return np.empty(0, np.uint8)
                if stop - start < MAPPED:
                    return np.frombuffer(bytearray(os.pread(file.fileno(), stop - start, start)), np.uint8)
                begin = start - start % mmap.ALLOCATIONGRANULARITY
                # A private map may be written to, as torch expects of an array; the file is not.
                view = mmap.mmap(file.fileno(), stop - begin, access=mmap.ACCESS_COPY, offset=begin)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror or error}", "unreachable") from error
        if hasattr(mmap, "MADV_WILLNEED"):
            view.madvise(mmap.MADV_WILLNEED)
        return np.frombuffer(view, np.uint8, stop - start, start - begin)


@dataclass(frozen=True)
class LocalSource:
    """A file or a folder (see `Source`)."""

    path: Path

    @property
    def spec(self) -> str:
        """The path."""
        return str(self.path)

    def files(self) -> Files:
        """List what lies below, hidden folders left out; a file alone is listed under its own name."""
        try:
            if not self.path.is_dir():
                return {self.path.name: LocalFile.of(self.path, self.path.stat())}
            found = {}
            for name, entry in _walk(self.path, "", DEPTH):
                found[name] = LocalFile.of(Path(entry.path), entry.stat())
                if len(found) > MOST_FILES:
                    raise ToposcopeError(f"{self.path}: more than {MOST_FILES:,} files; name the folder of a series")
            return found
        except OSError as error:
            raise ToposcopeError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def file(self) -> LocalFile | None:
        """Return the file it names, if there is one."""
        return LocalFile.of(self.path, self.path.stat()) if self.path.is_file() else None

    def child(self, name: str) -> "LocalSource":
        """Return a file or folder below."""
        return LocalSource(self.path / name)


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.is_file():
                yield prefix + entry.name, entry
            elif depth and not entry.name.startswith(".") and entry.is_dir():
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", depth - 1)
