"""Where a monitor passes events on to: the trackers that a run is using already, a file, a web address."""

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
    """Opens a sink; a module of `toposcope.monitor.sinks` holds one called ``SINK``."""

    def __call__(self, directory: Path) -> Sink | None:
        """Return a sink for a run's directory; None where the tracker is not in use by this process."""
