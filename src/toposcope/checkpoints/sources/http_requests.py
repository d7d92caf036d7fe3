"""One HTTP request through the session of huggingface_hub, retried where that may help; errors reveal no secret."""

import email.utils
import netrc
import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toposcope.checkpoints.sources.http_pace import SlowServerError, answer_in_time
from toposcope.checkpoints.sources.retry import Retry
from toposcope.checkpoints.sources.source import CheckpointError
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from httpx2 import Auth, Response

TIMEOUT = 30.0
"""Seconds without a byte."""
TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""Responses after which another try may help."""


@dataclass(frozen=True)
class Address:
    """What to request.

    Attributes
    ----------
    url : str
    location : str
        Its name in messages.
    hub : bool
        Whether to send the environment's token for the Hugging Face hub.
    """

    url: str
    location: str
    hub: bool = False


def open_response(
    address: Address,
    method: str = "GET",
    headers: "Mapping[str, str] | None" = None,
    retry: Retry | None = None,
) -> "Response":
    """Return a response whose body is still to be read; the caller closes it.

    Redirects are followed; credentials are only sent to their own host.

    Raises
    ------
    CheckpointError
        If no try gets a response.
    """
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    retry = retry or Retry(address.location)
    while True:
        client = get_session()
        sent = {**(build_hf_headers() if address.hub else {}), "Accept-Encoding": "identity", **(headers or {})}
        try:
            request = client.build_request(method, address.url, headers=sent, timeout=TIMEOUT)
            auth = None if address.hub else _netrc_of(address.url)
            send = partial(client.send, request, stream=True, auth=auth, follow_redirects=True)
            response = answer_in_time(send)
        except OfflineModeIsEnabled as error:
            raise CheckpointError(
                f"{address.location}: cannot be read: HF_HUB_OFFLINE is set; unset it", "unreachable"
            ) from error
        except transient_errors() as error:
            retry.wait(describe_error(error))
            continue
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            # Not chained: the message of such an error may quote a header, and with it the token.
            raise CheckpointError(
                f"{address.location}: cannot be read: {type(error).__name__} from the HTTP client; check the address, "
                "the proxy and the token in the environment",
                "unreachable",
            ) from None
        except RuntimeError:
            if not client.is_closed:
                raise
            # Another thread closed the session; the next try gets a new one.
            retry.wait("the connection was closed")
            continue
        if response.status_code not in TRANSIENT_STATUSES:
            return response
        response.close()
        retry.wait(f"the server answers {response.status_code}", _requested_wait(response.headers))


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
            mend = "the model is gated: ask for access on its page, and set HF_TOKEN"
        elif address.hub:
            mend = "set HF_TOKEN to a token that may read it"
        else:
            mend = f"put the credentials of {urlsplit(address.url).hostname} into ~/.netrc"
        return CheckpointError(f"{address.location}: may not be read ({status}); {mend}", "unreachable")
    if status in (404, 410):
        return CheckpointError(f"{address.location}: not there ({status}); check the name", "unreachable")
    return CheckpointError(f"{address.location}: cannot be read: the server answers {status}", "unreachable")


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
    """Return the credentials of a host from ~/.netrc."""
    import httpx2

    path = Path("~/.netrc").expanduser()
    if not path.is_file():
        return None
    try:
        found = netrc.netrc(str(path)).authenticators(urlsplit(url).hostname or "")
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        # Not chained: its message may quote a password.
        raise ToposcopeError(f"{path}: cannot be read, or is not in its format; mend it") from None
    return httpx2.BasicAuth(found[0], found[2]) if found and found[2] else None
