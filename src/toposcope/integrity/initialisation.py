"""A step 0 that does not look like an initialisation."""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from toposcope.integrity import tuning
from toposcope.integrity.finding import Finding
from toposcope.integrity.summary import CheckpointSummary


def initialisation(summaries: Sequence[CheckpointSummary], excluded: Collection[int]) -> Iterator[Finding]:
    """Judge step 0, if there is one and it was read; steps that hold others' weights are `excluded`."""
    first = summaries[0]
    # A single checkpoint without a step in its name is called step 0.
    if first.step != 0 or first.error or len(summaries) < 2 or _is_trained(first):
        return
    others = [item for item in summaries[1:] if not item.error and item.step not in excluded]
    distances = {item.step: _distance(first, others[0], item) for item in others[1:]}
    # Where many are near, by chance one is nearer.
    nearest = min(distances, key=distances.__getitem__, default=0)
    if distances and distances[nearest] > tuning.MIN_DISTANCE_RATIO_OF_ANY:
        nearest = others[-1].step
    if distances and distances[nearest] < tuning.MIN_DISTANCE_RATIO:
        nearer = f"it is nearer to step {nearest} than to step {others[0].step}"
        yield Finding("initialisation", "fault", (0,), "", f"step 0 does not look like an initialisation: {nearer}")


def _is_trained(first: CheckpointSummary) -> bool:
    """Return whether step 0 says itself that training made steps before it, as an epoch 0 that has ended does."""
    state = first.state
    return state is not None and (max(state.counters.values(), default=0) > 0 or len(state.shapes) > len(state.zeros))


def _distance(first: CheckpointSummary, following: CheckpointSummary, later: CheckpointSummary) -> float:
    """Return the distance to a later checkpoint over that to the next, in the median over the matrices."""
    ratios = []
    for name in first.matrices:
        start, *rest = (
            item.tensors[name].values().astype(np.float64) for item in (first, following, later) if name in item.tensors
        )
        if len(rest) == 2 and len(start) == len(rest[0]) == len(rest[1]) > 0:
            to_next, to_later = (float(np.linalg.norm(start - values)) for values in rest)
            if math.isfinite(to_next) and to_next > 0:
                ratios.append(to_later / to_next)
    return float(np.median(ratios)) if ratios else math.inf
