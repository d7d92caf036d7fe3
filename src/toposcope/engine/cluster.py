"""Running tasks on a Ray cluster: they read and measure where the bytes are, and hand their rows back."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toposcope.engine.pool import Engine, Failed, Result, Task, free, nothing, one_thread
from toposcope.errors import ToposcopeError
from toposcope.progress import Progress, silent

if TYPE_CHECKING:
    import ray

POLL_SECONDS = 1.0
QUEUED = 2
"""Tasks handed over for each processor of the cluster: enough to keep it at work, few enough to stop soon."""
TRIES = 3
"""Times a task is begun again whose worker or node died."""


@contextmanager
def engine_named(name: str, pool: Engine) -> Iterator[Engine]:
    """Provide the engine a user names: ``pool``, ``ray`` (this machine, or what ``RAY_ADDRESS`` names), ``ray://...``.

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
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(
                address=None if name == "ray" else name,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())[:150]
            raise ToposcopeError(
                f"engine {name}: no cluster there ({reason}); start one with: ray start --head"
            ) from error
    try:
        yield Cluster()
    finally:
        if ours:
            ray.shutdown()


class Cluster:
    """A Ray cluster that is connected to (see `Engine`)."""

    @property
    def n_workers(self) -> int:
        """Processors of the cluster."""
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        progress: Progress = silent,
        cost: Callable[[Task], int] = free,
        idle: Callable[[], None] = nothing,
    ) -> Iterator[tuple[Task, Result | Failed]]:
        """See `Engine.run`; progress of tasks under way is not told."""
        import ray

        remote = ray.remote(num_cpus=1, max_retries=TRIES)(_alone)
        largest = max((node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]), default=0)
        waiting = iter(tasks)
        running: dict[ray.ObjectRef[Any], Task] = {}
        while True:
            room = QUEUED * self.n_workers
            while len(running) < room and (task := next(waiting, None)) is not None:
                # What a task holds is asked of its node, so that a node is not given more than it has; one that no
                # node has room for has a node to itself.
                running[remote.options(memory=min(cost(task), int(largest))).remote(function, task)] = task
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            if not done:
                idle()
            for reference in done:
                task = running.pop(reference)
                yield task, _result(reference)


def _alone(function: Callable[[Task], Result], task: Task) -> Result:
    """Compute as a worker process of this machine does, so that results do not depend on where."""
    with one_thread():
        return function(task)


def _result(reference: "ray.ObjectRef[Any]") -> Any:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # an error of ours, not of the cluster
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:150]
        return Failed(f"lost on the cluster after {TRIES + 1} tries ({type(error).__name__}: {reason})")
