"""Run tasks on a Ray cluster: they read and measure where the bytes are, and send their rows back."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toposcope.engine.pool import Engine, Result, Task, TaskFailure, do_nothing, no_cost, one_thread
from toposcope.errors import ToposcopeError, message_of
from toposcope.progress import Progress, silent

if TYPE_CHECKING:
    import ray

POLL_SECONDS = 1.0
TASKS_PER_PROCESSOR = 2
"""Tasks submitted at a time, running or queued: enough to keep each processor busy, few enough to stop soon."""
MAX_RETRIES = 3
"""Times a task is run again after its worker or node died."""


@contextmanager
def engine_named(name: str, pool: Engine) -> Iterator[Engine]:
    """Open the engine of a name: ``pool``, ``ray`` (this machine, or the cluster at ``RAY_ADDRESS``) or ``ray://...``.

    Raises
    ------
    ToposcopeError
        For another name, if Ray is not installed, or its cluster cannot be reached.
    """
    if name == "pool":
        yield pool
        return
    if name != "ray" and not name.startswith("ray://"):
        raise ToposcopeError(f"engine {name!r}: choose pool, ray or ray://address")
    try:
        import ray
    except ImportError as error:
        raise ToposcopeError("engine ray: Ray is not installed; pip install 'toposcope[ray]'") from error
    connected_before = ray.is_initialized()
    if not connected_before:
        try:
            ray.init(
                address=None if name == "ray" else name,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise ToposcopeError(
                f"engine {name}: no cluster there ({message_of(error)}); start one with: ray start --head"
            ) from error
    try:
        yield Cluster()
    finally:
        if not connected_before:
            ray.shutdown()


class Cluster:
    """The Ray cluster that this process is connected to, as an `Engine`."""

    @property
    def n_workers(self) -> int:
        """Number of processors of the cluster."""
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        progress: Progress = silent,
        cost: Callable[[Task], int] = no_cost,
        idle: Callable[[], None] = do_nothing,
    ) -> Iterator[tuple[Task, Result | TaskFailure]]:
        """See `Engine.run`; what running tasks `report` does not arrive."""
        import ray

        remote = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_run_task)
        largest = max((node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]), default=0)
        waiting = iter(tasks)
        running: dict[ray.ObjectRef[Any], Task] = {}
        while True:
            room = TASKS_PER_PROCESSOR * self.n_workers
            while len(running) < room and (task := next(waiting, None)) is not None:
                # Memory is reserved for each task, so that no node gets more than it has; a task that needs more than
                # the largest node has runs there by itself.
                running[remote.options(memory=min(cost(task), int(largest))).remote(function, task)] = task
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            if not done:
                idle()
            for reference in done:
                task = running.pop(reference)
                yield task, _result(reference)


def _run_task(function: Callable[[Task], Result], task: Task) -> Result:
    """Compute as a worker process of this machine does, so that the results are the same."""
    with one_thread():
        return function(task)


def _result(reference: "ray.ObjectRef[Any]") -> Any:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # an error of ours, not of the cluster
    except ray.exceptions.RayError as error:
        message = f"lost on the cluster after {MAX_RETRIES + 1} tries ({type(error).__name__}: {message_of(error)})"
        return TaskFailure(message)
