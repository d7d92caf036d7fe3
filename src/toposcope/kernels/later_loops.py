"""Whether any edge that has not entered yet can open a loop.

An edge opens none if some point's edges to both its ends are earlier. Two sufficient tests, cheap first: a common
neighbour among the edges that entered; a neighbour of one end, nearest first, that is nearer to the other end than the
two ends are to each other. What passes neither is tried against all points.

Cost: near O(n^2) where the answer is yes; each row is looked at until the first edge that may open a loop.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.bit_sets import Words
from toposcope.kernels.compiled import compiled
from toposcope.typing import Matrix


@compiled
def first_row_with_possible_births(
    distances: Matrix,
    label: NDArray[np.int32],
    neighbours: Words,
    reached: float,
    upto: float,
    begin: int,
) -> int:
    """Return the first row from `begin` on that has an edge which may open a loop; n if there is none.

    Parameters
    ----------
    distances : ndarray, shape (n, n), float64
    label : ndarray, shape (n,), int32
        Of each point in `neighbours`.
    neighbours : ndarray, shape (n, ceil(n / 64)), uint64
        Of the edges of length at most `reached`: all of them have entered.
    reached, upto : float
        Edges longer than the first and no longer than the second are looked at, in the upper triangle.
    begin : int
        Rows before it are known to have none.
    """
    n = len(distances)
    undecided = np.empty(n, np.int64)
    for u in range(begin, n):
        count = 0
        for v in range(u + 1, n):
            if reached < distances[u, v] <= upto and not _meet(neighbours, label[u], label[v]):
                undecided[count] = v
                count += 1
        if not count:
            continue
        near = np.flatnonzero(distances[u] <= reached)
        for w in near[np.argsort(distances[u][near])]:
            left = 0
            for k in range(count):
                v = undecided[k]
                if not distances[w, v] < distances[u, v]:
                    undecided[left] = v
                    left += 1
            count = left
            if not count:
                break
        for k in range(count):
            if not _lune_has_a_point(distances, u, undecided[k]):
                return u
    return n


@compiled
def _meet(neighbours: Words, a: int, b: int) -> bool:
    for i in range(neighbours.shape[1]):
        if neighbours[a, i] & neighbours[b, i]:
            return True
    return False


@compiled
def _lune_has_a_point(distances: Matrix, u: int, v: int) -> bool:
    for w in range(len(distances)):
        if distances[u, w] < distances[u, v] and distances[v, w] < distances[u, v]:
            return True
    return False
