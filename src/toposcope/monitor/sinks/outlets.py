"""Runs every sink on its own thread, so that a slow tracker delays neither training nor other trackers."""

import threading
import time
from collections import deque
from collections.abc import Callable

from toposcope.errors import message_of
from toposcope.monitor.events import Event
from toposcope.monitor.sinks.sink import Sink

MAX_WAITING = 20_000
"""Queued events of a slow sink; beyond that the oldest are dropped, and their number is reported at the end."""


class Outlets:
    """Sends events to every sink.

    Parameters
    ----------
    say : callable
        Takes a message for the user: a sink failed, or could not keep up. Called on the threads of sinks.
    spent : callable
        Takes the CPU seconds that a sink spent on an event. Called on its thread.
    """

    def __init__(self, say: Callable[[str], None], spent: Callable[[float], None]) -> None:
        self._say, self._spent = say, spent
        self._outlets: dict[str, _Outlet] = {}

    def add(self, name: str, sink: Sink) -> None:
        """Add a sink, which gets all later events."""
        self._outlets[name] = _Outlet(name, sink, self._say, self._spent)

    def put(self, event: Event) -> None:
        """Send an event to all sinks, without waiting for any."""
        for outlet in list(self._outlets.values()):
            outlet.put(event)

    def close(self, timeout: float = 10.0) -> None:
        """Let the sinks empty their queues, within `timeout` seconds in all."""
        deadline = time.monotonic() + timeout
        for outlet in self._outlets.values():
            outlet.end()
        for outlet in self._outlets.values():
            outlet.join(max(0.0, deadline - time.monotonic()))


class _Outlet:
    """One sink, its thread and its queue."""

    def __init__(self, name: str, sink: Sink, say: Callable[[str], None], spent: Callable[[float], None]) -> None:
        self._name, self._sink, self._say, self._spent = name, sink, say, spent
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._n_dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"toposcope-{name}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        with self._changed:
            if self._ending:
                return
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.popleft()
                self._n_dropped += 1
            self._waiting.append(event)
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._say(f"{self._name} did not finish in time; the events that it had not written are lost there")
        elif self._n_dropped:
            self._say(f"{self._name} could not keep up; {self._n_dropped} events were dropped there")

    def _run(self) -> None:
        try:
            try:
                while (event := self._next()) is not None:
                    started = time.thread_time()
                    self._sink.put(event)
                    self._spent(time.thread_time() - started)
            finally:
                self._sink.close()
        except Exception as error:  # noqa: BLE001 - a failure closes only this sink
            self.end()
            self._say(f"{self._name} failed and is closed: {message_of(error)}; training and other trackers continue")

    def _next(self) -> Event | None:
        """Return the next event, waiting for it; None at the end."""
        with self._changed:
            while not self._waiting and not self._ending:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None
