"""Any other address that fsspec reads: ``s3://``, ``gs://``, ``memory://`` and so on, through its driver."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from toposcope.checkpoints.sources.local import local_roots
from toposcope.checkpoints.sources.remote import Listed, RemoteSource, changed, checked_listing, looked_up, one_line
from toposcope.checkpoints.sources.source import MAX_DEPTH, Access, Source
from toposcope.errors import ToposcopeError

PIECE_BYTES = 1 << 24  # read by a driver at a time, after which the file must still be the same
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_VERSIONS = tuple("etag md5hash crc32c generation versionid mtime lastmodified updated modified created".split())
"""Names of drivers for what changes with the content, in lower case without ``_``."""


def claims(spec: str) -> bool:
    """By its scheme, except http and https."""
    found = _SCHEME.match(spec)
    return found is not None and found[1].lower() not in ("http", "https")


def roots(spec: str, access: Access) -> list[tuple[str, Source]]:
    """Return the one place an address names."""
    scheme, _, rest = spec.partition("://")
    if not rest.strip("/"):
        raise ToposcopeError(f"{scheme}://: names no place; write {scheme}://bucket/folder")
    if scheme == "hf":
        raise ToposcopeError("hf://: models on the hub are written hf:owner/name@revision")
    if "::" in spec:
        raise ToposcopeError(f"{scheme}://: holds a second address, which is not supported; give one address")
    if scheme == "file":
        return [*local_roots(unquote(rest))]
    _driver(spec)
    source = UrlSource(spec.rstrip("/"), access)
    return [(source.name, source)]


class UrlSource(RemoteSource):
    """A file or folder that a driver of fsspec lists."""

    def find(self) -> dict[str, Listed]:
        """List the files."""
        return looked_up(self.access, "find", dict[str, Listed], self.spec, self._find)

    def stream(self, listed: Listed, start: int, stop: int) -> Iterator[bytes]:
        """Yield a range, and check after each piece that the file is still the same."""
        driver, path = _driver(self.spec)
        for first in range(start, stop, PIECE_BYTES):
            last = min(first + PIECE_BYTES, stop)
            piece: bytes = driver.cat_file(path, start=first, end=last)
            if self._look() != listed:
                raise changed(self.spec)
            yield piece
            if len(piece) != last - first:
                return

    def _find(self) -> dict[str, Listed]:
        driver, root = _driver(self.spec)
        driver.invalidate_cache()
        found = driver.find(root, maxdepth=MAX_DEPTH + 1, detail=True)
        if list(found) == [root]:  # some drivers list nothing for a single file
            return {"": self._look()}
        inside = f"{root.rstrip('/')}/"
        names = {path: path.removeprefix(inside) for path in found if not path.endswith("/")}
        return checked_listing({n: _listed(self.child(n).spec, found[path]) for path, n in names.items()}, self.spec)

    def _look(self) -> Listed:
        driver, path = _driver(self.spec)
        driver.invalidate_cache()
        return _listed(self.spec, driver.info(path))


def _listed(url: str, details: Mapping[str, Any]) -> Listed:
    plain = {str(key).lower().replace("_", ""): value for key, value in details.items()}
    # The first only, as a driver may give more of them for a single file than in a list.
    name = next((key for key in _VERSIONS if plain.get(key) is not None), "")
    value = plain.get(name, "")
    version = f"{name}={value.timestamp() if isinstance(value, datetime) else value}" if name else ""
    return Listed(url, plain["size"], version)


def _driver(url: str) -> tuple[Any, str]:
    """Return the driver of an address, and the path in it."""
    from fsspec.core import url_to_fs

    with one_line(url):
        driver, path = url_to_fs(url)
    return driver, str(path)
