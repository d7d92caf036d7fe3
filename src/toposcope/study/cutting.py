"""How the work on checkpoints is cut: portions that fit on the disk, batches of layers that make a task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError

BATCH = 64 * 10**6
"""Bytes of layers that make one task; a larger layer is a task of its own."""

Place = tuple[str, int]
"""A run and a step."""


@dataclass(frozen=True)
class Size:
    """Bytes of a checkpoint: of all its tensors, and of the analysed layers."""

    stored: int = 0
    analysed: int = 0


def bytes_of(checkpoint: Checkpoint) -> Size:
    """Return the bytes of a checkpoint; of one that cannot be opened, which is told when it is read, none."""
    try:
        analysed = sum(layer.n_bytes for layer in checkpoint.analysed())
        return Size(sum(entry.n_bytes for entry in checkpoint.entries), analysed)
    except ToposcopeError:
        return Size()


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


def batches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Group layers to about `BATCH` bytes."""
    batch: list[str] = []
    held = 0
    for name, n_bytes in sizes.items():
        if batch and held + n_bytes > BATCH:
            yield batch
            batch, held = [], 0
        batch.append(name)
        held += n_bytes
    if batch:
        yield batch
