"""Files of an HTTP server: one by its address, or a folder by the index page the server makes of it."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import msgspec

from toposcope.checkpoints.sources.fetching import checked_size, looked_up, read_through
from toposcope.checkpoints.sources.http_index import Listed, page_of
from toposcope.checkpoints.sources.http_ranges import filled
from toposcope.checkpoints.sources.http_requests import Address, opened, refusal, whole_number
from toposcope.checkpoints.sources.source import DEPTH, MOST_FILES, Access, Bytes, CheckpointError, Files
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from httpx2 import Response

AT_ONCE = 8
"""Index pages asked for at the same time."""
_folders: set[str] = set()
"""Addresses known to be folders, which need not be asked after before they are listed."""
_NO_HEAD = (400, 403, 405, 501)
"""Answers of servers that know GET only."""


class _Told(msgspec.Struct, frozen=True):
    """What a server says of an address: a folder, a file of a size and a version, or nothing there."""

    folder: bool = False
    size: int = 0
    version: str = ""
    missing: bool = False


def claims(spec: str) -> bool:
    """By its scheme."""
    return re.match(r"https?://", spec, re.IGNORECASE) is not None


def roots(spec: str, access: Access) -> list[tuple[str, "WebSource"]]:
    """Return the one place an address names; the server is not asked yet.

    Raises
    ------
    ToposcopeError
        If the address holds what should not be kept, or is none.
    """
    try:
        parts = urlsplit(spec)
        host = parts.hostname
    except ValueError:
        host = None
    if not host:
        raise ToposcopeError("an http address without a host; write https://host/path")
    plain = f"{parts.scheme}://{host}{parts.path}"
    if "@" in parts.netloc:
        raise ToposcopeError(
            f"{plain}: holds a user name or password, and addresses are kept in studies; put it into ~/.netrc"
        )
    if parts.query or parts.fragment:
        raise ToposcopeError(
            f"{plain}: holds a query or fragment, and addresses are kept in studies; give the address without what "
            "follows ? or #, and put credentials into ~/.netrc"
        )
    return [(_name_of(spec) or host, WebSource(spec, access))]


@dataclass(frozen=True)
class WebFile:
    """A file of an HTTP server (see `StoredFile`), asked after when its size is first wanted."""

    url: str
    access: Access
    known: _Told | None = field(default=None, compare=False)
    sha256: str = ""

    @property
    def location(self) -> str:
        """The address."""
        return self.url

    @property
    def size(self) -> int:
        """As the server tells."""
        return self._told.size

    @property
    def version(self) -> str:
        """Its entity tag, or its date of change; empty if the server tells neither."""
        return self._told.version

    @cached_property
    def _told(self) -> _Told:
        told = self.known or _look(self.url, self.access)
        if told.folder:
            raise CheckpointError(f"{self.url}: a folder, where its server lists a file", "unreachable")
        return told

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range."""
        fill = partial(filled, Address(self.url, self.url), self.size, partial(_same, self.version))
        return read_through(self, start, stop, f"web:{self.url}", self.access, fill)


@dataclass(frozen=True)
class WebSource:
    """A file or folder of an HTTP server (see `Source`); an address that ends in a slash is a folder for certain."""

    url: str
    access: Access

    @property
    def spec(self) -> str:
        """The address."""
        return self.url

    def files(self) -> Files:
        """List the files by the index pages of the server."""
        if not self.url.endswith("/") and self.url not in _folders:
            told = _look(self.url, self.access)
            if not told.folder:
                return {_name_of(self.url): WebFile(self.url, self.access, told)}
            _folders.add(self.url)
        return {name: WebFile(f"{self.url.rstrip('/')}/{quote(name)}", self.access) for name in sorted(self._names())}

    def child(self, name: str) -> "WebSource":
        """Return a file or folder below."""
        return WebSource(f"{self.url.rstrip('/')}/{quote(name)}", self.access)

    def beside(self, name: str) -> WebFile | None:
        """Return a file in the folder in which this file lies."""
        url = f"{self.url.rpartition('/')[0]}/{quote(name)}"
        ask = partial(_ask_if_there, url)
        told = looked_up(f"beside {url}", _Told, url, self.access, ask, lasts=False)
        return None if told.missing or told.folder else WebFile(url, self.access, told)

    def _names(self) -> Iterator[str]:
        """Name the files, folder by folder."""
        folders, count = [""], 0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for depth in range(DEPTH + 1):
                below = []
                for prefix, listed in zip(folders, pool.map(self._listed, folders), strict=True):
                    yield from (prefix + name for name in listed.files)
                    below += [f"{prefix}{name}/" for name in listed.folders if not name.startswith(".")]
                    _folders.update(f"{self.url.rstrip('/')}/{quote(prefix + name)}" for name in listed.folders)
                    count += len(listed.files) + len(listed.folders)
                    if count > MOST_FILES:
                        raise ToposcopeError(f"{self.url}: more than {MOST_FILES:,} files; name the folder of a series")
                folders = below if depth < DEPTH else []

    def _listed(self, prefix: str) -> Listed:
        url = f"{self.url.rstrip('/')}/{quote(prefix)}"
        return looked_up(f"index {url}", Listed, url, self.access, partial(page_of, url), lasts=False)


def _look(url: str, access: Access) -> _Told:
    return looked_up(f"look {url}", _Told, url, access, partial(_ask, url), lasts=False)


def _ask(url: str) -> _Told:
    """Ask what an address is: without its content, or with one byte of it from a server that will not do without."""
    address = Address(url, url)
    with closing(opened(address, "HEAD")) as response:
        status = response.status_code
        if status == 200 and response.url.path.endswith("/"):
            return _Told(folder=True)
        length = whole_number(response.headers.get("content-length", ""))
        if status == 200 and length is not None and "content-encoding" not in response.headers:
            return _Told(size=checked_size(length, url), version=_version(response.headers))
        if status == 404 and not url.endswith("/") and _is_there(f"{url}/"):
            return _Told(folder=True)
        if status != 200 and status not in _NO_HEAD:
            raise refusal(response, address)
    return _ask_for_a_byte(address)


def _ask_if_there(url: str) -> _Told:
    # With GET, as some servers know no other; storages that may not be listed answer 403 of what is not there.
    with closing(opened(Address(url, url), headers={"Range": "bytes=0-0"})) as response:
        if response.status_code in (403, 404, 410):
            return _Told(missing=True)
    return _ask(url)


def _ask_for_a_byte(address: Address) -> _Told:
    with closing(opened(address, headers={"Range": "bytes=0-0"})) as response:
        status = response.status_code
        if status not in (200, 206, 416):
            raise refusal(response, address)
        if response.url.path.endswith("/"):
            return _Told(folder=True)
        told = (
            response.headers.get("content-range", "") if status != 200 else response.headers.get("content-length", "")
        )
        size = checked_size(whole_number(told.rpartition("/")[2]), address.location)
        return _Told(size=size, version=_version(response.headers))


def _is_there(url: str) -> bool:
    with closing(opened(Address(url, url), "HEAD")) as response:
        return response.status_code == 200


def _version(headers: "Mapping[str, str]") -> str:
    for name in ("etag", "last-modified"):
        if headers.get(name):
            return f"{name}={headers[name]}"
    return ""


def _same(version: str, response: "Response") -> bool:
    """Tell whether an answer is of a version, as far as the answer tells."""
    name, _, value = version.partition("=")
    told = response.headers.get(name) if name else None
    return told is None or told == value


def _name_of(url: str) -> str:
    return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
