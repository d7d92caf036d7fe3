"""A step 0 that does not look like an initialisation."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from toposcope.integrity.finding import Finding
from toposcope.integrity.summary import CheckpointSummary, TensorSummary

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MAX_NORM_SPREAD = 0.01  # relative range of a norm's weight, which begins constant and moves little in a warm-up
MIN_ODD_SHARE = 0.5  # share of the tensors that do not look initialised: a few may come from elsewhere
MIN_DISTANCE_RATIO = 0.8  # distance to the last checkpoint over that to the next; 1 for noise about a fixed point
MIN_ALIKE = 0.5  # cosine of the median matrix with the next checkpoint's where training goes on from it; 0 for others
NORM_WEIGHT = re.compile(r"(^|[._])(\w*norm\w*|ln(_?\w{1,2})?)\.(weight|scale|gamma|g)$", re.IGNORECASE)
"""Names of the weights of norms."""


def initialisation(summaries: Sequence[CheckpointSummary], excluded: Collection[int]) -> Iterator[Finding]:
    """Judge step 0, if there is one and it was read; steps that hold others' weights are `excluded`."""
    first = summaries[0]
    # A single checkpoint without a step in its name is called step 0.
    if first.step != 0 or first.error or len(summaries) < 2 or _is_trained(first):
        return
    learned = {n: t for n, t in first.tensors.items() if not _is_frozen(n, t, summaries)}
    reasons = list(_norms(learned))
    others = [item for item in summaries[1:] if not item.error and item.step not in excluded]
    later = others[1:] if reasons else others[1:][-1:]  # noise about a fixed point may be near to any of many
    distances = list(_distances(first, [*others[:1], *later])) if later else []
    is_fault = bool(distances) or not (reasons and others and _goes_on(first, others[0]))
    words = f"step 0 does not look like an initialisation: {'; '.join([*reasons, *distances])}"
    if not is_fault:
        words += f"; step {others[0].step} goes on from it, as where a run begins with trained weights"
    if reasons or distances:
        yield Finding("initialisation", "fault" if is_fault else "note", (0,), "", words)


def _is_trained(first: CheckpointSummary) -> bool:
    """Return whether step 0 says itself that training made steps before it, as an epoch 0 that has ended does."""
    state = first.state
    return state is not None and (max(state.counters.values(), default=0) > 0 or len(state.shapes) > len(state.zeros))


def _is_frozen(name: str, tensor: TensorSummary, summaries: Sequence[CheckpointSummary]) -> bool:
    """Return whether a tensor is fixed rather than learned, such as a table of sines."""
    others = [item.tensors[name].content_hash for item in summaries[1:] if name in item.tensors]
    return len(others) > 0 and all(content == tensor.content_hash for content in others)


def _norms(tensors: dict[str, TensorSummary]) -> Iterator[str]:
    held = [t.values() for n, t in tensors.items() if not t.is_matrix and t.sketch and NORM_WEIGHT.search(n)]
    uneven = [v for v in held if np.ptp(v) > MAX_NORM_SPREAD * max(float(np.abs(v).max()), 1)]
    if len(uneven) > MIN_ODD_SHARE * len(held):
        yield f"{len(uneven)} of {len(held)} norm weights are not one number throughout"


def _distances(first: CheckpointSummary, others: Sequence[CheckpointSummary]) -> Iterator[str]:
    """Compare distances to the first of some checkpoints and to the others, in the median over the matrices."""
    ratios: dict[int, list[float]] = defaultdict(list)
    for name, tensor in first.matrices.items():
        start = tensor.values().astype(np.float64)
        known = [(item.step, item.tensors[name].values()) for item in others if name in item.tensors]
        distances = {step: float(np.linalg.norm(start - v)) for step, v in known if len(v) == len(start) > 0}
        next_one = distances.pop(others[0].step, 0.0)
        if math.isfinite(next_one) and next_one > 0:
            for step, distance in distances.items():
                ratios[step].append(distance / next_one)
    medians = {step: float(np.median(of_step)) for step, of_step in ratios.items()}
    nearest = min(medians, key=medians.__getitem__, default=0)
    if medians and medians[nearest] < MIN_DISTANCE_RATIO:
        yield f"it is nearer to step {nearest} than to step {others[0].step}"


def _goes_on(first: CheckpointSummary, following: CheckpointSummary) -> bool:
    """Return whether the next checkpoint was trained from this one: most matrices are still alike."""
    alike = []
    for name, tensor in first.matrices.items():
        other = following.tensors.get(name)
        if other and len(other.sketch) == len(tensor.sketch) > 0:
            a, b = tensor.values().astype(np.float64), other.values().astype(np.float64)
            size = float(np.linalg.norm(a) * np.linalg.norm(b))
            alike.append(float(a @ b) / size if size > 0 else 1.0)
    return bool(alike) and float(np.median(alike)) > MIN_ALIKE
