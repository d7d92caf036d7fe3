"""The cache of remote files: blocks of bytes and listings, in a folder that any number of processes share.

A block is a file of its own, written under another name and then renamed, so it is whole or absent, whoever is killed.
A checksum behind its bytes finds what a power cut damaged. The least recently used blocks are dropped first.
"""

import hashlib
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from toposcope.checkpoints.sources.source import Access
from toposcope.errors import ToposcopeError

CHECKSUM_BYTES = 4
FULL, TARGET_FILL = 0.95, 0.8  # shares of the limit at which blocks are dropped, and down to which
_SETTING = re.compile(r"lru:(\d+(?:\.\d+)?)([kmgt]?)b?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_room: dict["RangeCache", int] = {}  # bytes that this process writes before it looks at the total again


def parse_keep(text: str) -> int | None:
    """Return `Access.keep` from the text of an option."""
    plain = text.strip().lower()
    if plain in ("none", "all"):
        return 0 if plain == "none" else None
    found = _SETTING.fullmatch(plain)
    if not found:
        raise ToposcopeError(f"keep {text!r}: not known; write none, all, or lru: and a size, such as lru:10GB")
    return int(Decimal(found.group(1)) * _UNITS[found.group(2).upper()])


@dataclass(frozen=True)
class RangeCache:
    """A folder of blocks, by the version of a file and their place in it, and of listings."""

    folder: Path
    limit: int | None  # of the blocks, in bytes; 0 writes nothing, None everything

    @classmethod
    def of(cls, access: Access) -> "RangeCache":
        """Return the cache that an `Access` names."""
        named = access.folder or os.environ.get("TOPOSCOPE_CACHE") or "~/.cache/toposcope"
        return cls(Path(named).expanduser(), access.keep)

    def block(self, key: str, start: int, stop: int) -> Path:
        """Return where a block of a version of a file is kept."""
        return self.folder / "ranges" / _digest(key) / f"{start}-{stop}"

    def listing(self, key: str) -> Path:
        """Return where something that a source said of its files is kept."""
        return self.folder / "listings" / _digest(key)

    def load(self, place: Path) -> bytes | None:
        """Return what is cached, or None; what is damaged is dropped."""
        try:
            stored = place.read_bytes()
        except OSError:
            return None
        content = stored[:-CHECKSUM_BYTES]
        is_sound = _checksum(content) == stored[-CHECKSUM_BYTES:]
        with suppress(OSError):  # another process may have dropped it, or the folder may be read-only
            os.utime(place) if is_sound else place.unlink()
        return content if is_sound else None

    def save(self, place: Path, content: bytes) -> None:
        """Cache something, if the limit allows."""
        size = len(content) + CHECKSUM_BYTES
        if self.limit is not None and size > self.limit:
            return
        with self._writing():
            self._make_room(size)
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=place.parent, suffix=".partial")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content + _checksum(content))
                with suppress(FileNotFoundError):  # another process, which makes room, may have dropped it
                    Path(partial).replace(place)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise

    def forget(self, key: str) -> None:
        """Drop the blocks of a version of a file."""
        shutil.rmtree(self.block(key, 0, 0).parent, ignore_errors=True)

    def _make_room(self, size: int) -> None:
        """Drop the least recently used blocks where the folder is full; its total is not looked at for each block."""
        room = _room.get(self, 0)
        if self.limit is not None and size > room:
            found = sorted(self._all())
            total = size + sum(stored for _, stored, _ in found)
            for _, stored, path in found if total > FULL * self.limit else ():
                if total <= TARGET_FILL * self.limit:
                    break
                path.unlink(missing_ok=True)
                total -= stored
            # Several processes write at once: each may fill a part of the rest.
            room = size + max(0, int(self.limit - total) // 4)
        _room[self] = room - size

    def _all(self) -> Iterator[tuple[float, int, Path]]:
        for path in (self.folder / "ranges").glob("*/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ToposcopeError(
                f"{self.folder}: the cache cannot be written: {(error.strerror or str(error)).lower()}; make room, "
                "name another folder with TOPOSCOPE_CACHE, or cache nothing (--keep none)"
            ) from error


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
