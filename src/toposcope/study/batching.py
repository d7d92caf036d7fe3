"""Divides the work on checkpoints: portions that fit on the disk, and batches of layers that make one task."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.probes.probe import Probe, Shape

BATCH_SECONDS = 1.0
"""Expected seconds of the layers in one task; a layer that takes longer is a task by itself."""

LONG_TASK_MS = 10_000
"""Milliseconds from which a task starts before all others, so that it does not run alone at the end."""

MAX_GROUPED = 64
"""Tasks that a process gets at once, at most."""

MAX_GROUP_MS = 1000
"""Expected milliseconds of tasks that a process gets at once; one that takes longer is handed out by itself."""

GROUPS_PER_WORKER = 8
"""Groups of tasks for each process, at least, as long as there are as many tasks."""

RunStep = tuple[str, int]
"""A run and a step."""


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
    return math.ceil(1000 * probe.expected_seconds(shapes))


def longest_task(probe: Probe, shapes: Mapping[str, Shape]) -> int:
    """Return the expected milliseconds of the longest task of a probe."""
    if not probe.by_layer():
        return milliseconds(probe, shapes)
    return max((milliseconds(probe, {name: shape}) for name, shape in shapes.items()), default=0)


def portions(places: Sequence[RunStep], fetched: Mapping[RunStep, int], keep: int | None) -> Iterator[list[RunStep]]:
    """Group checkpoints so that the fetched bytes of a group are still on this disk when it is measured."""
    portion: list[RunStep] = []
    total = 0
    for place in places:
        if portion and keep is not None and total + fetched[place] > keep // 2:
            yield portion
            portion, total = [], 0
        portion.append(place)
        total += fetched[place]
    if portion:
        yield portion


def batches(seconds: Mapping[str, float]) -> Iterator[list[str]]:
    """Group layers to about `BATCH_SECONDS` of expected time."""
    batch: list[str] = []
    total = 0.0
    for name, expected in seconds.items():
        if batch and total + expected > BATCH_SECONDS:
            yield batch
            batch, total = [], 0.0
        batch.append(name)
        total += expected
    if batch:
        yield batch


def groups(costs: Sequence[int], n_workers: int) -> Iterator[range]:
    """Group tasks, whose milliseconds are known, that are too small to be handed out one at a time.

    Every worker gets several groups, so that the workers finish together.
    """
    size = max(1, min(MAX_GROUPED, len(costs) // (GROUPS_PER_WORKER * n_workers)))
    start, total = 0, 0
    for place, cost in enumerate(costs):
        if place > start and (place - start >= size or total + cost > MAX_GROUP_MS):
            yield range(start, place)
            start, total = place, 0
        total += cost
    if start < len(costs):
        yield range(start, len(costs))
