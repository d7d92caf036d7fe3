"""Any other address that fsspec reads: ``s3://``, ``gs://``, ``memory://`` and so on, through its driver."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
import numpy as np

from toposcope.checkpoints.sources.http_requests import Retry, changed_error
from toposcope.checkpoints.sources.local import LocalSource, local_path, name_of
from toposcope.checkpoints.sources.range_cache import cached_lookup, read_cached
from toposcope.checkpoints.sources.source import (
    MAX_DEPTH,
    MAX_FILES,
    Access,
    Bytes,
    CheckpointError,
    Files,
    Source,
    checked_name,
    checked_size,
    is_hidden,
    unreachable,
)
from toposcope.checkpoints.tuning import CHUNK_BYTES
from toposcope.errors import ToposcopeError

Answer = TypeVar("Answer")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_VERSIONS = tuple("etag md5hash crc32c generation versionid mtime lastmodified updated modified created".split())
"""Names of drivers for what changes with the content, in lower case without ``_``."""
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class _Listed(msgspec.Struct, frozen=True):
    path: str
    size: int
    version: str


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
        path = local_path(Path(unquote(rest)))
        if not path.exists():
            raise ToposcopeError(f"{path}: no such file or folder")
        return [(name_of(path), LocalSource(path))]
    _filesystem(spec)
    return [(spec.rstrip("/").rpartition("/")[2], UrlSource(spec.rstrip("/"), access))]


@dataclass(frozen=True)
class UrlFile:
    """A file that a driver of fsspec reads (see `StoredFile`)."""

    location: str
    path: str
    size: int
    version: str
    access: Access
    sha256: str = ""

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range, and check afterwards that the file is still the same."""
        return read_cached(self, start, stop, f"url:{self.location}", self.access, self._fill)

    def _fill(self, start: int, stop: int, into: Bytes) -> Iterator[int]:
        filesystem, _ = _filesystem(self.location)
        retry, reached = Retry(self.location), 0
        while reached < len(into):
            first, last = start + reached, min(start + reached + CHUNK_BYTES, stop)
            content = _call(self.location, retry, partial(filesystem.cat_file, self.path, start=first, end=last))
            filesystem.invalidate_cache()
            details = _call(self.location, retry, partial(filesystem.info, self.path))
            if (details.get("size"), _version(details)) != (self.size, self.version):
                raise changed_error(self.location)
            if len(content) > last - first:
                raise unreachable(self, "its driver reads no ranges; download it and give its path")
            into[reached : reached + len(content)] = np.frombuffer(content, np.uint8)
            reached += len(content)
            if len(content) < last - first:
                retry.wait(f"fewer bytes came than requested at byte {start + reached}")
            yield reached


@dataclass(frozen=True)
class UrlSource:
    """A file or folder that a driver of fsspec lists (see `Source`)."""

    spec: str
    access: Access

    def files(self) -> Files:
        """List the files."""
        listed = cached_lookup(f"url {self.spec}", list[_Listed], self.spec, self.access, self._list, immutable=False)
        if not listed:
            raise ToposcopeError(f"{self.spec}: no such file or folder, or an empty one")
        _, root = _filesystem(self.spec)
        if [file.path for file in listed] == [root]:
            return {self.spec.rpartition("/")[2]: self._file(self.spec, listed[0])}
        inside = f"{root.rstrip('/')}/"
        names = {checked_name(f.path.removeprefix(inside), self.spec): f for f in listed}
        return {name: self._file(f"{self.spec}/{name}", f) for name, f in sorted(names.items()) if not is_hidden(name)}

    def child(self, name: str) -> "UrlSource":
        """Return a file or folder below."""
        return UrlSource(f"{self.spec}/{name}", self.access)

    def beside(self, name: str) -> UrlFile | None:
        """Return a file in the folder of this file."""
        url = f"{self.spec.rpartition('/')[0]}/{name}"
        fetch = partial(_file_at, url)
        listed = cached_lookup(f"beside {url}", list[_Listed], url, self.access, fetch, immutable=False)
        return self._file(url, listed[0]) if listed else None

    def _list(self) -> list[_Listed]:
        filesystem, root = _filesystem(self.spec)

        def find() -> dict[str, Mapping[str, Any]]:
            filesystem.invalidate_cache()
            found = filesystem.find(root, maxdepth=MAX_DEPTH + 1, detail=True)
            # Some drivers list nothing for a single file.
            return {path: details or filesystem.info(path) for path, details in found.items()}

        listed = _call(self.spec, Retry(self.spec), find)
        if len(listed) > MAX_FILES:
            raise ToposcopeError(f"{self.spec}: more than {MAX_FILES:,} files; name the folder of a series")
        return [
            _Listed(path, checked_size(details.get("size"), f"{self.spec}: {path}"), _version(details))
            for path, details in listed.items()
            if not path.endswith("/")
        ]

    def _file(self, url: str, listed: _Listed) -> UrlFile:
        return UrlFile(url, listed.path, listed.size, listed.version, self.access)


def _file_at(url: str) -> list[_Listed]:
    filesystem, path = _filesystem(url)

    def fetch() -> Mapping[str, Any]:
        filesystem.invalidate_cache()
        # Storages that may not be listed refuse a missing file.
        with suppress(FileNotFoundError, PermissionError):
            found: Mapping[str, Any] = filesystem.info(path)
            return found
        return {}

    details = _call(url, Retry(url), fetch)
    is_file = details.get("type") == "file"
    return [_Listed(path, checked_size(details.get("size"), url), _version(details))] if is_file else []


def _filesystem(url: str) -> tuple[Any, str]:
    """Return the driver of an address, and the path in it."""
    from fsspec.core import url_to_fs
    from fsspec.registry import get_filesystem_class, known_implementations

    scheme = url.partition("://")[0]
    try:
        get_filesystem_class(scheme)
    except ImportError as error:
        package = known_implementations.get(scheme, {}).get("class", scheme).partition(".")[0]
        raise ToposcopeError(f"{url}: needs a driver that is not installed; pip install {package}") from error
    except ValueError as error:
        raise ToposcopeError(f"{url}: no driver of fsspec reads {scheme}://") from error
    try:
        filesystem, path = url_to_fs(url)
    except Exception as error:
        raise _refused(url, error) from error
    return filesystem, str(path)


def _version(details: Mapping[str, Any]) -> str:
    plain = {str(key).lower().replace("_", ""): value for key, value in details.items()}
    # The first only, as a driver may give more of them for a single file than in a list.
    for key in _VERSIONS:
        if plain.get(key) is not None:
            value = plain[key]
            return f"{key}={value.timestamp() if isinstance(value, datetime) else value}"
    return ""


def _call(url: str, retry: Retry, call: Callable[[], Answer]) -> Answer:
    while True:
        try:
            return call()
        except Exception as error:
            if not isinstance(error, OSError) or isinstance(error, _LASTING):
                raise _refused(url, error) from error
            retry.wait(f"{type(error).__name__} from its driver")


def _refused(url: str, error: Exception) -> CheckpointError:
    """Return the error of a driver in one line, without its text, which may quote credentials."""
    if isinstance(error, FileNotFoundError):
        return unreachable(url, "no such file or folder")
    if isinstance(error, PermissionError):
        return unreachable(url, "may not be read; give its driver credentials that may")
    name = type(error).__name__
    return unreachable(url, f"cannot be read: {name} from its driver; check the address and the credentials")
