"""The index page that an HTTP server makes of a folder: the files and folders it links to."""

from contextlib import closing
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from toposcope.checkpoints.sources.fetching import is_relative_name
from toposcope.checkpoints.sources.http_requests import Address, opened, passing_errors, reason, refusal
from toposcope.checkpoints.sources.patience import Patience
from toposcope.checkpoints.sources.source import CheckpointError

LONGEST_PAGE = 20_000_000


class Listed(msgspec.Struct, frozen=True):
    """Names of the files and folders in a folder."""

    files: list[str]
    folders: list[str]


def page_of(url: str) -> Listed:
    """Read the index page of a folder, whose address ends in a slash.

    Raises
    ------
    CheckpointError
        If the server makes none.
    """
    text, found_at = _page(Address(url, url))
    links = _Links()
    links.feed(text)
    names = {name: is_folder for link in links.found for name, is_folder in [_below(found_at, link)] if name}
    return Listed(
        sorted(name for name, is_folder in names.items() if not is_folder),
        sorted(name for name, is_folder in names.items() if is_folder),
    )


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _page(address: Address) -> tuple[str, str]:
    """Return the page and the address it was found at."""
    patience = Patience(address.location)
    while True:
        with closing(opened(address, patience=patience)) as response:
            if response.status_code != 200:
                raise refusal(response, address)
            kind = response.headers.get("content-type", "")
            if "html" not in kind or (response.url.host, response.url.path[-1:]) != (
                urlsplit(address.url).hostname,
                "/",
            ):
                raise CheckpointError(
                    f"{address.location}: its server makes no index page of this folder; give the address of a file",
                    "unreachable",
                )
            page = bytearray()
            try:
                for chunk in response.iter_bytes():
                    page += chunk
                    if len(page) > LONGEST_PAGE:
                        raise CheckpointError(
                            f"{address.location}: its index page is too long to be one", "unreachable"
                        )
                return page.decode("utf-8", "replace"), str(response.url)
            except passing_errors() as error:
                patience.wait(reason(error))


def _below(folder: str, link: str) -> tuple[str, bool]:
    """Return the name of what a link leads to, if it lies in the folder, and whether it is a folder."""
    try:
        target = urljoin(folder, link)
        parts = urlsplit(target)
    except ValueError:
        return "", False
    path, base = unquote(target), unquote(folder)
    rest = path.removeprefix(base)
    name = rest.removesuffix("/")
    # Links for sorting have a query; those to elsewhere are not of this folder.
    if parts.query or parts.fragment or not path.startswith(base) or "/" in name or not is_relative_name(name):
        return "", False
    return name, rest.endswith("/")
