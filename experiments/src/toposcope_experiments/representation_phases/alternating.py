"""The best alternating monotone stretches of a series: rising, falling, rising again.

Neighbouring stretches are fitted independently: the more extreme of their two ends is the turning point, so nothing has
to join them.

Cost: O(n²) for the errors of all stretches, by pooling adjacent violators once from every start, and O(k n²) for k
stretches.
Sources: Ayer, Brunk, Ewing, Reid and Silverman 1955 (pooling); Stout 2008, Unimodal regression via prefix isotonic
regression (errors of all prefixes in one pass).
"""

from typing import Any

import numpy as np

from toposcope.extend import Indices, Vector, compiled


@compiled
def alternating_errors(series: Vector, max_stretches: int) -> Vector:
    """Return the least sums of squares of series about 1, ..., `max_stretches` alternating stretches."""
    m, n = series.shape
    errors = np.empty((m, 2, max_stretches))
    for row in range(m):
        cost = _stretch_errors(series[row])
        for rising in range(2):
            best, _ = _divide(cost, rising, max_stretches)
            errors[row, rising] = best[:, n]
    return errors


@compiled
def alternating_places(series: Vector, rising: int, count: int) -> Indices:
    """Return where the best alternating stretches of series begin, and their turning points."""
    m, n = series.shape
    places = np.empty((2, m, count - 1), dtype=np.int64)
    for row in range(m):
        _, origin = _divide(_stretch_errors(series[row]), rising, count)
        end = n
        for s in range(count - 1, 0, -1):
            place = origin[s, end]
            sign = 1.0 if (rising + s) % 2 else -1.0
            places[0, row, s - 1] = place
            begin = origin[s - 1, place] if s > 1 else 0
            turn = begin + _turn(-sign * series[row, begin:end], place - begin)
            places[1, row, s - 1] = min(max(turn, 0), n - 1)
            end = place
    return places


@compiled
def _turn(values: Vector, place: int) -> int:
    """Return the middle of the highest level on either side of a place, of a rise before it and a fall from there on.

    The last level of a rise is the largest mean of the values that end it, the first of a fall that of those that
    begin it; where both are equal they are one.
    """
    before, first = _level(values[:place][::-1])
    after, last = _level(values[place:])
    if before > after:
        last = 0
    elif after > before:
        first = 0
    return (place - first + place + last - 1) // 2


@compiled
def _level(values: Vector) -> tuple[float, int]:
    """Return the largest mean of the first values, and the number of values it is the mean of."""
    highest, length, total = -np.inf, 0, 0.0
    for i in range(len(values)):
        total += values[i]
        if total >= highest * (i + 1):
            highest, length = total / (i + 1), i + 1
    return highest, length


@compiled
def _stretch_errors(values: Vector) -> Vector:
    """Return the errors of falling and rising fits, shape (2, n + 1, n + 1): from every first index to every end."""
    n = len(values)
    cost = np.zeros((2, n + 1, n + 1))
    level, weight = np.empty(n), np.empty(n)
    for rising in range(2):
        sign = 2.0 * rising - 1.0
        for start in range(n):
            top, error = -1, 0.0
            for j in range(start, n):
                top += 1
                level[top], weight[top] = sign * values[j], 1.0
                while top > 0 and level[top - 1] >= level[top]:
                    together = weight[top - 1] + weight[top]
                    step = level[top] - level[top - 1]
                    error += step * step * weight[top - 1] * weight[top] / together
                    level[top - 1] += step * weight[top] / together
                    weight[top - 1] = together
                    top -= 1
                cost[rising, start, j + 1] = error
    return cost


@compiled
def _divide(cost: Vector, rising: int, max_stretches: int) -> tuple[Vector, Any]:
    """Return the least errors of the first `end` values by number of stretches and end, and where the last begins."""
    n = cost.shape[1] - 1
    best = np.empty((max_stretches, n + 1))
    origin = np.zeros((max_stretches, n + 1), dtype=np.int64)
    best[0] = cost[rising, 0]
    for s in range(1, max_stretches):
        direction = (rising + s) % 2
        for end in range(n + 1):
            least, place = best[s - 1, end], end
            for i in range(end):
                error = best[s - 1, i] + cost[direction, i, end]
                if error < least:
                    least, place = error, i
            best[s, end], origin[s, end] = least, place
    return best, origin
