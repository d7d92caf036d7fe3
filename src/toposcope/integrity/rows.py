"""Rows and columns of a matrix that become zero or copies of each other, and two that change places."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toposcope.checkpoints.formats.dtypes import MANTISSA_BITS
from toposcope.integrity import tuning
from toposcope.integrity.finding import Finding, Severity, layers_text, single, steps_text
from toposcope.integrity.layouts import Plan
from toposcope.integrity.summary import TensorSummary, sketch_positions
from toposcope.integrity.tensor_values import NONE, Lines, new_lines
from toposcope.integrity.values import is_nearly_zero
from toposcope.typing import Indices, Matrix, Vector

AS_BY_PRUNING = "as by pruning"
KINDS = ("rows", "columns", "values", "copies")


class _Change(NamedTuple):
    """What becomes of a matrix at a step, and the steps over which it lasts; none if to the end."""

    kind: str
    name: str
    steps: tuple[int, ...]
    lasts: bool
    severity: Severity
    what: str


def dead_parts(plan: Plan) -> Iterator[Finding]:
    """Find parts that become zero, and rows that become copies; whole blocks, or parts of most matrices, are pruned."""
    changes: list[_Change] = []
    n_matrices = sparse = 0
    for name, shape in ((name, next(iter(plan.shapes(name)), ())) for name in plan.expected):
        read = plan.read(name, shape)
        # Zeros of a coarse grid are its own.
        held = [(s, t) for s, t in read if not t.is_zero and not (t.lines and t.lines.levels > 0)]
        if len(shape) > 1 and held:
            n_matrices += 1
            found = _part_changes(name, held, plan) if len(held) > 1 else []
            sparse += len(held) > 1 and (any(change.kind != "copies" for change in found) or _becomes_sparse(held))
            changes += found
    zeros = [change for change in changes if change.kind != "copies"]
    if sparse > 1 and 2 * sparse >= n_matrices:
        steps = tuple(sorted({step for change in zeros for step in change.steps}))
        words = f"{steps_text(steps)}: parts of most matrices become zero, {AS_BY_PRUNING}"
        yield from [Finding("dead layer", "note", steps, "", words)] if steps else []
        zeros = []
    copies = [change for change in changes if change.kind == "copies"]
    for check, some in (("dead layer", zeros), ("copied rows", copies)):
        together: dict[tuple[tuple[int, ...], Severity], list[_Change]] = defaultdict(list)
        for change in some:
            together[change.steps, change.severity].append(change)
        for alike in together.values():
            yield _part_finding(check, alike, len(plan.expected))


def _part_finding(check: str, found: Sequence[_Change], n_tensors: int) -> Finding:
    first, names = found[0], list(dict.fromkeys(change.name for change in found))
    when = f"from step {first.steps[0]} on" if first.lasts else f"at {steps_text(first.steps)}"
    then = "fetch or save it again" if first.severity == "fault" else AS_BY_PRUNING
    words = f"{layers_text(names, n_tensors)}: {when} {first.what}; {then}"
    return Finding(check, first.severity, first.steps, single(names), words)


def _zero_shares(tensors: Sequence[TensorSummary]) -> Vector:
    return np.array([float((tensor.values() == 0).mean()) for tensor in tensors])


def _becomes_sparse(held: Sequence[tuple[int, TensorSummary]]) -> bool:
    shares = _zero_shares([tensor for _, tensor in held])
    return bool(shares[-1] > max(tuning.MIN_ZERO_SHARE / 2, shares[0]))


def _part_changes(name: str, held: Sequence[tuple[int, TensorSummary]], plan: Plan) -> list[_Change]:
    steps, tensors = [step for step, _ in held], [tensor for _, tensor in held]
    if any(map(is_nearly_zero, tensors)):
        return []
    lines = [tensor.lines or NONE for tensor in tensors]
    n_values, shares = len(tensors[0].values()), _zero_shares(tensors)
    rows, columns, copied = np.array([line.counts for line in lines]).T
    counts = dict(zip(KINDS, (rows, columns, np.rint(n_values * shares), copied), strict=True))
    # Rows of padding that leave zero together were equal before.
    counts["copies"] = copied + np.maximum(rows - 1, 0)
    n_lines = {"rows": tensors[0].shape[0], "columns": int(np.prod(tensors[0].shape[1:]))}
    found: list[_Change] = []
    for kind, column in counts.items():
        needed = max(tuning.MIN_ZEROS, int(tuning.MIN_ZERO_SHARE * n_values)) if kind == "values" else 1
        occasions = [k for k in range(1, len(column)) if column[k] - column[k - 1] >= needed]
        # A checkpoint that lacks the zeros of its neighbours is another matter.
        occasions = [k for k in occasions if column[k] > column[:k].max()]
        if kind != "values":
            # Lines of a matrix that is sparse already, or becomes so, may lose their last value.
            before = int(kind != "copies")
            occasions = [k for k in occasions if shares[k - before] < tuning.MIN_ZERO_SHARE]
        if kind in n_lines:
            lines_of_zeros = column / n_lines[kind]
            occasions = [k for k in occasions if shares[k] < 2 * lines_of_zeros[k] + tuning.MIN_ZERO_SHARE]
        if kind == "copies":  # rows that nobody uses are equal from the start, or nearly before they are
            near = np.array([line.near for line in lines]) - rows
            occasions = [
                k
                for k in occasions
                if near[k] > near[k - 1]
                and column[k] - rows[k] > column[k - 1] - rows[k - 1]
                and steps[k] not in plan.changes
                and (k > 1 or column[k:].min() < column[k])
            ]
        for k in occasions:
            end = next((j for j in range(k + 1, len(column)) if column[j] - column[k - 1] < needed), len(column))
            lasts = end == len(column) and end > k + 1
            at = tuple(steps[k : k + 1] if lasts else steps[k:end])
            if kind != "values" or not any(change.steps[0] == at[0] for change in found):
                pruned = end == len(column) and _is_pruned(kind, lines[k], lines[k - 1], tensors[k])
                what = _what(kind, lines[k], lines[k - 1], tensors[k])
                found.append(_Change(kind, name, at, lasts, "note" if pruned else "fault", what))
    return found


def _is_pruned(kind: str, now: Lines, before: Lines, tensor: TensorSummary) -> bool:
    """Return whether parts that stay zero look chosen: several rows or columns or values, not the end of a file."""
    if kind == "copies":
        return False
    if kind == "values":
        zero = tensor.values() == 0
        return not zero[np.argmax(zero) :].all()
    place = KINDS.index(kind)
    count = now.counts[place] - before.counts[place]
    is_end = kind == "rows" and now.zero_rows[0] == tensor.shape[0] - now.counts[0]
    return count > 1 and not is_end


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


MIN_JUMP = 16.0  # squared, of a line that changes place, over all its others nearby and over all other lines then
MIN_LINES = 8  # lines of a matrix, and checkpoints of a series, in which two of them stand out
MAX_CHANCE = 1e-4  # that values set anew look as if two lines had changed places
NEARBY = 4  # intervals on either side


def exchanged_lines(plan: Plan) -> Iterator[Finding]:
    """Find two rows or columns of a matrix that alone move at a step, and return, or take each other's place.

    By chance one line in 100,000 stands out so far from its own movement nearby, and two of the same matrix at the same
    checkpoint once in 1,000 series. Two that stay are a note unless values of a column that both share change places.
    """
    for name, shape in ((name, next(iter(plan.shapes(name)), ())) for name in plan.expected):
        held = plan.read(name, shape) if len(shape) > 1 else []
        if len(held) >= MIN_LINES:
            places = np.divmod(sketch_positions(math.prod(shape)), math.prod(shape[1:]))
            for kind, line, across in (("rows", *places), ("columns", *places[::-1])):
                if len(np.unique(line)) >= MIN_LINES:
                    yield from _exchanged(name, kind, held, line, across)


def _exchanged(
    name: str, kind: str, held: Sequence[tuple[int, TensorSummary]], line: Indices, across: Indices
) -> Iterator[Finding]:
    values = np.stack([tensor.values() for _, tensor in held]).astype(np.float64)
    order = np.argsort(line, kind="stable")
    lines, starts, counts = np.unique(line[order], return_index=True, return_counts=True)

    def moves(lag: int) -> Matrix:
        """Mean squared movement of each line over some intervals, shape (checkpoints - lag, lines)."""
        return np.add.reduceat(np.square(values[lag:] - values[:-lag])[:, order], starts, axis=1) / counts

    # Where weights hardly move, what is left is rounding: a unit in the last place of some values.
    unit = 2.0 ** -min(23, *(MANTISSA_BITS.get(tensor.dtype, 23) for _, tensor in held))
    rounding = unit**2 * np.add.reduceat(np.square(values)[:, order].max(axis=0), starts) / counts
    moved, past = moves(1), moves(2)
    for k in range(1, len(held)):
        nearby = [j for j in range(max(0, k - 1 - NEARBY), min(len(moved), k + NEARBY + 1)) if j not in (k - 1, k)]
        usual = np.maximum(rounding, moved[nearby].max(axis=0))
        after = moved[k] if k < len(moved) else np.zeros(len(lines))
        returned = _two(np.minimum(moved[k - 1], after), np.maximum(usual, past[k - 1])) if k < len(moved) else ()
        pair = returned or _two(moved[k - 1], np.maximum(usual, after))
        if not pair:
            continue
        step, words = held[k][0], f"{name}: {kind} {lines[pair[0]]} and {lines[pair[1]]} alone"
        if returned:
            text = f"{words} are elsewhere at step {step}, and back at the next; fetch or save it again"
            yield Finding("off path", "fault", (step,), name, text)
            continue
        at = [np.flatnonzero(line == lines[one]) for one in pair]
        _, *shared = np.intersect1d(across[at[0]], across[at[1]], return_indices=True)
        before, now = (np.stack([values[j, at[one][shared[one]]] for one in (0, 1)]) for j in (k - 1, k))
        ratio = float(np.square(now[::-1] - before).sum() / max(np.square(now - before).sum(), 1e-300))
        if before.size and ratio ** (before.size / 2) < MAX_CHANCE:
            text = f"{words} change places from step {step} on; fetch or save it again"
            yield Finding("break", "fault", (step,), name, text)
        else:
            yield Finding("break", "note", (step,), name, f"{words} leap at step {step}: exchanged, or set anew")


def _two(size: Vector, usual: Vector) -> tuple[int, ...]:
    """Return the two lines that move much further than any other, and than they usually do; nothing else."""
    *_, third, b, a = np.argsort(size).tolist()
    far = MIN_JUMP * np.maximum(usual, size[third])
    return (min(a, b), max(a, b)) if size[a] > far[a] and size[b] > far[b] else ()
