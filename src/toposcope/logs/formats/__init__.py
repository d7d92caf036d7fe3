"""Formats of training logs, one per file.

A format is a module with a function ``runs(path) -> list[RawLog]`` and a way to recognise it; adding one means adding
its file to this package, or naming it as an entry point of the group ``toposcope.logs`` in a package of one's own. It
is recognised by one of, or both

- ``claims(path) -> bool``: is this file or folder of the format, by its name and the names in it? Asked first.
- ``ENDINGS``, a tuple of endings of files in lower case, and ``looks_like(head) -> bool``: could a file that begins
  with these bytes be of the format? Asked of a file that the user names: formats of other packages before all else,
  ours where no format has its ending, those with ``SURE = True`` first.

What is wrong with a log is raised as a `ToposcopeError` without its place, which `refusing` adds.
"""

import csv
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import polars as pl

from toposcope.errors import ToposcopeError, message_of
from toposcope.files import refuse_link
from toposcope.logs.raw import RawLog, one_line
from toposcope.logs.texts import refuse_pointer
from toposcope.plugins import collect_modules

Item = TypeVar("Item")
HEAD = 4096  # bytes by which a file without a known ending is recognised
MAX_FILE_BYTES = 4 * 10**9
_ZEROS = re.compile(rb"^\0\0+")  # a single one may be of a character in UTF-16
_READ_INSIDE = tuple(
    "*.csv *.json* *.y*ml *.toml files/*.json* files/*.y*ml metrics/* params/* checkpoint-*/*.json".split()
)
_UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError),
    *(csv.Error, pl.exceptions.PolarsError, sqlite3.Error),
)
"""What reading a file that is no training log may raise."""


@cache
def _formats() -> list[ModuleType]:
    formats = collect_modules(__name__, "toposcope.logs", "runs", "claims|ENDINGS")
    return sorted(formats, key=lambda m: (hasattr(m, "ENDINGS"), not getattr(m, "SURE", False)))


@contextmanager
def refusing(where: object, kind: str = "a training log") -> Iterator[None]:
    """Turn whatever reading a bad file raises into one line that names its place and what it should be."""
    try:
        yield
    except ToposcopeError as error:
        raise ToposcopeError(f"{where}: cannot be read as {kind}: {error}") from error
    except _UNREADABLE as error:
        reason, plain = message_of(error), f"{type(error).__name__}: {error}"
        reason = one_line(plain if reason in " ".join(plain.split()) else reason)
        raise ToposcopeError(f"{where}: cannot be read as {kind}: {reason}") from error


def format_of(path: Path, *, look: bool = False) -> ModuleType | None:
    """Return the format that claims a file or folder; `look` also asks by the first bytes of a file."""
    formats = _formats()
    with refusing(path):
        can_look = [m for m in formats if hasattr(m, "looks_like")] if look and path.is_file() else []
        head = b""
        if can_look:
            with path.open("rb") as file:
                while (head := file.read(HEAD)) and not head.strip(b"\0"):
                    continue  # what a crash leaves before the text
                head = _ZEROS.sub(b"", head)
        foreign = [m for m in can_look if not m.__name__.startswith(f"{__name__}.")]
        module = next((m for m in foreign if m.looks_like(head)), None)
        module = module or next((m for m in formats if _claims(m, path)), None)
        return module or next((m for m in can_look if m.looks_like(head)), None)


def read_raw(path: Path, *, look: bool = False, root: Path | None = None) -> list[RawLog] | None:
    """Return the tables in a file or folder, or None if no format claims it."""
    with refusing(path):
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise ToposcopeError(f"{path.stat().st_size / 1e9:.1f} GB; a training log has fewer")
        if path.is_file() and path.stat().st_size < HEAD:
            refuse_pointer(path.read_bytes())
    module = format_of(path, look=look)
    with refusing(path):
        for pattern in _READ_INSIDE if module and path.is_dir() else ():
            for inner in path.glob(pattern):
                refuse_link(inner, root or path)
        found: list[RawLog] | None = module.runs(path) if module else None
    return found


def existing(path: str | Path) -> Path:
    """Return a path that exists."""
    try:
        exists = Path(path).exists()
    except (OSError, ValueError) as error:
        raise ToposcopeError(f"{one_line(path)}: cannot be read: {getattr(error, 'strerror', error)}") from error
    if not exists:
        raise ToposcopeError(f"{path}: no such file or folder")
    return Path(path)


def search_folder(
    folder: Path,
    depth: int,
    read: Callable[[Path], list[Item] | None],
    errors: list[str],
    otherwise: Callable[[Path], list[Item]] = lambda path: [],
) -> list[Item]:
    """Return what is read in a folder and those below; `otherwise` where it is nothing. Hidden ones are passed over."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        errors.append(f"{folder}: cannot be read: {error.strerror}")
        return []
    items: list[Item] = []
    for path in paths:
        try:
            found = read(path)
        except ToposcopeError as error:
            errors.append(str(error))
            continue
        if found is None and path.is_dir() and depth and not path.is_symlink():
            found = search_folder(path, depth - 1, read, errors, otherwise)
        items += found or []
    return items or [item for path in paths for item in otherwise(path)]


def nothing_read(errors: list[str], reason: str) -> ToposcopeError:
    """Return the error where nothing was read: the first of several, or else the reason."""
    more = f"; and {len(errors) - 1} more like this" if len(errors) > 1 else ""
    return ToposcopeError(errors[0] + more if errors else reason)


def _claims(module: ModuleType, path: Path) -> bool:
    by_ending = path.suffix.lower() in getattr(module, "ENDINGS", ()) and path.is_file()
    return by_ending or (hasattr(module, "claims") and bool(module.claims(path)))
