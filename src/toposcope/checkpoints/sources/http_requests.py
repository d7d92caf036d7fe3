"""Ranges of bytes over HTTP, by the client of huggingface_hub: what comes back is what was requested, or refused."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from toposcope.checkpoints.sources import remote
from toposcope.checkpoints.sources.faults import changed
from toposcope.checkpoints.sources.remote import Listed
from toposcope.checkpoints.sources.source import unreachable
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from httpx2 import Auth, Response

TIMEOUT = 30.0  # seconds without a byte
WINDOW_SECONDS, MIN_SPEED = 60.0, 1000  # seconds after which a response has to have come at so many bytes a second


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
    """Yield the body of a response as it comes; ConnectionError or TimeoutError where it ends early."""
    import httpx2

    began, received = time.monotonic(), 0
    try:
        for piece in response.iter_raw():
            yield piece
            received += len(piece)
            seconds = time.monotonic() - began
            if seconds > WINDOW_SECONDS and received < MIN_SPEED * seconds:
                raise TimeoutError
    except httpx2.TimeoutException:
        raise TimeoutError from None
    except httpx2.TransportError:
        raise ConnectionError from None


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
        if not is_whole and given != f"bytes {start}-{stop - 1}/{listed.size}":
            sent = f"{given[:60]!r}" if response.status_code == 206 else f"all of its {listed.size} bytes"
            reason = f"asked for bytes {start}-{stop - 1}, its server sends {sent}"
            raise unreachable(location, f"cannot be read by ranges: {reason}; download it and give its path")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise unreachable(location, "its server compresses it; download it and give its path")
        yield from pieces(response)


def size_of(header: str) -> int | None:
    """Return the size of a file by the header Content-Length or Content-Range, if it gives one."""
    text = header.rpartition("/")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _netrc() -> "Auth | None":
    from netrc import NetrcParseError

    import httpx2

    try:
        return httpx2.NetRCAuth()
    except FileNotFoundError:
        return None
    except (NetrcParseError, OSError, UnicodeDecodeError):
        # Not chained: its message may quote a password.
        raise ToposcopeError("~/.netrc: cannot be read, or is not in its format; correct it") from None
