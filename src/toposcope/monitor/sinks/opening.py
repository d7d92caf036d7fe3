"""Opening the sinks of a run: those that were asked for, and the trackers that are in use.

A module of this package, or one that another package names as an entry point of the group ``toposcope.sinks``, adds a
tracker by ``SINK``, a `SinkMaker`.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Event, Measured
from toposcope.monitor.sinks.jsonl import JsonlSink
from toposcope.monitor.sinks.outlets import Outlets, one_line
from toposcope.monitor.sinks.sink import Sink, SinkMaker
from toposcope.monitor.sinks.terminal import TerminalSink, say
from toposcope.monitor.sinks.webhook import WebhookSink
from toposcope.plugins import collect

PACKAGE = "toposcope.monitor.sinks"
LOOKS = (1, 2, 4, 8)
"""Measurements at which trackers that began since are looked for."""


def open_sinks(
    directory: Path,
    spent: Callable[[float], None],
    *,
    jsonl: str | Path | None = None,
    webhook: str | None = None,
    quiet: bool = False,
) -> list[Sink]:
    """Open the sinks of a run; to be called on the thread that trains, where a tracker knows its active run.

    Parameters
    ----------
    directory : Path
        The run's.
    spent : callable
        Takes the processor's seconds that the sinks' threads took.
    jsonl : str or Path, optional
        A file to which every event is appended.
    webhook : str, optional
        A web address that is sent alerts.
    quiet : bool
        Whether the terminal shows alerts only.
    """
    outlets = Outlets(say, spent)
    if webhook is not None:
        outlets.add("webhook", WebhookSink(webhook, directory.resolve().name))
    if jsonl is not None:
        try:
            outlets.add(str(jsonl), JsonlSink(Path(jsonl)))
        except ToposcopeError as error:
            say(f"{error}; it is left out")
    here = Path.cwd()
    shown = directory.relative_to(here) if directory.is_relative_to(here) else directory
    outlets.add("terminal", TerminalSink(f"the page: toposcope show {shown}", quiet=quiet))
    return [_WithTrackers(outlets, TrackerSearch(directory))]


@cache
def sink_makers() -> dict[str, SinkMaker]:
    """Return the makers of all trackers, by the names of their modules."""
    return collect(PACKAGE, "toposcope.sinks", _makers_of)


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
        self.failures: dict[str, Exception] = {}
        self._missing: dict[str, SinkMaker] = {}
        try:
            self._missing |= sink_makers()
        except ToposcopeError as error:  # a package at fault; the message names it
            self.failures["trackers"] = error

    def look(self) -> dict[str, Sink]:
        """Return the trackers that came into use since the last call, by name.

        It looks at the first call, the second, the fourth and the eighth, so that it costs little.
        """
        self._calls += 1
        if self._calls not in LOOKS:
            return {}
        opened: dict[str, Sink] = {}
        for name, maker in list(self._missing.items()):
            try:
                sink = maker(self._directory)
            except Exception as error:  # noqa: BLE001 - a tracker's fault never stops training; it is said
                self.failures[name] = error
                del self._missing[name]
                continue
            if sink is not None:
                opened[name] = sink
                del self._missing[name]
        return opened


class _WithTrackers:
    """All sinks of a run; looks for further trackers with every measurement.

    On the monitor's thread it finds those of TensorBoard and W&B; MLflow and trackio know their run on the thread that
    trains only, and are found when they began before the monitor.
    """

    def __init__(self, outlets: Outlets, search: TrackerSearch) -> None:
        self._outlets, self._search = outlets, search
        self._n_said = 0
        self._look()

    def _look(self) -> None:
        for name, sink in self._search.look().items():
            self._outlets.add(name, sink)
        for name, error in list(self._search.failures.items())[self._n_said :]:
            say(f"left out: {name}: {one_line(error)}")
        self._n_said = len(self._search.failures)

    def put(self, event: Event) -> None:
        if isinstance(event, Measured):
            self._look()
        self._outlets.put(event)

    def close(self) -> None:
        self._outlets.close()
