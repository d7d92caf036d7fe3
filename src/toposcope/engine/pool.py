"""Run one function over many tasks, in this process or in several; the results are the same."""

import multiprocessing
import operator
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from toposcope.progress import Progress, silent

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
MAX_TRIES_ALONE = 2  # times a task runs by itself after a worker died; it has failed if its worker dies each time
DEFAULT_FREE_MEMORY = 4 * 10**9  # bytes taken to be free where the system does not report it
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

_SPAWN = multiprocessing.get_context("spawn")
_report: Progress = silent
_shared: Any = None


def no_cost(_: Any) -> int:
    """Return 0: the task holds no memory worth counting."""
    return 0


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

        Yields
        ------
        task, result
            The result is a `TaskFailure` if the task killed its worker again and again. An exception raised by a
            task is raised here.
        """
        ...


class Workers(AbstractContextManager["Workers"]):
    """Worker processes that run tasks, each on one thread. One worker is this process, unless it is to be `apart`.

    A worker that dies is replaced. The task that it ran is run again when the others are done, by itself, since it may
    have lacked memory; if it kills its worker again and again, it has failed.

    Parameters
    ----------
    count : int
        Number of workers.
    budget : int, optional
        Bytes that running tasks may hold together; a single task may hold more. Default: a quarter of the free memory.
    shared : object, optional
        Sent once to each worker; tasks get it from `shared`.
    queue : int
        Tasks made ahead for each worker, while all are at work.
    apart : bool
        Whether one worker is a process of its own too: it works while this one makes the tasks.

    Examples
    --------
    >>> import math
    >>> with Workers(1) as workers:
    ...     dict(workers.run(math.factorial, [3, 4, 5]))
    {3: 6, 4: 24, 5: 120}
    """

    def __init__(
        self, count: int, budget: int | None = None, shared: Any = None, queue: int = 1, *, apart: bool = False
    ) -> None:
        from toposcope.homology.memory import free_memory  # its package is slow to import, and no worker needs it

        self.n_workers: int = count
        self.queue: int = queue
        self.apart: bool = apart or count > 1
        self.budget: int = (free_memory() or DEFAULT_FREE_MEMORY) // 4 if budget is None else budget
        self._shared = shared
        self._processes: dict[Connection, BaseProcess] = {}

    @property
    def has_started(self) -> bool:
        """Whether there are other processes already."""
        return bool(self._processes)

    def start(self, function: Callable[[], object]) -> None:
        """Start the processes and have each call a function, such as an import, while this one does other work.

        What it returns or raises is ignored, as is the death of a process: `run` replaces it.
        """
        if self.apart:
            while len(self._processes) < self.n_workers:
                self._start_process()
            for connection in self._processes:
                with suppress(OSError):
                    connection.send_bytes(pickle.dumps((operator.call, function, False)))

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        progress: Progress = silent,
        cost: Callable[[Task], int] = no_cost,
    ) -> Iterator[tuple[Task, Result | TaskFailure]]:
        """See `Engine.run`."""
        if not self.apart:
            yield from _run_in_this_process(function, tasks, progress, self._shared)
            return
        running: dict[Connection, Task] = {}
        lost: list[Task] = []  # whose worker died
        waiting, ready, is_last = iter(tasks), deque[Task](), False
        done: list[tuple[Task, Result]] = []
        try:
            while True:
                makes_ahead = not is_last and len(ready) < self.queue * self.n_workers
                if makes_ahead:
                    ready += (made := list(islice(waiting, 1)))
                    is_last = not made
                while ready and len(running) < self.n_workers:
                    if running and sum(map(cost, [*running.values(), ready[0]])) > self.budget:
                        break
                    self._send(function, ready.popleft(), running)
                yield from done  # once the workers have got more to do
                if is_last and not running:
                    break
                done = self._receive(running, lost, progress, 0 if makes_ahead else POLL_SECONDS)
            for task in lost:
                for _ in range(MAX_TRIES_ALONE):
                    self._send(function, task, running)
                    deaths: list[Task] = []
                    while running:
                        yield from self._receive(running, deaths, progress, POLL_SECONDS)
                    if not deaths:
                        break
                else:
                    message = f"its worker process was killed {MAX_TRIES_ALONE} times, perhaps for lack of memory"
                    yield task, TaskFailure(f"{message}; try fewer --workers")
        finally:
            for connection in running:  # after an error, or where the caller wants no more
                self._end(connection)

    def _send(self, function: Callable[[Task], Result], task: Task, running: dict[Connection, Task]) -> None:
        """Hand a task to a worker without one."""
        connection = next((c for c in self._processes if c not in running), None) or self._start_process()
        running[connection] = task
        content = pickle.dumps((function, task, True))
        with suppress(OSError):  # of a worker that is dead, which `_receive` finds
            connection.send_bytes(content)

    def _receive(
        self, running: dict[Connection, Task], lost: list[Task], progress: Progress, seconds: float
    ) -> list[tuple[Task, Any]]:
        """Return what is done after some time at most; move tasks whose workers died from `running` to `lost`."""
        done, heard = [], wait(list(running), seconds)
        for connection in [each for each in running if each in heard]:
            try:
                kind, value = connection.recv()
            except (EOFError, OSError):
                lost.append(running.pop(connection))
                self._end(connection)
                continue
            if kind == "report":
                progress(*value)
                continue
            task = running.pop(connection)
            if kind == "error":
                raise value
            done.append((task, value))
        return done

    def _start_process(self) -> Connection:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_work, args=(theirs, self._shared), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Python's resource tracker was killed too, and is started again
            resource_tracker.ensure_running()  # which unblocks Ctrl-C
            with _interrupts_blocked():
                process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def _end(self, connection: Connection) -> None:
        """Kill a worker: one that ends by itself takes half a second to clear away its compiled code."""
        process = self._processes.pop(connection)
        process.kill()
        process.join()
        connection.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # No task is waited for: those of `run` are done, or of no use after an error, with their state on disk.
        for connection in list(self._processes):
            self._end(connection)


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
            while not wait_for_futures([future], POLL_SECONDS).done:  # a signal may wake the other thread only
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


def _work(connection: Connection, shared: Any) -> None:
    """Run tasks in a worker: on one thread, without reaction to Ctrl-C, until its parent ends."""
    from threadpoolctl import threadpool_limits

    global _report, _shared
    _report, _shared = lambda *progress: connection.send(("report", progress)), shared
    for variable in THREAD_VARIABLES:  # for libraries that are loaded later
        os.environ[variable] = "1"
    threadpool_limits(1)  # for libraries that are loaded already
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    while True:
        try:
            content, is_awaited = connection.recv_bytes(), True
        except EOFError:  # the parent's end is closed
            os._exit(1)
        try:
            function, task, is_awaited = pickle.loads(content)  # noqa: S301 - from the parent
            answer = pickle.dumps(("done", function(task)))
        except BaseException as error:  # noqa: BLE001 - raised again by the parent
            error.add_note("".join(traceback.format_exception(error)))
            answer = _encoded(error)
        if is_awaited:
            connection.send_bytes(answer)


def _encoded(error: BaseException) -> bytes:
    try:
        return pickle.dumps(("error", error))
    except Exception:  # noqa: BLE001 - it holds what cannot be sent
        return pickle.dumps(("error", RuntimeError(f"{type(error).__name__}: {error}")))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
