"""Values that no training gives: unreadable, not finite, dead, rounded, or far larger than all others."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toposcope.integrity import tuning
from toposcope.integrity.duplicates import EMBEDDINGS
from toposcope.integrity.finding import Finding, findings_of_layers, layers_text, single, steps_text
from toposcope.integrity.layouts import Plan
from toposcope.integrity.summary import CheckpointSummary, TensorSummary, most_tensors, sketch_positions
from toposcope.integrity.tensor_values import NONE, Lines, new_lines
from toposcope.typing import Indices, Vector

NORM_WEIGHT = re.compile(r"(^|[._])(\w*norm\w*|ln(_?\w{1,2})?)\.(weight|scale|gamma|g)$", re.IGNORECASE)
"""Names of the weights of norms."""
SMALLEST = {"float16": 2.0**-24, "float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}
"""Smallest positive numbers of the dtypes that round weights to zero."""


def unreadable(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find checkpoints that could not be read, named after `CheckpointError.kind`, and those whose index is wrong."""
    for item in summaries:
        if item.error:
            yield Finding(item.kind or "damaged", "fault", (item.step,), "", item.error)
        elif item.doubt:
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

    def words(steps: tuple[int, ...], names: list[str]) -> str:
        count = sum(counts[name, step] for name in names for step in steps)
        return f"{count} values that are NaN or infinite, at {steps_text(steps)}"

    yield from findings_of_layers("non-finite", incidents.items(), most_tensors(summaries), words)


def dead(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors that are all zero: a note, or no finding, until one that may begin so first changes."""
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
    n_tensors = most_tensors(summaries)
    yield from findings_of_layers("dead layer", incidents.items(), n_tensors, "all zero at {}; fetch or save it again")
    words = "all zero at {}, as projections that begin at zero are"
    yield from findings_of_layers("dead layer", beginning.items(), n_tensors, words, "note")


def _is_clearly_not_zero(tensor: TensorSummary) -> bool:
    """Return whether a tensor was read and is further from zero than where its dtype rounds to zero."""
    largest = float(np.abs(tensor.largest_values()).max(initial=0))
    return largest > tuning.MIN_NOT_ZERO * SMALLEST.get(tensor.dtype, 0.0)


def _is_nearly_constant(tensor: TensorSummary) -> bool:
    """Return whether a vector is about one number throughout; one that was trained from zero is not."""
    values = tensor.values()
    low, high = float(values.min()), float(values.max())
    return (
        len(values) >= tuning.MIN_CONSTANT_VALUES
        and high - low < tuning.MAX_CONSTANT_SPREAD * min(abs(low), abs(high))
        and low * high > 0
    )


def _is_an_odd_norm(name: str, known: Sequence[tuple[CheckpointSummary, TensorSummary]]) -> bool:
    """Return whether a norm's weight begins at zero while those in the same place of other layers do not."""
    first, tensor = known[0]
    if not tensor.is_zero or not NORM_WEIGHT.search(name):
        return False
    kin = [t for n, t in first.tensors.items() if n != name and _place(n) == _place(name)]
    return len(kin) > 0 and all(_is_clearly_not_zero(t) for t in kin)


def _place(name: str) -> str:
    return re.sub(r"\d+", "", name)


def rounded(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find checkpoints in float32 whose values have 16 bits, or 8, while most others, or those before, have all."""
    of_name: dict[str, dict[int, TensorSummary]] = defaultdict(dict)
    for item in summaries:
        for name, tensor in item.matrices.items():
            if tensor.dtype == "float32":
                of_name[name][item.step] = tensor
    n_tensors = most_tensors(summaries)
    yield from _rounded_findings({name: _are_rounded(of_step) for name, of_step in of_name.items()}, 16, n_tensors)
    quantised = {
        name: {step: t.lines is not None and t.lines.is_quantised for step, t in of_step.items() if t.largest}
        for name, of_step in of_name.items()
    }
    yield from _rounded_findings(quantised, 8, n_tensors)


def _rounded_findings(is_rounded: Mapping[str, Mapping[int, bool]], bits: int, n_tensors: int) -> Iterator[Finding]:
    odd: dict[str, list[int]] = {
        name: [step for step, value in of_step.items() if value]
        for name, of_step in is_rounded.items()
        # Who trains in 16 bits may begin so at some step; nobody trains in 8.
        if 2 * sum(of_step.values()) < len(of_step) or (bits == 8 and not any(list(of_step.values())[:2]))
    }
    incidents: dict[str, list[int]] = defaultdict(list)
    for step in sorted({step for of_name in odd.values() for step in of_name}):
        names = [name for name, of_name in odd.items() if step in of_name]
        if len(names) >= tuning.MIN_ROUNDED_SHARE * sum(step in of_step for of_step in is_rounded.values()):
            for name in names:
                incidents[name].append(step)
    words = f"rounded to {bits} bits at {{}}, while others have full precision; save them as they were trained"
    yield from findings_of_layers("rounded", incidents.items(), n_tensors, words)


def _are_rounded(of_step: Mapping[int, TensorSummary]) -> dict[int, bool]:
    """Return by step whether a tensor's values have the digits of 16 bits only, where it has enough different ones."""
    judged: dict[int, bool] = {}
    alike: dict[int, list[int]] = defaultdict(list)
    for step, tensor in of_step.items():
        alike[len(tensor.sketch)].append(step)
    for steps in alike.values():
        values = np.sort(np.stack([of_step[step].values() for step in steps]), axis=1)
        usable = np.isfinite(values) & (values != 0)
        n_different = usable.sum(axis=1) - ((values[:, 1:] == values[:, :-1]) & usable[:, 1:]).sum(axis=1)
        has_more = ((values.view(np.uint32) & np.uint32((1 << tuning.ROUNDED_BITS) - 1)) > 0) & usable
        enough = n_different >= tuning.MIN_ROUNDED_VALUES
        judged |= {
            step: not more for step, more, e in zip(steps, has_more.any(axis=1).tolist(), enough, strict=True) if e
        }
    return judged


AS_BY_PRUNING = "parts of most matrices become zero, as by pruning"
KINDS = ("rows", "columns", "values", "copies")


class _Change(NamedTuple):
    """What becomes of a matrix at a step, and the steps over which it lasts; none if to the end."""

    kind: str
    name: str
    steps: tuple[int, ...]
    lasts: bool
    what: str


def dead_parts(plan: Plan) -> Iterator[Finding]:
    """Find parts that become zero, and rows that become copies; in most matrices it is pruning, a note."""
    changes: list[_Change] = []
    n_matrices = sparse = 0
    for name, shape in ((name, next(iter(plan.shapes(name)), ())) for name in plan.expected):
        held = [(step, tensor) for step, tensor in plan.read(name, shape) if not tensor.is_zero]
        if len(shape) > 1 and held:
            n_matrices += 1
            found = _part_changes(name, held) if len(held) > 1 else []
            sparse += len(held) > 1 and (any(change.kind != "copies" for change in found) or _becomes_sparse(held))
            changes += found
    zeros = [change for change in changes if change.kind != "copies"]
    if sparse > 1 and 2 * sparse >= n_matrices:
        steps = tuple(sorted({step for change in zeros for step in change.steps}))
        words = f"{steps_text(steps)}: {AS_BY_PRUNING}"
        yield from [Finding("dead layer", "note", steps, "", words)] if steps else []
        zeros = []
    copies = [change for change in changes if change.kind == "copies"]
    for check, some in (("dead layer", zeros), ("copied rows", copies)):
        together: dict[tuple[int, ...], list[_Change]] = defaultdict(list)
        for change in some:
            together[change.steps].append(change)
        for alike in together.values():
            yield _part_finding(check, alike, len(plan.expected))


def _part_finding(check: str, found: Sequence[_Change], n_tensors: int) -> Finding:
    first, names = found[0], list(dict.fromkeys(change.name for change in found))
    when = f"from step {first.steps[0]} on" if first.lasts else f"at {steps_text(first.steps)}"
    words = f"{layers_text(names, n_tensors)}: {when} {first.what}; fetch or save it again"
    return Finding(check, "fault", first.steps, single(names), words)


def _zero_shares(tensors: Sequence[TensorSummary]) -> Vector:
    return np.array([float((tensor.values() == 0).mean()) for tensor in tensors])


def _becomes_sparse(held: Sequence[tuple[int, TensorSummary]]) -> bool:
    shares = _zero_shares([tensor for _, tensor in held])
    return bool(shares[-1] > max(tuning.MIN_ZERO_SHARE / 2, shares[0]))


def _part_changes(name: str, held: Sequence[tuple[int, TensorSummary]]) -> list[_Change]:
    steps, tensors = [step for step, _ in held], [tensor for _, tensor in held]
    if tensors[0].dtype in SMALLEST:
        size = min(tensor.norm / np.sqrt(np.prod(tensor.shape)) for tensor in tensors)
        if size < tuning.MIN_SIZE * SMALLEST[tensors[0].dtype]:
            return []
    lines = [tensor.lines or NONE for tensor in tensors]
    n_values, shares = len(tensors[0].values()), _zero_shares(tensors)
    counts = np.column_stack([[line.counts for line in lines], np.rint(n_values * shares)])[:, [0, 1, 3, 2]]
    least = [1, 1, max(tuning.MIN_ZEROS, int(tuning.MIN_ZERO_SHARE * n_values)), 1]
    found: list[_Change] = []
    for kind, column, needed in zip(KINDS, counts.T, least, strict=True):
        occasions = [k for k in range(1, len(column)) if column[k] - column[k - 1] >= needed]
        # A checkpoint that lacks the zeros of its neighbours is another matter.
        occasions = [k for k in occasions if column[k] > column[:k].max()]
        if kind != "values":
            # Lines of a matrix that is sparse already may lose their last value.
            before = int(kind != "copies")
            occasions = [k for k in occasions if shares[k - before] < tuning.MIN_ZERO_SHARE]
        if kind == "copies" and len(occasions) > tuning.MAX_OCCASIONS and tensors[0].role in EMBEDDINGS:
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


class OutlyingValue(NamedTuple):
    """A value that stands alone; `usual` is the largest magnitude that it is compared with."""

    name: str
    step: int
    value: float
    position: tuple[int, ...]
    usual: float


def outlying_values(plan: Plan) -> list[OutlyingValue]:
    """Find single values that are far larger than the rest of their tensor and than at neighbouring checkpoints."""
    outlying = []
    for name, shape in ((n, each) for n in plan.expected for each in plan.shapes(n)):
        history = plan.read(name, shape)
        if len(history) < 2:  # there is nothing to compare with
            continue
        positions = sketch_positions(math.prod(shape))
        tensors = [tensor for _, tensor in history]
        # Of a shape, all have as many.
        largest = np.abs(np.frombuffer(b"".join(t.largest for t in tensors)).reshape(len(tensors), -1))
        runners_up = largest[:, 1] if largest.shape[1] > 1 else np.zeros(len(tensors))
        reached = float(np.quantile(runners_up, tuning.REACHED_QUANTILE))
        few = math.prod(shape) < tuning.MIN_OUTLIER_VALUES
        beyond = largest[:, 0] > tuning.MIN_OUTLIER_RATIO * np.maximum(reached, 0.0 if few else runners_up)
        for k in np.flatnonzero(beyond).tolist():
            step, tensor = history[k]
            usual = _usual(k, tensors, positions)
            if usual is not None:
                at = tuple(int(i) for i in np.unravel_index(int(tensor.largest_positions()[0]), shape)) if shape else ()
                outlying.append(OutlyingValue(name, step, float(tensor.largest_values()[0]), at, usual))
    return outlying


def outlier_findings(outlying: Sequence[OutlyingValue], summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Report outlying values, those of one checkpoint together."""
    found = {(value.name, value.step): value for value in outlying}

    def words(steps: tuple[int, ...], names: list[str]) -> str:
        first = found[names[0], steps[0]]
        where = f" at {first.position}" if first.position else ""
        example = f"{first.value:.3g}{where}, where {first.usual:.3g} is the largest magnitude next to it and nearby"
        return f"one value stands alone at step {steps[0]}: {example}; fetch or save this checkpoint again"

    incidents = [(name, [step]) for name, step in found]
    yield from findings_of_layers("outlier", incidents, most_tensors(summaries), words)


def _usual(k: int, history: Sequence[TensorSummary], positions: Indices) -> float | None:
    """Return the largest magnitude that an outlier is compared with; None if the largest value is no outlier."""
    tensor = history[k]
    largest = np.abs(tensor.largest_values())
    few = math.prod(tensor.shape) < tuning.MIN_OUTLIER_VALUES
    own = 0.0 if few or len(largest) < 2 else float(largest[1])
    at = int(tensor.largest_positions()[0])
    before, after = (history[j] if 0 <= j < len(history) else None for j in (k - 1, k + 1))
    stays = after is not None and at in after.largest_positions()[:1]
    neighbours = [other for other in (before, None if stays else after) if other is not None]
    if not neighbours:
        return None
    usual = max(own, *(float(np.abs(other.largest_values()[0])) for other in neighbours))
    one_sided = stays or after is None
    ratio = (
        tuning.MIN_OUTLIER_RATIO_OF_FEW
        if few
        else tuning.MIN_OUTLIER_RATIO_ONE_SIDED
        if one_sided
        else tuning.MIN_OUTLIER_RATIO
    )
    movement = tuning.MIN_OUTLIER_MOVEMENT_ONE_SIDED if one_sided else tuning.MIN_OUTLIER_MOVEMENT
    rest = positions != at
    moved = max(
        (float(np.abs(tensor.values()[rest] - other.values()[rest]).max()) for other in neighbours if rest.any()),
        default=0,
    )
    alone = largest[0] > ratio * usual and largest[0] - usual > movement * moved
    return usual if alone else None
