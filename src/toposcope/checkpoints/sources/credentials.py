"""Credentials in addresses: addresses are stored in studies and shown in messages, so one that holds any is refused."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from toposcope.errors import ToposcopeError

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):[/\\]{2,}(\S*)")
_SLASHES_LEFT_OUT = re.compile(
    r"(?<![A-Za-z0-9+.-])(https?|ftps?|sftp|ssh|s3a?|gs|gcs|az|abfss?|hdfs|webdavs?|smb|hf):[/\\]?([^/\\\s]\S*)",
    re.IGNORECASE,
)
"""An address of a known scheme with one slash or none; ``hf:owner/name`` is written so."""
_PORT = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:@]*)(:\d*)?")
_PARAMETER = re.compile(
    r"(token|secret|password|passwd|pwd|signature|credential|(api|access|account|secret)[_-]?key([_-]?id)?"
    r"|(?<![A-Za-z0-9])(auth|sig|pass|pw))=",
    re.IGNORECASE,
)
"""A part such as ``token=`` or ``X-Amz-Signature=``; ``tokens=4B`` is none."""
_TOKEN = re.compile(r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|gh[opsu]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{12,})")
"""Tokens of the hub, of GitHub and of S3, by their prefixes."""
FIX = (
    "addresses are stored in studies; credentials belong in ~/.netrc (http), in HF_TOKEN (the hub), or where the "
    "driver looks for them"
)
HUB = "hf:"
HIDDEN = "[an address with credentials]"


def refuse_credentials(text: str, what: str = "", *, query: bool = True) -> None:
    """Refuse a text with an address that holds a user name, a password, a token or a query."""
    for scheme, rest in _addresses(text):
        found = secret = _credential(scheme, rest)
        # A question mark in hf:name@step-? stands for any character.
        if query and scheme not in ("file://", HUB) and ("?" in rest or "#" in rest):
            found = found or "a query or fragment"
        if found:
            host = re.split("[/?#]", rest)[0]
            shown = host if not secret and _PORT.fullmatch(host) else ""  # if it is beyond doubt that it is a host
            raise ToposcopeError(f"{what}{': ' if what else ''}{scheme}{shown}: holds {found}; {FIX}")


def refuse_credentials_anywhere(content: Any, place: str = "", *, without_query: tuple[str, ...] = ()) -> None:
    """Refuse credentials in any text of nested dictionaries and lists; the message names its field."""
    if isinstance(content, str):
        refuse_credentials(content, place, query=place not in without_query)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            refuse_credentials_anywhere(key, f"a name in {place}" if place else "a name")
            plain = isinstance(key, str) and key.isidentifier()
            refuse_credentials_anywhere(
                value, f"{place}.{key}".lstrip(".") if plain else place, without_query=without_query
            )
    elif isinstance(content, list | tuple):
        for value in content:
            refuse_credentials_anywhere(value, place, without_query=without_query)


def without_credentials(text: str) -> str:
    """Return a text for a message, each address that holds a credential replaced."""
    for pattern in (_ADDRESS, _SLASHES_LEFT_OUT):
        text = pattern.sub(lambda match: HIDDEN if _credential(*_parts(match)) else match[0], text)
    return text


def _addresses(text: str) -> Iterator[tuple[str, str]]:
    for pattern in (_ADDRESS, _SLASHES_LEFT_OUT):
        for match in pattern.finditer(text):
            scheme, rest = _parts(match)
            yield scheme, rest
            if "::" in rest:  # of chained addresses, each is looked at by itself too
                yield from _addresses(rest.partition("::")[2])


def _parts(match: re.Match[str]) -> tuple[str, str]:
    """Return the scheme, such as ``https://`` or ``hf:``, and what follows with one kind of slash, decoded."""
    scheme = match[1].lower()
    is_hub = scheme == "hf" and match.re is _SLASHES_LEFT_OUT
    return HUB if is_hub else f"{scheme}://", unquote(unquote(match[2])).replace("\\", "/").lstrip("/")


def _credential(scheme: str, rest: str) -> str:
    """Return what an address holds that is secret, or an empty text."""
    if scheme == "file://":
        return ""
    authority, _, path = rest.partition("/")
    if _TOKEN.search(rest):
        return "a token"
    if _PARAMETER.search(rest):
        return "a token or a signature"
    if scheme == HUB:
        # hf:name@revision has no slash before the at sign either.
        return "a user name or password" if ":" in authority.partition("@")[0] and "@" in rest else ""
    user = "a user name or password"
    if "@" in authority or not _PORT.fullmatch(authority):
        return user
    # A password may hold a slash, and the at sign then lies behind it.
    return user if "@" in path and ":" in authority and not scheme.startswith("http") else ""
