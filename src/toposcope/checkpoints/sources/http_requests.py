"""Bytes over HTTP through the session of huggingface_hub: retried, paced, checked; errors reveal no secret."""

import email.utils
import netrc
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from toposcope.checkpoints.sources.source import Bytes, CheckpointError, unreachable
from toposcope.checkpoints.tuning import (
    ANSWER_SECONDS,
    FIRST_WAIT,
    MAX_REQUESTED_WAIT,
    MAX_TRIES,
    MAX_WAIT,
    MIN_WINDOW_BYTES,
    RESET_BYTES,
    TIMEOUT,
    WINDOW_SECONDS,
)
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from httpx2 import Auth, Response

TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)  # responses after which another try may help
MAX_WHOLE_FILE = 1_000_000  # bytes of a file that is read whole from a server without ranges
Answer = TypeVar("Answer")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class Retry:
    """The tries left for one operation; `action` is what it fails to do, in messages."""

    def __init__(self, location: str, action: str = "read", *, once: bool = False) -> None:
        self._location, self._action, self._once = location, action, once
        self._failures = 0

    def wait(self, reason: str, requested: float | None = None) -> None:
        """Wait before the next try, as long as the server requests if it does."""
        self._failures += 1
        if requested is not None and requested > MAX_REQUESTED_WAIT:
            raise self.error(f"{reason}, and requests a wait of {requested:.0f} seconds; run the same command then")
        if self._once or self._failures >= MAX_TRIES:
            count = "" if self._once else f", {MAX_TRIES} times"
            raise self.error(f"{reason}{count}; run the same command again later")
        time.sleep(min(FIRST_WAIT * 2 ** (self._failures - 1), MAX_WAIT) if requested is None else requested)

    def reset(self) -> None:
        """Start counting again after progress."""
        self._failures = 0

    def error(self, reason: str) -> CheckpointError:
        """Return the error of the operation."""
        return unreachable(self._location, f"cannot be {self._action}: {reason}")

    def answer(self, call: Callable[[], Answer]) -> Answer:
        """Call until there is an answer; the errors reveal no secret."""
        import httpx2
        from huggingface_hub.errors import OfflineModeIsEnabled

        while True:
            try:
                return call()
            except OfflineModeIsEnabled as error:
                raise self.error("HF_HUB_OFFLINE is set; unset it") from error
            except transient_errors() as error:
                self.wait(describe_error(error))
            except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
                # Not chained: the message of such an error may quote a header, and with it the token.
                reason = f"{type(error).__name__} from the HTTP client; check the address, the proxy and the token in"
                raise self.error(f"{reason} the environment") from None


class SlowServerError(Exception):
    """A response that comes too slowly; another try may help."""


def answer_in_time(send: Callable[[], "Response"]) -> "Response":
    """Return the response of a request whose headers arrive within `ANSWER_SECONDS`."""
    answers: list[Response] = []
    errors: list[BaseException] = []
    is_late = threading.Event()

    def run() -> None:
        try:
            answers.append(send())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            errors.append(error)
        if is_late.is_set() and answers:
            answers[0].close()

    # A daemon: what still waits for a header does not keep the process alive.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not answers and not errors:
        is_late.set()
        raise SlowServerError("no answer in time")
    if errors:
        raise errors[0]
    return answers[0]


def paced(response: "Response", chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a response while at least `MIN_WINDOW_BYTES` arrive in each window."""
    received, is_slow, is_over = [0], threading.Event(), threading.Event()
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None

    def watch() -> None:
        before = 0
        while not is_over.wait(WINDOW_SECONDS):
            if received[0] - before < MIN_WINDOW_BYTES:
                is_slow.set()
                # Wakes the thread that waits for bytes; closing the socket would not.
                with suppress(OSError):
                    if connection is not None:
                        connection.shutdown(socket.SHUT_RDWR)
                return
            before = received[0]

    threading.Thread(target=watch, daemon=True).start()
    try:
        for chunk in chunks:
            received[0] += len(chunk)
            yield chunk
            if is_slow.is_set():
                raise SlowServerError("too few bytes a second")
    except SlowServerError:
        raise
    except Exception as error:
        if is_slow.is_set():
            raise SlowServerError("too few bytes a second") from error
        raise
    finally:
        is_over.set()


@dataclass(frozen=True)
class Address:
    """What to request."""

    url: str
    location: str  # its name in messages
    hub: bool = False  # whether to send the environment's token for the Hugging Face hub


def open_response(
    address: Address, method: str = "GET", headers: "Mapping[str, str] | None" = None, retry: Retry | None = None
) -> "Response":
    """Return a response, redirects followed, that the caller reads and closes; only its own host gets credentials."""
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    retry = retry or Retry(address.location)

    def send() -> "Response":
        client = get_session()
        sent = {**(build_hf_headers() if address.hub else {}), "Accept-Encoding": "identity", **(headers or {})}
        request = client.build_request(method, address.url, headers=sent, timeout=TIMEOUT)
        auth = None if address.hub else _netrc_of(address.url)
        try:
            return answer_in_time(partial(client.send, request, stream=True, auth=auth, follow_redirects=True))
        except RuntimeError as error:
            if not client.is_closed:
                raise
            # Another thread closed the session; the next try gets a new one.
            raise SlowServerError("the connection was closed") from error

    while (response := retry.answer(send)).status_code in TRANSIENT_STATUSES:
        response.close()
        retry.wait(f"the server answers {response.status_code}", _requested_wait(response.headers))
    return response


def transient_errors() -> tuple[type[Exception], ...]:
    """Return the connection errors after which another try may help."""
    import httpx2

    return httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError, SlowServerError


def describe_error(error: Exception) -> str:
    """Describe a connection error."""
    import httpx2

    if isinstance(error, SlowServerError):
        return str(error)
    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
        return f"no connection ({' '.join(str(error).split()) or 'timed out'})"
    return "no answer in time" if isinstance(error, httpx2.TimeoutException) else "the connection was cut"


def response_error(response: "Response", address: Address) -> CheckpointError:
    """Return the error for a response that cannot be used."""
    status = response.status_code
    if status in (401, 403):
        if address.hub and response.headers.get("x-error-code") == "GatedRepo":
            fix = "the model is gated: ask for access on its page, and set HF_TOKEN"
        elif address.hub:
            fix = "set HF_TOKEN to a token that may read it"
        else:
            fix = f"put the credentials of {urlsplit(address.url).hostname} into ~/.netrc"
        return unreachable(address.location, f"may not be read ({status}); {fix}")
    if status in (404, 410):
        return unreachable(address.location, f"not there ({status}); check the name")
    return unreachable(address.location, f"cannot be read: the server answers {status}")


def parse_size(text: str) -> int | None:
    """Return the size that a header gives, if it is one."""
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else None


def _requested_wait(headers: "Mapping[str, str]") -> float | None:
    """Return the wait in seconds that a server requests, by Retry-After or by the rate limit of the hub."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    text = headers.get("retry-after", "").strip()
    seconds = parse_size(text)
    if seconds is not None:
        return float(seconds)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _netrc_of(url: str) -> "Auth | None":
    import httpx2

    path = Path("~/.netrc").expanduser()
    if not path.is_file():
        return None
    try:
        found = netrc.netrc(str(path)).authenticators(urlsplit(url).hostname or "")
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        # Not chained: its message may quote a password.
        raise ToposcopeError(f"{path}: cannot be read, or is not in its format; correct it") from None
    return httpx2.BasicAuth(found[0], found[2]) if found and found[2] else None


def fetch_range(
    address: Address, size: int, same: Callable[["Response"], bool], start: int, stop: int, into: Bytes
) -> Iterator[int]:
    """Fill a buffer with bytes `start` to `stop`, yielding how many it holds so far."""
    retry = Retry(address.location)
    view, reached, last_reset = into.data, 0, 0
    etag: str | None = None
    while reached < len(view):
        begin = start + reached
        response = open_response(address, headers={"Range": f"bytes={begin}-{stop - 1}"}, retry=retry)
        with closing(response):
            at = _checked(response, address, size, begin, stop, len(view) == size)
            etag = response.headers.get("etag", "") if etag is None else etag
            if not same(response) or etag != response.headers.get("etag", ""):
                raise changed_error(address.location)
            try:
                for chunk in paced(response, response.iter_raw()):
                    useful = memoryview(chunk)[max(0, begin - at) :]
                    at += len(chunk)
                    if at > stop and response.status_code == 206:
                        raise _wrong(address, "sends more bytes than requested")
                    useful = useful[: len(view) - reached]
                    view[reached : reached + len(useful)] = useful
                    reached += len(useful)
                    begin += len(useful)
                    yield reached
                    if reached == len(view) and at > stop:
                        break  # the rest of a whole file is not needed
            except transient_errors() as error:
                cut = describe_error(error)
            else:
                cut = "fewer bytes came than announced"
        if reached - last_reset >= RESET_BYTES:
            retry.reset()
            last_reset = reached
        if reached < len(view):
            retry.wait(f"{cut} at byte {start + reached}")


def changed_error(location: str) -> CheckpointError:
    """Return the error for a file that was replaced since it was listed."""
    return CheckpointError(f"{location}: replaced while it was being read; run the same command again", "changed")


def _checked(response: "Response", address: Address, size: int, begin: int, stop: int, whole: bool) -> int:
    """Return the offset in the file at which the body begins."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _wrong(address, "compresses its response")
    if response.status_code == 206:
        header = response.headers.get("content-range", "")
        match = _CONTENT_RANGE.fullmatch(header)
        if match and int(match[3]) != size:
            raise changed_error(address.location)
        if not match or (int(match[1]), int(match[2])) != (begin, stop - 1):
            raise _wrong(address, f"was asked for bytes {begin}-{stop - 1}, but sends {header[:60]!r}")
        return begin
    if response.status_code == 200:
        if parse_size(response.headers.get("content-length", "")) not in (None, size):
            raise changed_error(address.location)
        if size > MAX_WHOLE_FILE and not whole:
            raise _wrong(address, f"sends the whole file of {size} bytes for a request of {stop - begin}")
        return 0
    if response.status_code == 416:
        raise changed_error(address.location)
    raise response_error(response, address)


def _wrong(address: Address, what: str) -> CheckpointError:
    reason = f"cannot be read by ranges: the server {what}; download it and give its path"
    return unreachable(address.location, reason)
