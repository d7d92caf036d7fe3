"""Files that are either whole or absent."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from toposcope.errors import ToposcopeError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file through a temporary name, synced and renamed, so that a crash never leaves half of it.

    Parameters
    ----------
    path : Path
        Where the file is to be; its folder is made.
    write : callable
        Writes the content to the path it is given.

    Raises
    ------
    ToposcopeError
        When the disk is full, or the place cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except Exception as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        reason = _reason(error)
        if reason is None:
            raise
        raise ToposcopeError(f"{path}: cannot be written: {reason}") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes whole (see `write_whole`)."""
    write_whole(path, lambda partial: partial.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text whole (see `write_whole`)."""
    write_bytes(path, text.encode())


def _reason(error: Exception) -> str | None:
    """Return what kept a file from being written, if the user can mend it; libraries wrap the system's error."""
    if getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error) or "No space left" in str(error):
        return "the disk is full; free some space and run the same command again"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return None


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system lets a folder be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
