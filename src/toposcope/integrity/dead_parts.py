"""Parts of matrices that become zero, and rows that become copies of others, while the rest is trained."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toposcope.integrity.finding import Finding, layers_text, single, steps_text
from toposcope.integrity.layouts import Plan
from toposcope.integrity.lines import NONE, Lines, new_lines
from toposcope.integrity.stale import EMBEDDINGS
from toposcope.integrity.summary import CheckpointSummary, TensorSummary
from toposcope.integrity.values import SMALLEST
from toposcope.typing import Vector

MIN_ZERO_SHARE = 0.1
"""Of the sketch that must become zero where no row or column does, and `MIN_ZEROS` at least."""
MIN_ZEROS = 4
MAX_OCCASIONS = 2
"""Steps at which rows of an embedding become copies; more often, unused rows grow alike."""
MIN_SIZE = 64.0
"""Root mean square of a matrix, in units of the smallest number of its dtype, below which it is rounded to zero."""
AS_BY_PRUNING = "parts of most matrices become zero, as by pruning"
KINDS = ("rows", "columns", "values", "copies")


class _Change(NamedTuple):
    """What becomes of a matrix at a step, and the steps over which it lasts; none if to the end."""

    kind: str
    name: str
    steps: tuple[int, ...]
    lasts: bool
    what: str


def dead_parts(whole: Sequence[CheckpointSummary], plan: Plan) -> Iterator[Finding]:
    """Find rows, columns and scattered values that become zero, and rows that become copies.

    What most matrices show is pruning, a note; what is there from the first checkpoint on is none.
    """
    changes: list[_Change] = []
    n_matrices = sparse = 0
    for name, shape in ((name, next(iter(plan.shapes(name)), ())) for name in plan.expected):
        held = [
            (item.step, tensor)
            for item in whole
            if (tensor := item.tensors.get(name)) and tensor.shape == shape and tensor.largest and not tensor.is_zero
        ]
        if len(shape) > 1 and held:
            n_matrices += 1
            found = _changes(name, held) if len(held) > 1 else []
            sparse += len(held) > 1 and (any(change.kind != "copies" for change in found) or _becomes_sparse(held))
            changes += found
    zeros = [change for change in changes if change.kind != "copies"]
    if sparse > 1 and 2 * sparse >= n_matrices:
        steps = tuple(sorted({step for change in zeros for step in change.steps}))
        words = f"{steps_text(steps)}: {AS_BY_PRUNING}"
        yield from [Finding("dead", "note", steps, "", words)] if steps else []
        zeros = []
    copies = [change for change in changes if change.kind == "copies"]
    for check, some in (("dead", zeros), ("copied rows", copies)):
        together: dict[tuple[int, ...], list[_Change]] = defaultdict(list)
        for change in some:
            together[change.steps].append(change)
        for alike in together.values():
            yield _finding(check, alike, len(plan.expected))


def _finding(check: str, found: Sequence[_Change], n_tensors: int) -> Finding:
    first, names = found[0], list(dict.fromkeys(change.name for change in found))
    when = f"from step {first.steps[0]} on" if first.lasts else f"at {steps_text(first.steps)}"
    words = f"{layers_text(names, n_tensors)}: {when} {first.what}; fetch or save it again"
    return Finding(check, "fault", first.steps, single(names), words)


def _zero_shares(tensors: Sequence[TensorSummary]) -> Vector:
    return np.array([float((tensor.values() == 0).mean()) for tensor in tensors])


def _becomes_sparse(held: Sequence[tuple[int, TensorSummary]]) -> bool:
    shares = _zero_shares([tensor for _, tensor in held])
    return bool(shares[-1] > max(MIN_ZERO_SHARE / 2, shares[0]))


def _changes(name: str, held: Sequence[tuple[int, TensorSummary]]) -> list[_Change]:
    steps, tensors = [step for step, _ in held], [tensor for _, tensor in held]
    if tensors[0].dtype in SMALLEST:
        size = min(tensor.norm / np.sqrt(np.prod(tensor.shape)) for tensor in tensors)
        if size < MIN_SIZE * SMALLEST[tensors[0].dtype]:
            return []
    lines = [tensor.lines or NONE for tensor in tensors]
    n_values, shares = len(tensors[0].values()), _zero_shares(tensors)
    counts = np.column_stack([[line.counts for line in lines], np.rint(n_values * shares)])[:, [0, 1, 3, 2]]
    least = [1, 1, max(MIN_ZEROS, int(MIN_ZERO_SHARE * n_values)), 1]
    found: list[_Change] = []
    for kind, column, needed in zip(KINDS, counts.T, least, strict=True):
        occasions = [k for k in range(1, len(column)) if column[k] - column[k - 1] >= needed]
        # A checkpoint that lacks the zeros which those beside it have is another matter.
        occasions = [k for k in occasions if column[k] > column[:k].max()]
        if kind != "values":
            # Lines of a matrix that is sparse already may lose their last value.
            before = int(kind != "copies")
            occasions = [k for k in occasions if shares[k - before] < MIN_ZERO_SHARE]
        if kind == "copies" and len(occasions) > MAX_OCCASIONS and tensors[0].role in EMBEDDINGS:
            continue
        for k in occasions:
            end = next((j for j in range(k + 1, len(column)) if column[j] - column[k - 1] < needed), len(column))
            lasts = end == len(column) and end > k + 1
            at = tuple(steps[k : k + 1] if lasts else steps[k:end])
            if kind != "values" or not any(change.steps[0] == at[0] for change in found):
                found.append(_Change(kind, name, at, lasts, _what(kind, lines[k], lines[k - 1], tensors[k])))
    return found


def _what(kind: str, now: Lines, before: Lines, tensor: TensorSummary) -> str:
    if kind == "values":
        return f"{float((tensor.values() == 0).mean()):.0%} of its values are zero"
    if kind == "copies":
        new = new_lines(now.copies, before.copies)
        row, other = new[0] if new else now.copies[0]
        count = now.counts[2] - before.counts[2]
        more = f", and {count - 1:,} more rows are copies" if count > 1 else ""
        return f"row {row} is a copy of row {other}{more}"
    place = KINDS.index(kind)
    new = new_lines(
        now.zero_rows if kind == "rows" else now.zero_columns, (before.zero_rows, before.zero_columns)[place]
    )
    count = now.counts[place] - before.counts[place]
    listed = ", ".join(map(str, new[:4])) + (" ..." if count > 4 else "")
    return f"{kind[:-1]} {listed} is all zero" if count == 1 else f"{count:,} {kind} ({listed}) are all zero"
