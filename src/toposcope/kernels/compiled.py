"""How the loops of this package are compiled: when that pays, and kept on disk until a file of theirs changes.

Compiling takes a second or more. Until the loops of small inputs have taken as long, Python runs them as they stand.

Numba's own cache notices a change of a function's file, but not of the files whose functions it calls, and writes the
index of a function before the code, so that another process may run what is not written yet. Here the file names hold
the digest of a kernel's file and of those it imports, code is written before its index, and of several processes that
need a function one compiles it while the others wait. Code in a folder of the package that cannot be written is used,
and new code goes to the user's. Where nothing can be written, or there is no filelock, every process compiles for
itself.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np
from numba.core import caching
from numba.core.compiler_lock import global_compiler_lock

if TYPE_CHECKING:
    from filelock import FileLock

Function = TypeVar("Function", bound=Callable[..., Any])

FOLDER = Path(__file__).parent
SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.py")))).hexdigest()[:16]
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


def compiled_in_place(function: Function) -> Function:
    """Compile a function that makes no arrays, and so need not count who holds those it is given, which takes long."""
    return _compiled(function, fastmath=False, _nrt=False)


def compiled_within(function: Function) -> Function:
    """Compile such a function that compiled functions alone call: it is not made to take what Python hands over."""
    return _compiled(function, fastmath=False, no_cpython_wrapper=True, _nrt=False)


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


class Patience(dict[Any, int]):
    """For how many more steps of a loop Python runs a kernel in place of its code, which has to be made first.

    Every process has half the patience of the one before it: what is used again and again is compiled.
    """

    steps = 3_000_000  # of about a third of a microsecond each: together about as long as compiling
    remembers = True  # whether processes before this one count

    def lasts(self, kernel: Any, n_steps: int) -> bool:
        """Return whether a kernel, if it is not compiled yet, need not be for so many steps, at least one."""
        lasts = not _is_ready(kernel) and n_steps <= self._left(kernel)
        self[kernel] = self[kernel] - n_steps if lasts else 0
        return lasts

    def _left(self, kernel: Any) -> int:
        if kernel not in self:
            n_before = 0
            if self.remembers and self.steps:
                with suppress(OSError), _uses_of(kernel).open("ab") as file:
                    n_before = file.tell()
                    file.write(b".")
            self[kernel] = self.steps >> n_before
        return self[kernel]

    def end(self) -> None:
        """Have everything compiled at its next call."""
        self.steps = 0
        self.clear()


patience = Patience()


def kernel_or_python(kernel: Function, n_steps: int) -> Function:
    """Return a kernel, or as long as so many steps are done sooner than it is compiled, the same as Python runs it.

    Both give the same bits. Also of a function of Python that calls kernels.
    """
    if not patience.lasts(kernel, n_steps):
        return kernel
    python: Function = _interpreted(kernel.__module__)[kernel.__name__]
    return python


def _kernels_of(kernel: Any) -> list[Any]:
    """Return a kernel, or those that a function of Python calls."""
    if not isinstance(kernel, FunctionType):
        return [kernel]
    values = [kernel.__globals__.get(name) for name in kernel.__code__.co_names]
    return [value for value in values if hasattr(value, "py_func")]


def _uses_of(kernel: Any) -> Path:
    """Return the file with a byte for each process in which Python ran a kernel."""
    paths = getattr(_kernels_of(kernel)[0], "index_paths", ())
    return Path(f"{paths[0]}.{kernel.__name__}.uses" if paths else os.devnull)


def _is_ready(kernel: Any) -> bool:
    """Return whether a kernel, or all that a function of Python calls, is compiled or on disk."""
    if isinstance(kernel, FunctionType):
        return all(map(_is_ready, _kernels_of(kernel)))
    return bool(kernel.overloads) or any(path.exists() for path in getattr(kernel, "index_paths", ()))


@cache
def _interpreted(module: str) -> dict[str, Any]:
    """Return what a file of the package defines, with kernels as Python runs them."""
    scope = dict(vars(sys.modules[module]))
    for name, value in scope.items():
        python = getattr(value, "py_func", value)
        if not isinstance(python, FunctionType) or not python.__module__.startswith(f"{__package__}."):
            continue
        if python.__module__ == module:
            scope[name] = FunctionType(python.__code__, scope, name, python.__defaults__, python.__closure__)
        else:
            scope[name] = _interpreted(python.__module__)[python.__name__]
    return scope


def _compiled(function: Function, fastmath: bool | set[str], **others: bool) -> Function:
    kernel: Any
    # Nobody calls these through a C pointer.
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "no_cfunc_wrapper": True, **others}
    try:
        kernel = numba.njit(cache=IS_KEPT, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written, but perhaps read
        locator: Any = caching._CacheLocator
        check, locator.ensure_cache_path = locator.ensure_cache_path, lambda _: None
        try:
            kernel = numba.njit(cache=IS_KEPT, **options)(function)
        finally:
            locator.ensure_cache_path = check
    if IS_KEPT and kernel is not function:  # as it is under NUMBA_DISABLE_JIT
        _keep(kernel)
    dispatcher: Function = kernel
    return dispatcher


def _digest_of(path: Path) -> str:
    """Return the digest of a file, of this one, and of all of this package that they import, directly or not."""
    files: dict[Path, bytes] = {}
    left = [path, Path(__file__)]
    while left:
        path = left.pop()
        if path not in files and path.exists():
            files[path] = path.read_bytes()
            names = re.findall(rf"\b{re.escape(__package__)}\.(\w+)", files[path].decode())
            left += [FOLDER / f"{name}.py" for name in names]
    return hashlib.sha256(b"".join(files[path] for path in sorted(files))).hexdigest()[:16]


def _keep(kernel: Any) -> None:
    """Have the code of a function written, and looked for, as this module says."""
    from filelock import FileLock

    cache = kernel._cache  # there is no public door to it
    file, source = cache._cache_file, Path(kernel.py_func.__code__.co_filename)
    index, digest = Path(file._index_path), _digest_of(source)
    file._source_stamp = digest  # an upgrade also writes the files anew that it does not change
    file._index_path = str(index.with_name(f"{index.stem}.{digest}{index.suffix}"))
    file._data_name_pattern = file._data_name_pattern.replace("{number:d}", digest + ".{number:d}")
    shipped, folder = copy(file), source.parent / "__pycache__"
    shipped._cache_path, shipped._index_path = str(folder), str(folder / Path(file._index_path).name)
    file.load = partial(_load, [file.load, shipped.load])
    file.save = partial(_save, file, digest)
    kernel.index_paths = [Path(file._index_path), Path(shipped._index_path)]
    cache.save_overload = partial(_save_if_possible, cache.save_overload)
    kernel.compile = partial(_compile_once, kernel.compile, cache, FileLock(f"{file._index_path}.lock"))


def _compile_once(compile: Callable[[Any], Any], cache: Any, lock: "FileLock", signature: Any) -> Any:
    """Compile a function for some types, or load what another process has compiled by then."""
    from filelock import Timeout

    # The lock of this process's threads comes first: a thread that holds it waits for files.
    with global_compiler_lock:
        save = cache.save_overload
        try:
            lock.acquire(timeout=MAX_WAIT_SECONDS)
        except (OSError, Timeout):
            cache.save_overload = lambda *_: None
        try:
            return compile(signature)
        finally:
            cache.save_overload = save
            lock.release()


def _save_if_possible(save: Callable[[Any, Any], None], signature: Any, code: Any) -> None:
    """Store compiled code; if the disk is full or the folder gone, it serves this process alone."""
    with suppress(OSError):
        save(signature, code)


def _load(loads: list[Callable[[Any], Any]], key: Any) -> Any:
    """Return the code that lies in the folder where code is written, or else in that of the package; None if none."""
    for load in loads:
        with suppress(OSError):
            if (code := load(key)) is not None:
                return code
    return None


def _save(file: Any, digest: str, key: Any, code: Any) -> None:
    """Store compiled code in Numba's cache file of a function: the code first, then the index that names it.

    What was stored of other versions of the function goes.
    """
    stored = file._load_index()
    name = stored.get(key) or file._data_name(len(stored) + 1)
    file._save_data(name, code)
    file._save_index({**stored, key: name})
    function, _, version = Path(file._index_path).name.partition(f".{digest}")[0].rpartition("-")
    for path in Path(file._cache_path).glob(f"{function}-*{version[version.index('.') :]}.*"):
        if digest not in path.name:
            path.unlink(missing_ok=True)
