"""Opens the sinks of a run: the requested ones, and those for trackers that are in use.

A module of this package, or an entry point of the group ``toposcope.sinks`` in another package, adds a tracker by
defining ``SINK``, a `SinkMaker`.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

from toposcope.errors import ToposcopeError, message_of
from toposcope.monitor.events import Event, Measured
from toposcope.monitor.sinks.jsonl import JsonlSink
from toposcope.monitor.sinks.outlets import Outlets
from toposcope.monitor.sinks.sink import Sink, SinkMaker
from toposcope.monitor.sinks.terminal import TerminalSink, say
from toposcope.monitor.sinks.webhook import WebhookSink
from toposcope.plugins import collect

PACKAGE = "toposcope.monitor.sinks"
LOOKS = (1, 2, 4, 8)
"""Measurements at which to search for trackers that were started since."""


def open_sinks(
    directory: Path,
    spent: Callable[[float], None],
    *,
    jsonl: str | Path | None = None,
    webhook: str | None = None,
    quiet: bool = False,
) -> list[Sink]:
    """Open the sinks of a run. Call this on the training thread, where trackers know their active run.

    Parameters
    ----------
    directory : Path
        Directory of the run.
    spent : callable
        Takes the CPU seconds that the threads of sinks spent.
    jsonl : str or Path, optional
        File to which every event is appended.
    webhook : str, optional
        URL to which alerts are posted.
    quiet : bool
        Show alerts only in the terminal.
    """
    outlets = Outlets(say, spent)
    if webhook is not None:
        outlets.add("webhook", WebhookSink(webhook, directory.resolve().name))
    if jsonl is not None:
        try:
            outlets.add(str(jsonl), JsonlSink(Path(jsonl)))
        except ToposcopeError as error:
            say(f"{error}; events are not written to it")
    here = Path.cwd()
    shown = directory.relative_to(here) if directory.is_relative_to(here) else directory
    hint = f"live page: toposcope show {shown}"
    database = directory / "study.db"  # absent if the directory cannot be used
    outlets.add("terminal", TerminalSink(lambda: hint if database.exists() else "", quiet=quiet))
    return [_WithTrackers(outlets, TrackerSearch(directory))]


@cache
def sink_makers() -> dict[str, SinkMaker]:
    """Return the makers of all trackers, by the name of their module."""
    return collect(PACKAGE, "toposcope.sinks", _makers_of)


def _makers_of(module: ModuleType) -> dict[str, SinkMaker]:
    maker = getattr(module, "SINK", None)
    return {} if maker is None else {module.__name__.rpartition(".")[2]: maker}


class TrackerSearch:
    """Finds the trackers that a run uses, including some that start after its monitor.

    Parameters
    ----------
    directory : Path
        Directory of the run.

    Attributes
    ----------
    failures : dict of Exception
        By name, trackers that are in use but could not be opened; they are not tried again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._calls = 0
        self.failures: dict[str, Exception] = {}
        self._missing: dict[str, SinkMaker] = {}
        try:
            self._missing |= sink_makers()
        except ToposcopeError as error:  # a broken package, which the message names
            self.failures["trackers"] = error

    def look(self) -> dict[str, Sink]:
        """Return the trackers that were started since the last call, by name.

        Only the first, second, fourth and eighth calls search, to keep the cost low.
        """
        self._calls += 1
        if self._calls not in LOOKS:
            return {}
        opened: dict[str, Sink] = {}
        for name, maker in list(self._missing.items()):
            try:
                sink = maker(self._directory)
            except Exception as error:  # noqa: BLE001 - a broken tracker is reported and never stops training
                self.failures[name] = error
                del self._missing[name]
                continue
            if sink is not None:
                opened[name] = sink
                del self._missing[name]
        return opened


class _WithTrackers:
    """All sinks of a run; searches for further trackers after measurements.

    From the monitor's thread it can find TensorBoard and W&B. MLflow and trackio know their run on the training thread
    only, so they are found only if they were started before the monitor.
    """

    def __init__(self, outlets: Outlets, search: TrackerSearch) -> None:
        self._outlets, self._search = outlets, search
        self._n_reported = 0
        self._look()

    def _look(self) -> None:
        for name, sink in self._search.look().items():
            self._outlets.add(name, sink)
        for name, error in list(self._search.failures.items())[self._n_reported :]:
            say(f"{name}: not used ({message_of(error)})")
        self._n_reported = len(self._search.failures)

    def put(self, event: Event) -> None:
        if isinstance(event, Measured):
            self._look()
        self._outlets.put(event)

    def close(self) -> None:
        self._outlets.close()
