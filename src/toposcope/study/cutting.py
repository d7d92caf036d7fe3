"""How the work on checkpoints is cut: portions that fit on the disk, batches of layers that make a task."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.probes.probe import Probe, Shape

BATCH = 1.0
"""Expected seconds of layers that make one task; a layer that takes longer is a task of its own."""

LONG_TASK_MS = 10_000
"""Milliseconds from which on a task is begun before all others, so that the end need not wait for it alone."""

Place = tuple[str, int]
"""A run and a step."""


@dataclass(frozen=True)
class Size:
    """Bytes of a checkpoint's tensors, and shapes of its analysed layers by name."""

    stored: int = 0
    shapes: Mapping[str, Shape] = field(default_factory=dict)


def size_of(checkpoint: Checkpoint) -> Size:
    """Return the size of a checkpoint; one that cannot be opened, which is reported when it is read, has none."""
    try:
        shapes = {layer.name: (layer.shape[0], layer.shape[1]) for layer in checkpoint.analysed()}
        return Size(sum(entry.n_bytes for entry in checkpoint.entries), shapes)
    except ToposcopeError:
        return Size()


def milliseconds(probe: Probe, shapes: Mapping[str, Shape]) -> int:
    """Return how long a probe is expected to take on layers of some shapes, by name."""
    return math.ceil(1000 * probe.expected_seconds(shapes))


def longest_task(probe: Probe, shapes: Mapping[str, Shape]) -> int:
    """Return how many milliseconds the longest task of a probe is expected to take."""
    if not probe.by_layer():
        return milliseconds(probe, shapes)
    return max((milliseconds(probe, {name: shape}) for name, shape in shapes.items()), default=0)


def portions(places: Sequence[Place], fetched: Mapping[Place, int], keep: int | None) -> Iterator[list[Place]]:
    """Group checkpoints so that what is fetched of a group still lies on this disk when it is measured."""
    portion: list[Place] = []
    held = 0
    for place in places:
        if portion and keep is not None and held + fetched[place] > keep // 2:
            yield portion
            portion, held = [], 0
        portion.append(place)
        held += fetched[place]
    if portion:
        yield portion


def batches(seconds: Mapping[str, float]) -> Iterator[list[str]]:
    """Group layers, by how long each is expected to take, to about `BATCH`."""
    batch: list[str] = []
    held = 0.0
    for name, expected in seconds.items():
        if batch and held + expected > BATCH:
            yield batch
            batch, held = [], 0.0
        batch.append(name)
        held += expected
    if batch:
        yield batch
