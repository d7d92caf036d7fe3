"""How the work on checkpoints is divided, run, counted and written."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from toposcope.checkpoints import Checkpoint
from toposcope.engine.cluster import ClusterLostError
from toposcope.engine.pool import Engine, Result, TaskFailure, do_nothing
from toposcope.errors import ToposcopeError
from toposcope.probes.probe import Probe, Shape
from toposcope.progress import Progress
from toposcope.study import tuning

WORK = "work"  # what tasks report as ``report(WORK, n, 0)``: so many more bytes were read, or milliseconds of work done
Item = TypeVar("Item")
RunStep = tuple[str, int]  # a run and a step


class Expected(Protocol):
    """A task of which it is known about what it takes."""

    @property
    def milliseconds(self) -> int:
        """Time."""

    @property
    def n_bytes(self) -> int:
        """Memory."""


Task = TypeVar("Task", bound=Expected)


@dataclass(frozen=True)
class CheckpointSize:
    """Bytes of a checkpoint's tensors, and shapes of its analysed layers by name."""

    stored: int = 0
    shapes: Mapping[str, Shape] = field(default_factory=dict)


def checkpoint_size(checkpoint: Checkpoint) -> CheckpointSize:
    """Return the size of a checkpoint; zero if it cannot be opened, which is reported when it is read."""
    try:
        shapes = {layer.name: (layer.shape[0], layer.shape[1]) for layer in checkpoint.analysed()}
        return CheckpointSize(sum(entry.n_bytes for entry in checkpoint.entries), shapes)
    except ToposcopeError:
        return CheckpointSize()


def milliseconds(probe: Probe, shapes: Mapping[str, Shape]) -> int:
    """Return the expected milliseconds of a probe on layers of some shapes, by name."""
    return math.ceil(1000 * seconds(probe, shapes))


def seconds(probe: Probe, shapes: Mapping[str, Shape]) -> float:
    """Return the expected seconds of a probe on layers of some shapes, of which each takes a while by itself."""
    return probe.expected_seconds(shapes) + tuning.LAYER_MS / 1000 * len(shapes)


def longest_task(probe: Probe, shapes: Mapping[str, Shape]) -> int:
    """Return the expected milliseconds of the longest task of a probe."""
    if not probe.by_layer():
        return milliseconds(probe, shapes)
    return max((milliseconds(probe, {name: shape}) for name, shape in shapes.items()), default=0)


def portions(places: Sequence[RunStep], fetched: Mapping[RunStep, int], keep: int | None) -> Iterator[list[RunStep]]:
    """Group checkpoints so that the fetched bytes of a group are still on this disk when it is measured."""
    return _cut(places, [fetched[place] for place in places], math.inf if keep is None else keep // 2)


def batches(expected: Mapping[str, float]) -> Iterator[list[str]]:
    """Group layers to about `BATCH_SECONDS` of expected time, or more where they are very many."""
    limit = tuning.BATCH_SECONDS * max(1, len(expected) / tuning.MANY_LAYERS)
    return _cut(list(expected), list(expected.values()), limit)


def groups(costs: Sequence[int], n_workers: int) -> Iterator[list[int]]:
    """Group the places of tasks, whose milliseconds are known, that are too small to be handed out one at a time.

    Every worker gets several groups, so that the workers finish together.
    """
    size = max(1, min(tuning.MAX_GROUPED, len(costs) // (tuning.GROUPS_PER_WORKER * n_workers)))
    return _cut(range(len(costs)), costs, tuning.MAX_GROUP_MS, size)


def _cut(items: Sequence[Item], weights: Sequence[float], limit: float, size: float = math.inf) -> Iterator[list[Item]]:
    """Cut a sequence where the next item would bring a part over a weight or a size."""
    part: list[Item] = []
    total = 0.0
    for item, weight in zip(items, weights, strict=True):
        if part and (len(part) >= size or total + weight > limit):
            yield part
            part, total = [], 0.0
        part.append(item)
        total += weight
    if part:
        yield part


def _most_bytes(tasks: Sequence[Expected]) -> int:
    return max(task.n_bytes for task in tasks)


def run_in_groups(
    engine: Engine,
    function: Callable[[Sequence[Task]], Sequence[Result]],
    tasks: Sequence[Task],
    progress: Progress,
    idle: Callable[[], None] = do_nothing,
) -> Iterator[tuple[Task, Result | TaskFailure]]:
    """Run tasks, small ones in groups; those of a group that killed its process are run again one by one."""
    costs = [task.milliseconds for task in tasks]
    waiting = [[tasks[place] for place in group] for group in groups(costs, engine.n_workers)]
    while waiting:
        apart: list[list[Task]] = []
        for group, results in engine.run(function, waiting, progress, _most_bytes, idle):
            if not isinstance(results, TaskFailure):
                yield from zip(group, results, strict=True)
            elif len(group) == 1:
                yield group[0], results
            else:
                apart += [[task] for task in group]
        waiting = apart


@dataclass
class WorkProgress:
    """How much of the work is done, in bytes or milliseconds, reported as it grows."""

    stage: str
    total: int
    progress: Progress
    # average number of tasks that run at the same time. Amounts are reported divided by it, so that milliseconds of
    # work become milliseconds of waiting
    parallelism: float = 1.0
    done: int = 0
    running: int = 0

    def add(self, amount: int) -> None:
        """Count a finished task; what `add_running` has counted of it is not counted again."""
        self.done += amount
        self.running = max(0, self.running - amount)
        self._report()

    def add_running(self, what: str, amount: int, _: int) -> None:
        """Count work of a running task."""
        if what == WORK:
            self.running += amount
            self._report()

    def _report(self) -> None:
        if self.total:
            done = min(self.total, self.done + self.running)
            self.progress(self.stage, round(done / self.parallelism), round(self.total / self.parallelism))


class WriteGroup(AbstractContextManager["WriteGroup[Item]"], Generic[Item]):
    """Finished items that wait to be written together.

    An item that comes more than `MAX_WAIT_SECONDS` after the last write is written at once. Where items come from
    several processes, an engine calls `flush` when it is idle.
    """

    def __init__(self, write: Callable[[list[Item]], None]) -> None:
        self._write = write
        self._waiting: list[Item] = []
        self._last_write = time.monotonic()

    def add(self, item: Item) -> None:
        """Add one item."""
        self._waiting.append(item)
        if len(self._waiting) >= tuning.MAX_ITEMS or time.monotonic() - self._last_write >= tuning.MAX_WAIT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all items that wait."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._write(waiting)
        self._last_write = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An interruption or a lost cluster loses no finished work; after a full disk, writing would fail again.
        if kind is None or issubclass(kind, KeyboardInterrupt | ClusterLostError):
            self.flush()
