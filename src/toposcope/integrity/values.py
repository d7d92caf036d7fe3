"""Unreadable checkpoints, values that are not finite, dead tensors."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from toposcope.integrity.finding import Finding, by_steps, layers_text, single, steps_text
from toposcope.integrity.summary import CheckpointSummary, TensorSummary

NORM_WEIGHT = re.compile(r"(^|[._])(\w*norm\w*|ln(_?\w{1,2})?)\.(weight|scale|gamma|g)$", re.IGNORECASE)
"""Names of the weights of norms."""
MIN_NOT_ZERO = 1024
"""Largest magnitude of a tensor that was not rounded to zero, in units of the smallest number of its dtype."""
SMALLEST = {"float16": 2.0**-24, "float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}
"""Smallest positive numbers of the dtypes that round weights to zero."""
MIN_CONSTANT = 4
"""Values of a vector of which it can be said that they are one number."""
MAX_CONSTANT_SPREAD = 0.5
"""Range of the values of such a vector, in units of the smallest."""
UNREADABLE = "unreadable"
"""Name of the check for errors that have no kind."""


def unreadable(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find checkpoints that could not be opened or read: a finding each, named after `CheckpointError.kind`."""
    for item in summaries:
        if item.error:
            yield Finding(item.kind or UNREADABLE, "fault", (item.step,), "", item.error)


def doubtful(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find checkpoints whose index disagrees with the shards in a way that does not affect what is read."""
    for item in summaries:
        if item.doubt and not item.error:
            yield Finding("index", "fault", (item.step,), "", item.doubt)


def not_finite(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors with NaN or infinite values."""
    incidents: dict[str, list[int]] = defaultdict(list)
    counts: dict[tuple[str, int], int] = {}
    for item in summaries:
        for name, tensor in item.tensors.items():
            if tensor.n_not_finite:
                incidents[name].append(item.step)
                counts[name, item.step] = tensor.n_not_finite
    n_tensors = max((len(item.tensors) for item in summaries), default=0)
    for steps, names in by_steps(incidents):
        count = sum(counts[name, step] for name in names for step in steps)
        message = f"{layers_text(names, n_tensors)}: {count} values that are NaN or infinite, at {steps_text(steps)}"
        yield Finding("non-finite", "fault", steps, single(names), message)


def dead(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors that are all zero.

    Of a matrix it is a note until it first changes, as projections may begin at zero. A vector may be zero until it
    first changes, as biases are, unless it must have begun otherwise, as the weight of a norm.
    """
    incidents: dict[str, list[int]] = defaultdict(list)
    beginning: dict[str, list[int]] = defaultdict(list)
    for name in sorted({name for item in summaries for name in item.tensors}):
        known = [(item, item.tensors[name]) for item in summaries if name in item.tensors]
        zero = [item.step for item, tensor in known if tensor.is_zero]
        if not zero:
            continue
        moved = next(((item.step, tensor) for item, tensor in known if _is_clearly_not_zero(tensor)), None)
        if known[0][1].is_matrix:
            begun = moved[0] if moved and summaries[0].step == 0 else 1
            beginning[name] += [step for step in zero if step < begun]
            incidents[name] += [step for step in zero if step >= begun]
        else:
            begins_otherwise = (moved and _is_nearly_constant(moved[1])) or _is_an_odd_norm(name, known)
            incidents[name] += [step for step in zero if begins_otherwise or (moved and step > moved[0])]
    n_tensors = max((len(item.tensors) for item in summaries), default=0)
    for steps, names in by_steps(incidents):
        message = f"{layers_text(names, n_tensors)}: all zero at {steps_text(steps)}; fetch or save it again"
        yield Finding("dead", "fault", steps, single(names), message)
    for steps, names in by_steps(beginning):
        message = (
            f"{layers_text(names, n_tensors)}: all zero at {steps_text(steps)}, as projections that begin at zero are"
        )
        yield Finding("dead", "note", steps, single(names), message)


def _is_clearly_not_zero(tensor: TensorSummary) -> bool:
    """Return whether a tensor was read and is further from zero than where its dtype rounds to zero."""
    largest = float(np.abs(tensor.largest_values()).max(initial=0))
    return largest > MIN_NOT_ZERO * SMALLEST.get(tensor.dtype, 0.0)


def _is_nearly_constant(tensor: TensorSummary) -> bool:
    """Return whether a vector is about one number throughout; one that was trained from zero is not."""
    values = tensor.values()
    low, high = float(values.min()), float(values.max())
    return (
        len(values) >= MIN_CONSTANT and high - low < MAX_CONSTANT_SPREAD * min(abs(low), abs(high)) and low * high > 0
    )


def _is_an_odd_norm(name: str, known: Sequence[tuple[CheckpointSummary, TensorSummary]]) -> bool:
    """Return whether a norm's weight begins at zero while those in the same place of other layers do not."""
    first, tensor = known[0]
    if not tensor.is_zero or not NORM_WEIGHT.search(name):
        return False
    kin = [t for n, t in first.tensors.items() if n != name and _place(n) == _place(name)]
    return len(kin) > 0 and all(_is_clearly_not_zero(t) for t in kin)


def _place(name: str) -> str:
    """Return a name without the numbers of its layers."""
    return re.sub(r"\d+", "", name)
