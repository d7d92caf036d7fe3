"""Running one function over many tasks: here, or in spawned processes. Results do not depend on which."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_connections
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from toposcope.errors import ToposcopeError
from toposcope.progress import Progress, silent

Task = TypeVar("Task")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

_report: Progress = silent


def report(what: str, done: int, total: int) -> None:
    """Report progress from a task; reaches the caller of `Workers.run`."""
    _report(what, done, total)


class Workers(AbstractContextManager["Workers"]):
    """Processes that run tasks; one worker means this process.

    Parameters
    ----------
    count : int
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._executor: ProcessPoolExecutor | None = None
        if count > 1:
            context = multiprocessing.get_context("spawn")
            self._reports: Any = context.SimpleQueue()
            self._processes: set[BaseProcess] = set()
            # Workers hold the other end and stop when this one is closed, at the latest by our death.
            lifeline, self._lifeline = context.Pipe(duplex=False)
            self._executor = ProcessPoolExecutor(count, context, _begin_worker, (self._reports, lifeline))

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], progress: Progress = silent
    ) -> Iterator[tuple[Task, Result]]:
        """Yield every task with its result, in the order they finish.

        Raises
        ------
        ToposcopeError
            If a worker process died.
        """
        if self._executor is None:
            yield from _run_here(function, tasks, progress)
            return
        waiting = iter(tasks)
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                # A short queue: memory stays small, and little is lost when the run is stopped.
                while len(running) < 2 * self.count and (task := next(waiting, None)) is not None:
                    running[self._submit(self._executor, function, task)] = task
                if not running:
                    return
                done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                while not self._reports.empty():
                    progress(*self._reports.get())
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise ToposcopeError(
                "a worker process was killed, perhaps for want of memory; run the same command again to go on, "
                "with fewer --workers if it happens again"
            ) from error

    def _submit(self, executor: ProcessPoolExecutor, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Hand a task to the executor, and remember the processes it makes for it."""
        before = set(multiprocessing.active_children())
        with _interrupts_held():
            future = executor.submit(function, task)
        self._processes |= set(multiprocessing.active_children()) - before
        return future

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._executor is None:
            return
        if kind is not None:
            # Work in hand is not waited for: its state is on disk, or it is cheap.
            for process in self._processes:
                process.kill()
                process.join()
        self._executor.shutdown(wait=kind is None, cancel_futures=True)
        self._lifeline.close()


def _run_here(
    function: Callable[[Task], Result], tasks: Sequence[Task], progress: Progress
) -> Iterator[tuple[Task, Result]]:
    global _report
    before, _report = _report, progress
    try:
        for task in tasks:
            with _one_thread():
                result = function(task)
            yield task, result
    finally:
        _report = before


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while processes are made: they inherit that, and leave it to their parent from the start."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute as a worker process does: sums over several threads depend on their number."""
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def _begin_worker(reports: Any, lifeline: Connection) -> None:
    """Prepare a worker: one thread for arithmetic, no reaction to Ctrl-C, and no life after its parent's."""
    import torch
    from threadpoolctl import threadpool_limits

    global _report
    _report = lambda *told: reports.put(told)  # noqa: E731
    for variable in THREAD_VARIABLES:  # libraries loaded from here on
        os.environ[variable] = "1"
    threadpool_limits(1)  # libraries loaded by now
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    wait_for_connections([lifeline])
    os._exit(1)
