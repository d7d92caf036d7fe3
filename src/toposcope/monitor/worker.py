"""The monitor's own thread, with a queue of jobs whose tensors have a bounded total size."""

import threading
import time
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]  # work for the thread; a snapshot of a layer is a job that holds memory until it is done

MAX_WAIT_SECONDS = 10.0
"""Time that a job waits for room in the queue; a hanging disk must not block the training for longer."""
IDLE_SECONDS = 0.25  # interval at which a thread without jobs calls `idle`


class Worker:
    """A thread and its queue, in which jobs hold at most `limit` bytes; a larger one is accepted if no other does.

    `handle` does a job; if it raises, `failed` is called on the thread, which ends and accepts no further jobs. `idle`
    is called between jobs, and every quarter of a second while there are none.
    """

    def __init__(
        self, handle: Callable[[Job], None], idle: Job, failed: Callable[[BaseException], None], limit: int
    ) -> None:
        self._handle, self._idle, self._failed, self._limit = handle, idle, failed, limit
        self._jobs: deque[tuple[Job, int]] = deque()
        self._bytes = 0
        self.unfinished = 0
        """Number of jobs that are queued or in progress."""
        self._changed = threading.Condition()
        self._stopping = False
        # A daemon, so that a script can exit without closing its monitor.
        self._thread = threading.Thread(target=self._run, name="toposcope-monitor", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread accepts jobs."""
        return self._thread.is_alive() and not self._stopping

    def put(self, job: Job, n_bytes: int = 0) -> bool:
        """Queue a job once there is room for its bytes; return False after a timeout, or if the thread has ended."""
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        with self._changed:
            while self._bytes and self._bytes + n_bytes > self._limit and self.is_running:
                if time.monotonic() > deadline:
                    return False
                self._changed.wait(IDLE_SECONDS)
            if not self.is_running:
                return False
            self._jobs.append((job, n_bytes))
            self._bytes += n_bytes
            self.unfinished += 1
            self._changed.notify_all()
            return True

    def stop(self, timeout: float | None = None) -> None:
        """Finish the queued jobs, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while (taken := self._next()) is not None:
                for job, n_bytes in taken:
                    try:
                        self._handle(job)
                    finally:
                        self._finish(n_bytes)
                self._idle()
            self._idle()
        except BaseException as error:  # noqa: BLE001 - reported to the user; training continues
            self._stopping = True
            self._failed(error)
        finally:
            with self._changed:
                self._jobs.clear()
                self._changed.notify_all()

    def _next(self) -> list[tuple[Job, int]] | None:
        """Return a list with the next job, an empty one after a timeout, or None at the end."""
        with self._changed:
            if not self._jobs and not self._stopping:
                self._changed.wait(IDLE_SECONDS)
            if self._jobs:
                return [self._jobs.popleft()]
            return None if self._stopping else []

    def _finish(self, n_bytes: int) -> None:
        with self._changed:
            self._bytes -= n_bytes
            self.unfinished -= 1
            self._changed.notify_all()
