"""Which pairs of points of two sets of the plane cost least, under the prices of an assignment problem.

Points are passed over by runs of neighbours: those of one set together, where no run of the other is near enough, and
each by itself, where the run is too far from it.

Cost: O(k l / 32) at worst to look at all runs, far less where points that follow each other are near each other.
"""

from typing import NamedTuple

import numpy as np

from toposcope.kernels.compiled import compiled, inlined
from toposcope.kernels.neighbour_search import insert_ascending
from toposcope.typing import Indices, Matrix, Vector

RUN = 32
"""Points next to each other that are passed over together where all are too far."""

FREE = -1
ALONE = -2


class Side(NamedTuple):
    """One of the two sets, and its part of the matching.

    Attributes
    ----------
    low, high : ndarray, shape (k,), float64
        Coordinates.
    alone : ndarray, shape (k,)
        Cost of leaving a point alone.
    price : ndarray, shape (k,)
        At most the cost of being alone; no listed pair costs less than its two prices.
    partner : ndarray, shape (k,)
        Index of the partner, `ALONE`, or `FREE` as long as neither is decided.
    """

    low: Vector
    high: Vector
    alone: Vector
    price: Vector
    partner: Indices


class Pairs(NamedTuple):
    """Listed pairs, by the points of one set: those of point i stand from ``starts[i]`` to ``starts[i + 1]``."""

    starts: Indices
    others: Indices
    costs: Vector


@compiled
def cheapest_pairs(
    side: Side, other: Side, bounds: Vector, before: tuple[Vector, Vector], listed: Pairs, count: int, order: int
) -> tuple[Indices, Indices, Vector]:
    """Return the unlisted pairs of least cost less the other's price, so many a point, that are below its bound.

    Beside the indices of the two points of each pair stands its cost less the price. Bounds and prices `before` are
    such that no unlisted pair was below: only what has risen since can make one so.
    """
    groups, runs = _boxes(side, bounds), _boxes(other, other.price)
    n_pairs, n_runs = 0, runs.shape[1]
    risen = np.empty(len(other.low))
    for j in range(len(risen)):
        risen[j] = other.price[j] if other.price[j] > before[1][j] else -np.inf
    risen_runs = _boxes(other, risen)
    rows, columns = np.empty(count * len(side.low), np.int64), np.empty(count * len(side.low), np.int64)
    found, offers, places = np.empty(len(rows)), np.empty(count), np.empty(count, np.int64)
    near, least, run_offers = np.empty(n_runs, np.int64), np.empty(n_runs), np.empty(RUN)
    for group in range(groups.shape[1]):
        begin, end = group * RUN, min((group + 1) * RUN, len(side.low))
        any_rose = False
        for i in range(begin, end):
            any_rose |= bounds[i] > before[0][i]
        highest = runs[4] if any_rose else risen_runs[4]
        # The runs that may hold a pair of the group, in ascending order of what it would at least cost.
        n_near = 0
        for run in range(n_runs):
            gap = max(
                runs[0, run] - groups[1, group],
                groups[0, group] - runs[1, run],
                runs[2, run] - groups[3, group],
                groups[2, group] - runs[3, run],
                0.0,
            )
            offer = (gap if order == 1 else gap * gap) - highest[run]
            if offer < groups[4, group]:
                least[n_near] = np.inf
                n_near += 1
                insert_ascending(least[:n_near], near[:n_near], offer, run)
        for i in range(begin, end):
            low, high = side.low[i], side.high[i]
            rose = bounds[i] > before[0][i]
            price, highest = (other.price, runs[4]) if rose else (risen, risen_runs[4])
            for t in range(count):
                offers[t], places[t] = bounds[i], FREE
            for k in range(n_near):
                run, last = near[k], offers[count - 1]
                if least[k] >= last:
                    break
                gap = max(runs[0, run] - low, low - runs[1, run], runs[2, run] - high, high - runs[3, run], 0.0)
                if (gap if order == 1 else gap * gap) - highest[run] >= last:
                    continue
                first, hit = run * RUN, False
                lows, highs = other.low[first : first + RUN], other.high[first : first + RUN]
                prices = price[first : first + RUN]
                for t in range(len(lows)):
                    distance = max(abs(low - lows[t]), abs(high - highs[t]))
                    offer = (distance if order == 1 else distance * distance) - prices[t]
                    run_offers[t] = offer
                    hit |= offer < last
                if hit:
                    for t in range(len(lows)):
                        if run_offers[t] < offers[count - 1] and not _is_listed(listed, i, first + t):
                            insert_ascending(offers, places, run_offers[t], first + t)
            for t in range(count):
                if places[t] != FREE:
                    rows[n_pairs], columns[n_pairs], found[n_pairs] = i, places[t], offers[t]
                    n_pairs += 1
    return rows[:n_pairs], columns[:n_pairs], found[:n_pairs]


@compiled
def _boxes(side: Side, values: Vector) -> Matrix:
    """Return, for each run, the least and greatest of both coordinates, and the greatest value."""
    boxes = np.empty((5, -(-len(side.low) // RUN)))
    for i in range(len(side.low)):
        box, low, high, value = i // RUN, side.low[i], side.high[i], values[i]
        if i % RUN == 0:
            boxes[0, box], boxes[1, box], boxes[2, box], boxes[3, box], boxes[4, box] = low, low, high, high, value
        boxes[0, box], boxes[1, box] = min(boxes[0, box], low), max(boxes[1, box], low)
        boxes[2, box], boxes[3, box] = min(boxes[2, box], high), max(boxes[3, box], high)
        boxes[4, box] = max(boxes[4, box], value)
    return boxes


@inlined
def _is_listed(pairs: Pairs, i: int, j: int) -> bool:
    is_listed = False
    for t in range(pairs.starts[i], pairs.starts[i + 1]):
        is_listed |= pairs.others[t] == j
    return is_listed


@inlined
def _cost(one: Side, i: int, two: Side, j: int, order: int) -> float:
    """Return the cost of a pair."""
    distance: float = max(abs(one.low[i] - two.low[j]), abs(one.high[i] - two.high[j]))
    return distance if order == 1 else distance * distance


@compiled
def by_point(side: Side, other: Side, rows: Indices, columns: Indices, order: int) -> Pairs:
    """Order pairs by the points of one set."""
    n = len(side.low)
    starts, others, costs = np.zeros(n + 1, np.int64), np.empty(len(rows), np.int64), np.empty(len(rows))
    for t in range(len(rows)):
        starts[rows[t]] += 1
    for i in range(n):
        starts[i + 1] += starts[i]
    for t in range(len(rows) - 1, -1, -1):
        i, j = rows[t], columns[t]
        starts[i] -= 1
        others[starts[i]], costs[starts[i]] = j, _cost(side, i, other, j, order)
    return Pairs(starts, others, costs)


@compiled
def merged(some: Pairs, more: Pairs) -> Pairs:
    """Return the pairs of two lists by the points of the same set, of each point the first list's first."""
    size = len(some.others) + len(more.others)
    starts, others, costs = some.starts + more.starts, np.empty(size, np.int64), np.empty(size)
    place = 0
    for i in range(len(starts) - 1):
        for t in range(some.starts[i], some.starts[i + 1]):
            others[place], costs[place] = some.others[t], some.costs[t]
            place += 1
        for t in range(more.starts[i], more.starts[i + 1]):
            others[place], costs[place] = more.others[t], more.costs[t]
            place += 1
    return Pairs(starts, others, costs)
