"""Layers of several checkpoints in stacks of one shape, for functions that measure many small matrices in one call."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.dtypes import without_8_bits
from toposcope.checkpoints.formats.entry import Entry, stacks_of
from toposcope.kernels.magnitudes import widened
from toposcope.probes.probe import ProbeInput

MAX_STACKED_ENTRIES = 1 << 16  # of a layer; for a larger one, a call of its own costs nothing that matters
MAX_STACK_ENTRIES = 1 << 17

Result = TypeVar("Result")


def by_stacks(
    subjects: Sequence[ProbeInput], measure: Callable[[NDArray[Any]], Sequence[Result | None]], *, narrow: bool = False
) -> list[dict[str, Result]]:
    """Measure the wanted layers of several checkpoints, those of one shape and dtype in one call.

    Parameters
    ----------
    subjects : sequence of ProbeInput
    measure : callable
        Measures a stack of matrices, shape (r, m, n); None where one has to be measured by itself.
    narrow : bool
        Whether matrices are as `Layer.read_narrow` returns them; else as `Layer.matrix` does.

    Returns
    -------
    list of dict
        For each subject, by layer. What cannot be read is absent: measured by itself, it gives the error.
    """
    members: list[tuple[tuple[int, Layer], Entry]] = [
        ((place, layer), layer.entry)
        for place, subject in enumerate(subjects)
        for layer in subject.layers
        if layer.name in subject.wanted and math.prod(layer.shape) <= MAX_STACKED_ENTRIES
    ]
    measured: list[dict[str, Result]] = [{} for _ in subjects]
    for transposed in (False, True):
        same = [member for member in members if member[0][1].transposed == transposed]
        for layers, stored in stacks_of(same, MAX_STACK_ENTRIES):
            stack = without_8_bits(stored, layers[0][1].dtype)
            if not narrow:
                stack = widened(stack).transpose(0, 2, 1) if transposed else widened(stack)
            for (place, layer), result in zip(layers, measure(stack), strict=True):
                if result is not None:
                    measured[place][layer.name] = result
    return measured
