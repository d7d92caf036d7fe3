"""Rows, columns and scattered values of a matrix that become zero, and rows that become copies of others."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toposcope.integrity.finding import Finding, Severity, layers_text, single, steps_text
from toposcope.integrity.layouts import Plan
from toposcope.integrity.summary import TensorSummary
from toposcope.integrity.tensor_values import NONE
from toposcope.integrity.values import is_nearly_zero
from toposcope.typing import Vector

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).

# Values: zeros, constants, rounding
MIN_ZERO_SHARE, MIN_ZEROS = 0.1, 4  # of a sketch that become zero where no row or column does

AS_BY_PRUNING = "as by pruning"


class _Change(NamedTuple):
    """What becomes of a matrix at a step, and the steps over which it lasts; the first if to the end."""

    kind: str
    steps: tuple[int, ...]
    lasts: bool
    severity: Severity
    what: str


def dead_parts(plan: Plan) -> Iterator[Finding]:
    """Find parts that become zero; whole blocks, or parts of most matrices, are pruned."""
    names: dict[_Change, list[str]] = defaultdict(list)
    n_matrices = n_sparse = 0
    for name, shape in ((name, next(iter(plan.shapes(name)), ())) for name in plan.expected):
        read = plan.read(name, shape)
        # Zeros of a coarse grid are its own.
        held = [(s, t) for s, t in read if not t.is_zero and not (t.lines and t.lines.levels > 0)]
        if len(shape) > 1 and held:
            shares = np.array([float((tensor.values() == 0).mean()) for _, tensor in held])
            changes = _part_changes(held, shares)
            n_matrices += 1
            n_sparse += bool(changes) or shares[-1] > max(MIN_ZERO_SHARE / 2, shares[0])
            for change in changes:
                names[change].append(name)
    if names and n_sparse > 1 and 2 * n_sparse >= n_matrices:
        steps = tuple(sorted({step for change in names for step in change.steps}))
        words = f"{steps_text(steps)}: parts of most matrices become zero, {AS_BY_PRUNING}"
        yield Finding("dead layer", "note", steps, "", words)
        return
    for change, alike in names.items():
        when = f"from step {change.steps[0]} on" if change.lasts else f"at {steps_text(change.steps)}"
        then = "fetch or save it again" if change.severity == "fault" else AS_BY_PRUNING
        words = f"{layers_text(alike, len(plan.expected))}: {when} {change.what}; {then}"
        yield Finding("dead layer", change.severity, change.steps, single(alike), words)


def _part_changes(held: Sequence[tuple[int, TensorSummary]], shares: Vector) -> list[_Change]:
    steps, tensors = [step for step, _ in held], [tensor for _, tensor in held]
    if any(map(is_nearly_zero, tensors)):
        return []
    lines = [tensor.lines or NONE for tensor in tensors]
    n_values, shape = len(tensors[0].values()), tensors[0].shape
    rows, columns = np.array([line.zeros for line in lines]).T
    changes: list[_Change] = []
    for kind, counts, n_lines in (
        ("rows", rows, shape[0]),
        ("columns", columns, math.prod(shape[1:])),
        ("values", np.rint(n_values * shares), 0),
    ):
        needed = 1 if n_lines else max(MIN_ZEROS, int(MIN_ZERO_SHARE * n_values))
        for k in range(1, len(steps)):
            # A checkpoint that lacks the zeros of its neighbours is another matter.
            if counts[k] - counts[:k].max() < needed:
                continue
            # Lines of a matrix that is sparse already, or becomes so, may lose their last value.
            if n_lines and max(shares[k - 1], shares[k] - 2 * counts[k] / n_lines) >= MIN_ZERO_SHARE:
                continue
            end = next((j for j in range(k + 1, len(steps)) if counts[j] - counts[k - 1] < needed), len(steps))
            lasts = end == len(steps) and end > k + 1
            at = tuple(steps[k : k + 1] if lasts else steps[k:end])
            if n_lines or not any(change.steps[0] == at[0] for change in changes):
                count = int(counts[k] - counts[k - 1])
                pruned = end == len(steps) and (count > 1 or not n_lines) and not _is_tail(tensors[k])
                one = f"a {kind[:-1]} is all zero" if count == 1 else f"{count:,} {kind} are all zero"
                what = one if n_lines else f"{shares[k]:.0%} of its values are zero"
                changes.append(_Change(kind, at, lasts, "note" if pruned else "fault", what))
    return changes


def _is_tail(tensor: TensorSummary) -> bool:
    """Return whether the zeros of a matrix are its end, as of a file cut short; parts that stay zero look chosen."""
    zero = tensor.values() == 0
    return bool(zero.any() and zero[np.argmax(zero) :].all())


def copied_rows(plan: Plan) -> Iterator[Finding]:
    """Find rows that become the same as another though they were not nearly so, nor zero, before."""
    names: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, shape in ((name, next(iter(plan.shapes(name)), ())) for name in plan.expected):
        held = [(step, tensor) for step, tensor in plan.read(name, shape) if not tensor.is_zero]
        if len(shape) < 2 or len(held) < 2:
            continue
        lines = [tensor.lines or NONE for _, tensor in held]
        zero = np.array([line.zeros[0] for line in lines])
        same, nearly = np.array([line.copies for line in lines]).T
        for k in range(1, len(held)):
            step, tensor = held[k]
            # Rows that nobody uses are the same from the first update on, or from a change of plan on.
            is_meant = step in plan.changes or (k == 1 and same[k:].min() == same[k])
            is_coarse = (tensor.values() == 0).mean() >= MIN_ZERO_SHARE or lines[k - 1].levels > 0
            if same[k] <= same[:k].max() or is_meant or is_coarse:
                continue
            if min((same - zero)[k] - (same - zero)[k - 1], (nearly - zero)[k] - (nearly - zero)[k - 1]) > 0:
                last = next((j for j in range(k + 1, len(held)) if same[j] <= same[k - 1]), len(held))
                names[tuple(s for s, _ in held[k:last])].append(name)
    end = max((item.step for item in plan.whole), default=0)
    for steps, alike in names.items():
        lasts = len(steps) > 1 and steps[-1] == end
        when = f"from step {steps[0]} on" if lasts else f"at {steps_text(steps)}"
        words = f"{layers_text(alike, len(plan.expected))}: {when} rows are copies of others; fetch or save it again"
        yield Finding("copied rows", "fault", steps[:1] if lasts else steps, single(alike), words)
