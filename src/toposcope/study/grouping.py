"""Keeping finished work several pieces at a time: a transaction for each would cost more than small work itself."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

Item = TypeVar("Item")

MOST = 64
"""Pieces that are kept at once."""
SECONDS = 0.5
"""What was finished waits no longer than this for more."""


class Group(AbstractContextManager["Group[Item]"], Generic[Item]):
    """Finished work that waits to be kept.

    What comes more than `SECONDS` after the last was kept is kept at once, so that of one process no more work than
    that can wait; an engine's `idle` is to `flush`, for the work of several.

    Parameters
    ----------
    keep : callable
        Keeps some pieces for good, in the order they were added.
    """

    def __init__(self, keep: Callable[[list[Item]], None]) -> None:
        self._keep = keep
        self._waiting: list[Item] = []
        self._kept = time.monotonic()

    def add(self, item: Item) -> None:
        """Take one more piece."""
        self._waiting.append(item)
        if len(self._waiting) >= MOST or time.monotonic() - self._kept >= SECONDS:
            self.flush()

    def flush(self) -> None:
        """Keep all that waits."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._keep(waiting)
        self._kept = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A stop by the user loses nothing that is finished; after an error (a full disk) it would only fail again.
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self.flush()
