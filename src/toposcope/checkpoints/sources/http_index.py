"""The index page that an HTTP server makes of a folder: the files and folders that it links to."""

from contextlib import closing
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from toposcope.checkpoints.sources.http_pace import paced
from toposcope.checkpoints.sources.http_requests import (
    Address,
    describe_error,
    open_response,
    response_error,
    transient_errors,
)
from toposcope.checkpoints.sources.retry import Retry
from toposcope.checkpoints.sources.source import CheckpointError, is_relative_name

MAX_PAGE_BYTES = 20_000_000


class Index(msgspec.Struct, frozen=True):
    """Names of the files and folders in a folder."""

    files: list[str]
    folders: list[str]


def read_index(url: str) -> Index:
    """Read the index page of a folder, whose address ends in a slash.

    Raises
    ------
    CheckpointError
        If the server makes none.
    """
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
    """Return the page, and its address after redirects."""
    address, retry = Address(url, url), Retry(url)
    while True:
        with closing(open_response(address, retry=retry)) as response:
            if response.status_code != 200:
                raise response_error(response, address)
            at_home = response.url.host == urlsplit(url).hostname and response.url.path.endswith("/")
            if "html" not in response.headers.get("content-type", "") or not at_home:
                raise CheckpointError(
                    f"{url}: its server makes no index page of this folder; give the address of a file", "unreachable"
                )
            page = bytearray()
            try:
                for chunk in paced(response, response.iter_bytes()):
                    page += chunk
                    if len(page) > MAX_PAGE_BYTES:
                        raise CheckpointError(f"{url}: its index page is too long", "unreachable")
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
