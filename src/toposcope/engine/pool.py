"""Running one function over many tasks: here, or in spawned processes. Results do not depend on which."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_connections
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from toposcope.homology.memory import free_memory
from toposcope.progress import Progress, silent

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
TRIES_ALONE = 2
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

_report: Progress = silent


def free(_: Any) -> int:
    """Cost nothing."""
    return 0


def nothing() -> None:
    """Do nothing."""


def report(what: str, done: int, total: int) -> None:
    """Report progress from a task; reaches the caller of `Workers.run`."""
    _report(what, done, total)


@dataclass(frozen=True)
class Failed:
    """A task that could not be done, and why in one line."""

    message: str


class Engine(Protocol):
    """What runs tasks: results do not depend on which engine, nor on how many workers it has."""

    @property
    def n_workers(self) -> int:
        """Tasks that run at a time."""
        ...

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        progress: Progress = silent,
        cost: Callable[[Task], int] = free,
        idle: Callable[[], None] = nothing,
    ) -> Iterator[tuple[Task, Result | Failed]]:
        """Yield every task with its result, in the order they finish.

        Parameters
        ----------
        function : callable
            Defined at the top of a module.
        tasks : iterable
            Taken one by one as there is room.
        progress : callable
            Called with what tasks `report`.
        cost : callable
            Bytes a task holds in memory.
        idle : callable
            Called now and then while tasks are under way elsewhere and no result is ready.
        """
        ...


class Workers(AbstractContextManager["Workers"]):
    """Processes that run tasks; one worker means this process.

    A worker that dies is replaced, and what was under way is begun again, one task at a time; a task that kills
    its worker again and again has failed, and the others go on.

    Parameters
    ----------
    count : int
    budget : int, optional
        Bytes that tasks under way may hold together; one task alone may hold more. A quarter of the free memory if
        left out.
    """

    def __init__(self, count: int, budget: int | None = None) -> None:
        self.n_workers = count
        self.budget = _share_of_memory() if budget is None else budget
        self._executor: ProcessPoolExecutor | None = None
        if count > 1:
            self._context = multiprocessing.get_context("spawn")
            self._processes: set[BaseProcess] = set()
            self._start()

    def _start(self) -> None:
        self._reports: Any = self._context.SimpleQueue()
        # Workers hold the other end and stop when this one is closed, at the latest by our death.
        lifeline, self._lifeline = self._context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(self.n_workers, self._context, _begin_worker, (self._reports, lifeline))

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        progress: Progress = silent,
        cost: Callable[[Task], int] = free,
        idle: Callable[[], None] = nothing,
    ) -> Iterator[tuple[Task, Result | Failed]]:
        """See `Engine.run`."""
        if self._executor is None:
            yield from _run_here(function, tasks, progress)
            return
        lost: list[Task] = []
        waiting = iter(tasks)
        while True:
            yield from self._run(function, waiting, progress, cost, idle, lost)
            if not lost:
                return
            for task in self._taken(lost):
                yield from self._alone(function, task, progress, cost, idle)

    def _alone(
        self,
        function: Callable[[Task], Result],
        task: Task,
        progress: Progress,
        cost: Callable[[Task], int],
        idle: Callable[[], None],
    ) -> Iterator[tuple[Task, Result | Failed]]:
        """Run a task that was under way when a worker died: by itself, so that it is known which one kills."""
        for _ in range(TRIES_ALONE):
            lost: list[Task] = []
            yield from self._run(function, iter([task]), progress, cost, idle, lost)
            if not self._taken(lost):
                return
        told = f"its worker process was killed {TRIES_ALONE} times, perhaps for want of memory; try fewer --workers"
        yield task, Failed(told)

    def _taken(self, lost: list[Task]) -> list[Task]:
        """Take tasks whose workers died off a list; there are new workers then."""
        taken = lost[:]
        lost.clear()
        if taken:
            self._kill()
            self._start()
        return taken

    def _run(
        self,
        function: Callable[[Task], Result],
        waiting: Iterator[Task],
        progress: Progress,
        cost: Callable[[Task], int],
        idle: Callable[[], None],
        lost: list[Task],
    ) -> Iterator[tuple[Task, Result]]:
        """Run tasks until there are no more, or a worker died; what was under way is then added to `lost`."""
        running: dict[Future[Result], Task] = {}
        held: dict[Future[Result], int] = {}
        upcoming: list[Task] = []
        while True:
            # A short queue: memory stays small, and little is lost when the run is stopped.
            while len(running) < 2 * self.n_workers:
                upcoming = upcoming or [task for task in [next(waiting, None)] if task is not None]
                if not upcoming or (running and sum(held.values()) + cost(upcoming[0]) > self.budget):
                    break
                task = upcoming.pop()
                try:
                    future = self._submit(function, task)
                except BrokenProcessPool:
                    lost += [task, *running.values()]
                    return
                running[future], held[future] = task, cost(task)
            if not running:
                return
            done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            while not self._reports.empty():
                progress(*self._reports.get())
            if not done:
                idle()
            for future in done:
                if isinstance(future.exception(), BrokenProcessPool):
                    continue
                del held[future]
                yield running.pop(future), future.result()
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                lost += [*running.values(), *upcoming]
                return

    def _submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Hand a task to the executor, and remember the processes it makes for it."""
        assert self._executor is not None
        before = set(multiprocessing.active_children())
        with _interrupts_held():
            future = self._executor.submit(function, task)
        self._processes |= set(multiprocessing.active_children()) - before
        return future

    def _kill(self) -> None:
        """End all workers at once."""
        for process in self._processes:
            process.kill()
            process.join()
        self._processes.clear()
        assert self._executor is not None
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._lifeline.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._executor is None:
            return
        if kind is not None:
            # Work in hand is not waited for: its state is on disk, or it is cheap.
            self._kill()
            return
        self._executor.shutdown(cancel_futures=True)
        self._lifeline.close()


def _share_of_memory() -> int:
    """Return a quarter of the free memory; a gigabyte where the system does not tell."""
    return (free_memory() or 4 * 10**9) // 4


def _run_here(
    function: Callable[[Task], Result], tasks: Iterable[Task], progress: Progress
) -> Iterator[tuple[Task, Result]]:
    global _report
    before, _report = _report, progress
    try:
        for task in tasks:
            with one_thread():
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
def one_thread() -> Iterator[None]:
    """Compute as a worker process does: sums over several threads depend on their number."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _libraries(len(sys.modules)).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)


@lru_cache(1)
def _libraries(_modules: int) -> "ThreadpoolController":
    """Return what sets the threads of the loaded libraries; looked for anew when modules were imported since."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


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
