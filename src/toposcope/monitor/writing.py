"""A queue of writes into the study; a write that fails is tried again later."""

from collections import deque
from collections.abc import Callable
from typing import Any

from toposcope.errors import ToposcopeError
from toposcope.monitor.measuring import StepMeasurements
from toposcope.monitor.recording import MAX_DIAGRAM_STEPS, Recording

WRITE_SECONDS = 0.5
"""Least time between writes; the session waits longer if writing is slow."""
RETRY_SECONDS = 10.0
"""Time until a failed write is tried again."""
MAX_WAITING = 1_000
"""Queued writes while the study cannot be written; beyond that, the oldest are dropped."""

Write = Callable[[Recording], None]


class WriteQueue:
    """Makes writes in order, each once.

    Parameters
    ----------
    open_recording : callable
        Opens the recording; called again until it succeeds.
    say : callable
        Takes a message for the user.

    Attributes
    ----------
    recording : Recording or None
        None before it is open.
    """

    def __init__(self, open_recording: Callable[[], Recording], say: Callable[[str], None]) -> None:
        self._open, self._say = open_recording, say
        self.recording: Recording | None = None
        self._waiting: deque[Write] = deque()
        self._measured: deque[StepMeasurements] = deque()
        self._is_reported = False

    def add(self, write: Write) -> None:
        """Queue a write."""
        self._waiting.append(write)

    def add_measured(self, done: StepMeasurements, write: Write) -> None:
        """Queue measurements; if the queue grows long, their diagrams are dropped."""
        self._waiting.append(write)
        self._measured.append(done)

    def write(self, facts: Callable[[], dict[str, Any]]) -> float:
        """Write what is queued, and the status of the monitor; return the seconds until the next write."""
        if not self._waiting and self.recording is not None:
            return WRITE_SECONDS
        try:
            if self.recording is None:
                self.recording = self._open()
            while self._waiting:
                self._waiting[0](self.recording)
                self._waiting.popleft()
            self._measured.clear()
            self.recording.status(facts())
        except ToposcopeError as error:
            if not self._is_reported:
                self._say(f"{error}; training continues, and the write is tried again every {RETRY_SECONDS:.0f} s")
            self._is_reported = True
            self._make_room()
            return RETRY_SECONDS
        return WRITE_SECONDS

    def _make_room(self) -> None:
        """Bound the memory of the queue while the disk cannot be written: drop old rows and diagrams."""
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
        while len(self._measured) > MAX_DIAGRAM_STEPS:
            self._measured.popleft().forget_diagrams()

    def close(self, status: str, step: int) -> None:
        """Close the study; store the final status only if nothing is left in the queue."""
        if self.recording is None:
            return
        if self._waiting:
            self.recording.release()
        else:
            self.recording.close(status, step)
