"""One HTTP request: through the session of huggingface_hub, tried again where that may help, with no secret told."""

import email.utils
import netrc
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toposcope.checkpoints.sources.patience import Patience
from toposcope.checkpoints.sources.source import CheckpointError
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from httpx2 import Auth, Response

TIMEOUT = 30.0
"""Seconds without a byte."""
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Answers after which another try may help."""


@dataclass(frozen=True)
class Address:
    """What is asked for.

    Attributes
    ----------
    url : str
    location : str
        What messages call it.
    hub : bool
        Whether it is the Hugging Face hub, which is told the token of the environment.
    """

    url: str
    location: str
    hub: bool = False


def opened(
    address: Address,
    method: str = "GET",
    headers: "Mapping[str, str] | None" = None,
    patience: Patience | None = None,
) -> "Response":
    """Return an answer whose body is still to be read; the caller closes it.

    Redirects are followed; credentials stay with the host they are for.

    Raises
    ------
    CheckpointError
        If there is no answer after several tries.
    """
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    patience = patience or Patience(address.location)
    while True:
        client = get_session()
        sent = {**(build_hf_headers() if address.hub else {}), "Accept-Encoding": "identity", **(headers or {})}
        try:
            request = client.build_request(method, address.url, headers=sent, timeout=TIMEOUT)
            auth = None if address.hub else _netrc_of(address.url)
            response = client.send(request, stream=True, auth=auth, follow_redirects=True)
        except OfflineModeIsEnabled as error:
            raise CheckpointError(
                f"{address.location}: cannot be read: HF_HUB_OFFLINE is set; unset it", "unreachable"
            ) from error
        except passing_errors() as error:
            patience.wait(reason(error))
            continue
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            # Not chained, as the message of such an error may quote a header, the token with it.
            raise CheckpointError(
                f"{address.location}: cannot be read: {type(error).__name__} from the HTTP client; check the address, "
                "the proxy and the token in the environment",
                "unreachable",
            ) from None
        except RuntimeError:
            if not client.is_closed:
                raise
            # Another thread let go of the session; the next try has a new one.
            patience.wait("the connection was closed")
            continue
        if response.status_code not in PASSING:
            return response
        response.close()
        patience.wait(f"the server answers {response.status_code}", _asked_wait(response.headers))


def passing_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a connection after which another try may help."""
    import httpx2

    return httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError


def reason(error: Exception) -> str:
    """Return what happened to a connection."""
    import httpx2

    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
        return f"no connection ({' '.join(str(error).split()) or 'timed out'})"
    return "no answer in time" if isinstance(error, httpx2.TimeoutException) else "the connection was cut"


def refusal(response: "Response", address: Address) -> CheckpointError:
    """Return the error for an answer that is none of those wished for."""
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


def whole_number(text: str) -> int | None:
    """Return the number a header tells, if it tells one of a possible size."""
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else None


def _asked_wait(headers: "Mapping[str, str]") -> float | None:
    """Return the seconds a server asks to wait, by Retry-After or by the rate limit of the hub."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    text = headers.get("retry-after", "").strip()
    seconds = whole_number(text)
    if seconds is not None:
        return float(seconds)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _netrc_of(url: str) -> "Auth | None":
    """Return the credentials ~/.netrc holds for a host."""
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
