"""Checkpoints whose values were rounded to fewer digits than those of the others."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from toposcope.integrity.finding import Finding, by_steps, layers_text, single, steps_text
from toposcope.integrity.summary import CheckpointSummary, TensorSummary

ROUNDED_BITS = 12
"""Zeros at the end of every mantissa of 23 bits from which on a matrix counts as rounded: float16 leaves 13 and
bfloat16 16. Of 16 values or more of full precision, one in 4,000 each has as many by chance."""
MIN_VALUES = 16
"""Different values of a sketch."""
MIN_SHARE = 0.5
"""Share of the matrices that must be rounded at a checkpoint."""


def rounded(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find checkpoints in float32 whose values have 16 bits, or 8, while most others, or those before, have all."""
    of_name: dict[str, dict[int, TensorSummary]] = defaultdict(dict)
    for item in summaries:
        for name, tensor in item.matrices.items():
            if tensor.dtype == "float32":
                of_name[name][item.step] = tensor
    n_tensors = max((len(item.tensors) for item in summaries), default=0)
    yield from _findings({name: _are_rounded(of_step) for name, of_step in of_name.items()}, 16, n_tensors)
    quantised = {
        name: {step: t.lines is not None and t.lines.is_quantised for step, t in of_step.items() if t.largest}
        for name, of_step in of_name.items()
    }
    yield from _findings(quantised, 8, n_tensors)


def _findings(is_rounded: Mapping[str, Mapping[int, bool]], bits: int, n_tensors: int) -> Iterator[Finding]:
    odd: dict[str, list[int]] = {
        name: [step for step, value in of_step.items() if value]
        for name, of_step in is_rounded.items()
        # Who trains in 16 bits may begin so at some step; nobody trains in 8.
        if 2 * sum(of_step.values()) < len(of_step) or (bits == 8 and not any(list(of_step.values())[:2]))
    }
    incidents: dict[str, list[int]] = defaultdict(list)
    for step in sorted({step for of_name in odd.values() for step in of_name}):
        names = [name for name, of_name in odd.items() if step in of_name]
        if len(names) >= MIN_SHARE * sum(step in of_step for of_step in is_rounded.values()):
            for name in names:
                incidents[name].append(step)
    for together, names in by_steps(incidents):
        message = (
            f"{layers_text(names, n_tensors)}: rounded to {bits} bits at {steps_text(together)}, while others have "
            "full precision; save them as they were trained"
        )
        yield Finding("rounded", "fault", together, single(names), message)


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
        has_more = ((values.view(np.uint32) & np.uint32((1 << ROUNDED_BITS) - 1)) > 0) & usable
        enough = n_different >= MIN_VALUES
        judged |= {
            step: not more for step, more, e in zip(steps, has_more.any(axis=1).tolist(), enough, strict=True) if e
        }
    return judged
