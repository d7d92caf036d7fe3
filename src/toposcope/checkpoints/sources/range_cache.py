"""The cache on disk: ranges of files, the least recently used dropped first, and listings."""

import hashlib
import os
import re
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np

from toposcope.checkpoints.sources.source import Access, Bytes
from toposcope.errors import ToposcopeError

CHECKSUM_BYTES = 4
"""Of the checksum after a cached range."""
TARGET_FILL = 0.9
"""Share of the limit down to which ranges are dropped once it is reached, so that not every write has to."""
STALE_SECONDS = 3600.0
"""Age after which a partial file belongs to a process that was killed."""
LOCK_POLL_SECONDS = 0.002
"""Interval at which a lock is tried again; it is held for less than that."""
_PARTIAL = ".partial"
_SETTING = re.compile(r"lru:(\d+(?:\.\d+)?)([kmgt]?)b?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_keep(text: str) -> int | None:
    """Return `Access.keep` from the text of an option.

    Raises
    ------
    ToposcopeError
        If it is not ``none``, ``all`` or ``lru:`` and a size.

    Examples
    --------
    >>> parse_keep("none"), parse_keep("all"), parse_keep("lru:10GB"), parse_keep("lru:1.5M")
    (0, None, 10000000000, 1500000)
    """
    plain = text.strip().lower()
    if plain in ("none", "all"):
        return 0 if plain == "none" else None
    found = _SETTING.fullmatch(plain)
    if not found:
        raise ToposcopeError(f"keep {text!r}: not known; write none, all, or lru: and a size, such as lru:10GB")
    return int(Decimal(found.group(1)) * _UNITS[found.group(2).upper()])


@dataclass(frozen=True)
class RangeCache:
    """A folder of cached ranges and listings; any number of processes may use it at once.

    Attributes
    ----------
    folder : Path
    limit : int or None
        Of the ranges, in bytes; 0 writes nothing, None everything.
    """

    folder: Path
    limit: int | None

    @classmethod
    def of(cls, access: Access) -> "RangeCache":
        """Return the cache that an `Access` names."""
        named = access.folder or os.environ.get("TOPOSCOPE_CACHE") or "~/.cache/toposcope"
        return cls(Path(named).expanduser(), access.keep)

    def listing(self, key: str) -> bytes | None:
        """Return a listing, if it is cached."""
        try:
            return self._listing(key).read_bytes()
        except OSError:
            return None

    def save_listing(self, key: str, content: bytes) -> None:
        """Cache a listing; listings are small and do not count towards the limit."""
        if self.limit != 0:
            with self._writing():
                _write(self._listing(key), content)

    def ranges(self, file: str) -> list[tuple[int, int]]:
        """Return the cached ranges of a file, as (start, stop), in order."""
        try:
            names = [path.name for path in self._folder(file).iterdir()]
        except OSError:
            return []
        found = (re.fullmatch(r"(\d+)-(\d+)", name) for name in names)
        return sorted((int(m[1]), int(m[2])) for m in found if m)

    def load(self, file: str, start: int, stop: int) -> Bytes | None:
        """Return a cached range, or None if it is gone; a damaged one is dropped."""
        path = self._range(file, start, stop)
        try:
            stored = np.fromfile(path, np.uint8)
        except OSError:
            return None
        content, check = stored[:-CHECKSUM_BYTES], stored[-CHECKSUM_BYTES:].tobytes()
        if len(stored) != stop - start + CHECKSUM_BYTES or _checksum(content) != check:
            with suppress(OSError):
                path.unlink()
            return None
        if self.limit != 0:
            # Mark it as used; another process may have dropped it, or the folder may be read-only.
            with suppress(OSError):
                os.utime(path)
        return content

    def save(self, file: str, start: int, content: Bytes) -> None:
        """Cache a range, if the limit allows.

        Raises
        ------
        ToposcopeError
            If the folder cannot be written.
        """
        size = len(content) + CHECKSUM_BYTES
        if self.limit is not None and size > self.limit:
            return
        from filelock import FileLock

        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            # Until it is written, no other process may count the total and take the same room.
            with FileLock(self.folder / "lock").acquire(poll_interval=LOCK_POLL_SECONDS):
                self._reserve(size)
                _write(self._range(file, start, start + len(content)), content.data, _checksum(content))

    def forget(self, file: str) -> None:
        """Drop the ranges of a file."""
        for start, stop in self.ranges(file):
            with suppress(OSError):
                self._range(file, start, stop).unlink()

    def _reserve(self, size: int) -> None:
        """Add to the total the bytes that will be written, after making room for them."""
        total = self._reserved()
        if self.limit is not None and total + size > self.limit:
            total = self._make_room(size)
        (self.folder / "reserved").write_text(f"{total + size:020d}")

    def _reserved(self) -> int:
        """Return the total of reserved bytes; never less than is stored, as a process may die before it writes."""
        try:
            text = (self.folder / "reserved").read_text()
        except FileNotFoundError:
            text = ""
        # It may be half written after a crash of the machine.
        return int(text) if re.fullmatch(r"\d{20}", text) else sum(size for _, size, _ in self._all())

    def _make_room(self, size: int) -> int:
        """Drop the least recently used ranges, and return the total of the rest."""
        assert self.limit is not None
        found = sorted(self._all())
        total = sum(stored for _, stored, _ in found)
        for used, stored, path in found:
            if total + size <= self.limit * TARGET_FILL:
                break
            if path.name.endswith(_PARTIAL) and time.time() - used < STALE_SECONDS:
                continue
            path.unlink(missing_ok=True)
            total -= stored
        return total

    def _all(self) -> Iterator[tuple[float, int, Path]]:
        for path in (self.folder / "ranges").glob("*/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path

    def _folder(self, file: str) -> Path:
        return self.folder / "ranges" / _digest(file)

    def _range(self, file: str, start: int, stop: int) -> Path:
        return self._folder(file) / f"{start}-{stop}"

    def _listing(self, key: str) -> Path:
        return self.folder / "listings" / f"{_digest(key)}.json"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ToposcopeError(
                f"{self.folder}: the cache cannot be written: {(error.strerror or str(error)).lower()}; make room, "
                "name another folder with TOPOSCOPE_CACHE, or cache nothing (--keep none)"
            ) from error


def _write(path: Path, *parts: "bytes | memoryview") -> None:
    """Write a file that is whole or absent, through a unique temporary name, as other processes may write the same.

    Unlike `toposcope.files.write_whole` it is not synced: what a power cut damages is fetched again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=".", suffix=_PARTIAL, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _checksum(content: Bytes) -> bytes:
    return zlib.crc32(content.data).to_bytes(CHECKSUM_BYTES, "little")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
