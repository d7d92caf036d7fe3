"""Where the logs in a folder lie, found by names alone, in bounded time; what changes when one of them grows."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from toposcope.errors import ToposcopeError
from toposcope.files import refuse_link
from toposcope.logs.formats import console, format_of, study, trackers, trainer_state
from toposcope.logs.raw import one_line
from toposcope.logs.reading import MAX_DEPTH

MAX_SECONDS, MAX_ENTRIES = 3.0, 20_000  # of a search; a folder with more is said to be searched in part
MAX_BYTES = 200_000_000  # of a text, table or JSON in a folder, which may as well be data
MAX_INNER, INNER_DEPTH = 2_000, 3  # files of one log that are looked at for changes, and folders below it
STORE = "study.db"

Version = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, order=True)
class LogSource:
    """A file or folder that holds a log."""

    path: Path  # as `toposcope.logs.read_logs` takes it
    is_certain: bool = False  # whether nothing but a log has its name; a table or JSON may hold anything
    is_text: bool = False  # whether it is a text, which is a log only if it states losses

    def version(self) -> tuple[Version, float]:
        """Return what changes when the log does, and when it was last written, in seconds since 1970."""
        files = []
        for file in self._files():
            try:
                status = file.stat()
            except OSError:  # just replaced, or not readable: reading will say so
                continue
            files.append((str(file), status.st_size, status.st_mtime_ns))
        return tuple(sorted(files)), max((time for _, _, time in files), default=0) / 1e9

    def _files(self) -> Iterator[Path]:
        if not self.path.is_dir():
            yield self.path
        elif states := trainer_state.states(self.path):
            yield from states
        else:
            for n, entry in enumerate(_entries(self.path, INNER_DEPTH)):
                if n >= MAX_INNER:
                    return
                if not entry.is_dir():
                    yield Path(entry.path)


@dataclass
class FoundLogs:
    """The logs of a folder."""

    sources: list[LogSource] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)  # by path, why something there is not read
    cut: str = ""  # a sentence if only a part was searched


def find_sources(root: Path, *, max_entries: int = MAX_ENTRIES) -> FoundLogs:
    """Return where the logs at a path lie, without reading them; studies and links to folders are left out."""
    found = FoundLogs()
    if not root.is_dir():
        found.sources = [LogSource(root, is_certain=True)] if root.exists() else []
        return found
    deadline = monotonic() + MAX_SECONDS
    folders, n = [(root, 0)], 0
    while folders:
        folder, depth = folders.pop(0)
        if os.path.exists(folder / STORE):  # noqa: PTH110 - no error where the folder cannot be entered
            continue
        claimed = _claimed(folder, root, found)
        if claimed is not None:
            found.sources.append(LogSource(folder, is_certain=True))
            if claimed is not trainer_state:
                continue
        for entry in _entries_of(folder, found):
            n += 1
            if n > max_entries or monotonic() > deadline:
                found.cut = f"{root}: large, and searched only as far as {folder}; show a folder in it to see the rest."
                return found
            if not entry.is_dir(follow_symlinks=False):
                _add_file(Path(entry.path), root, found, texts_only=claimed is not None)
            elif depth < MAX_DEPTH and not (claimed is trainer_state and entry.name.startswith("checkpoint-")):
                # the Trainer writes TensorBoard's events below its folder
                folders.append((Path(entry.path), depth + 1))
    return found


def _claimed(path: Path, root: Path, found: FoundLogs) -> object | None:
    """Return the format that claims a path; a fault where it cannot be looked at."""
    try:
        claimed = format_of(path)
        if claimed is not None and path != root:
            refuse_link(path, root)
    except ToposcopeError as error:
        found.faults[str(path)] = str(error)
        return None
    except PermissionError:  # said where its entries are read
        return None
    return claimed


def _add_file(path: Path, root: Path, found: FoundLogs, *, texts_only: bool) -> None:
    is_text = path.suffix.lower() in console.TEXTS
    if path.is_dir() or (texts_only and not is_text):  # a link to a folder is not followed
        return
    claimed = None if is_text else _claimed(path, root, found)
    if not is_text and claimed in (None, study):
        return
    is_certain = claimed is trackers and trackers.EVENTS in path.name
    if not is_certain and (size := _size(path)) > MAX_BYTES:
        found.faults[str(path)] = f"{path}: {size / 1e6:,.0f} MB, too large to look whether it is a log; show it alone"
    else:
        found.sources.append(LogSource(path, is_certain=is_certain, is_text=is_text))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # just deleted
        return 0


def _entries_of(folder: Path, found: FoundLogs) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        found.faults[str(folder)] = f"{one_line(folder)}: cannot be read: {error.strerror}"
        return []


def _entries(folder: Path, depth: int) -> Iterator[os.DirEntry[str]]:
    for entry in _entries_of(folder, FoundLogs()):
        yield entry
        if depth and entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path), depth - 1)
