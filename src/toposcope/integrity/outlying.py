"""Single values far larger than any other of their tensor, and than any at the checkpoints beside it.

Training moves the values of a tensor together: where one is large, others are nearly as large, or it was so at the
checkpoint before. A damaged value is alone in both ways, and the rest of its tensor has not moved.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toposcope.integrity.finding import Finding, by_steps, layers_text, single
from toposcope.integrity.layouts import Plan
from toposcope.integrity.summary import CheckpointSummary, TensorSummary, sketch_positions
from toposcope.typing import Indices

MIN_RATIO = 2.0
"""Of the value to the second largest of its tensor, and to the largest at the checkpoints before and after. In real
trainings a value that is no damage reaches 1.5."""
MIN_MOVEMENT = 6.0
"""How many times further than any other value of the sketch it has to move beyond those. In real trainings: 2."""
MIN_RATIO_ONE_SIDED = 5.0
"""`MIN_RATIO` where it is seen from one side: at the last checkpoint, and where the value stays."""
MIN_MOVEMENT_ONE_SIDED = 20.0
MIN_RATIO_OF_FEW = 100.0
"""`MIN_RATIO` of a tensor of fewer values than `MIN_VALUES`, which may change by any factor."""
MIN_VALUES = 4
REACHED_QUANTILE = 0.9
"""Of the second largest magnitudes over the series: what training reaches is no outlier, such as the first value of a
bias that half precision does not round to 0."""


class OutlyingValue(NamedTuple):
    """A value that stands alone; `usual` is the largest magnitude that it is compared with."""

    name: str
    step: int
    value: float
    position: tuple[int, ...]
    usual: float


def outlying_values(summaries: Sequence[CheckpointSummary]) -> list[OutlyingValue]:
    """Find single values that are far larger than the rest of their tensor and than at the checkpoints beside it."""
    whole = [item for item in summaries if not item.error]
    outlying = []
    plan = Plan(whole)
    for name, shape in plan.shaped():
        history = [
            (item.step, tensor)
            for item in whole
            if (tensor := item.tensors.get(name)) and tensor.largest and tensor.shape == shape
        ]
        if len(history) < 2:  # there is nothing to compare with
            continue
        positions = sketch_positions(math.prod(shape))
        tensors = [tensor for _, tensor in history]
        # Of a shape, all have as many.
        largest = np.abs(np.frombuffer(b"".join(t.largest for t in tensors)).reshape(len(tensors), -1))
        runners_up = largest[:, 1] if largest.shape[1] > 1 else np.zeros(len(tensors))
        reached = float(np.quantile(runners_up, REACHED_QUANTILE))
        few = math.prod(shape) < MIN_VALUES
        beyond = largest[:, 0] > MIN_RATIO * np.maximum(reached, 0.0 if few else runners_up)
        for k in np.flatnonzero(beyond).tolist():
            step, tensor = history[k]
            usual = _usual(k, tensors, positions)
            if usual is not None:
                at = tuple(int(i) for i in np.unravel_index(int(tensor.largest_positions()[0]), shape)) if shape else ()
                outlying.append(OutlyingValue(name, step, float(tensor.largest_values()[0]), at, usual))
    return outlying


def findings(outlying: Sequence[OutlyingValue], summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Report outlying values, those of one checkpoint together."""
    n_tensors = max((len(item.tensors) for item in summaries), default=0)
    of_step: dict[int, dict[str, OutlyingValue]] = defaultdict(dict)
    for value in outlying:
        of_step[value.step][value.name] = value
    for (step,), names in by_steps({f"{v.name}\x1f{v.step}": [v.step] for v in outlying}):
        names = [name.partition("\x1f")[0] for name in names]
        first = of_step[step][names[0]]
        where = f" at {first.position}" if first.position else ""
        example = f"{first.value:.3g}{where}, where {first.usual:.3g} is the largest magnitude beside it and nearby"
        message = f"{layers_text(names, n_tensors)}: one value stands alone at step {step}: {example}"
        yield Finding("outlier", "fault", (step,), single(names), f"{message}; fetch or save this checkpoint again")


def _usual(k: int, history: Sequence[TensorSummary], positions: Indices) -> float | None:
    """Return the largest magnitude that an outlier is compared with; None if the largest value is no outlier."""
    tensor = history[k]
    largest = np.abs(tensor.largest_values())
    few = math.prod(tensor.shape) < MIN_VALUES
    own = 0.0 if few or len(largest) < 2 else float(largest[1])
    at = int(tensor.largest_positions()[0])
    before, after = (history[j] if 0 <= j < len(history) else None for j in (k - 1, k + 1))
    stays = after is not None and at in after.largest_positions()[:1]
    beside = [other for other in (before, None if stays else after) if other is not None]
    if not beside:
        return None
    usual = max(own, *(float(np.abs(other.largest_values()[0])) for other in beside))
    one_sided = stays or after is None
    ratio = MIN_RATIO_OF_FEW if few else MIN_RATIO_ONE_SIDED if one_sided else MIN_RATIO
    movement = MIN_MOVEMENT_ONE_SIDED if one_sided else MIN_MOVEMENT
    rest = positions != at
    moved = max(
        (float(np.abs(tensor.values()[rest] - other.values()[rest]).max()) for other in beside if rest.any()), default=0
    )
    alone = largest[0] > ratio * usual and largest[0] - usual > movement * moved
    return usual if alone else None
