"""Values that no training gives: unreadable, not finite, dead, rounded, or far larger than all others."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from operator import itemgetter
from typing import Any

import numpy as np

from toposcope.integrity.finding import Finding, findings_of_layers, steps_text
from toposcope.integrity.layouts import Plan
from toposcope.integrity.summary import CheckpointSummary, TensorSummary, most_tensors, sketch_positions
from toposcope.integrity.tensor_values import NONE
from toposcope.typing import Indices, Vector

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).

# Values: zeros, constants, rounding
MIN_ROUNDED_VALUES = 16  # different values of a sketch; of full precision, one in 4,096 each looks rounded to float16
MIN_SIZE = 64.0  # root mean square of a matrix not rounded to zero, in units of its dtype's smallest number

# One value that stands alone; in real trainings the ratio reaches 1.5 and the movement 2
MIN_OUTLIER_RATIO = 2.0  # to the second largest of its tensor, and to the largest before and after
MIN_OUTLIER_MOVEMENT = 6.0  # beyond those, in units of the furthest movement of any other value of the sketch
MIN_OUTLIER_RATIO_ONE_SIDED = 5.0  # at the last checkpoint, and where the value stays
MIN_OUTLIER_MOVEMENT_ONE_SIDED = 20.0
MIN_OUTLIER_RATIO_OF_FEW = 20.0  # to all other checkpoints, of a tensor of few values; its square at the last
REACHED_QUANTILE = 0.9  # of the second largest magnitudes over the series: what training reaches is no outlier
MAX_LEVELS = 256  # of values that are called quantised where they have 16 bits too
COARSE = 1  # in place of a number of bits: there are few different values
MIN_REST = 8  # values of a tensor of which one can stand alone; gates and temperatures have fewer
MIN_MOVED = 3  # different values, but zero, that a tensor of fewer has at the other checkpoints
SMALLEST = {"float16": 2.0**-24, "float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}
"""Smallest positive numbers of the dtypes that round weights to zero."""


def unreadable(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find checkpoints that could not be read, named after `CheckpointError.kind`."""
    for item in summaries:
        if item.error:
            yield Finding(item.kind or "damaged", "fault", (item.step,), "", item.error)


def not_finite(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors with NaN or infinite values, and variances below zero."""
    not_finite: dict[str, dict[int, int]] = defaultdict(dict)
    negative: dict[str, dict[int, int]] = defaultdict(dict)
    for item in summaries:
        for name, tensor in item.tensors.items():
            if tensor.n_not_finite:
                not_finite[name][item.step] = tensor.n_not_finite
            elif name.endswith("running_var") and (n_negative := int((tensor.values() < 0).sum())):
                negative[name][item.step] = n_negative
    for counts, what in ((not_finite, "values that are NaN or infinite"), (negative, "variances below zero")):

        def words(steps: tuple[int, ...], names: list[str], counts: Any = counts, what: str = what) -> str:
            return f"{sum(counts[name][step] for name in names for step in steps)} {what}, at {steps_text(steps)}"

        yield from findings_of_layers("non-finite", counts.items(), most_tensors(summaries), words)


def dead(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors that become all zero; a note where a matrix is so until it first moves."""
    incidents: dict[str, list[int]] = {}
    beginning: dict[str, list[int]] = {}
    for name in sorted({name for item in summaries for name in item.tensors}):
        known = [(item.step, item.tensors[name]) for item in summaries if name in item.tensors]
        zero = [step for step, tensor in known if tensor.is_zero]
        moved = [step for step, tensor in known if tensor.largest and not is_nearly_zero(tensor)]
        is_matrix, begun = known[0][1].is_matrix, min(moved, default=known[0][0])
        incidents[name] = [step for step in zero if step > begun and (moved or is_matrix)]
        beginning[name] = [step for step in zero if step <= begun and is_matrix]
    n_tensors = most_tensors(summaries)
    yield from findings_of_layers("dead layer", incidents.items(), n_tensors, "all zero at {}; fetch or save it again")
    words = "all zero at {}, as projections that begin at zero are"
    yield from findings_of_layers("dead layer", beginning.items(), n_tensors, words, "note")


def is_nearly_zero(tensor: TensorSummary) -> bool:
    """Return whether values are so small that their dtype rounds many to zero, and the rest to few numbers."""
    size = tensor.norm / math.sqrt(max(1, math.prod(tensor.shape)))
    return size <= MIN_SIZE * SMALLEST.get(tensor.dtype, 0.0)


def rounded(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors of few digits or few different values at some checkpoints, though not from their beginning on."""
    of_name: dict[str, dict[int, TensorSummary]] = defaultdict(dict)
    for item in summaries:
        for name, tensor in item.tensors.items():
            if tensor.largest and not is_nearly_zero(tensor):
                of_name[name][item.step] = tensor
    n_tensors = most_tensors(summaries)
    matrices = [name for name, of_step in of_name.items() if next(iter(of_step.values())).is_matrix]
    incidents: dict[str, list[int]] = defaultdict(list)
    coarse: dict[str, list[int]] = defaultdict(list)
    to_the_end: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    for name, of_step in of_name.items():
        codes = {step: code for step, tensor in of_step.items() if (code := _code(tensor)) is not None}
        odd, lasting = _odd(of_step, codes)
        if lasting and all(codes[step] == 16 for step in lasting):
            to_the_end[name], lasting = lasting, []
        for step in odd + lasting:
            (coarse if codes[step] == COARSE else incidents)[name].append(step)
        if [code > 0 for code in codes.values()][:2] == [True, False] and codes[next(iter(codes))] != COARSE:
            first[name] = next(iter(codes))
    if 2 * sum(name in first for name in matrices) >= len(matrices):  # one tensor may begin so, as a table does
        for name in first:
            incidents[name].append(first[name])
    if 2 * sum(name in to_the_end for name in matrices) < len(matrices):
        for name in to_the_end:
            incidents[name] += to_the_end[name]
        to_the_end = {}
    words = "the last bits of all values are zero at {}, unlike elsewhere: rounded; save them as they were trained"
    yield from findings_of_layers("rounded", incidents.items(), n_tensors, words)
    words = "rounded to bfloat16 at {}, to the end: as where a training goes on in it"
    yield from findings_of_layers("rounded", to_the_end.items(), n_tensors, words, "note")

    def counted(steps: tuple[int, ...], names: list[str]) -> str:
        count = max((of_name[name][step].lines or NONE).levels for name in names for step in steps)
        return (
            f"only about {count} different values in each row or column at {steps_text(steps)}, as quantised to "
            f"{math.ceil(math.log2(count))} bits, unlike elsewhere; save them as they were trained"
        )

    yield from findings_of_layers("rounded", coarse.items(), n_tensors, counted)


def _code(tensor: TensorSummary) -> int | None:
    """Return in how many bits the values of a tensor fit, or `COARSE`; 0 if they need all, None if that is unclear."""
    levels = tensor.lines.levels if tensor.lines else 0
    used = int(np.bitwise_or.reduce(tensor.values().view(np.uint32)))
    bits = next((n for n in (16, 20, 24) if not used & ((1 << (32 - n)) - 1)), 0)
    if 0 < levels <= MAX_LEVELS or (levels > 0 and not bits):
        return COARSE
    if bits and tensor.dtype in ("float32", "float64"):
        return bits if levels or len(np.unique(tensor.values())) > MIN_ROUNDED_VALUES else None
    return None if levels < 0 else 0


def _odd(of_step: Mapping[int, TensorSummary], codes: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Return the steps at which a tensor has too few digits or values, and those from which on it has.

    A tensor may have few from its beginning on: signs, tables, 16 bits until its first update or to the end. And it may
    from the step on at which it is frozen.
    """
    short = list(dropwhile(itemgetter(1), codes.items()))
    full = [k for k, (_, code) in enumerate(short) if not code]
    if not full:
        return [], []
    lasting = [step for step, _ in short[full[-1] + 1 :]]
    tensors = [of_step[step] for step in lasting]
    frozen = len(tensors) > 1 and len({tensor.content_hash for tensor in tensors}) == 1
    if frozen or any(tensor.lines and tensor.lines.levels == 2 for tensor in tensors):  # or clipped, or turned to signs
        lasting = []
    return [step for step, code in short[: full[-1]] if code], lasting


def outlying_values(plan: Plan) -> dict[tuple[str, int], str]:
    """Find single values that are far larger than the rest of their tensor and than at neighbouring checkpoints."""
    outlying: dict[tuple[str, int], str] = {}
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
            reached = float(np.quantile(largest[:, 1], REACHED_QUANTILE))
            beyond = np.flatnonzero(largest[:, 0] > MIN_OUTLIER_RATIO * np.maximum(reached, largest[:, 1]))
            usual = {k: _usual(k, tensors, sketch_positions(math.prod(shape))) for k in beyond.tolist()}
        for k, size in usual.items():
            step, tensor = history[k]
            if size is not None:
                place = np.unravel_index(int(tensor.largest_positions()[0]), shape) if shape else ()
                where = f" at {tuple(map(int, place))}" if shape else ""
                outlying[name, step] = f"{tensor.largest_values()[0]:.3g}{where}, where {size:.3g} is the largest"
    return outlying


def _usual_of_few(largest: Vector) -> dict[int, float | None]:
    """Compare a tensor of few values, which has no rest, with itself elsewhere: it moves, and returns."""
    usual: dict[int, float | None] = {}
    for k in range(1, len(largest)):
        rest = np.delete(largest, k)
        ratio = MIN_OUTLIER_RATIO_OF_FEW ** (1 if k < len(largest) - 1 else 2)
        if len(np.unique(rest[rest > 0])) >= MIN_MOVED and largest[k] > ratio * rest.max():
            usual[k] = float(rest.max())
    return usual


def outlier_findings(
    outlying: Mapping[tuple[str, int], str], summaries: Sequence[CheckpointSummary]
) -> Iterator[Finding]:
    """Report outlying values, those of one checkpoint together."""

    def words(steps: tuple[int, ...], names: list[str]) -> str:
        example = f"{outlying[names[0], steps[0]]} magnitude next to it and nearby"
        return f"one value stands alone at step {steps[0]}: {example}; fetch or save this checkpoint again"

    incidents = [(name, [step]) for name, step in outlying]
    yield from findings_of_layers("outlier", incidents, most_tensors(summaries), words)


def _usual(k: int, history: Sequence[TensorSummary], positions: Indices) -> float | None:
    """Return the largest magnitude that an outlier is compared with; None if the largest value is no outlier."""
    tensor = history[k]
    largest, at = np.abs(tensor.largest_values()), int(tensor.largest_positions()[0])
    before, after = (history[j] if 0 <= j < len(history) else None for j in (k - 1, k + 1))
    size = largest[0] / MIN_OUTLIER_RATIO
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
    ratio = MIN_OUTLIER_RATIO_ONE_SIDED if one_sided else MIN_OUTLIER_RATIO
    movement = MIN_OUTLIER_MOVEMENT_ONE_SIDED if one_sided else MIN_OUTLIER_MOVEMENT
    alone = largest[0] > ratio * usual and largest[0] - usual > movement * float(max(moves))
    return usual if alone else None
