"""How the loops of this package are compiled: at the first call, and kept on disk until a file of the package changes.

Numba's own cache notices a change of the file a function stands in, but not of the files whose functions it calls. And
it writes the index of a function before the code that the index names, so that of two processes that compile at once
one may run what the other has not written yet, or what an older version left under that name. Here the names of the
files hold the digest of the sources, code is written before its index, and one process writes at a time.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numba
from filelock import FileLock

Function = TypeVar("Function", bound=Callable[..., Any])

SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()
"""Digest of all files of the package."""

SUMS_IN_ANY_ORDER = {"reassoc", "contract"}
"""The liberties that let a compiler add up several terms at once."""


def compiled(function: Function) -> Function:
    """Compile a function for the types of its arguments; it runs outside Python's lock."""
    return _compiled(function, fastmath=False)


def compiled_sums(function: Function) -> Function:
    """Compile a function whose sums may be taken in any order, and therefore several terms at once."""
    return _compiled(function, fastmath=SUMS_IN_ANY_ORDER)


def _compiled(function: Function, fastmath: bool | set[str]) -> Function:
    kernel: Any = numba.njit(cache=True, nogil=True, fastmath=fastmath)(function)
    if kernel is not function:  # as it is under NUMBA_DISABLE_JIT
        file = kernel._cache._cache_file  # there is no public door to it
        index = Path(file._index_path)
        file._index_path = str(index.with_name(f"{index.stem}.{SOURCES[:16]}{index.suffix}"))
        file._data_name_pattern = file._data_name_pattern.replace("{number:d}", SOURCES[:16] + ".{number:d}")
        file.save = partial(_save, file)
    dispatcher: Function = kernel
    return dispatcher


def _save(file: Any, key: Any, code: Any) -> None:
    """Store compiled code in Numba's cache file of a function: the code first, then the index that names it."""
    with FileLock(f"{file._index_path}.lock"):
        stored = file._load_index()
        name = stored.get(key) or file._data_name(len(stored) + 1)
        file._save_data(name, code)
        file._save_index({**stored, key: name})
