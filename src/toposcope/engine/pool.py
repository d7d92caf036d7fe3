"""Run one function over many tasks, in this process or in several; the results are the same."""

import multiprocessing
import operator
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_connections
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import SemLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from toposcope.homology.memory import free_memory
from toposcope.progress import Progress, silent

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
MAX_TRIES_ALONE = 2  # times a task runs by itself after a worker died; it has failed if its worker dies each time
DEFAULT_FREE_MEMORY = 4 * 10**9  # bytes taken to be free where the system does not report it
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

_report: Progress = silent
_shared: Any = None


def no_cost(_: Any) -> int:
    """Return 0: the task holds no memory worth counting."""
    return 0


def do_nothing() -> None:
    """Do nothing."""


def report(what: str, done: int, total: int) -> None:
    """Report progress from within a task; it reaches the `progress` of `Workers.run`."""
    _report(what, done, total)


def shared() -> Any:
    """Return, within a task, what all tasks share: the argument `shared` of `Workers`."""
    return _shared


@dataclass(frozen=True)
class TaskFailure:
    """The result of a task that could not be done; the message says why, in one line."""

    message: str


class Engine(Protocol):
    """Runs tasks. Results depend neither on the engine nor on its number of workers."""

    @property
    def n_workers(self) -> int:
        """Number of tasks that run at the same time."""
        ...

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        progress: Progress = silent,
        cost: Callable[[Task], int] = no_cost,
        idle: Callable[[], None] = do_nothing,
    ) -> Iterator[tuple[Task, Result | TaskFailure]]:
        """Yield each task with its result, in the order in which they finish.

        Parameters
        ----------
        function : callable
            Task -> result. It must be defined at the top level of a module.
        tasks : iterable
            Read one by one, as workers become free.
        progress : callable
            Receives what tasks `report`.
        cost : callable
            Task -> bytes it holds in memory.
        idle : callable
            Called every `POLL_SECONDS` while tasks run in other processes and none has finished.

        Yields
        ------
        task, result
            The result is a `TaskFailure` if the task killed its worker again and again. An exception raised by a
            task is raised here.
        """
        ...


class Workers(AbstractContextManager["Workers"]):
    """Worker processes that run tasks, each on one thread. With one worker, tasks run in this process.

    A worker that dies is replaced, and the tasks that were running are run again, one at a time. A task that kills its
    worker again and again has failed; the others go on.

    Parameters
    ----------
    count : int
        Number of workers.
    budget : int, optional
        Bytes that running tasks may hold together; a single task may hold more. Default: a quarter of the free memory.
    shared : object, optional
        Sent once to each worker; tasks get it from `shared`.
    queue : int
        Tasks handed out for each worker, of which it runs one.

    Examples
    --------
    >>> import math
    >>> with Workers(1) as workers:
    ...     dict(workers.run(math.factorial, [3, 4, 5]))
    {3: 6, 4: 24, 5: 120}
    """

    def __init__(self, count: int, budget: int | None = None, shared: Any = None, queue: int = 2) -> None:
        self.n_workers, self.queue = count, queue
        self.budget = (free_memory() or DEFAULT_FREE_MEMORY) // 4 if budget is None else budget
        self._shared = shared
        self._executor: ProcessPoolExecutor | None = None
        if count > 1:
            self._context = multiprocessing.get_context("spawn")
            self._processes: set[BaseProcess] = set()
            self._start()

    def _start(self) -> None:
        self._reports: Any = self._context.SimpleQueue()
        # Workers hold the other end and stop when this one is closed, at the latest when this process dies.
        lifeline, self._lifeline = self._context.Pipe(duplex=False)
        arguments = (self._reports, lifeline, self._shared)
        self._executor = ProcessPoolExecutor(self.n_workers, self._context, _begin_worker, arguments)

    @property
    def has_started(self) -> bool:
        """Whether there are other processes already."""
        return self._executor is not None and bool(self._processes)

    def start(self, function: Callable[[], object]) -> None:
        """Start the processes and have them call a function, such as an import, while this one does other work.

        It is called as often as there are processes; a quick one may take the call of another. What it returns or
        raises is ignored, as is the death of a process: `run` replaces it.
        """
        if self._executor is not None:
            with suppress(BrokenProcessPool):
                for _ in range(self.n_workers):
                    self._submit(operator.call, function)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        progress: Progress = silent,
        cost: Callable[[Task], int] = no_cost,
        idle: Callable[[], None] = do_nothing,
    ) -> Iterator[tuple[Task, Result | TaskFailure]]:
        """See `Engine.run`."""
        if self._executor is None:
            yield from _run_in_this_process(function, tasks, progress, self._shared)
            return
        lost: list[Task] = []
        run = partial(self._run_until_loss, function, progress, cost, idle, lost)
        waiting = iter(tasks)
        while True:
            yield from run(waiting)
            if not lost:
                return
            for task in self._restart(lost):  # each by itself, which shows whether it is the one that kills
                for _ in range(MAX_TRIES_ALONE):
                    yield from run(iter([task]))
                    if not self._restart(lost):
                        break
                else:
                    yield (
                        task,
                        TaskFailure(
                            f"its worker process was killed {MAX_TRIES_ALONE} times, perhaps for lack of memory; "
                            "try fewer --workers"
                        ),
                    )

    def _restart(self, lost: list[Task]) -> list[Task]:
        """Empty the list of lost tasks and return its content; replace the workers if there is any."""
        tasks = lost[:]
        lost.clear()
        if tasks:
            _end_tracker()
            self._kill()
            self._start()
        return tasks

    def _run_until_loss(
        self,
        function: Callable[[Task], Result],
        progress: Progress,
        cost: Callable[[Task], int],
        idle: Callable[[], None],
        lost: list[Task],
        waiting: Iterator[Task],
    ) -> Iterator[tuple[Task, Result]]:
        """Run tasks until none is left or a worker dies; the tasks that were running are then added to `lost`."""
        running: dict[Future[Result], Task] = {}
        costs: dict[Future[Result], int] = {}
        upcoming: list[Task] = []
        while True:
            # A short queue keeps memory small, and little is lost when the run is stopped.
            while len(running) < self.queue * self.n_workers:
                upcoming = upcoming or [task for task in [next(waiting, None)] if task is not None]
                if not upcoming or (running and sum(costs.values()) + cost(upcoming[0]) > self.budget):
                    break
                task = upcoming.pop()
                try:
                    future = self._submit(function, task)
                except BrokenProcessPool:
                    lost += [task, *running.values()]
                    return
                running[future], costs[future] = task, cost(task)
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
                del costs[future]
                yield running.pop(future), future.result()
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                lost += [*running.values(), *upcoming]
                return

    def _submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Hand a task to the executor, and remember the processes it starts for it."""
        assert self._executor is not None
        before = set(multiprocessing.active_children())
        with _interrupts_blocked():
            future = self._executor.submit(function, task)
        self._processes |= set(multiprocessing.active_children()) - before
        return future

    def _kill(self) -> None:
        """Kill all workers."""
        _renew_tracker()
        for process in self._processes:
            process.kill()
            process.join()
        self._processes.clear()
        assert self._executor is not None
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._lifeline.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # No task is waited for: those of `run` are done, or of no use after an error, with their state on disk. And a
        # process that ends by itself takes half a second to clear away its compiled code.
        if self._executor is not None:
            self._kill()


def _end_tracker() -> None:
    """End Python's resource tracker: where a worker was killed, it may have been too, and take a while to be gone."""
    if os.name == "posix":
        from multiprocessing import resource_tracker

        pid = getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)
        if pid is not None:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _renew_tracker() -> None:
    """Tell Python's resource tracker again of all semaphores: one that was killed, as workers are, comes back empty.

    It prints a traceback for each that is cleared away and that it does not know.
    """
    if os.name != "posix":
        return
    from multiprocessing import resource_tracker, util

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was started again
        resource_tracker.ensure_running()
    for finalizer in list(getattr(util, "_finalizer_registry", {}).values()):
        if getattr(finalizer, "_callback", None) is getattr(SemLock, "_cleanup", do_nothing):
            resource_tracker.register(finalizer._args[0], "semaphore")  # noqa: SLF001


def _run_in_this_process(
    function: Callable[[Task], Result], tasks: Iterable[Task], progress: Progress, shared: Any
) -> Iterator[tuple[Task, Result]]:
    """Run tasks in a second thread: Ctrl-C, which the first gets, breaks compiled code, or is taken for its error."""
    global _report, _shared
    before, (_report, _shared) = (_report, _shared), (progress, shared)
    thread = ThreadPoolExecutor(1)
    try:
        for task in tasks:
            future = thread.submit(run_on_one_thread, function, task)
            while not wait([future], POLL_SECONDS).done:  # a signal may wake the other thread only
                pass
            yield task, future.result()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)  # a task that was interrupted is not waited for
        _report, _shared = before


def run_on_one_thread(function: Callable[[Task], Result], task: Task) -> Result:
    """Run a task as a worker process does, so that the results are the same."""
    with one_thread():
        return function(task)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C while processes start: they inherit that, and leave it to their parent from the beginning."""
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
    """Compute on one thread, as a worker process does: a sum over several threads depends on their number."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else _default_threads()
    if torch:
        torch.set_num_threads(1)
    try:
        with _thread_pools(len(sys.modules)).limit(limits=1), _one_thread_in_libraries_to_come():
            yield
    finally:
        if torch := sys.modules.get("torch"):  # perhaps imported by the task
            torch.set_num_threads(threads)


@contextmanager
def _one_thread_in_libraries_to_come() -> Iterator[None]:
    """Make libraries that a task loads, such as torch, begin with one thread."""
    # Numba refuses a number of threads that changes once it has begun.
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES if "NUMBA" not in name}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _default_threads() -> int:
    """Return the number of threads that torch uses by default."""
    declared = os.environ.get("OMP_NUM_THREADS", "")
    return int(declared) if declared.isdecimal() else processors()


@lru_cache(1)
def _thread_pools(_n_modules: int) -> "ThreadpoolController":
    """Return the controller of the loaded libraries' threads; made again when modules were imported since."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _begin_worker(reports: Any, lifeline: Connection, shared: Any) -> None:
    """Prepare a worker: one thread, no reaction to Ctrl-C, and an end together with its parent's."""
    from threadpoolctl import threadpool_limits

    global _report, _shared
    _report, _shared = lambda *progress: reports.put(progress), shared
    for variable in THREAD_VARIABLES:  # for libraries that are loaded later
        os.environ[variable] = "1"
    threadpool_limits(1)  # for libraries that are loaded already
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, args=(lifeline,), daemon=True).start()


def _exit_with_parent(lifeline: Connection) -> None:
    wait_for_connections([lifeline])
    os._exit(1)
