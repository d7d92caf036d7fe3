"""The bottleneck matching of two sets of points of the plane, each point alone or with one of the other set.

Cost: at most 63 steps, in each a path for every point that must be matched; memory O(k + l).
Source: Mendelsohn & Dulmage 1958 for looking at the two sets one by one; augmenting paths as Kuhn 1955.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled

Points = NDArray[np.float64]
Vector = NDArray[np.float64]
Indices = NDArray[np.int64]

FREE = -1


@compiled
def least_dearest_pair(a: Points, b: Points, a_alone: Vector, b_alone: Vector) -> float:
    """Return the least t such that some matching has no cost, largest coordinate difference or alone, above t.

    Parameters
    ----------
    a, b : ndarray, shapes (k, 2) and (l, 2), float64
        Ascending in the first coordinate.
    a_alone, b_alone : ndarray, shapes (k,) and (l,)
        What it costs to leave a point alone, not negative.

    Notes
    -----
    Bisection over the bits of t, which are ordered as the floats of at least 0 are, so the result is one of the costs,
    to the bit. The points of each set dearer than t alone must be matched.
    """
    low = np.zeros(1, np.int64)
    high, middle = low.copy(), low.copy()
    # All alone is a matching.
    for alone in (a_alone, b_alone):
        for cost in alone:
            high.view(np.float64)[0] = max(high.view(np.float64)[0], cost)
    while low[0] < high[0]:
        middle[0] = (low[0] + high[0]) // 2
        limit = middle.view(np.float64)[0]
        if _covers(a, b, a_alone, limit) and _covers(b, a, b_alone, limit):
            high[0] = middle[0]
        else:
            low[0] = middle[0] + 1
    return float(high.view(np.float64)[0])


@compiled
def _covers(x: Points, y: Points, x_alone: Vector, limit: float) -> bool:
    """Tell whether every x dearer than the limit alone can have a y of its own within the limit."""
    first = np.empty(len(x), np.int64)
    begin = 0
    for i in range(len(x)):
        while begin < len(y) and x[i, 0] - y[begin, 0] > limit:
            begin += 1
        first[i] = begin
        if x_alone[i] > limit and not _has_any(x[i], y, begin, limit):
            return False
    mate, own, seen = np.full(len(y), FREE), np.full(len(x), FREE), np.full(len(y), FREE)
    before, waiting = np.empty(len(y), np.int64), np.empty(len(x), np.int64)
    for i in range(len(x)):
        if x_alone[i] > limit and not _has_path(x, y, limit, i, first, mate, own, seen, before, waiting):
            return False
    return True


@compiled
def _has_any(point: Vector, y: Points, begin: int, limit: float) -> bool:
    for j in range(begin, len(y)):
        if y[j, 0] - point[0] > limit:
            return False
        if abs(y[j, 1] - point[1]) <= limit:
            return True
    return False


@compiled
def _has_path(
    x: Points,
    y: Points,
    limit: float,
    source: int,
    first: Indices,
    mate: Indices,
    own: Indices,
    seen: Indices,
    before: Indices,
    waiting: Indices,
) -> bool:
    """Match one more x, breadth first, if it can be; those matched stay so, maybe with others."""
    waiting[0] = source
    n_waiting, turn = 1, 0
    while turn < n_waiting:
        i = waiting[turn]
        turn += 1
        for j in range(first[i], len(y)):
            if y[j, 0] - x[i, 0] > limit:
                break
            if seen[j] == source or abs(y[j, 1] - x[i, 1]) > limit:
                continue
            seen[j], before[j] = source, i
            if mate[j] != FREE:
                waiting[n_waiting] = mate[j]
                n_waiting += 1
                continue
            # Along the path back, each x leaves the y it had to the one after it.
            while j != FREE:
                i = before[j]
                mate[j] = i
                own[i], j = j, own[i]
            return True
    return False
