"""Whether the points of one set can be matched with points of another, each of its own, within a limit.

It is asked of the points that cost more than the limit to leave alone. A matching that covers those of one set and a
matching that covers those of the other combine into one that covers both (Mendelsohn & Dulmage 1958), so the two sets
are looked at one by one.

Cost: O(k + l) on a line; in the plane a path for every point that must be matched, at worst O(k l) each; O(k + l)
memory.
Source: Kuhn 1955 for augmenting paths.
"""

import numpy as np

from toposcope.kernels.compiled import compiled, inlined
from toposcope.typing import Indices, Matrix, Vector

FREE = -1  # in place of a partner


@compiled
def covers_on_line(x: Vector, y: Vector, x_alone: Vector, limit: float) -> bool:
    """Return whether every x that costs more than the limit alone can have a y of its own within the limit."""
    j = 0
    for i in range(len(x)):
        if x_alone[i] <= limit:
            continue
        while j < len(y) and x[i] - y[j] > limit:
            j += 1
        if j == len(y) or y[j] - x[i] > limit:
            return False
        j += 1
    return True


@compiled
def covers_in_plane(x: Matrix, y: Matrix, x_alone: Vector, limit: float, partner_of_x: Indices) -> bool:
    """Return the same of points of the plane, in the largest coordinate difference."""
    first, partner_of_y = np.empty(len(x), np.int64), np.full(len(y), FREE)
    begin = 0
    for i in range(len(x)):
        while begin < len(y) and x[i, 0] - y[begin, 0] > limit:
            begin += 1
        first[i] = begin
        j = partner_of_x[i]
        if j != FREE and max(abs(x[i, 0] - y[j, 0]), abs(x[i, 1] - y[j, 1])) <= limit:
            partner_of_y[j] = i
        else:
            partner_of_x[i] = FREE
            if x_alone[i] > limit and not _has_any(x, i, y, begin, limit):
                return False
    reached_from, previous, queue = np.full(len(y), FREE), np.empty(len(y), np.int64), np.empty(len(x), np.int64)
    for source in range(len(x)):
        if (
            x_alone[source] > limit
            and partner_of_x[source] == FREE
            and not _augment(x, y, limit, source, first, partner_of_x, partner_of_y, reached_from, previous, queue)
        ):
            return False
    return True


@inlined
def _has_any(x: Matrix, i: int, y: Matrix, begin: int, limit: float) -> bool:
    """Return whether a point has any y within the limit."""
    for j in range(begin, len(y)):
        if y[j, 0] - x[i, 0] > limit:
            return False
        if abs(y[j, 1] - x[i, 1]) <= limit:
            return True
    return False


@inlined
def _augment(
    x: Matrix,
    y: Matrix,
    limit: float,
    source: int,
    first: Indices,
    partner_of_x: Indices,
    partner_of_y: Indices,
    reached_from: Indices,
    previous: Indices,
    queue: Indices,
) -> bool:
    """Match one more x along a path found breadth first; those matched stay so, perhaps with another y."""
    queue[0] = source
    n_queued, n_visited = 1, 0
    while n_visited < n_queued:
        i = queue[n_visited]
        n_visited += 1
        for j in range(first[i], len(y)):
            if y[j, 0] - x[i, 0] > limit:
                break
            if reached_from[j] == source or abs(y[j, 1] - x[i, 1]) > limit:
                continue
            reached_from[j], previous[j] = source, i
            if partner_of_y[j] != FREE:
                queue[n_queued] = partner_of_y[j]
                n_queued += 1
                continue
            # Along the path back, each x leaves the y it had to the one after it.
            while j != FREE:
                i = previous[j]
                partner_of_y[j] = i
                partner_of_x[i], j = j, partner_of_x[i]
            return True
    return False
