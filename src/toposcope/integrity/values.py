"""Values that no training gives: unreadable, not finite, dead, rounded, or far larger than all others."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import NamedTuple

import numpy as np

from toposcope.integrity import tuning
from toposcope.integrity.finding import Finding, findings_of_layers, steps_text
from toposcope.integrity.layouts import Plan
from toposcope.integrity.summary import CheckpointSummary, TensorSummary, most_tensors, sketch_positions
from toposcope.integrity.tensor_values import NONE
from toposcope.typing import Indices, Vector

NORM_WEIGHT = re.compile(r"(^|[._])(\w*norm\w*|ln(_?\w{1,2})?)\.(weight|scale|gamma|g)$", re.IGNORECASE)
"""Names of the weights of norms."""
MAX_LEVELS = 256  # of values that are called quantised where they have 16 bits too
MIN_REST = 8  # values of a tensor of which one can stand alone; gates and temperatures have fewer
MAX_FIRST_MOVE = 0.25  # of a norm's weight after its first checkpoint; one that is trained from zero moves on
MIN_MOVED = 3  # different values, but zero, that a tensor of fewer has at the other checkpoints
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
            begins_otherwise = _begins_as_constant(known) or _is_an_odd_norm(name, known)
            incidents[name] += [step for step in zero if begins_otherwise or (moved and step > moved[0])]
    n_tensors = most_tensors(summaries)
    yield from findings_of_layers("dead layer", incidents.items(), n_tensors, "all zero at {}; fetch or save it again")
    words = "all zero at {}, as projections that begin at zero are"
    yield from findings_of_layers("dead layer", beginning.items(), n_tensors, words, "note")


def _is_clearly_not_zero(tensor: TensorSummary) -> bool:
    """Return whether a tensor was read and is further from zero than where its dtype rounds to zero."""
    largest = float(np.abs(tensor.largest_values()).max(initial=0))
    return largest > tuning.MIN_NOT_ZERO * SMALLEST.get(tensor.dtype, 0.0)


def _begins_as_constant(known: Sequence[tuple[CheckpointSummary, TensorSummary]]) -> bool:
    """Return whether a vector is about one number throughout once it is not zero, and hardly moves away from it."""
    moved = [tensor for _, tensor in known if _is_clearly_not_zero(tensor)][:2]
    if len(moved) < 2 or moved[0].shape != moved[1].shape:
        return False
    values = np.abs(moved[0].values())
    return (
        len(values) >= tuning.MIN_CONSTANT_VALUES
        and float(np.ptp(moved[0].values())) < tuning.MAX_CONSTANT_SPREAD * float(values.min())
        and float(np.median(np.abs(moved[1].values() - moved[0].values()))) < MAX_FIRST_MOVE * float(values.min())
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


def is_nearly_zero(tensor: TensorSummary) -> bool:
    """Return whether values are so small that their dtype rounds many to zero, and the rest to few numbers."""
    size = tensor.norm / math.sqrt(max(1, math.prod(tensor.shape)))
    return size < tuning.MIN_SIZE * SMALLEST.get(tensor.dtype, 0.0)


def rounded(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors that have 16 bits, or few different values, at some checkpoints and not from their beginning on."""
    of_name: dict[str, dict[int, TensorSummary]] = defaultdict(dict)
    for item in summaries:
        for name, tensor in item.tensors.items():
            if tensor.largest and not is_nearly_zero(tensor):
                of_name[name][item.step] = tensor
    n_tensors = most_tensors(summaries)
    n_matrices = sum(next(iter(of_step.values())).is_matrix for of_step in of_name.values())
    incidents: dict[str, list[int]] = defaultdict(list)
    kept: dict[str, list[int]] = defaultdict(list)
    coarse: dict[str, list[int]] = defaultdict(list)
    first: dict[str, int] = {}
    for name, of_step in of_name.items():
        bits = _bits(of_step)
        levels = {step: tensor.lines.levels if tensor.lines else 0 for step, tensor in of_step.items()}
        few = {step: n < 32 or levels[step] > 0 for step, n in bits.items() if n < 32 or levels[step] >= 0}
        odd, lasting = _odd(of_step, few)
        for step in odd + lasting:
            is_coarse = bits[step] == 32 or 0 < levels[step] <= MAX_LEVELS
            may_be_meant = step in lasting and bits[step] == 16
            (coarse if is_coarse else kept if may_be_meant else incidents)[name].append(step)
        if [n < 32 for n in bits.values()][:2] == [True, False] and of_step[next(iter(bits))].is_matrix:
            first[name] = next(iter(bits))
    for name in first if 2 * len(first) >= n_matrices else ():  # one tensor may begin with 16 bits, as a table does
        incidents[name].append(first[name])
    begun = {name for name, lasting in kept.items() if of_name[name][lasting[0]].is_matrix}
    for name in () if 2 * len(begun) >= n_matrices else list(kept):
        incidents[name] += kept.pop(name)
    words = "rounded to 16 bits at {}, while others have full precision; save them as they were trained"
    yield from findings_of_layers("rounded", incidents.items(), n_tensors, words)
    words = "rounded to bfloat16 at {}, to the end: as where a training goes on in it"
    yield from findings_of_layers("rounded", kept.items(), n_tensors, words, "note")

    def counted(steps: tuple[int, ...], names: list[str]) -> str:
        lines = [of_name[name][step].lines or NONE for name in names for step in steps]
        count = max(line.levels for line in lines)
        return (
            f"only about {count} different values in each row or column at {steps_text(steps)}, as quantised to "
            f"{math.ceil(math.log2(count))} bits, unlike elsewhere; save them as they were trained"
        )

    yield from findings_of_layers("rounded", coarse.items(), n_tensors, counted)


def _odd(of_step: Mapping[int, TensorSummary], is_short: Mapping[int, bool]) -> tuple[list[int], list[int]]:
    """Return the steps at which a tensor has too few digits or values, and those from which on it has.

    A tensor may have few from its beginning on: signs, tables, 16 bits until its first update or to the end. And it may
    from the step on at which it is frozen.
    """
    short = list(dropwhile(lambda item: item[1], is_short.items()))
    full = [k for k, (_, few) in enumerate(short) if not few]
    if not full:
        return [], []
    lasting = [step for step, _ in short[full[-1] + 1 :]]
    tensors = [of_step[step] for step in lasting]
    frozen = len(tensors) > 1 and len({tensor.content_hash for tensor in tensors}) == 1
    if frozen or any(tensor.lines and tensor.lines.levels == 2 for tensor in tensors):  # or clipped, or turned to signs
        lasting = []
    return [step for step, few in short[: full[-1]] if few], lasting


def _bits(of_step: Mapping[int, TensorSummary]) -> dict[int, int]:
    """Return by step how many bits a tensor's values need: 16 as bfloat16, 20 as float16, if enough differ, or 32."""
    bits: dict[int, int] = {}
    for step, tensor in of_step.items():
        used = int(np.bitwise_or.reduce(tensor.values().view(np.uint32)))
        short = [n for n in (16, 20) if not used & ((1 << (32 - n)) - 1)]
        if not short or tensor.dtype not in ("float32", "float64"):
            bits[step] = 32
        elif len(np.unique(tensor.values())) > tuning.MIN_ROUNDED_VALUES or (tensor.lines and tensor.lines.levels):
            bits[step] = short[0]
    return bits


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
        tensors = [tensor for _, tensor in history]
        # Of a shape, all have as many.
        largest = np.abs(np.frombuffer(b"".join(t.largest for t in tensors)).reshape(len(tensors), -1))
        if math.prod(shape) < MIN_REST:
            usual = _usual_of_few(largest[:, 0])
        else:
            reached = float(np.quantile(largest[:, 1], tuning.REACHED_QUANTILE))
            beyond = np.flatnonzero(largest[:, 0] > tuning.MIN_OUTLIER_RATIO * np.maximum(reached, largest[:, 1]))
            usual = {k: _usual(k, tensors, sketch_positions(math.prod(shape))) for k in beyond.tolist()}
        for k, size in usual.items():
            step, tensor = history[k]
            if size is not None:
                at = tuple(int(i) for i in np.unravel_index(int(tensor.largest_positions()[0]), shape)) if shape else ()
                outlying.append(OutlyingValue(name, step, float(tensor.largest_values()[0]), at, size))
    return outlying


def _usual_of_few(largest: Vector) -> dict[int, float | None]:
    """Compare a tensor of few values, which has no rest, with itself elsewhere: it moves, and returns."""
    usual: dict[int, float | None] = {}
    for k in range(1, len(largest)):
        rest = np.delete(largest, k)
        ratio = tuning.MIN_OUTLIER_RATIO_OF_FEW ** (1 if k < len(largest) - 1 else 2)
        if len(np.unique(rest[rest > 0])) >= MIN_MOVED and largest[k] > ratio * rest.max():
            usual[k] = float(rest.max())
    return usual


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
    largest, at = np.abs(tensor.largest_values()), int(tensor.largest_positions()[0])
    before, after = (history[j] if 0 <= j < len(history) else None for j in (k - 1, k + 1))
    size = largest[0] / tuning.MIN_OUTLIER_RATIO
    stays = after is not None and at == after.largest_positions()[0] and abs(after.largest_values()[0]) > size
    neighbours = [other for other in (before, None if stays else after) if other is not None]
    one_sided = stays or after is None
    if not neighbours or (one_sided and neighbours[0].is_zero):  # from zero a value grows by any factor
        return None
    usual = max(float(largest[1]), *(float(np.abs(other.largest_values()[0])) for other in neighbours))
    rest = positions != at
    moves = [np.abs(tensor.values()[rest] - other.values()[rest]).max(initial=0) for other in neighbours]
    if stays and after is not None:  # one that grows goes on to grow
        moves.append(np.abs(tensor.largest_values()[0] - after.largest_values()[0]))
    ratio = tuning.MIN_OUTLIER_RATIO_ONE_SIDED if one_sided else tuning.MIN_OUTLIER_RATIO
    movement = tuning.MIN_OUTLIER_MOVEMENT_ONE_SIDED if one_sided else tuning.MIN_OUTLIER_MOVEMENT
    alone = largest[0] > ratio * usual and largest[0] - usual > movement * float(max(moves))
    return usual if alone else None
