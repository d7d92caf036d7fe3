"""Layers of several checkpoints in stacks of one shape, for functions that measure many small matrices in one call."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.dtypes import without_8_bits
from toposcope.checkpoints.formats.entry import read_together
from toposcope.errors import ToposcopeError
from toposcope.kernels.magnitudes import widened
from toposcope.probes.probe import Subject

Result = TypeVar("Result")

_Member = tuple[int, Layer]
"""Place of a checkpoint, and a layer of it."""

MAX_STACKED_ENTRIES = 1 << 16
"""Entries of the largest layer that is stacked: for a larger one a call of its own costs nothing that would matter."""

MAX_STACK_ENTRIES = 1 << 17
"""Entries of a stack: more matrices of a shape make several stacks."""


def by_stacks(
    subjects: Sequence[Subject],
    measure: Callable[[NDArray[Any]], Sequence[Result | None]],
    *,
    narrow: bool = False,
) -> list[dict[str, Result]]:
    """Measure the wanted layers of several checkpoints, those of one shape and dtype in one call.

    Parameters
    ----------
    subjects : sequence of Subject
    measure : callable
        Measures a stack of matrices, shape (r, m, n); None where one has to be measured by itself.
    narrow : bool
        Whether matrices are as `Layer.read_narrow` returns them; else as `Layer.matrix` does.

    Returns
    -------
    list of dict
        For each subject, by layer. What cannot be read is absent: measured by itself, it gives the error.
    """
    alike: dict[tuple[Any, ...], list[_Member]] = {}
    for place, subject in enumerate(subjects):
        for layer in subject.layers:
            if layer.name in subject.wanted and math.prod(layer.shape) <= MAX_STACKED_ENTRIES:
                alike.setdefault((layer.shape, layer.dtype, layer.transposed), []).append((place, layer))
    measured: list[dict[str, Result]] = [{} for _ in subjects]
    for members in alike.values():
        size = max(1, MAX_STACK_ENTRIES // max(1, math.prod(members[0][1].shape)))
        for start in range(0, len(members), size):
            readable, stack = _read(members[start : start + size], narrow)
            for (place, layer), result in zip(readable, measure(stack) if readable else (), strict=True):
                if result is not None:
                    measured[place][layer.name] = result
    return measured


def _read(members: Sequence[_Member], narrow: bool) -> tuple[Sequence[_Member], NDArray[Any]]:
    """Return the layers that can be read, and their matrices."""
    try:
        stack = without_8_bits(read_together([layer.entry for _, layer in members]), members[0][1].dtype)
    except Exception:  # noqa: BLE001 - each is then read by itself, which tells the one that is at fault
        readable = [member for member in members if _is_readable(member[1])]
        return _read(readable, narrow) if 0 < len(readable) < len(members) else ([], np.empty(0))
    if not narrow:
        stack = widened(stack)
        stack = stack.transpose(0, 2, 1) if members[0][1].transposed else stack
    return members, stack


def _is_readable(layer: Layer) -> bool:
    try:
        layer.read_narrow()
    except ToposcopeError:
        return False
    return True
