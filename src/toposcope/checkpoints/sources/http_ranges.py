"""A range of bytes over HTTP, each answer checked before its bytes are believed, resumed where it was cut."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from toposcope.checkpoints.sources.http_requests import Address, opened, passing_errors, reason, refusal, whole_number
from toposcope.checkpoints.sources.patience import Patience
from toposcope.checkpoints.sources.source import Bytes, CheckpointError

if TYPE_CHECKING:
    from httpx2 import Response

SMALL_FILE = 1_000_000
"""A file up to this many bytes is read whole from a server that knows no ranges."""
RENEWING = 1_000_000
"""Bytes that have to come before the tries are counted anew."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


def filled(
    address: Address, size: int, same: Callable[["Response"], bool], start: int, stop: int, into: Bytes
) -> Iterator[int]:
    """Fill a buffer with bytes `start` to `stop`, yielding how many there are by now.

    Parameters
    ----------
    address : Address
    size : int
        Of the file, as it was listed.
    same : callable
        Tells whether an answer is still of the version that was listed.
    start, stop : int
    into : array of uint8
        Of length stop - start.

    Raises
    ------
    CheckpointError
        If the server sends something else, the file was replaced, or the bytes do not come after several tries.
    """
    patience = Patience(address.location)
    view, reached, renewed = into.data, 0, 0
    etag: str | None = None
    while reached < len(view):
        begin = start + reached
        response = opened(address, headers={"Range": f"bytes={begin}-{stop - 1}"}, patience=patience)
        with closing(response):
            at = _checked(response, address, size, begin, stop, len(view) == size)
            etag = response.headers.get("etag", "") if etag is None else etag
            if not same(response) or etag != response.headers.get("etag", ""):
                raise changed(address.location)
            try:
                for chunk in response.iter_raw():
                    useful = memoryview(chunk)[max(0, begin - at) :]
                    at += len(chunk)
                    if at > stop and response.status_code == 206:
                        raise _wrong(address, "sends more bytes than were asked for")
                    useful = useful[: len(view) - reached]
                    view[reached : reached + len(useful)] = useful
                    reached += len(useful)
                    begin += len(useful)
                    yield reached
                    if reached == len(view) and at > stop:
                        break  # of a file that comes whole, the rest is not waited for
            except passing_errors() as error:
                cut = reason(error)
            else:
                cut = "fewer bytes came than were promised"
        if reached - renewed >= RENEWING:
            patience.renew()
            renewed = reached
        if reached < len(view):
            patience.wait(f"{cut} at byte {start + reached}")


def changed(location: str) -> CheckpointError:
    """Return the error for a file that is no longer what was listed."""
    return CheckpointError(f"{location}: replaced while it was being read; run the same command again", "changed")


def _checked(response: "Response", address: Address, size: int, begin: int, stop: int, whole: bool) -> int:
    """Return at which byte of the file the body begins."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _wrong(address, "compresses what was asked for as it is")
    if response.status_code == 206:
        told = response.headers.get("content-range", "")
        found = _CONTENT_RANGE.fullmatch(told)
        if found and int(found[3]) != size:
            raise changed(address.location)
        if not found or (int(found[1]), int(found[2])) != (begin, stop - 1):
            raise _wrong(address, f"was asked for bytes {begin}-{stop - 1} and sends {told[:60]!r}")
        return begin
    if response.status_code == 200:
        if whole_number(response.headers.get("content-length", "")) not in (None, size):
            raise changed(address.location)
        if size > SMALL_FILE and not whole:
            raise _wrong(address, f"sends the whole file of {size} bytes where {stop - begin} were asked for")
        return 0
    if response.status_code == 416:
        raise changed(address.location)
    raise refusal(response, address)


def _wrong(address: Address, what: str) -> CheckpointError:
    return CheckpointError(
        f"{address.location}: cannot be read by ranges: the server {what}; download it, and give the path",
        "unreachable",
    )
