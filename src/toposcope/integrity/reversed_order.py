"""Stretches of checkpoints, or whole series, that are stored in reverse order."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from toposcope.integrity.finding import Finding, Suspect
from toposcope.integrity.histories import MAX_STRETCH, MIN_WALKING, History, summed
from toposcope.integrity.summary import CheckpointSummary, TensorSummary
from toposcope.integrity.swaps import CHUNK
from toposcope.typing import Indices, Vector

MIN_LENGTH = 3
"""Checkpoints of a stretch; two are swapped (see `toposcope.integrity.swaps`)."""
MIN_GAIN = 1.8
"""How many times shorter, in squared distance, the path into a stretch and that out of it each are once it is turned
around, in the median over the matrices: for a random walk past k checkpoints k times, in the right order 1/k."""
MIN_FALL = 0.8
"""Rank correlation, in the median over the matrices, with which the largest value relative to the rest must fall."""
MIN_CONSTANT = 2
"""Vectors that are one number throughout at the last checkpoint, as they are where a training begins."""


def find_reversed(histories: Sequence[History]) -> list[Suspect]:
    """Find stretches that are in reverse order: turned around, the path past them is much shorter on both sides."""
    matrices = [history for history in histories if history.is_matrix]
    if not matrices:
        return []
    steps = matrices[0].steps
    matrices = [history for history in matrices if np.array_equal(history.steps, steps)]
    if float(np.median([np.median(h.walking()) for h in matrices])) < MIN_WALKING:
        return []
    found = [each for begin in range(1, len(steps) - MIN_LENGTH, CHUNK) for each in _stretches(matrices, begin)]
    taken = np.zeros(len(steps), np.bool_)
    suspects = []
    for _, a, b in sorted(found, reverse=True):
        if not taken[a : b + 1].any():
            taken[a : b + 1] = True
            moved = tuple(int(step) for k, step in enumerate(steps[a : b + 1]) if 2 * k != b - a)
            reason = f"steps {steps[a]} to {steps[b]} are stored in reverse order; rename them, or fetch them again"
            suspects.append(Suspect(moved, [h.name for h in histories], len(histories), "order", reason))
    return suspects


def _stretches(matrices: Sequence[History], begin: int) -> Iterator[tuple[float, int, int]]:
    """Yield how much shorter the path is with a stretch turned around, and its first and last place.

    The first is in the chunk from `begin` on, and there are checkpoints on both sides.
    """
    n = len(matrices[0].steps)
    low, high = max(0, begin - 2), min(n, begin + CHUNK + MAX_STRETCH + 2)
    near = [replace(h, steps=h.steps[low:high], values=h.values[low:high]) for h in matrices]
    distances = np.stack([summed(h.distances()) + h.rounding_floor()[0] for h in near])

    def times(a: Indices, b: Indices, c: Indices, d: Indices) -> Vector:
        """Return how many times further a is from b than c from d, in the median over the matrices."""
        return np.asarray(np.median(distances[:, a, b] / distances[:, c, d], axis=0))

    for length in range(MIN_LENGTH - 1, MAX_STRETCH):
        a = np.arange(begin - low, min(begin + CHUNK, n - 1 - length) - low)
        into, out_of = times(a - 1, a, a - 1, a + length), times(a + length, a + length + 1, a, a + length + 1)
        a = a[chosen := (into > MIN_GAIN) & (out_of > MIN_GAIN)]
        gains, b = (into * out_of)[chosen], a + length
        # If two checkpoints alone have changed places, those next to the ends, within or outside, do not agree.
        before, after = np.maximum(a - 2, 0), np.minimum(b + 2, high - low - 1)
        agrees = (a < 2) | (times(before, b, before, a) <= 1)
        agrees &= (b + 2 >= high - low) | (times(a, after, b, after) <= 1)
        if length > MIN_LENGTH - 1:
            agrees &= (times(a, a + 1, b, a + 1) <= 1) & (times(b, b - 1, a, b - 1) <= 1)
        for gain, first in zip(gains[agrees].tolist(), a[agrees].tolist(), strict=True):
            yield gain, low + first, low + first + length


def backwards(summaries: Sequence[CheckpointSummary], *, trained_at_first: bool) -> list[Finding]:
    """Find a series that ends where a training begins; `trained_at_first` where step 0 is no initialisation."""
    items = [item for item in summaries if not item.error]
    if len(items) < MIN_LENGTH:
        return []
    first, last = items[0].tensors, items[-1].tensors
    vectors = [name for name, tensor in last.items() if not tensor.is_matrix and tensor.sketch and name in first]
    turned = [name for name in vectors if _is_constant(last[name]) and not _is_constant(first[name])]
    if len(turned) >= MIN_CONSTANT and 2 * len(turned) >= len(vectors):
        why = f"at its last step {len(turned)} of {len(vectors)} vectors are one number throughout, at its first not"
    elif trained_at_first and len(items) > MIN_LENGTH and _tails_shrink(items):
        why = "its matrices lose their outlying values from step to step"
    else:
        return []
    steps = tuple(item.step for item in items)
    middle = steps[len(steps) // 2] if len(steps) % 2 else None
    words = f"the series runs backwards: {why}, as where a training begins; rename all checkpoints"
    return [Finding("order", "fault", tuple(step for step in steps if step != middle), "", words)]


def _tails_shrink(items: Sequence[CheckpointSummary]) -> bool:
    names = [name for name, tensor in items[0].matrices.items() if all(name in item.tensors for item in items)]
    falls = []
    for name in names:
        tensors = [item.tensors[name] for item in items]
        if all(tensor.largest and tensor.norm > 0 for tensor in tensors):
            tails = np.array([abs(tensor.largest_values()[0]) / tensor.norm for tensor in tensors])
            falls.append(-float(np.corrcoef(np.argsort(np.argsort(tails)), np.arange(len(tails)))[0, 1]))
    return bool(falls) and float(np.median(falls)) > MIN_FALL


def _is_constant(tensor: TensorSummary) -> bool:
    values = tensor.values()
    return len(values) > 1 and bool((values == values[0]).all())
