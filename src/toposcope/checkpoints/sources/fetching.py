"""Bytes and listings of remote files: from what was kept, and only for the rest from their source."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import TypeVar

import msgspec
import numpy as np

from toposcope.checkpoints.sources.kept import Kept
from toposcope.checkpoints.sources.source import Access, Bytes, CheckpointError, StoredFile, check_range

Told = TypeVar("Told")

Fill = Callable[[int, int, Bytes], Iterator[int]]
"""``fill(start, stop, buffer)`` fills a buffer with bytes start to stop, and yields how many there are by now."""

PART = 1 << 24
"""Bytes that are kept at a time, so that little is fetched again after a kill."""
PAGE = 1 << 15
"""Shorter ranges are read with what lies around them, on boundaries of this many bytes: archives are opened by many
small reads near each other, and a request costs more than a page."""
SMALL = 1 << 20
"""Ranges up to this length, headers above all, stay in memory too."""
SMALL_TOTAL = 1 << 25


class _Small:
    """The small ranges this process read lately."""

    def __init__(self) -> None:
        self._content: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def get(self, file: str, start: int, stop: int) -> Bytes | None:
        with self._lock:
            found = self._content.get((file, start, stop))
            if found is None:
                return None
            self._content.move_to_end((file, start, stop))
        return np.frombuffer(bytearray(found), np.uint8)

    def put(self, file: str, start: int, content: Bytes) -> None:
        with self._lock:
            key = file, start, start + len(content)
            if len(content) > SMALL or key in self._content:
                return
            self._content[key] = content.tobytes()
            self._total += len(content)
            while self._total > SMALL_TOTAL:
                self._total -= len(self._content.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._content.clear()
            self._total = 0


small = _Small()


def read_through(file: StoredFile, start: int, stop: int, key: str, access: Access, fill: Fill) -> Bytes:
    """Read a range, from what was kept as far as it goes, and keep the rest.

    Parameters
    ----------
    file : StoredFile
    start, stop : int
    key : str
        Names the file among all; with its version and size, it names these bytes for ever.
    access : Access
    fill : callable
        Fetches what is missing (see `Fill`).

    Raises
    ------
    CheckpointError
        If the range is not in the file, cannot be fetched, or was not kept and the network is not to be touched.
    """
    check_range(file.location, start, stop, file.size)
    if not file.version or not 0 < stop - start < PAGE:
        return _exactly(file, start, stop, key, access, fill)
    first, last = start - start % PAGE, min(stop + -stop % PAGE, file.size)
    return _exactly(file, first, last, key, access, fill)[start - first : stop - first].copy()


def _exactly(file: StoredFile, start: int, stop: int, key: str, access: Access, fill: Fill) -> Bytes:
    name = _name(file, key)
    found = small.get(name, start, stop) if file.version else None
    if found is not None:
        return found
    try:
        buffer = np.empty(stop - start, np.uint8)
    except MemoryError as error:
        raise CheckpointError(
            f"{file.location}: {stop - start} bytes at once do not fit into memory", "damaged"
        ) from error
    # Without a version the same size may be another file tomorrow.
    kept = Kept.of(access) if file.version else None
    held = kept.held(name) if kept else []
    at = start
    while at < stop:
        best = max((r for r in held if r[0] <= at < r[1]), key=lambda r: r[1], default=None)
        if best is None:
            end = min((first for first, _ in held if at < first < stop), default=stop)
            into = buffer[at - start : end - start]
            _fetch(file, at, end, into, fill, access, kept, name)
            at = end
        elif kept and (part := kept.load(name, *best)) is not None:
            end = min(best[1], stop)
            buffer[at - start : end - start] = part[at - best[0] : end - best[0]]
            at = end
        else:
            held.remove(best)
    if file.version:
        small.put(name, start, buffer)
    return buffer


def forget(file: StoredFile, key: str, access: Access) -> None:
    """Drop what was kept of a file: it is not what it should be."""
    small.clear()
    Kept.of(access).forget(_name(file, key))


def looked_up(
    key: str, kind: type[Told], location: str, access: Access, ask: Callable[[], Told], *, lasts: bool
) -> Told:
    """Return what a source says of its files: asked for anew and kept, or offline as it was kept.

    Parameters
    ----------
    key : str
        Names the question.
    kind : type
        Of the answer, for msgspec.
    location : str
        What is looked up, for the message.
    access : Access
    ask : callable
        Asks the source.
    lasts : bool
        Whether the answer never changes: it is not asked for again.

    Raises
    ------
    ToposcopeError
        If the source cannot answer, or the answer was not kept and the network is not to be touched.
    """
    kept = Kept.of(access)
    content = kept.listing(key) if lasts or access.offline else None
    if content is not None:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Damaged: it is asked for again, and written anew.
            content = None
    if access.offline:
        raise CheckpointError(
            f"{location}: not looked up before, and this is offline; open it once online", "unreachable"
        )
    answer = ask()
    kept.save_listing(key, msgspec.json.encode(answer))
    return answer


def checked_name(name: str, location: str) -> str:
    """Return the name of a file below a place, as a listing from outside has it.

    Raises
    ------
    CheckpointError
        If it leads elsewhere, or is no name.
    """
    if not is_relative_name(name):
        raise CheckpointError(f"{location}: lists a file outside its folder, or no file: {name[:80]!r}", "unsafe")
    return name


def is_relative_name(name: str) -> bool:
    """Tell whether every part of a relative name is one, and none leads upwards."""
    plain = name.isprintable() and "\\" not in name and len(name) < 1024
    return plain and not any(part in ("", ".", "..") for part in name.split("/"))


def checked_size(size: object, location: str) -> int:
    """Return the size of a file, as a listing from outside has it.

    Raises
    ------
    CheckpointError
        If it is no size.
    """
    if not isinstance(size, int) or not 0 <= size < 1 << 63:
        raise CheckpointError(f"{location}: its source tells no size of it; it cannot be read by ranges", "unreachable")
    return size


def _fetch(
    file: StoredFile, start: int, stop: int, into: Bytes, fill: Fill, access: Access, kept: Kept | None, name: str
) -> None:
    if access.offline:
        raise CheckpointError(
            f"{file.location}: bytes {start} to {stop} were not fetched before, or not kept, and this is offline; "
            "run once online",
            "unreachable",
        )
    saved = 0
    for reached in fill(start, stop, into):
        while kept and (reached - saved >= PART or saved < reached == len(into)):
            upto = min(saved + PART, reached)
            kept.save(name, start + saved, into[saved:upto])
            saved = upto


def _name(file: StoredFile, key: str) -> str:
    return f"{key}\x1f{file.version}\x1f{file.size}"
