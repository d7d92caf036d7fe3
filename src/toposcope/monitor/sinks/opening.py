"""Opens the sinks of a run, each on its own thread: the requested ones, and those for trackers that are in use.

A module of this package, or an entry point of the group ``toposcope.sinks`` in another package, adds a tracker by
defining ``SINK``, a `SinkMaker`.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType

from toposcope.errors import ToposcopeError, message_of
from toposcope.monitor.events import Event, Measured
from toposcope.monitor.sinks.sink import Sink, SinkMaker
from toposcope.monitor.sinks.terminal import TerminalSink, echo, shown_path
from toposcope.monitor.sinks.webhook import WebhookSink
from toposcope.plugins import collect

PACKAGE = "toposcope.monitor.sinks"
MAX_WAITING = 20_000
"""Queued events of a slow sink; beyond that the oldest are dropped, and their number is reported at the end."""
CLOSE_SECONDS = 10.0  # time within which all sinks together must empty their queues at the end
SEARCHES = (1, 2, 4, 8)  # measurements at which to search for trackers that were started since


@cache
def sink_makers() -> dict[str, SinkMaker]:
    """Return the makers of all trackers, by the name of their module."""
    return collect(PACKAGE, "toposcope.sinks", _makers_of)


def _makers_of(module: ModuleType) -> dict[str, SinkMaker]:
    maker = getattr(module, "SINK", None)
    return {} if maker is None else {module.__name__.rpartition(".")[2]: maker}


class RunSinks:
    """All sinks of a run, including those for trackers that start after its monitor.

    From the monitor's thread it can find TensorBoard and W&B. MLflow and trackio know their run on the training thread
    only, so they are found only if they were started before the monitor. `spent` is called with the CPU seconds of
    each event.
    """

    def __init__(self, directory: Path, spent: Callable[[float], None]) -> None:
        self._directory, self._spent = directory, spent
        self._threads: list[_SinkThread] = []
        self._n_searches = 0
        self._missing: dict[str, SinkMaker] = {}
        try:
            self._missing |= sink_makers()
        except ToposcopeError as error:  # a broken package, which the message names
            echo(f"trackers: not used ({message_of(error)})")

    def add(self, name: str, sink: Sink) -> None:
        """Add a sink, which gets all later events."""
        self._threads.append(_SinkThread(name, sink, self._spent))

    def search(self) -> None:
        """Add the trackers that were started since; only some calls search, to keep the cost low."""
        self._n_searches += 1
        for name, maker in list(self._missing.items()) if self._n_searches in SEARCHES else ():
            try:
                sink = maker(self._directory)
            except Exception as error:  # noqa: BLE001 - a broken tracker is reported and never stops training
                echo(f"{name}: not used ({message_of(error)})")
                del self._missing[name]
                continue
            if sink is not None:
                self.add(name, sink)
                del self._missing[name]

    def put(self, event: Event) -> None:
        """Send an event to all sinks, without waiting for any."""
        if isinstance(event, Measured):
            self.search()
        for thread in self._threads:
            thread.put(event)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Let the sinks empty their queues, within `timeout` seconds in all."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _SinkThread:
    """One sink, its thread and its queue."""

    def __init__(self, name: str, sink: Sink, spent: Callable[[float], None]) -> None:
        self._name, self._sink, self._spent = name, sink, spent
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()  # None at the end
        self._has_ended, self._n_dropped = False, 0
        self._thread = threading.Thread(target=self._run, name=f"toposcope-{name}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        if self._has_ended:
            return
        if self._waiting.qsize() >= MAX_WAITING:
            with suppress(Empty):
                self._waiting.get_nowait()
                self._n_dropped += 1
        self._waiting.put(event)

    def end(self) -> None:
        self._has_ended = True
        self._waiting.put(None)

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        if self._thread.is_alive():
            echo(f"{self._name} did not finish in time; the events that it had not written are lost there")
        elif self._n_dropped:
            echo(f"{self._name} could not keep up; {self._n_dropped} events were dropped there")

    def _run(self) -> None:
        try:
            try:
                while (event := self._waiting.get()) is not None:
                    started = time.thread_time()
                    self._sink.put(event)
                    self._spent(time.thread_time() - started)
            finally:
                self._sink.close()
        except Exception as error:  # noqa: BLE001 - a failure closes only this sink
            self.end()
            echo(f"{self._name} failed and is closed: {message_of(error)}; training and other trackers continue")


def open_sinks(
    directory: Path,
    spent: Callable[[float], None],
    *,
    webhook: str | None = None,
    quiet: bool = False,
) -> RunSinks:
    """Open the sinks of a run. Call this on the training thread, where trackers know their active run."""
    sinks = RunSinks(directory, spent)
    if webhook is not None:
        sinks.add("webhook", WebhookSink(webhook, directory.resolve().name))
    hint = f"live page: toposcope show {shown_path(directory)}"
    database = directory / "study.db"  # absent if the directory cannot be used
    sinks.add("terminal", TerminalSink(lambda: hint if database.exists() else "", quiet=quiet))
    sinks.search()
    return sinks
