"""Bytes and listings of remote files, from the cache as far as possible, the rest from their source."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import TypeVar

import msgspec
import numpy as np

from toposcope.checkpoints.sources.range_cache import RangeCache
from toposcope.checkpoints.sources.source import Access, Bytes, CheckpointError, StoredFile, check_range

Answer = TypeVar("Answer")

Fill = Callable[[int, int, Bytes], Iterator[int]]
"""``fill(start, stop, buffer)`` fills a buffer with bytes start to stop and yields how many it holds so far."""

CHUNK_BYTES = 1 << 24
"""Bytes written to the cache at a time, so that little is fetched again after a kill."""
PAGE_BYTES = 1 << 15
"""Shorter ranges are extended to whole pages: opening an archive takes many small reads near each other, and a request
costs more than a page."""
MAX_SMALL_BYTES = 1 << 20
"""Length of a range, such as a header, up to which it is cached in memory too."""
MAX_MEMORY_BYTES = 1 << 25
"""Of all ranges cached in memory."""


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
    """Read a range from the cache as far as possible, fetch the rest, and cache it.

    Parameters
    ----------
    file : StoredFile
    start, stop : int
    key : str
        Identifies the file; with its version and size it identifies the bytes.
    access : Access
    fill : callable
        Fetches what is missing (see `Fill`).

    Raises
    ------
    CheckpointError
        If the range exceeds the file, cannot be fetched, or is not cached while offline.
    """
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
            into = buffer[at - start : end - start]
            _fetch(file, at, end, into, fill, access, cache, name)
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
    """Return what a source says about its files: looked up and cached, or offline from the cache.

    Parameters
    ----------
    key : str
        Identifies the lookup.
    kind : type
        Of the answer, for msgspec.
    location : str
        What is looked up, for the message.
    access : Access
    fetch : callable
        Asks the source.
    immutable : bool
        Whether the answer never changes; then it is looked up once.

    Raises
    ------
    ToposcopeError
        If the source cannot answer, or the answer is not cached while offline.
    """
    cache = RangeCache.of(access)
    content = cache.listing(key) if immutable or access.offline else None
    if content is not None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # a damaged listing is looked up again
            return msgspec.json.decode(content, type=kind)
    if access.offline:
        raise CheckpointError(
            f"{location}: not looked up before, and this is offline; open it once online", "unreachable"
        )
    answer = fetch()
    cache.save_listing(key, msgspec.json.encode(answer))
    return answer


def _fetch(
    file: StoredFile,
    start: int,
    stop: int,
    into: Bytes,
    fill: Fill,
    access: Access,
    cache: RangeCache | None,
    name: str,
) -> None:
    if access.offline:
        raise CheckpointError(
            f"{file.location}: bytes {start} to {stop} are not in the cache, and this is offline; run once online",
            "unreachable",
        )
    saved = 0
    for reached in fill(start, stop, into):
        while cache and (reached - saved >= CHUNK_BYTES or saved < reached == len(into)):
            upto = min(saved + CHUNK_BYTES, reached)
            cache.save(name, start + saved, into[saved:upto])
            saved = upto


def _name(file: StoredFile, key: str) -> str:
    return f"{key}\x1f{file.version}\x1f{file.size}"
