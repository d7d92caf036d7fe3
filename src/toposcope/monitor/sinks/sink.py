"""The protocol of sinks, which receive the events of a monitor."""

from pathlib import Path
from typing import Protocol

from toposcope.monitor.events import Event


class Sink(Protocol):
    """Receives the events of a monitor one after another, on a thread of its own.

    If it raises, the monitor prints one line, closes this sink and continues with the others.
    """

    def put(self, event: Event) -> None:
        """Report one event; ignore kinds of events that do not matter here."""

    def close(self) -> None:
        """Finish; no event follows."""


class SinkMaker(Protocol):
    """Opens a sink for a tracker that is in use; a module of `toposcope.monitor.sinks` names it ``SINK``."""

    def __call__(self, directory: Path) -> Sink | None:
        """Return a sink for a run's directory; None if this process does not use the tracker.

        It is called on the training thread first, since trackers know the active run by thread or by context. It must
        inspect `sys.modules` only, and import or start nothing.
        """
