"""Progress of long work, reported to the caller; the library itself never prints."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done, total)`` from the thread that started the work."""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""
