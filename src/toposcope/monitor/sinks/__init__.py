"""Where a monitor passes events on to, one a file; each also from another package, by ``toposcope.sinks``.

A module of this package, or one that another package names as an entry point of the group ``toposcope.sinks``, adds a
tracker by ``SINK``, a `SinkMaker`. The terminal, a file and a web address are opened by whoever asks for them.
"""

from functools import cache
from pathlib import Path
from types import ModuleType

from toposcope.monitor.sinks.jsonl import JsonlSink
from toposcope.monitor.sinks.sink import Sink, SinkMaker
from toposcope.monitor.sinks.terminal import TerminalSink
from toposcope.monitor.sinks.webhook import WebhookSink
from toposcope.plugins import collect

__all__ = ["JsonlSink", "Sink", "SinkMaker", "TerminalSink", "TrackerSearch", "WebhookSink", "sink_makers"]


@cache
def sink_makers() -> dict[str, SinkMaker]:
    """Return the makers of all trackers, by the names of their modules."""
    return collect(__name__, "toposcope.sinks", _makers_of)


def _makers_of(module: ModuleType) -> dict[str, SinkMaker]:
    maker = getattr(module, "SINK", None)
    return {} if maker is None else {module.__name__.rpartition(".")[2]: maker}


class TrackerSearch:
    """Finds the trackers that a run is using, some of which begin after its monitor.

    Parameters
    ----------
    directory : Path
        The run's.

    Attributes
    ----------
    failures : dict of Exception
        By name, trackers that are in use and could not be opened; they are not tried again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._calls = 0
        self._missing = dict(sink_makers())
        self.failures: dict[str, Exception] = {}

    def look(self) -> dict[str, Sink]:
        """Return the trackers that came into use since the last call, by name.

        To be called on the thread that trains, which is where a tracker knows its run, at the start and at each
        measurement. It looks at the first call, the second, the fourth, the eighth, so that it costs little.
        """
        self._calls += 1
        if self._calls & (self._calls - 1):
            return {}
        opened: dict[str, Sink] = {}
        for name, maker in list(self._missing.items()):
            try:
                sink = maker(self._directory)
            except Exception as error:  # noqa: BLE001 - a tracker's fault never stops training; the caller says it
                self.failures[name] = error
                del self._missing[name]
                continue
            if sink is not None:
                opened[name] = sink
                del self._missing[name]
        return opened
