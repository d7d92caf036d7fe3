"""What a sink is: something that takes the events of a monitor."""

from pathlib import Path
from typing import Protocol

from toposcope.monitor.events import Event


class Sink(Protocol):
    """Takes the events of a monitor, one after another, on the monitor's own thread.

    An exception of a sink closes that sink alone: the monitor says so once and goes on.
    """

    def put(self, event: Event) -> None:
        """Pass on one event; kinds that the sink has no use for are ignored."""

    def close(self) -> None:
        """Finish; nothing follows."""


class SinkMaker(Protocol):
    """Opens a tracker that is in use; a module of `toposcope.monitor.sinks` holds one called ``SINK``."""

    def __call__(self, directory: Path) -> Sink | None:
        """Return a sink for a run's directory; None where the tracker is not in use by this process.

        Called on the thread that trains: trackers know the active run by thread or by context. It only looks, at what
        is in `sys.modules`; it imports and starts nothing.
        """
