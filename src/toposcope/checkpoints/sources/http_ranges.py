"""A range of bytes over HTTP: every response is checked before its bytes are used, a cut one is resumed."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from toposcope.checkpoints.sources.http_pace import paced
from toposcope.checkpoints.sources.http_requests import (
    Address,
    describe_error,
    open_response,
    parse_size,
    response_error,
    transient_errors,
)
from toposcope.checkpoints.sources.retry import Retry
from toposcope.checkpoints.sources.source import Bytes, CheckpointError

if TYPE_CHECKING:
    from httpx2 import Response

MAX_WHOLE_FILE = 1_000_000
"""Bytes of a file that is read whole from a server without ranges."""
RESET_BYTES = 1_000_000
"""Bytes to receive before the tries are counted again."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


def fetch_range(
    address: Address, size: int, same: Callable[["Response"], bool], start: int, stop: int, into: Bytes
) -> Iterator[int]:
    """Fill a buffer with bytes `start` to `stop`, yielding how many it holds so far.

    Parameters
    ----------
    address : Address
    size : int
        Of the file, as listed.
    same : callable
        Whether a response is of the version that was listed.
    start, stop : int
    into : array of uint8
        Of length stop - start.

    Raises
    ------
    CheckpointError
        If the server sends something else, the file was replaced, or no try succeeds.
    """
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
    return CheckpointError(
        f"{address.location}: cannot be read by ranges: the server {what}; download it and give its path",
        "unreachable",
    )
