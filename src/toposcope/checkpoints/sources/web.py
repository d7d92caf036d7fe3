"""Files of an HTTP server: one by its address, or a folder by the index page that the server makes of it."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

import msgspec

from toposcope.checkpoints.sources.http_requests import (
    Address,
    Retry,
    describe_error,
    fetch_range,
    open_response,
    paced,
    parse_size,
    response_error,
    transient_errors,
)
from toposcope.checkpoints.sources.range_cache import cached_lookup, read_cached
from toposcope.checkpoints.sources.source import (
    MAX_DEPTH,
    MAX_FILES,
    Access,
    Bytes,
    Files,
    checked_size,
    is_relative_name,
    unreachable,
)
from toposcope.checkpoints.tuning import INDEX_THREADS
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from httpx2 import Response

MAX_PAGE_BYTES = 20_000_000
MAX_PAGES = 5000  # index pages of one place: a server can make pages without end
_folders: set[str] = set()  # addresses known to be folders, which are listed without a request that finds out
_NO_HEAD = (400, 403, 405, 501)  # statuses of servers that only know GET


class Index(msgspec.Struct, frozen=True):
    """Names of the files and folders in a folder."""

    files: list[str]
    folders: list[str]


def read_index(url: str) -> Index:
    """Read the index page of a folder, whose address ends in a slash."""
    page, final_url = _page(url)
    links = _Links()
    links.feed(page)
    names = dict(_name_below(final_url, link) for link in links.targets)
    names.pop("", None)
    return Index(*(sorted(name for name in names if names[name] is is_folder) for is_folder in (False, True)))


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.targets += [value for name, value in attrs if name == "href" and value]


def _page(url: str) -> tuple[str, str]:
    address, retry = Address(url, url), Retry(url)
    while True:
        with closing(open_response(address, retry=retry)) as response:
            if response.status_code != 200:
                raise response_error(response, address)
            at_home = response.url.host == urlsplit(url).hostname and response.url.path.endswith("/")
            if "html" not in response.headers.get("content-type", "") or not at_home:
                raise unreachable(url, "its server makes no index page of this folder; give the address of a file")
            page = bytearray()
            try:
                for chunk in paced(response, response.iter_bytes()):
                    page += chunk
                    if len(page) > MAX_PAGE_BYTES:
                        raise unreachable(url, "its index page is too long")
                return page.decode("utf-8", "replace"), str(response.url)
            except transient_errors() as error:
                retry.wait(describe_error(error))


def _name_below(folder: str, link: str) -> tuple[str, bool]:
    """Return the name that a link has in the folder, empty if it leads elsewhere, and whether it is a folder."""
    try:
        target = urljoin(folder, link)
        parts = urlsplit(target)
    except ValueError:
        return "", False
    path, base = unquote(target), unquote(folder)
    rest = path.removeprefix(base)
    name = rest.removesuffix("/")
    # Links that sort the page have a query.
    if parts.query or parts.fragment or not path.startswith(base) or "/" in name or not is_relative_name(name):
        return "", False
    return name, rest.endswith("/")


class _Status(msgspec.Struct, frozen=True):
    """What an address is: a folder, a file of a size and a version, or missing."""

    folder: bool = False
    size: int = 0
    version: str = ""
    missing: bool = False


def claims(spec: str) -> bool:
    """By its scheme."""
    return re.match(r"https?://", spec, re.IGNORECASE) is not None


def roots(spec: str, access: Access) -> list[tuple[str, "WebSource"]]:
    """Return the one place that an address names; no request is made."""
    try:
        parts = urlsplit(spec)
        host = parts.hostname
    except ValueError:
        host = None
    if not host:
        raise ToposcopeError("an http address without a host; write https://host/path")
    return [(_name_of(spec) or host, WebSource(spec, access))]


@dataclass(frozen=True)
class WebFile:
    """A file of an HTTP server (see `StoredFile`); its size is requested when it is first needed."""

    location: str
    access: Access
    known: _Status | None = field(default=None, compare=False)
    sha256: str = ""

    @property
    def size(self) -> int:
        """In bytes."""
        return self._status.size

    @property
    def version(self) -> str:
        """Its entity tag or modification date; empty if the server sends neither."""
        return self._status.version

    @cached_property
    def _status(self) -> _Status:
        status = self.known or _status_of(self.location, self.access)
        if status.folder:
            raise unreachable(self, "a folder, where its server lists a file")
        return status

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range."""
        fill = partial(
            fetch_range, Address(self.location, self.location), self.size, partial(_is_version, self.version)
        )
        return read_cached(self, start, stop, f"web:{self.location}", self.access, fill)


@dataclass(frozen=True)
class WebSource:
    """A file or folder of an HTTP server (see `Source`); an address that ends in a slash is a folder."""

    spec: str
    access: Access

    def files(self) -> Files:
        """List the files by the index pages of the server."""
        if not self.spec.endswith("/") and self.spec not in _folders:
            status = _status_of(self.spec, self.access)
            if not status.folder:
                return {_name_of(self.spec): WebFile(self.spec, self.access, status)}
            _folders.add(self.spec)
        return {name: WebFile(f"{self.spec.rstrip('/')}/{quote(name)}", self.access) for name in sorted(self._names())}

    def child(self, name: str) -> "WebSource":
        """Return a file or folder below."""
        return WebSource(f"{self.spec.rstrip('/')}/{quote(name)}", self.access)

    def beside(self, name: str) -> WebFile | None:
        """Return a file in the folder of this file."""
        url = f"{self.spec.rpartition('/')[0]}/{quote(name)}"
        request = partial(_request_status, url, may_be_missing=True)
        status = cached_lookup(f"beside {url}", _Status, url, self.access, request, immutable=False)
        return None if status.missing or status.folder else WebFile(url, self.access, status)

    def _names(self) -> Iterator[str]:
        folders, count, n_pages = [""], 0, 0
        with ThreadPoolExecutor(INDEX_THREADS) as pool:
            for depth in range(MAX_DEPTH + 1):
                below: list[str] = []
                n_pages += len(folders)
                if n_pages > MAX_PAGES:
                    raise ToposcopeError(f"{self.spec}: more than {MAX_PAGES:,} folders; name the folder of a series")
                for prefix, index in zip(folders, pool.map(self._index, folders), strict=True):
                    yield from (prefix + name for name in index.files)
                    below += [f"{prefix}{name}/" for name in index.folders if not name.startswith(".")]
                    _folders.update(f"{self.spec.rstrip('/')}/{quote(prefix + name)}" for name in index.folders)
                    count += len(index.files) + len(index.folders)
                    if count > MAX_FILES:
                        raise ToposcopeError(f"{self.spec}: more than {MAX_FILES:,} files; name the folder of a series")
                folders = below if depth < MAX_DEPTH else []

    def _index(self, prefix: str) -> Index:
        url = f"{self.spec.rstrip('/')}/{quote(prefix)}"
        return cached_lookup(f"index {url}", Index, url, self.access, partial(read_index, url), immutable=False)


def _status_of(url: str, access: Access) -> _Status:
    return cached_lookup(f"look {url}", _Status, url, access, partial(_request_status, url), immutable=False)


def _request_status(url: str, *, may_be_missing: bool = False) -> _Status:
    """Request what an address is, by HEAD, or by one byte of a server that does not serve it."""
    address = Address(url, url)
    with closing(open_response(address, "HEAD")) as head:
        status = _status_from(head)
        if head.status_code == 404 and not url.endswith("/"):
            with closing(open_response(Address(f"{url}/", f"{url}/"), "HEAD")) as folder:
                if folder.status_code == 200:
                    return _Status(folder=True)
        usable = head.status_code == 200 and "content-encoding" not in head.headers
        if status is not None and (status.folder or usable):
            return status
        if head.status_code not in (200, *_NO_HEAD) and not may_be_missing:
            raise response_error(head, address)
    with closing(open_response(address, headers={"Range": "bytes=0-0"})) as response:
        # Storages that may not be listed answer 403 for a missing file.
        if may_be_missing and response.status_code in (403, 404, 410):
            return _Status(missing=True)
        if response.status_code not in (200, 206, 416):
            raise response_error(response, address)
        return _status_from(response) or _Status(size=checked_size(None, url))


def _status_from(response: "Response") -> _Status | None:
    """Return what a response says of its address; None if it gives no size."""
    if response.status_code in (200, 206) and response.url.path.endswith("/"):
        return _Status(folder=True)
    header = "content-length" if response.status_code == 200 else "content-range"
    size = parse_size(response.headers.get(header, "").rpartition("/")[2])
    return None if size is None or size >= 1 << 63 else _Status(size=size, version=_version(response.headers))


def _version(headers: "Mapping[str, str]") -> str:
    for name in ("etag", "last-modified"):
        if headers.get(name):
            return f"{name}={headers[name]}"
    return ""


def _is_version(version: str, response: "Response") -> bool:
    """Return whether a response is of a version, as far as its headers show."""
    name, _, value = version.partition("=")
    return not name or response.headers.get(name, value) == value


def _name_of(url: str) -> str:
    return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
