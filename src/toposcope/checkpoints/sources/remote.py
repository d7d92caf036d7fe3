"""Files elsewhere, whatever the protocol: one way to fetch a range, by blocks that are cached."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache as once
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np

from toposcope.checkpoints.sources.range_cache import RangeCache
from toposcope.checkpoints.sources.source import (
    MAX_DEPTH,
    MAX_FILES,
    Access,
    Bytes,
    CheckpointError,
    Files,
    check_range,
    damaged,
    is_relative_name,
    unreachable,
)
from toposcope.errors import ToposcopeError
from toposcope.untrusted import MAX_SECONDS, awaited

BLOCK_BYTES = 1 << 17  # fetched and cached at least: a request costs as much as some 100 kB
MAX_REMEMBERED_BYTES, MAX_REMEMBERED = 1 << 20, 256  # of a read whose blocks stay in memory, and how many blocks
CUT = (ConnectionAbortedError, ConnectionResetError, TimeoutError)  # after which the rest is requested
MAX_CUTS = 5  # of a connection, without a block in between
FIRST_WAIT = 0.5  # seconds until the rest is requested; each wait is twice as long as the one before
Answer = TypeVar("Answer")
_LATER = "run the same command again later"
_STATUSES = {
    401: "it may not be read (401); {fix}",
    403: "it may not be read (403); {fix}",
    404: "not there (404); check the name",
    410: "not there (410); check the name",
}


class Listed(msgspec.Struct, frozen=True):
    """A file as its source lists it."""

    url: str  # by which it is fetched
    size: int  # -1 if it has to be looked up
    version: str  # changes with the content; empty if the source gives nothing that does
    sha256: str = ""


@dataclass(frozen=True)
class RemoteSource:
    """A file or folder elsewhere (see `Source`); each kind lists files and requests ranges of them."""

    spec: str
    access: Access

    @property
    def name(self) -> str:
        """Its last part."""
        return unquote(self.spec.rstrip("/").rpartition("/")[2])

    def find(self) -> dict[str, Listed]:
        """Return the files below, by name; of a file, itself, under no name."""
        raise NotImplementedError

    def look(self) -> Listed | None:
        """Return the file at this very place, if there is one."""
        return self.find().get("")

    def stream(self, listed: Listed, start: int, stop: int) -> Iterator[bytes]:
        """Request a range of this file once, and yield it in pieces."""
        raise NotImplementedError

    def key(self, listed: Listed) -> str:
        """Return what stands for the content of a file in the cache."""
        return f"{listed.url}\x1f{listed.version}\x1f{listed.size}"

    def files(self) -> Files:
        """List the files."""
        found = self.find()
        if not found:
            raise ToposcopeError(f"{self.spec}: no such file or folder, or an empty one; check the name")
        shown = {name: self.child(name) if name else self for name in found if is_shown(name)}
        return {name or self.name: RemoteFile(source, found[name]) for name, source in shown.items()}

    def child(self, name: str) -> Self:
        """Return a file or folder below."""
        return replace(self, spec=f"{self.spec.rstrip('/')}/{name}")

    def beside(self, name: str) -> "RemoteFile | None":
        """Return a file in the folder of this file."""
        place = replace(self, spec=self.spec.rpartition("/")[0]).child(name)
        listed = place.look()
        return None if listed is None else RemoteFile(place, listed)


@dataclass(frozen=True)
class RemoteFile:
    """A file elsewhere (see `StoredFile`)."""

    source: RemoteSource
    known: Listed

    @cached_property
    def listed(self) -> Listed:
        """What its source says of it; of files that an index page only names, looked up when first needed."""
        listed = self.known if self.known.size >= 0 else self.source.find().get("")
        if listed is None:
            raise unreachable(self, "a folder, where its server lists a file")
        return listed

    @property
    def location(self) -> str:
        """Its spec."""
        return self.source.spec

    @property
    def size(self) -> int:
        """Bytes."""
        return self.listed.size

    @property
    def version(self) -> str:
        """As its source gives it."""
        return self.listed.version

    @property
    def sha256(self) -> str:
        """As its source publishes it."""
        return self.known.sha256

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range, from the cache as far as possible; a file that is read whole is checked by its hash."""
        check_range(self.location, start, stop, self.size)
        try:
            content = np.empty(stop - start, np.uint8)
        except MemoryError as error:
            raise damaged(self, f"{stop - start} bytes do not fit into memory") from error
        for at, block in self._blocks(start, stop) if start < stop else ():
            first, last = max(start, at), min(stop, at + len(block))
            content[first - start : last - start] = np.frombuffer(block, np.uint8)[first - at : last - at]
        if self.sha256 and len(content) == self.size and hashlib.sha256(content.data).hexdigest() != self.sha256:
            memory.clear()
            RangeCache.of(self.source.access).forget(self.source.key(self.listed))
            raise damaged(self, "its SHA-256 is not the published one", "run the same command again")
        return content

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield blocks and where they begin; what is not cached is fetched and cached."""
        if not self.version:  # another file of the same size would look the same: nothing is cached
            yield from self._fetched(start, stop)
            return
        key, cache = self.source.key(self.listed), RangeCache.of(self.source.access)
        is_small = stop - start <= MAX_REMEMBERED_BYTES
        at, end = start - start % BLOCK_BYTES, min(stop + -stop % BLOCK_BYTES, self.size)

        def place(begin: int) -> Path:
            return cache.block(key, begin, min(begin + BLOCK_BYTES, self.size))

        while at < end:
            if (block := memory.get((key, at)) or cache.load(place(at))) is not None:
                if is_small:
                    _remember(key, at, block)
                yield at, block
                at += len(block)
                continue
            if self.source.access.offline:
                raise unreachable(self, f"byte {at} is not in the cache, and this is offline; run once online")
            run = at + BLOCK_BYTES
            while run < end and (key, run) not in memory and not place(run).exists():
                run += BLOCK_BYTES
            for begin, fetched in self._fetched(at, min(run, end)):
                cache.save(place(begin), fetched)
                if is_small:
                    _remember(key, begin, fetched)
                yield begin, fetched
                at = begin + len(fetched)

    def _fetched(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks of a range as they come, unless the next takes too long."""
        with one_line(self.location):
            yield from _awaited(self._requested(start, stop), self.location)

    def _requested(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks of a range; where it is cut, the rest is requested."""
        cuts, buffer = 0, bytearray()
        while start < stop:
            with suppress(*CUT if cuts < MAX_CUTS else ()):
                for piece in self.source.stream(self.listed, start + len(buffer), stop):
                    buffer += piece
                    if start + len(buffer) > stop:
                        raise unreachable(self, "cannot be read by ranges: more comes than requested; download it")
                    while len(buffer) >= BLOCK_BYTES or (buffer and start + len(buffer) == stop):
                        block = bytes(buffer[:BLOCK_BYTES])
                        yield start, block
                        del buffer[: len(block)]
                        start, cuts = start + len(block), 0
                if start < stop:
                    raise ConnectionAbortedError
            if start < stop:
                time.sleep(FIRST_WAIT * 2**cuts)
                cuts += 1


memory = dict[tuple[str, int], bytes]()
"""Blocks of small reads, which are headers and small tensors, also where nothing is kept on disk."""
_guard = Lock()
_given_up = dict[str, float]()  # until when


def _remember(key: str, at: int, block: bytes) -> None:
    with _guard:
        memory.pop((key, at), None)
        memory[key, at] = block  # the last
        if len(memory) > MAX_REMEMBERED:
            del memory[next(iter(memory))]


def checked_listing(found: dict[str, Listed], location: str) -> dict[str, Listed]:
    """Return the files of a listing in order; what cannot be one is refused."""
    for name, file in found.items():
        if not isinstance(name, str) or not is_relative_name(name):
            raise CheckpointError(f"{location}: lists a file outside its folder, or no file: {name[:80]!r}", "unsafe")
        if not isinstance(file.size, int) or not 0 <= file.size < 1 << 63:
            raise unreachable(f"{location}/{name}", "its source gives no size; it cannot be read by ranges")
    if len(found) > MAX_FILES:
        raise ToposcopeError(f"{location}: more than {MAX_FILES:,} files; name the folder of a series")
    return dict(sorted(found.items()))


def is_shown(name: str) -> bool:
    """Return whether a file is listed: not too deep, and in no hidden folder."""
    *folders, _ = name.split("/")
    return len(folders) <= MAX_DEPTH and not any(folder.startswith(".") for folder in folders)


def looked_up(
    access: Access, key: str, kind: type[Answer], location: str, fetch: Callable[[], Answer], *, lasting: bool = False
) -> Answer:
    """Return what a source says about its files: fetched and cached; from the cache if lasting, or offline."""
    cache = RangeCache.of(access)
    place = cache.listing(f"{key} {location}")
    content = cache.load(place) if lasting or access.offline else None
    if content is not None:
        with suppress(msgspec.MsgspecError):  # that of another version of this program is looked up again
            return msgspec.json.decode(content, type=kind)
    if access.offline:
        raise unreachable(location, "not looked up before, and this is offline; open it once online")
    with one_line(location):
        (answer,) = _awaited((fetch() for _ in range(1)), location)
    cache.save(place, msgspec.json.encode(answer))
    return answer


def _awaited(pieces: Iterator[Answer], location: str) -> Iterator[Answer]:
    """Wait for what a server sends; for a while, one that was given up is not waited for again for another file."""
    host = urlsplit(location).netloc if location.startswith("http") else ""
    if time.monotonic() < _given_up.get(host, 0.0):
        raise TimeoutError
    try:
        yield from awaited(pieces, location)
    except TimeoutError:
        if host:
            _given_up[host] = time.monotonic() + MAX_SECONDS
        raise


@contextmanager
def one_line(location: str) -> Iterator[None]:
    """Raise what goes wrong, whichever library it comes from, in one line about a place."""
    try:
        yield
        return
    except ToposcopeError:
        raise
    except Exception as error:  # noqa: BLE001 - drivers raise anything
        status = getattr(getattr(error, "response", None), "status_code", 0)
        words = next(words for kinds, words in _faults() if isinstance(error, kinds))
        words = words or _STATUSES.get(status, f"the server answers {status}; {_LATER}")
        reason = words.format(name=type(error).__name__, error=error, fix=_fix(location))
    # Not chained: the text of such an error may quote a header, an address with a signature, or a key.
    raise unreachable(location, f"cannot be read: {reason}")


@once
def _faults() -> list[tuple[Any, str]]:
    """Return errors and what they mean, nothing where the status does; of several that fit, the first holds."""
    from netrc import NetrcParseError

    import httpx2
    from huggingface_hub import errors as hub

    return [
        (hub.OfflineModeIsEnabled, "HF_HUB_OFFLINE is set; unset it"),
        (hub.GatedRepoError, "the model is gated: ask for access on its page on the hub, and set HF_TOKEN"),
        (
            (hub.RepositoryNotFoundError, hub.HFValidationError),
            "no such model on the hub, or a private one; check the name, or {fix}",
        ),
        (hub.RevisionNotFoundError, "this revision is no longer on the hub; open the series again"),
        ((hub.HfHubHTTPError, httpx2.HTTPStatusError), ""),
        ((httpx2.ConnectTimeout, httpx2.ConnectError), f"no connection; {_LATER}"),
        ((httpx2.TimeoutException, TimeoutError), f"no answer in time; {_LATER}"),
        ((httpx2.TransportError, ConnectionError), f"the connection is cut; {_LATER}"),
        (NetrcParseError, "~/.netrc is not in its format, or others may read it; correct it"),
        ((httpx2.HTTPError, httpx2.InvalidURL, UnicodeError), "check the address, the proxy, the environment; {fix}"),
        (FileNotFoundError, "no such file or folder"),
        (ImportError, "it needs a driver of fsspec that is not installed: {error}"),
        (PermissionError, "it may not be read; {fix}"),
        (Exception, "{name} from its server or driver; check the address and the credentials"),
    ]


def changed(location: str) -> CheckpointError:
    """Return the error of a file that is another than was listed."""
    return CheckpointError(f"{location}: replaced while it was being read; run the same command again", "changed")


def _fix(location: str) -> str:
    if location.startswith("hf:"):
        return "set HF_TOKEN to a token that may read it"
    if location.startswith("http"):
        return f"put the credentials of {urlsplit(location).hostname} into ~/.netrc"
    return "give its driver credentials that may"
