"""How the loops of this package are compiled: at the first call, and kept on disk until a file of the package changes.

Numba's own cache notices a change of the file a function stands in, but not of the files whose functions it calls.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

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
        # Compiled code is taken from the disk only if it was stored under an equal stamp; there is no public door.
        file = kernel._cache._cache_file
        file._source_stamp = (file._source_stamp, SOURCES)
    dispatcher: Function = kernel
    return dispatcher
