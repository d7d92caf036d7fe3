"""A step 0 that does not look like an initialisation."""

import math
import re
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from toposcope.checkpoints import roles
from toposcope.integrity.evidence import Evidence, TensorEvidence
from toposcope.integrity.finding import Finding
from toposcope.integrity.spread import Spread

_NORM = re.compile(r"(^|[._])(\w*norm\w*|ln(_?\w{1,2})?)\.(weight|scale|gamma|g)$", re.IGNORECASE)
CONSTANT = 0.01
"""Norm weights begin as one number; the first updates of a warm-up move them by less than this part of it."""
UNEVEN = 2.0
"""Rows or columns that differ so many times more than in a matrix of independent values of one kind."""
HEAVY = 4.5
"""Kurtosis of rows; 3 for normal values, less for all other usual initialisations."""
MOST = 0.5
"""A share of the tensors must speak against an initialisation: one matrix may come from elsewhere."""
CLOSER = 0.8
"""Step 0 may be no nearer to the last checkpoint than this times its distance to the next: training leads away, and
noise about a fixed point gives 1."""


def initialisation(evidence: Sequence[Evidence], apart: Collection[int]) -> Iterator[Finding]:
    """Judge step 0, where there is one and it was read.

    Parameters
    ----------
    evidence : sequence of Evidence
    apart : collection of int
        Steps that are not compared with, as they hold another checkpoint's weights.
    """
    first = evidence[0]
    # A checkpoint alone need not tell its step, and is then called step 0.
    if first.step != 0 or first.error or len(evidence) < 2:
        return
    reasons = by_values(evidence)
    others = [item for item in evidence[1:] if not item.error and item.step not in apart]
    if len(others) > 1:
        reasons += _way(first, others[0], others[-1])
    if reasons:
        yield Finding(
            "initialisation", "fault", (0,), "", f"step 0 does not look like an initialisation: {'; '.join(reasons)}"
        )


def by_values(evidence: Sequence[Evidence]) -> list[str]:
    """Return what speaks against step 0 as an initialisation, without comparing it with any other."""
    first = evidence[0]
    if first.step != 0 or first.error:
        return []
    learned = {n: t for n, t in first.tensors.items() if not _is_frozen(n, t, evidence)}
    return [*_norms(learned), *_matrices(learned)]


def _is_frozen(name: str, tensor: TensorEvidence, evidence: Sequence[Evidence]) -> bool:
    """Tell tensors that are given and not learned, such as tables of sines."""
    others = [item.tensors[name].content_hash for item in evidence[1:] if name in item.tensors]
    return len(others) > 0 and all(content == tensor.content_hash for content in others)


def _norms(tensors: dict[str, TensorEvidence]) -> Iterator[str]:
    spreads = [t.spread for n, t in tensors.items() if not t.is_matrix and t.spread and _NORM.search(n)]
    uneven = [s for s in spreads if s.high - s.low > CONSTANT * max(abs(s.high), abs(s.low), 1)]
    if len(uneven) > MOST * len(spreads):
        yield f"{len(uneven)} of {len(spreads)} norm weights are not one number throughout"


def _matrices(tensors: dict[str, TensorEvidence]) -> Iterator[str]:
    judged = [
        t.spread
        for t in tensors.values()
        if t.spread and t.role not in roles.NOT_ANALYSED - {"embed"} and not math.isnan(t.spread.kurtosis)
    ]
    odd = [s for s in judged if _is_odd(s)]
    if len(odd) > MOST * len(judged):
        yield f"the values of {len(odd)} of {len(judged)} matrices are not independent draws of one kind"


def _is_odd(spread: Spread) -> bool:
    return spread.kurtosis > HEAVY or spread.rows > UNEVEN or spread.columns > UNEVEN


def _way(first: Evidence, following: Evidence, last: Evidence) -> Iterator[str]:
    """Compare distances to the next and to the last checkpoint, in the median over the matrices."""
    ratios = []
    for name, tensor in first.matrices.items():
        near, far = following.tensors.get(name), last.tensors.get(name)
        if near and far and tensor.sketch and near.shape == tensor.shape == far.shape and near.sketch and far.sketch:
            start, to_next, to_last = (t.values().astype(np.float64) for t in (tensor, near, far))
            distance = float(np.linalg.norm(start - to_next))
            if math.isfinite(distance) and distance > 0:
                ratios.append(float(np.linalg.norm(start - to_last)) / distance)
    if ratios and np.median(ratios) < CLOSER:
        yield f"it is nearer to the last checkpoint, step {last.step}, than to step {following.step}"
