"""Files that are either whole or absent."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from toposcope.errors import ToposcopeError

SYNCING_THREADS = 8
"""Files that are synced side by side: the file system then commits several at once."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file through a temporary name, synced and renamed, so that a crash never leaves half of it.

    Parameters
    ----------
    path : Path
        Path of the file; its folder is created.
    write : callable
        Writes the content to a path.

    Raises
    ------
    ToposcopeError
        If the disk is full, or the file cannot be written.
    """
    _write_all({path: write})


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes whole (see `write_whole`)."""
    write_whole(path, _writing(content))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text whole (see `write_whole`)."""
    write_bytes(path, text.encode())


def write_all_bytes(contents: Mapping[Path, bytes]) -> None:
    """Write several files, each of them whole (see `write_whole`); none is renamed before all are synced."""
    _write_all({path: _writing(content) for path, content in contents.items()})


def _writing(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _write_all(writers: Mapping[Path, Callable[[Path], object]]) -> None:
    partials = {path: path.with_name(f".{path.name}.partial") for path in writers}
    try:
        for path, unfinished in partials.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            writers[path](unfinished)
        results = _side_by_side(_sync_file, list(partials.values()))
        for path, synced in zip(partials, results, strict=True):  # noqa: B007 - the error names it
            synced()
        for path, unfinished in partials.items():
            unfinished.replace(path)
        for synced in _side_by_side(_sync_folder, list({path.parent: None for path in partials})):
            synced()
    except Exception as error:
        for unfinished in partials.values():
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
        reason = _reason(error)
        if reason is None:
            raise
        raise ToposcopeError(f"{path}: cannot be written: {reason}") from error


def _reason(error: Exception) -> str | None:
    """Return why a file could not be written, if the user can fix it; libraries wrap the system's error."""
    if getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error) or "No space left" in str(error):
        return "the disk is full; free some space and run the same command again"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return None


def _side_by_side(sync: Callable[[Path], None], paths: Sequence[Path]) -> list[Callable[[], None]]:
    """Sync several paths; return for each what raises its error, if it has one."""
    with ThreadPoolExecutor(min(SYNCING_THREADS, max(len(paths), 1))) as threads:
        try:
            return [threads.submit(sync, path).result for path in paths]
        except RuntimeError:  # no thread can be started while Python ends
            return [partial(sync, path) for path in paths]


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system lets a folder be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
