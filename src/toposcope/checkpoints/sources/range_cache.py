"""The cache of remote files: ranges of bytes and listings, on disk and in memory; the rest comes from their source."""

import hashlib
import os
import re
import tempfile
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec
import numpy as np

from toposcope.checkpoints.sources.source import Access, Bytes, CheckpointError, StoredFile, check_range, unreachable
from toposcope.checkpoints.tuning import (
    CHUNK_BYTES,
    LOCK_POLL_SECONDS,
    MAX_MEMORY_BYTES,
    MAX_SMALL_BYTES,
    PAGE_BYTES,
    STALE_SECONDS,
    TARGET_FILL,
)
from toposcope.errors import ToposcopeError

CHECKSUM_BYTES = 4  # of the checksum after a cached range
_PARTIAL = ".partial"
_SETTING = re.compile(r"lru:(\d+(?:\.\d+)?)([kmgt]?)b?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
Answer = TypeVar("Answer")
Fill = Callable[[int, int, Bytes], Iterator[int]]
"""``fill(start, stop, buffer)`` fills a buffer with bytes start to stop and yields how many it holds so far."""


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
    """A folder of cached ranges and listings; any number of processes may use it at once."""

    folder: Path
    limit: int | None  # of the ranges, in bytes; 0 writes nothing, None everything

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
        """Cache a range, if the limit allows."""
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
        """Add the bytes that will be written to the total, which is never less than is stored, after making room."""
        try:
            text = (self.folder / "reserved").read_text()
        except FileNotFoundError:
            text = ""
        # It may be half written after a crash of the machine.
        total = int(text) if re.fullmatch(r"\d{20}", text) else sum(size for _, size, _ in self._all())
        if self.limit is not None and total + size > self.limit:
            total = self._make_room(size)
        (self.folder / "reserved").write_text(f"{total + size:020d}")

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


class _MemoryCache:
    """Small ranges that this process read recently."""

    def __init__(self) -> None:
        self._content: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def get(self, file: str, start: int, stop: int) -> Bytes | None:
        with self._lock:
            content = self._content.get((file, start, stop))
            if content is None:
                return None
            self._content.move_to_end((file, start, stop))
        return np.frombuffer(bytearray(content), np.uint8)

    def put(self, file: str, start: int, content: Bytes) -> None:
        with self._lock:
            key = file, start, start + len(content)
            if len(content) > MAX_SMALL_BYTES or key in self._content:
                return
            self._content[key] = content.tobytes()
            self._total += len(content)
            while self._total > MAX_MEMORY_BYTES:
                self._total -= len(self._content.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._content.clear()
            self._total = 0


memory_cache = _MemoryCache()


def read_cached(file: StoredFile, start: int, stop: int, key: str, access: Access, fill: Fill) -> Bytes:
    """Read a range from the cache as far as possible, fetch the rest, and cache it."""
    check_range(file.location, start, stop, file.size)
    if not file.version or not 0 < stop - start < PAGE_BYTES:
        return _read_exactly(file, start, stop, key, access, fill)
    first, last = start - start % PAGE_BYTES, min(stop + -stop % PAGE_BYTES, file.size)
    return _read_exactly(file, first, last, key, access, fill)[start - first : stop - first].copy()


def _read_exactly(file: StoredFile, start: int, stop: int, key: str, access: Access, fill: Fill) -> Bytes:
    name = _name(file, key)
    content = memory_cache.get(name, start, stop) if file.version else None
    if content is not None:
        return content
    try:
        buffer = np.empty(stop - start, np.uint8)
    except MemoryError as error:
        raise CheckpointError(f"{file.location}: {stop - start} bytes do not fit into memory", "damaged") from error
    # Without a version, another file of the same size would look the same.
    cache = RangeCache.of(access) if file.version else None
    cached_ranges = cache.ranges(name) if cache else []
    at = start
    while at < stop:
        longest = max((r for r in cached_ranges if r[0] <= at < r[1]), key=lambda r: r[1], default=None)
        if longest is None:
            end = min((first for first, _ in cached_ranges if at < first < stop), default=stop)
            if access.offline:
                missing = f"bytes {at} to {end} are not in the cache, and this is offline; run once online"
                raise unreachable(file, missing)
            into, saved = buffer[at - start : end - start], 0
            for reached in fill(at, end, into):
                while cache and (reached - saved >= CHUNK_BYTES or saved < reached == len(into)):
                    upto = min(saved + CHUNK_BYTES, reached)
                    cache.save(name, at + saved, into[saved:upto])
                    saved = upto
            at = end
        elif cache and (part := cache.load(name, *longest)) is not None:
            end = min(longest[1], stop)
            buffer[at - start : end - start] = part[at - longest[0] : end - longest[0]]
            at = end
        else:
            cached_ranges.remove(longest)
    if file.version:
        memory_cache.put(name, start, buffer)
    return buffer


def forget(file: StoredFile, key: str, access: Access) -> None:
    """Drop a damaged file from the cache."""
    memory_cache.clear()
    RangeCache.of(access).forget(_name(file, key))


def cached_lookup(
    key: str, kind: type[Answer], location: str, access: Access, fetch: Callable[[], Answer], *, immutable: bool
) -> Answer:
    """Return what a source says about its files: looked up and cached, or offline from the cache."""
    cache = RangeCache.of(access)
    content = cache.listing(key) if immutable or access.offline else None
    if content is not None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # a damaged listing is looked up again
            return msgspec.json.decode(content, type=kind)
    if access.offline:
        raise unreachable(location, "not looked up before, and this is offline; open it once online")
    answer = fetch()
    cache.save_listing(key, msgspec.json.encode(answer))
    return answer


def _name(file: StoredFile, key: str) -> str:
    return f"{key}\x1f{file.version}\x1f{file.size}"
