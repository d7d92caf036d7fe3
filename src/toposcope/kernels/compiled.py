"""How the loops of this package are compiled: at the first call, and kept on disk until a file of the package changes.

Numba's own cache notices a change of a function's file, but not of the files whose functions it calls, and writes the
index of a function before the code, so that another process may run what is not written yet. Here the file names hold
the digest of the sources, code is written before its index, and of several processes that need a function one
compiles it while the others wait. Where nothing can be written, or there is no filelock, every process compiles for
itself.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock

if TYPE_CHECKING:
    from filelock import FileLock

Function = TypeVar("Function", bound=Callable[..., Any])

FOLDER = Path(__file__).parent
SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.py")))).hexdigest()
"""Digest of all files of the package."""

SUMS_IN_ANY_ORDER = {"reassoc", "contract"}  # the liberties that let a compiler add up several terms at once

IS_KEPT = find_spec("filelock") is not None
"""Whether code is kept on disk: two processes that wrote there at once would mix up their functions."""

MAX_WAIT_SECONDS = 300  # after so long, what another process compiles is compiled here too, and not stored
wide: Any = np.int64
"""Widens an integer that a kernel hands to another: for 32 bits, or a constant, that would be compiled once more."""


def compiled(function: Function) -> Function:
    """Compile a function for the types of its arguments; it runs outside Python's lock."""
    return _compiled(function, fastmath=False)


def compiled_within(function: Function) -> Function:
    """Compile a function that compiled functions alone call: it is not made to take what Python hands over."""
    return _compiled(function, fastmath=False, no_cpython_wrapper=True)


def compiled_sums(function: Function) -> Function:
    """Compile a function whose sums may be taken in any order, and therefore several terms at once."""
    return _compiled(function, fastmath=SUMS_IN_ANY_ORDER)


def compiled_fused(function: Function) -> Function:
    """Compile a function whose products are added without being rounded first, in the order that is written."""
    return _compiled(function, fastmath={"contract"})


def inlined(function: Function) -> Function:
    """Compile a function as a part of the one function that calls it, which is quicker than compiling it by itself."""
    kernel: Any = numba.njit(inline="always")(function)
    dispatcher: Function = kernel
    return dispatcher


def folder_of(kernel: Any) -> Path | None:
    """Return the folder where the code of a kernel is kept; None if none is."""
    path = getattr(getattr(kernel, "_cache", None), "cache_path", None)
    return path and Path(path)


def _compiled(function: Function, fastmath: bool | set[str], **others: bool) -> Function:
    kernel: Any
    # Nobody calls these through a C pointer.
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "no_cfunc_wrapper": True, **others}
    try:
        kernel = numba.njit(cache=IS_KEPT, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written
        kernel = numba.njit(**options)(function)
    else:
        if IS_KEPT and kernel is not function:  # as it is under NUMBA_DISABLE_JIT
            _keep(kernel)
    dispatcher: Function = kernel
    return dispatcher


def _keep(kernel: Any) -> None:
    """Have the code of a function written as this module says."""
    from filelock import FileLock

    cache = kernel._cache  # there is no public door to it
    file = cache._cache_file
    index = Path(file._index_path)
    file._index_path = str(index.with_name(f"{index.stem}.{SOURCES[:16]}{index.suffix}"))
    file._data_name_pattern = file._data_name_pattern.replace("{number:d}", SOURCES[:16] + ".{number:d}")
    file.save = partial(_save, file)
    cache.save_overload = partial(_save_if_possible, cache.save_overload)
    kernel.compile = partial(_compile_once, kernel.compile, cache, FileLock(f"{file._index_path}.lock"))


def _compile_once(compile: Callable[[Any], Any], cache: Any, lock: "FileLock", signature: Any) -> Any:
    """Compile a function for some types, or load what another process has compiled by then."""
    from filelock import Timeout

    # The lock of this process's threads comes first: a thread that holds it waits for files.
    with global_compiler_lock:
        try:
            lock.acquire(timeout=MAX_WAIT_SECONDS)
        except (OSError, Timeout):
            cache.disable()
            try:
                return compile(signature)
            finally:
                cache.enable()
        try:
            return compile(signature)
        finally:
            lock.release()


def _save_if_possible(save: Callable[[Any, Any], None], signature: Any, code: Any) -> None:
    """Store compiled code; if the disk is full or the folder gone, it serves this process alone."""
    with suppress(OSError):
        save(signature, code)


def _save(file: Any, key: Any, code: Any) -> None:
    """Store compiled code in Numba's cache file of a function: the code first, then the index that names it."""
    stored = file._load_index()
    name = stored.get(key) or file._data_name(len(stored) + 1)
    file._save_data(name, code)
    file._save_index({**stored, key: name})
