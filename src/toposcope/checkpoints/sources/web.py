"""Files of an HTTP server: one by its address, or a folder by the index page that the server makes of it.

Requests are made by the client of huggingface_hub; what comes back is what was requested, or refused.
"""

import html
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, unquote, urljoin, urlsplit

import msgspec

from toposcope.checkpoints.sources import remote
from toposcope.checkpoints.sources.remote import Listed, RemoteSource, changed, is_shown, looked_up
from toposcope.checkpoints.sources.source import MAX_FILES, Access, is_relative_name, unreachable
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from httpx2 import Auth, Response

TIMEOUT = 30.0  # seconds without a byte
INDEX_THREADS = 8  # index pages requested at the same time
MAX_WHOLE_FILE = 10_000_000  # bytes of a file that is read from a server without ranges, such as one in git on the hub
MAX_PAGE_BYTES = 20_000_000
MAX_PAGES = 5000  # index pages of one place: a server can make pages without end
MISSING = (403, 404, 410)  # statuses of a missing file; storages that may not be listed answer 403


def claims(spec: str) -> bool:
    """By its scheme."""
    return re.match(r"https?://", spec, re.IGNORECASE) is not None


def roots(spec: str, access: Access) -> list[tuple[str, "WebSource"]]:
    """Return the one place that an address names; no request is made."""
    with suppress(ValueError):
        if host := urlsplit(spec).hostname:
            source = WebSource(spec, access)
            return [(source.name or host, source)]
    raise ToposcopeError("an http address without a host; write https://host/path")


class WebSource(RemoteSource):
    """A file or folder of an HTTP server; an address that ends in a slash is a folder."""

    def child(self, name: str) -> Self:
        """Return a file or folder below."""
        return super().child(quote(name))

    def find(self) -> dict[str, Listed]:
        """List the files by the index pages of the server; they are looked at when they are first needed."""
        seen = self._seen("")
        if seen.file is not None:
            return {"": seen.file}
        found, pages, n_pages = dict[str, Listed](), [("", seen)], 0
        with ThreadPoolExecutor(INDEX_THREADS) as pool:
            while pages:
                n_pages += len(pages)
                if n_pages > MAX_PAGES or len(found) > MAX_FILES:
                    raise ToposcopeError(f"{self.spec}: files or folders without end; name the folder of a series")
                paths = [folder + name for folder, page in pages for name in page.names]
                found |= {path: Listed(self.child(path).spec, -1, "") for path in paths if not path.endswith("/")}
                below = [path for path in paths if path.endswith("/") and is_shown(f"{path}x")]
                pages = list(zip(below, pool.map(self._seen, below), strict=True))
        return dict(sorted(found.items()))

    def look(self) -> Listed | None:
        """Request one byte of the file."""
        return self._seen("", missing=MISSING).file

    def stream(self, listed: Listed, start: int, stop: int) -> Iterator[bytes]:
        """Request a range."""
        return ranged(self.spec, listed, start, stop)

    def _seen(self, folder: str, missing: tuple[int, ...] = ()) -> "_Seen":
        url = self.child(folder).spec if folder else self.spec
        return looked_up(self.access, "web", _Seen, url, partial(_look, url, missing))


class _Seen(msgspec.Struct, frozen=True):
    """What is at an address: a file, or a folder with these names in it, those of folders ending in a slash."""

    file: Listed | None = None
    names: list[str] = []


def _look(url: str, missing: tuple[int, ...]) -> _Seen:
    span = "" if url.endswith("/") else "bytes=0-0"
    with response_of(url, span, expected=(416, *missing)) as response:
        if response.status_code in missing:
            return _Seen()
        if not response.url.path.endswith("/"):
            header = "content-length" if response.status_code == 200 else "content-range"
            size = size_of(response.headers.get(header, ""))
            is_odd = response.status_code == 416 and size != 0  # what an empty file is answered with
            if size is None or is_odd or "content-encoding" in response.headers:
                raise unreachable(url, "its server gives no size; it cannot be read by ranges")
            named = ((name, response.headers.get(name)) for name in ("etag", "last-modified"))
            return _Seen(Listed(url, size, next((f"{name}={value}" for name, value in named if value), "")))
        if response.status_code == 206:  # of an index page that is a file
            return _look(f"{url}/", missing)
        if "html" not in response.headers.get("content-type", "") or response.url.host != urlsplit(url).hostname:
            raise unreachable(url, "its server makes no index page of this folder; give the address of a file")
        page = bytearray()
        for piece in pieces(response):
            page += piece
            if len(page) > MAX_PAGE_BYTES:
                raise unreachable(url, "its index page is too long")
    folder = str(response.url).rstrip("/") + "/"
    links = re.findall(r"""<a\s[^>]*?href\s*=\s*["']?([^"'\s>]+)""", page.decode("utf-8", "replace"), re.IGNORECASE)
    return _Seen(names=sorted({_name_below(folder, html.unescape(link)) for link in links} - {""}))


def _name_below(folder: str, link: str) -> str:
    """Return the name that a link has in the folder, with the slash of a folder; empty if it leads elsewhere."""
    try:
        path, base = unquote(urljoin(folder, link)), unquote(folder)
    except ValueError:
        return ""
    name = path.removeprefix(base) if path.startswith(base) else ""
    plain = name.removesuffix("/")
    # Links that sort the page have a query.
    return name if not re.search("[?#]", link) and "/" not in plain and is_relative_name(plain) else ""


@contextmanager
def response_of(url: str, span: str = "", *, hub: bool = False, expected: tuple[int, ...] = ()) -> "Iterator[Response]":
    """Request an address, redirects followed, only its own host given credentials; other statuses are raised."""
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]
    from huggingface_hub.utils import http_stream_backoff as stream  # type: ignore[attr-defined]

    headers = {**(build_hf_headers() if hub else {}), "Accept-Encoding": "identity"} | ({"Range": span} if span else {})
    auth, client = None if hub else _netrc(), ExitStack()
    response = client.enter_context(
        stream(
            "GET",
            url,
            base_wait_time=remote.FIRST_WAIT,
            headers=headers,
            auth=auth,
            timeout=TIMEOUT,
            follow_redirects=True,
        )
    )
    try:
        if response.status_code not in expected:
            hf_raise_for_status(response) if hub else response.raise_for_status()
        yield response
    finally:
        client.close()  # without the error, if there is one: the client would try the whole request again


def pieces(response: "Response") -> Iterator[bytes]:
    """Yield the body of a response as it comes; a `remote.CUT` error where it ends early."""
    import httpx2

    try:
        yield from response.iter_raw()
    except httpx2.TimeoutException:
        raise TimeoutError from None
    except httpx2.TransportError:
        raise ConnectionAbortedError from None


def ranged(location: str, listed: Listed, start: int, stop: int, *, hub: bool = False) -> Iterator[bytes]:
    """Yield bytes `start` to `stop` of a file as they come, if it is the one that was listed."""
    with response_of(listed.url, f"bytes={start}-{stop - 1}", hub=hub, expected=(416,)) as response:
        header = {200: "content-length", 206: "content-range"}.get(response.status_code, "")
        given = response.headers.get(header, "")
        name, _, value = listed.version.partition("=")
        is_other = response.headers.get(name, value) != value or size_of(given) not in (None, listed.size)
        if response.status_code == 416 or is_other:
            raise changed(location)
        is_whole = response.status_code == 200 and (start, stop) == (0, listed.size)
        is_small = response.status_code == 200 and listed.size <= MAX_WHOLE_FILE
        if not is_whole and not is_small and given != f"bytes {start}-{stop - 1}/{listed.size}":
            sent = f"{given[:60]!r}" if response.status_code == 206 else f"all of its {listed.size} bytes"
            reason = f"asked for bytes {start}-{stop - 1}, its server sends {sent}"
            raise unreachable(location, f"cannot be read by ranges: {reason}; download it and give its path")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise unreachable(location, "its server compresses it; download it and give its path")
        if is_small:
            whole = bytearray()
            for piece in pieces(response):
                whole += piece
                if len(whole) > listed.size:  # it may send without end
                    break
            if len(whole) != listed.size:
                raise changed(location)
            yield bytes(whole[start:stop])
        else:
            yield from pieces(response)


def size_of(header: str) -> int | None:
    """Return the size of a file by the header Content-Length or Content-Range, if it gives one."""
    text = header.rpartition("/")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _netrc() -> "Auth | None":
    import httpx2

    with suppress(FileNotFoundError):
        return httpx2.NetRCAuth()
    return None
