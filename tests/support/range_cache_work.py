"""Work for the tests of the cache in processes of their own; at the top of a module, where these find it."""

import hashlib
from pathlib import Path

from toposcope.checkpoints import Access
from toposcope.checkpoints.sources import roots


def read_ranges(url: str, folder: Path, keep: int | None, ranges: list[tuple[int, int]]) -> list[str]:
    """Read ranges of a file elsewhere; return the hash of each."""
    ((_, root),) = roots(url, Access(keep, folder=folder))
    (file,) = root.files().values()
    return [hashlib.sha256(file.read(start, stop).data).hexdigest() for start, stop in ranges]
