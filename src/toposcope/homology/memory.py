"""Refusing, in words, what would not fit in memory."""

import os
from pathlib import Path

from toposcope.errors import ToposcopeError

MIN_CHECKED_BYTES = 1 << 22  # less is free anywhere, and to ask takes longer than a small computation
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def may_not_fit(n_bytes: int) -> bool:
    """Return whether so many bytes are worth asking the system for its memory."""
    return n_bytes >= MIN_CHECKED_BYTES


def check_fits(n_bytes: int, name: str, hint: str) -> None:
    """Refuse a computation that needs more memory than is free, before it starts."""
    free = free_memory() if may_not_fit(n_bytes) else None
    if free is not None and n_bytes > free:
        raise ToposcopeError(f"{name}: needs {n_bytes / 1e9:.3g} GB of memory, {free / 1e9:.3g} GB are free; {hint}")


def free_memory() -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not report it.

    On Linux the kernel's estimate, which counts the file cache as free, or what is left of a container's limit;
    elsewhere the free pages, where the system knows them. A limit set on a process is not seen.
    """
    of_machine, limit = _free_of_machine(), _container("memory.max", "memory/memory.limit_in_bytes")
    used = _container("memory.current", "memory/memory.usage_in_bytes")
    if limit is None or used is None:
        return of_machine
    return max(0, limit - used) if of_machine is None else max(0, min(of_machine, limit - used))


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def total_memory() -> int | None:
    """Return the bytes of the machine's memory, or a container's limit; None where the system does not report it."""
    limit = _container("memory.max", "memory/memory.limit_in_bytes")
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return limit
    return memory if limit is None else min(memory, limit)


def _container(*names: str) -> int | None:
    """Return the number of bytes in the first readable file of control groups, version 2 or 1."""
    for name in names:
        try:
            return int((CONTROL_GROUPS / name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return None
