"""A step 0 that does not look like an initialisation."""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from toposcope.checkpoints import roles
from toposcope.integrity import tuning
from toposcope.integrity.finding import Finding
from toposcope.integrity.summary import CheckpointSummary, TensorSummary
from toposcope.integrity.tensor_values import Spread
from toposcope.integrity.values import NORM_WEIGHT


def initialisation(summaries: Sequence[CheckpointSummary], excluded: Collection[int]) -> Iterator[Finding]:
    """Judge step 0, if there is one and it was read; steps that hold others' weights are `excluded`."""
    first = summaries[0]
    # A single checkpoint without a step in its name is called step 0.
    if first.step != 0 or first.error or len(summaries) < 2:
        return
    reasons = by_values(summaries)
    others = [item for item in summaries[1:] if not item.error and item.step not in excluded]
    if len(others) > 1:
        reasons += _distances(first, others[0], others[-1])
    if reasons:
        yield Finding(
            "initialisation", "fault", (0,), "", f"step 0 does not look like an initialisation: {'; '.join(reasons)}"
        )


def by_values(summaries: Sequence[CheckpointSummary]) -> list[str]:
    """Return the reasons against step 0 as an initialisation that its own values give."""
    first = summaries[0]
    if first.step != 0 or first.error:
        return []
    learned = {n: t for n, t in first.tensors.items() if not _is_frozen(n, t, summaries)}
    return [*_norms(learned), *_matrices(learned)]


def _is_frozen(name: str, tensor: TensorSummary, summaries: Sequence[CheckpointSummary]) -> bool:
    """Return whether a tensor is fixed rather than learned, such as a table of sines."""
    others = [item.tensors[name].content_hash for item in summaries[1:] if name in item.tensors]
    return len(others) > 0 and all(content == tensor.content_hash for content in others)


def _norms(tensors: dict[str, TensorSummary]) -> Iterator[str]:
    spreads = [t.spread for n, t in tensors.items() if not t.is_matrix and t.spread and NORM_WEIGHT.search(n)]
    uneven = [s for s in spreads if s.high - s.low > tuning.MAX_NORM_SPREAD * max(abs(s.high), abs(s.low), 1)]
    if len(uneven) > tuning.MIN_ODD_SHARE * len(spreads):
        yield f"{len(uneven)} of {len(spreads)} norm weights are not one number throughout"


def _matrices(tensors: dict[str, TensorSummary]) -> Iterator[str]:
    judged = [
        t.spread
        for t in tensors.values()
        if t.spread and t.role not in roles.NOT_ANALYSED - {"embed"} and not math.isnan(t.spread.kurtosis)
    ]
    odd = [s for s in judged if _is_odd(s)]
    if len(odd) > tuning.MIN_ODD_SHARE * len(judged):
        yield f"the values of {len(odd)} of {len(judged)} matrices are not independent draws of one kind"


def _is_odd(spread: Spread) -> bool:
    return (
        spread.kurtosis > tuning.MAX_KURTOSIS
        or spread.rows > tuning.MAX_UNEVENNESS
        or spread.columns > tuning.MAX_UNEVENNESS
    )


def _distances(first: CheckpointSummary, following: CheckpointSummary, last: CheckpointSummary) -> Iterator[str]:
    """Compare distances to the next and to the last checkpoint, in the median over the matrices."""
    ratios = []
    for name, tensor in first.matrices.items():
        near, far = following.tensors.get(name), last.tensors.get(name)
        if near and far and tensor.sketch and near.shape == tensor.shape == far.shape and near.sketch and far.sketch:
            start, to_next, to_last = (t.values().astype(np.float64) for t in (tensor, near, far))
            distance = float(np.linalg.norm(start - to_next))
            if math.isfinite(distance) and distance > 0:
                ratios.append(float(np.linalg.norm(start - to_last)) / distance)
    if ratios and np.median(ratios) < tuning.MIN_DISTANCE_RATIO:
        yield f"it is nearer to the last checkpoint, step {last.step}, than to step {following.step}"
