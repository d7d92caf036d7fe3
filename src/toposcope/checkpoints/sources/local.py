"""Files on this machine, mapped into memory a range at a time."""

import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from toposcope.checkpoints.sources.packed import POINTER, packs_of
from toposcope.checkpoints.sources.source import (
    MAX_DEPTH,
    MAX_FILES,
    Bytes,
    Files,
    StoredFile,
    check_range,
    opened,
    unreachable,
)
from toposcope.errors import ToposcopeError
from toposcope.files import leads_out, refuse_link

MAX_COPIED_BYTES = 1 << 16  # of a range that is copied, which costs less than a map
MAX_SHOWN_PATH = 120  # characters of an impossible path that a message shows


@dataclass(frozen=True)
class LocalFile:
    """A file as it was when it was listed (see `StoredFile`), below the folder that the user named.

    Of a `run` in a pack, the file is that of many runs, and `listed_as` the path of the run's own.
    """

    path: Path
    size: int
    version: str
    sha256: str = ""
    root: Path | None = field(default=None, compare=False)
    run: str = ""
    listed_as: Path | None = None

    @classmethod
    def of(cls, path: Path, status: os.stat_result, root: Path | None = None) -> "LocalFile":
        """Return a file with its size and time of change."""
        return cls(path, status.st_size, str(status.st_mtime_ns), root=root)

    @property
    def location(self) -> str:
        """The path, bytes that are not UTF-8 escaped."""
        return escaped(str(self.listed_as or self.path))

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range; a long one is a private map of the file that lives as long as the array."""
        check_range(self.location, start, stop, self.size)
        with opened(self.path, self.location, self.size, self.version) as file:
            if stop - start <= MAX_COPIED_BYTES:
                os.lseek(file, start, os.SEEK_SET)  # Windows has no preadv
                content = bytearray(os.read(file, stop - start))
                check_range(self.location, start, stop, start + len(content))
                return np.frombuffer(content, np.uint8)
            begin = start - start % mmap.ALLOCATIONGRANULARITY
            # torch expects a writable array; writing to a private map does not change the file.
            view = mmap.mmap(file, stop - begin, access=mmap.ACCESS_COPY, offset=begin)
        if hasattr(mmap, "MADV_WILLNEED"):
            view.madvise(mmap.MADV_WILLNEED)
        return np.frombuffer(view, np.uint8, stop - start, start - begin)


@dataclass(frozen=True)
class LocalSource:
    """A file or a folder (see `Source`), below the folder that the user named, if that is another."""

    path: Path
    root: Path | None = field(default=None, compare=False)

    @property
    def spec(self) -> str:
        """The path."""
        return str(self.path)

    def files(self) -> Files:
        """List the files below, without hidden folders; a single file is listed under its own name.

        A folder without permission or a dangling link is listed under its name and a slash, and refused when read. The
        checkpoints of a run in a pack are listed in place of the file that names the pack.
        """
        try:
            if not self.path.is_dir():
                if not self.path.exists() and (packed := _packed_files(self.path.parent, self.path.name)):
                    return packed
                own = self.path.stat()
                if not stat.S_ISREG(own.st_mode):
                    raise ToposcopeError(
                        f"{self.path}: a pipe, a socket or a device, not a file; name a file or folder"
                    )
                return {self.path.name: LocalFile.of(self.path, own, self.root)}
            found: dict[str, StoredFile] = {}
            for name, entry, status in _walk(self.path, "", (_identity(self.path.stat()),)):
                path = Path(entry.path)
                found[name] = LocalFile.of(path, status, self.root or self.path) if status else LocalFile(path, 0, "")
                if len(found) > MAX_FILES:
                    raise ToposcopeError(f"{self.path}: more than {MAX_FILES:,} files; name the folder of a series")
            for name in [name for name in found if name.rpartition("/")[2] == POINTER]:
                prefix = name.removesuffix(POINTER)
                del found[name]
                found = {prefix + inner: file for inner, file in _packed_files(self.path / prefix).items()} | found
            return found
        except OSError as error:
            raise ToposcopeError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def exists(self) -> bool:
        """Return whether there is such a file or folder, or a checkpoint in a pack."""
        return self.path.exists() or bool(_packed_files(self.path.parent, self.path.name))

    def file(self) -> LocalFile | None:
        """Return the file it names, if it exists."""
        return LocalFile.of(self.path, self.path.stat(), self.root) if self.path.is_file() else None

    def child(self, name: str) -> "LocalSource":
        """Return a file or folder below."""
        return LocalSource(self.path / name, self.root or self.path)

    def beside(self, name: str) -> LocalFile | None:
        """Return a file in the folder of this file."""
        return LocalSource(self.path.parent / name, self.root or self.path.parent).file()


def _packed_files(folder: Path, only: str = "") -> dict[str, StoredFile]:
    found: dict[str, StoredFile] = {}
    for name, (pack, run) in packs_of(folder, only).items():
        try:
            status = pack.stat()
        except OSError as error:
            reason = f"holds the checkpoint {folder / name} and cannot be read: {error.strerror or error}"
            raise unreachable(pack, f"{reason}; restore the pack's folder, or train the run again") from error
        found[name] = replace(LocalFile.of(pack, status), run=run, listed_as=folder / name)
    return found


def refuse_linked(file: StoredFile) -> None:
    """Refuse a text that is a link out of the folder that the user named."""
    if isinstance(file, LocalFile) and file.root is not None:
        refuse_link(file.path, file.root)


def linked_files(files: Files) -> list[LocalFile]:
    """Return the files that are, or lie in, links out of the folder that the user named; they are followed."""
    local = [(f, f.root) for f in files.values() if isinstance(f, LocalFile) and f.root]
    return [f for f, root in local if leads_out(f.path, root) or leads_out(f.path.parent, root)]


def local_path(spec: str | Path) -> Path:
    """Return a path on this machine with ``~`` expanded; it need not exist."""
    shown = escaped(str(spec))
    shown = shown if len(shown) <= MAX_SHOWN_PATH else f"{shown[:MAX_SHOWN_PATH]}..."
    try:
        str(spec).encode()
        path = Path(spec).expanduser()
        path.exists() and path.absolute()  # fails if the working directory is gone
    except UnicodeEncodeError as error:
        raise ToposcopeError(f"{shown}: a name that is not UTF-8; rename it") from error
    except (OSError, RuntimeError) as error:  # or the home folder of ~ is unknown
        raise ToposcopeError(f"{shown}: cannot be accessed: {getattr(error, 'strerror', None) or error}") from error
    return path


def local_roots(spec: str) -> list[tuple[str, LocalSource]]:
    """Return the one place a path names, with its last part; of a link, the name of the link."""
    path = local_path(spec)
    if not LocalSource(path).exists():
        raise ToposcopeError(f"{path}: no such file or folder")
    return [(os.path.basename(os.path.abspath(path)), LocalSource(path))]  # noqa: PTH100, PTH119 - resolve follows links


def escaped(name: str) -> str:
    """Return a name as printable text, bytes that are not UTF-8 escaped."""
    return name.encode(errors="backslashreplace").decode()


def _walk(
    folder: Path, prefix: str, above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, "os.DirEntry[str]", os.stat_result | None]]:
    """Yield files and their status, None for what cannot be accessed; links to the folders `above` are not followed."""
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda e: e.name)
    for entry in listed:
        name = prefix + entry.name
        try:
            status = entry.stat()
            if stat.S_ISREG(status.st_mode):
                yield name, entry, status
            elif not stat.S_ISDIR(status.st_mode) or len(above) > MAX_DEPTH or entry.name.startswith("."):
                continue
            elif _identity(status) not in above:
                yield from _walk(Path(entry.path), f"{name}/", (*above, _identity(status)))
        except OSError:
            yield f"{name}/", entry, None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
