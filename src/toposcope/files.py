"""Files that are either whole or absent."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from toposcope.errors import ToposcopeError

MAX_NAME_BYTES = 255  # bytes of a file's name, on every usual file system
SYNCING_THREADS = 8  # files that are synced side by side: the file system then commits several at once


def leads_out(path: Path, folder: Path) -> bool:
    """Return whether a link in a folder leads out of it; those of a hub's cache lead to the files of its repository."""
    if not (path.is_symlink() and path.exists()):  # a loop or a dangling link leads nowhere
        return False
    target, roots = path.resolve(), [folder.resolve(), path.parent.resolve()]
    roots += [above for root in roots for above in root.parents if above.name.startswith(("models--", "datasets--"))]
    return not any(target.is_relative_to(root) for root in roots)


def refuse_link(path: Path, folder: Path) -> None:
    """Refuse a text that is a link out of its folder: what it holds may be shown in a report."""
    if leads_out(path, folder):
        raise ToposcopeError(f"{path}: a link out of its folder, which is not followed; copy or name {path.resolve()}")


def allow_many_files() -> None:
    """Let this process open as many files at once as the system allows, by default often 1,024; not on Windows."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file through a temporary name, synced and renamed, so that a crash never leaves half of it."""
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


def write_folder(folder: Path, writers: Mapping[str, Callable[[Path], object]]) -> None:
    """Write the files of a new folder into one of a temporary name, synced and renamed, so that it is whole or absent.

    What a killed process left under the temporary name is removed first.
    """
    partial_folder = unfinished(folder)
    try:
        shutil.rmtree(partial_folder, ignore_errors=True)
        partial_folder.mkdir(parents=True)
        for name, write in writers.items():
            write(partial_folder / name)
            _sync(partial_folder / name, os.O_RDWR)
        _sync_folder(partial_folder)
        partial_folder.rename(folder)
        _sync_folder(folder.parent)
    except BaseException as error:
        shutil.rmtree(partial_folder, ignore_errors=True)
        if not isinstance(error, Exception) or (reason := _reason(error)) is None:
            raise
        raise ToposcopeError(f"{folder}: cannot be written: {reason}") from error


def _writing(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _write_all(writers: Mapping[Path, Callable[[Path], object]]) -> None:
    try:
        for folder, path in {path.parent: path for path in writers}.items():  # noqa: B007 - the error names it
            folder.mkdir(parents=True, exist_ok=True)
        for path, write in writers.items():
            write(unfinished(path))
        for path, error in _side_by_side(_sync_unfinished, list(writers)):  # noqa: B007
            if error is not None:
                raise error
        for path in writers:
            unfinished(path).replace(path)
        for path, error in _side_by_side(_sync_folder, list({path.parent: None for path in writers})):  # noqa: B007
            if error is not None:
                raise error
    except Exception as error:
        for each in writers:
            with suppress(OSError):
                unfinished(each).unlink(missing_ok=True)
        reason = _reason(error)
        if reason is None:
            raise
        raise ToposcopeError(f"{path}: cannot be written: {reason}") from error


def unfinished(path: Path) -> Path:
    """Return the temporary name of a file."""
    return extended(path, ".", ".partial")


def extended(path: Path, prefix: str, suffix: str) -> Path:
    """Return a path in the same folder with a longer name, which is hashed where no file system takes it whole."""
    name = f"{prefix}{path.name}{suffix}"
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = f"{prefix}{hashlib.sha256(os.fsencode(path.name)).hexdigest()}{suffix}"
    return path.with_name(name)


def _reason(error: Exception) -> str | None:
    """Return why a file could not be written, if the user can fix it; libraries wrap the system's error."""
    if getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error) or "No space left" in str(error):
        return "the disk is full; free some space and run the same command again"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return None


def _side_by_side(sync: Callable[[Path], None], paths: Sequence[Path]) -> Iterator[tuple[Path, Exception | None]]:
    """Sync several paths; yield each with its error, if it has one."""
    shares = [paths[first::SYNCING_THREADS] for first in range(min(SYNCING_THREADS, len(paths)))]
    with ThreadPoolExecutor(max(len(shares), 1)) as threads:
        try:
            results = [threads.submit(_sync_each, sync, share).result for share in shares]
        except RuntimeError:  # no thread can be started while Python ends
            results = [partial(_sync_each, sync, paths)]
    for result in results:
        yield from result()


def _sync_each(sync: Callable[[Path], None], paths: Sequence[Path]) -> list[tuple[Path, Exception | None]]:
    errors: list[Exception | None] = []
    for path in paths:
        try:
            sync(path)
            errors.append(None)
        except Exception as error:  # noqa: BLE001 - raised by who waits for it
            errors.append(error)
    return list(zip(paths, errors, strict=True))


def _sync_unfinished(path: Path) -> None:
    _sync(unfinished(path), os.O_RDWR)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system lets a folder be synced."""
    with suppress(OSError):
        _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
