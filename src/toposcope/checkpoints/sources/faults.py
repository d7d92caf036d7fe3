"""What goes wrong elsewhere, in one line: a table from the errors of the libraries to words of our own."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from toposcope.checkpoints.sources.source import CheckpointError, unreachable
from toposcope.errors import ToposcopeError

_LATER = "run the same command again later"
_STATUSES = {
    401: "it may not be read (401); {fix}",
    403: "it may not be read (403); {fix}",
    404: "not there (404); check the name",
    410: "not there (410); check the name",
}


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
        reason = words.format(name=type(error).__name__, fix=_fix(location))
    # Not chained: the text of such an error may quote a header, an address with a signature, or a key.
    raise unreachable(location, f"cannot be read: {reason}")


@cache
def _faults() -> list[tuple[Any, str]]:
    """Return errors and what they mean, nothing where the status does; of several that fit, the first holds."""
    import httpx2
    from huggingface_hub import errors as hub

    return [
        (hub.OfflineModeIsEnabled, "HF_HUB_OFFLINE is set; unset it"),
        (hub.GatedRepoError, "the model is gated: ask for access on its page on the hub, and set HF_TOKEN"),
        (hub.RepositoryNotFoundError, "no such model on the hub, or a private one; check the name, or {fix}"),
        (hub.RevisionNotFoundError, "this revision is no longer on the hub; open the series again"),
        ((hub.HfHubHTTPError, httpx2.HTTPStatusError), ""),
        ((httpx2.ConnectTimeout, httpx2.ConnectError), f"no connection; {_LATER}"),
        ((httpx2.TimeoutException, TimeoutError), f"no answer in time; {_LATER}"),
        ((httpx2.TransportError, ConnectionError), f"the connection is cut; {_LATER}"),
        (
            (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError),
            "check the address, the proxy and the environment; {fix}",
        ),
        (FileNotFoundError, "no such file or folder"),
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
