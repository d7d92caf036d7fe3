"""Writes finished work in groups: a transaction for each item would cost more than a small item itself."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from toposcope.engine.cluster import ClusterLostError

Item = TypeVar("Item")

MAX_ITEMS = 64
"""Items that are written together at most."""
MAX_WAIT_SECONDS = 0.5
"""Time that a finished item waits for others."""


class WriteGroup(AbstractContextManager["WriteGroup[Item]"], Generic[Item]):
    """Finished items that wait to be written together.

    An item that comes more than `MAX_WAIT_SECONDS` after the last write is written at once. Where items come from
    several processes, an engine calls `flush` when it is idle.

    Parameters
    ----------
    write : callable
        Writes some items, in the order they were added.
    """

    def __init__(self, write: Callable[[list[Item]], None]) -> None:
        self._write = write
        self._waiting: list[Item] = []
        self._last_write = time.monotonic()

    def add(self, item: Item) -> None:
        """Add one item."""
        self._waiting.append(item)
        if len(self._waiting) >= MAX_ITEMS or time.monotonic() - self._last_write >= MAX_WAIT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all items that wait."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._write(waiting)
        self._last_write = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An interruption or a lost cluster loses no finished work; after a full disk, writing would fail again.
        if kind is None or issubclass(kind, KeyboardInterrupt | ClusterLostError):
            self.flush()
