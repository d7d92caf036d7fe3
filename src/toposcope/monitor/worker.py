"""The monitor's own thread: takes jobs one by one; the tensors that wait for it have bounded size."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")

MAX_WAIT_SECONDS = 10.0
"""Time that a job waits for room; a disk that hangs must not hold up the training for longer."""
IDLE_SECONDS = 0.25
"""Time after which a thread without jobs looks whether anything else is to be done."""


class Worker(Generic[Job]):
    """A thread and its queue.

    Parameters
    ----------
    handle : callable
        Does one job. If it raises, the thread ends: jobs are taken no longer, and `failed` is called.
    idle : callable
        Called between jobs, and every quarter of a second without jobs.
    failed : callable
        Called with the exception, on the thread.
    limit : int
        Bytes of waiting jobs; a job that is larger is taken when no other waits.
    """

    def __init__(
        self,
        handle: Callable[[Job], None],
        idle: Callable[[], None],
        failed: Callable[[BaseException], None],
        limit: int,
    ) -> None:
        self._handle, self._idle, self._failed, self._limit = handle, idle, failed, limit
        self._jobs: deque[tuple[Job, int]] = deque()
        self._bytes = 0
        self._unfinished = 0
        self._changed = threading.Condition()
        self._stopping = False
        # A daemon: a script that ends without closing its monitor ends all the same.
        self._thread = threading.Thread(target=self._run, name="toposcope-monitor", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it takes jobs."""
        return self._thread.is_alive() and not self._stopping

    @property
    def unfinished(self) -> int:
        """Number of jobs that wait or are in hand."""
        return self._unfinished

    def put(self, job: Job, n_bytes: int = 0) -> bool:
        """Add a job, when there is room for its bytes; return False if there is none for long, or the thread ended."""
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
            self._unfinished += 1
            self._changed.notify_all()
            return True

    def stop(self, timeout: float | None = None) -> None:
        """Let it finish what waits, then end."""
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
        except BaseException as error:  # noqa: BLE001 - training goes on; the reason is said
            self._stopping = True
            self._failed(error)
        finally:
            with self._changed:
                self._jobs.clear()
                self._changed.notify_all()

    def _next(self) -> list[tuple[Job, int]] | None:
        """Return the next job, nothing after a while, or None at the end."""
        with self._changed:
            if not self._jobs and not self._stopping:
                self._changed.wait(IDLE_SECONDS)
            if self._jobs:
                return [self._jobs.popleft()]
            return None if self._stopping else []

    def _finish(self, n_bytes: int) -> None:
        with self._changed:
            self._bytes -= n_bytes
            self._unfinished -= 1
            self._changed.notify_all()
