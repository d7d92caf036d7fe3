"""The edges of a cloud in order of length, some at a time, and whether any that has not entered can open a loop.

Of edges of one length the one that comes first in the matrix, row by row, is the earlier. An edge opens no loop if some
point's edges to both its ends are earlier. Two sufficient tests, cheap first: a common neighbour among the edges that
entered; a neighbour of one end, nearest first, that is nearer to the other end than the two ends are to each other.
What passes neither is tried against all points.

Cost: two passes over the matrix for each part, O(m log m) and 32 m bytes for m edges in it; the tests near O(n^2).
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, inlined
from toposcope.kernels.sets import Words
from toposcope.typing import Indices, Matrix, Vector

Lengths = NDArray[np.float64]
Ends = NDArray[np.int32]

MAX_SHORT_TIE = 32  # up to so many edges of one length are put in order by insertion


def edges_between(distances: Lengths, label: NDArray[np.int32], above: float, upto: float) -> Ends:
    """Return the edges with above < length <= upto, earliest first."""
    lengths, ends = _list(distances, label, above, upto)
    order = np.argsort(lengths)
    _order_ties(lengths, order)
    del lengths  # half of what it takes to put the ends in order
    return ends[order]


@compiled
def _list(distances: Lengths, label: NDArray[np.int32], above: float, upto: float) -> tuple[Lengths, Ends]:
    n = len(distances)
    total = 0
    for i in range(n):
        for j in range(i + 1, n):
            total += (distances[i, j] > above) & (distances[i, j] <= upto)
    lengths, ends = np.empty(total + 1), np.empty((total + 1, 2), np.int32)
    count = 0
    for i in range(n):
        for j in range(i + 1, n):
            # Written in any case, kept if it counts: a branch would be mispredicted half the time.
            lengths[count] = distances[i, j]
            ends[count, 0], ends[count, 1] = min(label[i], label[j]), max(label[i], label[j])
            count += (distances[i, j] > above) & (distances[i, j] <= upto)
    return lengths[:count], ends[:count]


def _order_ties(lengths: Lengths, order: Indices) -> None:
    """Put edges of equal length in the order they were listed in."""
    begin, end = _next_long_tie(lengths, order, 0)
    while begin < len(order):
        order[begin:end].sort()
        begin, end = _next_long_tie(lengths, order, end)


@compiled
def _next_long_tie(lengths: Lengths, order: Indices, begin: int) -> tuple[int, int]:
    """Order the ties from a place on, up to one that is worth NumPy's sort; return where that begins and ends."""
    while begin < len(order):
        end = begin + 1
        while end < len(order) and lengths[order[end]] == lengths[order[begin]]:
            end += 1
        if end - begin > MAX_SHORT_TIE:
            return begin, end
        for k in range(begin + 1, end):
            edge, place = order[k], k
            while place > begin and order[place - 1] > edge:
                order[place] = order[place - 1]
                place -= 1
            order[place] = edge
        begin = end
    return begin, begin


@compiled
def first_row_with_possible_births(
    distances: Matrix, label: NDArray[np.int32], neighbours: Words, reached: float, upto: float, begin: int
) -> int:
    """Return the first row from `begin` on that has an edge which may open a loop; n if there is none."""
    n = len(distances)
    undecided, near, lengths = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n)
    for u in range(begin, n):
        count = 0
        for v in range(u + 1, n):
            if reached < distances[u, v] <= upto and not _meet(neighbours, label[u], label[v]):
                undecided[count] = v
                count += 1
        if not count:
            continue
        n_near = 0
        for w in range(n):
            near[n_near], lengths[n_near] = w, distances[u, w]
            n_near += distances[u, w] <= reached
        _sort_by(lengths[:n_near], near)
        for w in near[:n_near]:
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


@inlined
def _sort_by(lengths: Vector, points: Indices) -> None:
    """Sort points by length, both in place, by Shell's method: NumPy's sorts take longer to compile than all else."""
    gap = 1
    while gap < len(lengths) // 3:
        gap = 3 * gap + 1
    while gap:
        for k in range(gap, len(lengths)):
            length, point, place = lengths[k], points[k], k
            while place >= gap and lengths[place - gap] > length:
                lengths[place], points[place] = lengths[place - gap], points[place - gap]
                place -= gap
            lengths[place], points[place] = length, point
        gap //= 3


@inlined
def _meet(neighbours: Words, a: int, b: int) -> bool:
    for i in range(neighbours.shape[1]):
        if neighbours[a, i] & neighbours[b, i]:
            return True
    return False


@inlined
def _lune_has_a_point(distances: Matrix, u: int, v: int) -> bool:
    for w in range(len(distances)):
        if distances[u, w] < distances[u, v] and distances[v, w] < distances[u, v]:
            return True
    return False
