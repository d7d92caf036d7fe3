"""Run tasks on a Ray cluster: they read and measure where the bytes are, and send their rows back."""

import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toposcope.engine.pool import Engine, Result, Task, TaskFailure, no_cost, run_on_one_thread
from toposcope.errors import ToposcopeError, message_of
from toposcope.extras import require
from toposcope.progress import Progress, silent

if TYPE_CHECKING:
    import ray

POLL_SECONDS = 1.0
TASKS_PER_PROCESSOR = 2
"""Tasks submitted at a time, running or queued: enough to keep each processor busy, few enough to stop soon."""
MAX_RETRIES = 3  # times a task is run again after its worker or node died


@contextmanager
def engine_named(name: str, pool: Engine) -> Iterator[Engine]:
    """Open the engine of a name: ``pool``, ``ray`` (this machine, or the cluster at ``RAY_ADDRESS``) or ``ray://...``."""
    if name == "pool":
        yield pool
        return
    if name != "ray" and not name.startswith("ray://"):
        raise ToposcopeError(f"engine {name!r}: choose pool, ray or ray://address")
    require("ray", f"engine {name}")
    import ray

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


class ClusterLostError(ToposcopeError):
    """The cluster does not answer, or has no node left; what it sent back before stands."""


class Cluster:
    """The Ray cluster that this process is connected to, as an `Engine`."""

    @property
    def n_workers(self) -> int:
        """Number of processors of the cluster."""
        return max(1, int(sum(node["CPU"] for node in _live_nodes())))

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        progress: Progress = silent,
        cost: Callable[[Task], int] = no_cost,
    ) -> Iterator[tuple[Task, Result | TaskFailure]]:
        """See `Engine.run`; what running tasks `report` does not arrive, and a lost cluster is a `ClusterLostError`."""
        import ray

        remote = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(run_on_one_thread)
        waiting = iter(tasks)
        running: dict[ray.ObjectRef[Any], Task] = {}
        has_nodes = False
        while True:
            nodes = _live_nodes()
            if has_nodes and not nodes:  # one that starts nodes on demand may begin without
                raise ClusterLostError("the last node of the cluster is lost")
            has_nodes = bool(nodes)
            largest = int(max((node.get("memory", 0) for node in nodes), default=0))
            room = TASKS_PER_PROCESSOR * max(1, int(sum(node["CPU"] for node in nodes)))
            while len(running) < room and (task := next(waiting, None)) is not None:
                # Memory is reserved for each task, so that no node gets more than it has; a task that needs more than
                # the largest node has runs there by itself.
                with _loss_reported():
                    running[remote.options(memory=min(cost(task), largest)).remote(function, task)] = task
            if not running:
                return
            with _loss_reported():
                done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for reference in done:
                task = running.pop(reference)
                yield task, _result(reference)


def _live_nodes() -> list[dict[str, float]]:
    """Return the resources of the live nodes that have a processor."""
    import ray
    from ray.util.client import ray as client

    with _loss_reported():
        if not client.is_connected():
            # Ray waits a minute for a head node that does not answer, and then ends this process.
            host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


@contextmanager
def _loss_reported() -> Iterator[None]:
    """Raise `ClusterLostError` where a call to the cluster fails."""
    from ray.exceptions import LocalRayletDiedError, RaySystemError, RpcError

    try:
        yield
    except (OSError, LocalRayletDiedError, RaySystemError, RpcError) as error:
        raise ClusterLostError(f"the cluster is lost ({message_of(error)})") from error


def _result(reference: "ray.ObjectRef[Any]") -> Any:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # an error of ours, not of the cluster
    except (ray.exceptions.LocalRayletDiedError, ConnectionError) as error:
        raise ClusterLostError("the node of this process is lost") from error
    except ray.exceptions.RayError as error:
        message = f"lost on the cluster after {MAX_RETRIES + 1} tries ({type(error).__name__}: {message_of(error)})"
        return TaskFailure(message)
