"""How long work on checkpoints is expected to take, how it is divided, and how much of it is done."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.probes.probe import Probe, Shape
from toposcope.progress import Progress

WORK = "work"  # what tasks report as ``report(WORK, n, 0)``: so many more bytes were read, or milliseconds of work done
Item = TypeVar("Item")

# Times are those of one core of a desktop machine, to a factor of two; no number that a study stores depends on them.
BATCH_SECONDS = 1.0  # expected seconds of the layers in one task; a layer that takes longer is a task by itself
MANY_LAYERS = 20_000  # more are in longer tasks, as each task rewrites the diagrams of those before
LAYER_MS = 0.3  # of a layer, for each probe, whatever its size: calls, statistics, rows of the store


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
    return probe.expected_seconds(shapes) + LAYER_MS / 1000 * len(shapes)


def longest_task(probe: Probe, shapes: Mapping[str, Shape]) -> int:
    """Return the expected milliseconds of the longest task of a probe."""
    if not probe.by_layer():
        return milliseconds(probe, shapes)
    return max((milliseconds(probe, {name: shape}) for name, shape in shapes.items()), default=0)


def batches(probe: Probe, layers: Mapping[str, Shape]) -> Iterator[list[str]]:
    """Group layers to about `BATCH_SECONDS` of expected time, or more where they are very many."""
    limit = math.inf
    if seconds(probe, layers) > BATCH_SECONDS:
        limit = BATCH_SECONDS * max(1, len(layers) / MANY_LAYERS)
    return cut(list(layers), lambda name: seconds(probe, {name: layers[name]}), limit)


def cut(
    items: Sequence[Item], weight: Callable[[Item], float], limit: float, size: float = math.inf
) -> Iterator[list[Item]]:
    """Cut a sequence where the next item would bring a part over a weight or a size."""
    part: list[Item] = []
    total = 0.0
    for item in items:
        of_item = weight(item)
        if part and (len(part) >= size or total + of_item > limit):
            yield part
            part, total = [], 0.0
        part.append(item)
        total += of_item
    if part:
        yield part


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
