"""Summaries of several small checkpoints at once: tensors of one shape are looked at together.

For tensors of a few thousand values, a call of NumPy takes longer than what it does.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Checkpoint, roles
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.entry import flattened, read_together
from toposcope.checkpoints.sources import small_files_held
from toposcope.errors import ToposcopeError
from toposcope.integrity.largest import largest_of_rows
from toposcope.integrity.lines import NONE, lines_of_stack
from toposcope.integrity.summary import (
    CheckpointSummary,
    TensorSummary,
    as_float32,
    norms,
    sketch_positions,
    summarise,
    weights_of,
)
from toposcope.kernels.magnitudes import widened

MAX_STACKED_ENTRIES = 1 << 15
"""Entries of the largest tensor that is stacked: for a larger one calls of its own cost nothing that would matter."""
MAX_STACK_ENTRIES = 1 << 17
"""Entries of a stack: more tensors of a shape make several stacks."""

_Place = tuple[int, str, Entry]
"""Place of a checkpoint, role of a tensor, and the tensor."""


def summarise_together(
    checkpoints: Sequence[Checkpoint], progress: Callable[[int], None] | None = None
) -> list[CheckpointSummary]:
    """Summarise checkpoints by a deep look (see `summarise`); each gives what it gives by itself, to the last bit."""
    with small_files_held():
        known = _known(checkpoints) if len(checkpoints) > 1 else [{} for _ in checkpoints]
        return [
            summarise(checkpoint, deep=True, progress=progress, known=tensors)
            for checkpoint, tensors in zip(checkpoints, known, strict=True)
        ]


def _known(checkpoints: Sequence[Checkpoint]) -> list[dict[str, TensorSummary]]:
    """Summarise the small tensors of checkpoints; what is absent has to be summarised by itself."""
    known: list[dict[str, TensorSummary]] = [{} for _ in checkpoints]
    alike: dict[tuple[tuple[int, ...], str], list[_Place]] = {}
    for place, checkpoint in enumerate(checkpoints):
        if checkpoint.step == 0:  # more is looked at
            continue
        try:
            for entry in weights_of(checkpoint):
                if math.prod(entry.shape) <= MAX_STACKED_ENTRIES and "float8" not in entry.dtype:
                    role = roles.role_of(entry.name, checkpoint.roles)
                    alike.setdefault((entry.shape, entry.dtype), []).append((place, role, entry))
        except (ToposcopeError, OSError, RuntimeError, ValueError):  # gives its error when it is summarised by itself
            continue
    for (shape, _), members in alike.items():
        size = max(1, MAX_STACK_ENTRIES // max(1, math.prod(shape)))
        for start in range(0, len(members), size):
            _summarise_stack(members[start : start + size], known)
    return known


def _summarise_stack(members: Sequence[_Place], known: Sequence[dict[str, TensorSummary]]) -> None:
    """Summarise tensors of one shape and dtype, and put the summaries where they belong."""
    readable, rows = _read(members)
    if not readable:
        return
    values = widened(rows)
    norm_of = norms(values)
    finite = [place for place, norm in enumerate(norm_of) if math.isfinite(norm)]
    largest, largest_at = largest_of_rows(rows[finite])
    sketches = as_float32(values[:, sketch_positions(rows.shape[1])])
    parts = [_bytes_of_rows(array) for array in (sketches[finite], largest, largest_at)]
    lines = lines_of_stack(rows[finite], values[finite], members[0][2].shape)
    for place, sketch, most, most_at, found in zip(finite, *parts, lines, strict=True):
        checkpoint, role, entry = readable[place]
        digest = entry.new_digest()
        digest.update(rows[place].view(np.uint8).data)
        known[checkpoint][entry.name] = TensorSummary(
            entry.shape,
            entry.dtype,
            role,
            entry.n_bytes,
            content_hash=digest.hexdigest(),
            norm=norm_of[place],
            is_zero=norm_of[place] == 0,
            sketch=sketch,
            largest=most,
            largest_at=most_at,
            lines=None if found is NONE else found,
        )


def _read(members: Sequence[_Place]) -> tuple[Sequence[_Place], NDArray[Any]]:
    """Return the tensors that can be read, and their values, one in a row."""
    unreadable = (ToposcopeError, OSError, RuntimeError, ValueError)  # gives its error when it is summarised by itself
    try:
        return members, read_together([entry for _, _, entry in members]).reshape(len(members), -1)
    except unreadable:
        readable, tensors = [], []
        for member in members:
            with suppress(*unreadable):
                tensors.append(flattened(member[2].whole()))
                readable.append(member)
        return readable, np.stack(tensors) if tensors else np.empty((0, 0))


def _bytes_of_rows(rows: NDArray[Any]) -> list[bytes]:
    content, width = rows.tobytes(), rows.nbytes // max(1, len(rows))
    return [content[begin : begin + width] for begin in range(0, len(rows) * width, width or 1)]
