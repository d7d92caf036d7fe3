"""Formats of training logs, one a file.

A format is a module of this package with a function ``runs(path) -> list[Raw]`` and a way to know what is of it;
adding a format means adding its file. It is known by one of

- ``claims(path) -> bool``: is this file or folder of the format, by its name and the names in it? Asked first.
- ``ENDINGS``, a tuple of endings of files in lower case, and ``looks_like(head) -> bool``: could a file that begins
  with these bytes be of the format? Asked of a file that is named by the user and has no known ending.
"""

import csv
import importlib
import pkgutil
import sqlite3
from functools import cache
from pathlib import Path
from types import ModuleType

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import Raw, one_line

HEAD = 4096
"""Bytes that tell what a file without a known ending is."""
_NO_LOG = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError),
    *(csv.Error, pl.exceptions.PolarsError, sqlite3.Error),
)
"""What making sense of a file that is no training log may raise."""


@cache
def _formats() -> list[ModuleType]:
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return sorted(modules, key=lambda m: hasattr(m, "ENDINGS"))


def runs_of(path: Path, *, look: bool = False) -> list[Raw] | None:
    """Return what a file or folder holds, or None if no format claims it.

    Parameters
    ----------
    path : Path
    look : bool
        Whether to look into a file without a known ending.

    Raises
    ------
    ToposcopeError
        If it is of a format and cannot be understood.
    """
    try:
        module = next((m for m in _formats() if _claims(m, path)), None)
        if module is None and look and path.is_file():
            with path.open("rb") as file:
                head = file.read(HEAD)
            module = next((m for m in _formats() if hasattr(m, "looks_like") and m.looks_like(head)), None)
        if module is None:
            return None
        found: list[Raw] = module.runs(path)
    except _NO_LOG as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise ToposcopeError(f"{path}: not a training log that can be read ({reason})") from error
    return found


def _claims(module: ModuleType, path: Path) -> bool:
    if hasattr(module, "ENDINGS"):
        return path.suffix.lower() in module.ENDINGS and path.is_file()
    return bool(module.claims(path))
