"""Cheapest matching of two sets of points of the plane, each point alone or with one of the other set.

An assignment problem, solved by successive shortest paths on few of the pairs: first those that are cheap beside prices
which a matching of some of the points left, then also those that the prices found so far do not bear, until no pair is
left out that could make it cheaper. So the matching is the cheapest of all, and most pairs are only looked at once a
round.

Cost: O(E log E) a path for E pairs listed, most paths far shorter; O(k + l) of the memory for near neighbours, at worst
O(kl). Every price is a sum of differences of costs, as in any assignment by shortest paths: where all costs are small,
so are they, and nothing is rounded beside a large one.
Source: Jonker & Volgenant 1987 for the paths and the reduction before them; Volgenant 1996 for looking at few pairs
first.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled

Points = NDArray[np.float64]
Vector = NDArray[np.float64]
Indices = NDArray[np.int64]

NEAR = 12
"""Pairs listed for a point at first."""

ADDED = 4
"""Pairs added for a point at once."""

REDUCTIONS = 6
"""Bids for each point before paths are looked for."""

RUN = 32
"""Points next to each other that are passed over together where all are too far."""

STRIDE = 4
COARSEST = 32
"""Every fourth point is matched before all are, as long as so many are left of either set."""

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
        At most the cost of being alone; no pair costs less than its two prices.
    mate : ndarray, shape (k,)
        The partner, `ALONE`, or `FREE` where nothing is settled.
    """

    low: Vector
    high: Vector
    alone: Vector
    price: Vector
    mate: Indices


class Pairs(NamedTuple):
    """Listed pairs, by the points of one set: those of point i stand from ``starts[i]`` to ``starts[i + 1]``."""

    starts: Indices
    others: Indices
    costs: Vector


@compiled
def cheapest_partners(a: Points, b: Points, a_alone: Vector, b_alone: Vector, order: int) -> tuple[Indices, Indices]:
    """Return the partner in `b` of every point of `a`, and in `a` of every point of `b`; -2 where it is alone.

    Parameters
    ----------
    a, b : ndarray, shapes (k, 2) and (l, 2), float64
        In any order; quickest where points that follow each other are near each other.
    a_alone, b_alone : ndarray, shapes (k,) and (l,)
        Cost of leaving a point alone, not negative.
    order : int
        A pair costs its largest coordinate difference to this power, 1 or 2.
    """
    stride = 1
    while min(len(a), len(b)) >= STRIDE * stride * COARSEST:
        stride *= STRIDE
    first, second = _unsettled(a, a_alone, stride), _unsettled(b, b_alone, stride)
    _match(first, second, order)
    while stride > 1:
        stride //= STRIDE
        coarse_first, coarse_second = first, second
        first, second = _unsettled(a, a_alone, stride), _unsettled(b, b_alone, stride)
        _estimate(first, coarse_second, order)
        _estimate(second, coarse_first, order)
        _match(first, second, order)
    return first.mate, second.mate


@compiled
def _unsettled(points: Points, alone: Vector, stride: int) -> Side:
    points, alone = points[::stride], alone[::stride].copy()
    n = len(points)
    return Side(points[:, 0].copy(), points[:, 1].copy(), alone, np.zeros(n), np.full(n, FREE))


@compiled
def _estimate(side: Side, other: Side, order: int) -> None:
    """Give points the highest prices that some points of the other set bear."""
    side.price[:] = side.alone
    rows, columns = _cheapest(side, other, side.alone, other.price, _none(side), 1, order)
    for t in range(len(rows)):
        side.price[rows[t]] = _cost(side, rows[t], other, columns[t], order) - other.price[columns[t]]


@compiled
def _none(side: Side) -> Pairs:
    return Pairs(np.zeros(len(side.low) + 1, np.int64), np.empty(0, np.int64), np.empty(0))


@compiled
def _match(first: Side, second: Side, order: int) -> None:
    rows, columns = _near(first, second, order)
    while True:
        forth = _listed(first, second, rows, columns, order)
        back = _listed(second, first, columns, rows, order)
        _settle(first, second, forth)
        _settle(second, first, back)
        new_rows, new_columns = _cheapest(first, second, first.price, second.price, forth, ADDED, order)
        if len(new_rows) == 0:
            return
        rows, columns = np.concatenate((rows, new_rows)), np.concatenate((columns, new_columns))
        _lower_prices(first, second, new_rows, new_columns, order)


@compiled
def _cost(one: Side, i: int, two: Side, j: int, order: int) -> float:
    distance: float = max(abs(one.low[i] - two.low[j]), abs(one.high[i] - two.high[j]))
    return distance if order == 1 else distance * distance


@compiled
def _near(first: Side, second: Side, order: int) -> tuple[Indices, Indices]:
    """List, for each point of either set, the pairs that are cheapest beside the prices of the other."""
    rows, columns = _cheapest(first, second, first.alone, second.price, _none(first), NEAR, order)
    back, forth = _cheapest(second, first, second.alone, first.price, _none(second), NEAR, order)
    # Each pair once.
    listed = _listed(first, second, rows, columns, order)
    new = np.ones(len(back), np.bool_)
    for t in range(len(back)):
        for k in range(listed.starts[forth[t]], listed.starts[forth[t] + 1]):
            new[t] &= listed.others[k] != back[t]
    return np.concatenate((rows, forth[new])), np.concatenate((columns, back[new]))


@compiled
def _cheapest(
    side: Side, other: Side, bounds: Vector, prices: Vector, listed: Pairs, count: int, order: int
) -> tuple[Indices, Indices]:
    """Return the unlisted pairs of least cost beside the other's price, so many a point, that are below its bound."""
    boxes = _boxes(other, prices)
    n_found, n_boxes, middle = 0, boxes.shape[1], 0
    rows, columns = np.empty(count * len(side.low), np.int64), np.empty(count * len(side.low), np.int64)
    offers, places = np.empty(count), np.empty(count, np.int64)
    least, run_offers = np.empty(n_boxes), np.empty(RUN)
    for i in range(len(side.low)):
        low, high = side.low[i], side.high[i]
        offers[:] = bounds[i]
        places[:] = FREE
        for box in range(n_boxes):
            gap = max(boxes[0, box] - low, low - boxes[1, box], boxes[2, box] - high, high - boxes[3, box], 0.0)
            least[box] = (gap if order == 1 else gap * gap) - boxes[4, box]
        for turn in range(2 * n_boxes):
            # From the middle outwards, so that later ones are passed over.
            box = middle + (turn + 1) // 2 if turn % 2 else middle - turn // 2
            if box < 0 or box >= n_boxes or least[box] >= offers[count - 1]:
                continue
            run = slice(box * RUN, (box + 1) * RUN)
            lows, highs, run_prices, last = other.low[run], other.high[run], prices[run], offers[count - 1]
            hit = False
            for t in range(len(lows)):
                distance = max(abs(low - lows[t]), abs(high - highs[t]))
                offer = (distance if order == 1 else distance * distance) - run_prices[t]
                run_offers[t] = offer
                hit |= offer < last
            if hit:
                _insert(run_offers[: len(lows)], run.start, listed, i, offers, places)
        if places[0] != FREE:
            middle = places[0] // RUN
        for t in range(count):
            if places[t] != FREE:
                rows[n_found], columns[n_found] = i, places[t]
                n_found += 1
    return rows[:n_found].copy(), columns[:n_found].copy()


@compiled
def _boxes(side: Side, prices: Vector) -> Points:
    """Return, for each run, the least and greatest of both coordinates, and the greatest price."""
    boxes = np.empty((5, -(-len(side.low) // RUN)))
    for box in range(boxes.shape[1]):
        run = slice(box * RUN, (box + 1) * RUN)
        boxes[0, box], boxes[1, box] = side.low[run].min(), side.low[run].max()
        boxes[2, box], boxes[3, box] = side.high[run].min(), side.high[run].max()
        boxes[4, box] = prices[run].max()
    return boxes


@compiled
def _insert(found: Vector, begin: int, listed: Pairs, i: int, offers: Vector, places: Indices) -> None:
    """Put the points of a run in their places in an ascending list of offers, whose last ones fall off."""
    for k in range(len(found)):
        offer = found[k]
        if offer >= offers[-1]:
            continue
        j = begin + k
        known = False
        for t in range(listed.starts[i], listed.starts[i + 1]):
            known |= listed.others[t] == j
        if known:
            continue
        t = len(offers) - 1
        while t > 0 and offers[t - 1] > offer:
            offers[t], places[t] = offers[t - 1], places[t - 1]
            t -= 1
        offers[t], places[t] = offer, j


@compiled
def _listed(side: Side, other: Side, rows: Indices, columns: Indices, order: int) -> Pairs:
    """Order pairs by the points of one set."""
    starts = np.zeros(len(side.low) + 1, np.int64)
    for row in rows:
        starts[row + 1] += 1
    for i in range(len(side.low)):
        starts[i + 1] += starts[i]
    at = starts[:-1].copy()
    others, costs = np.empty(len(rows), np.int64), np.empty(len(rows))
    for t in range(len(rows)):
        place = at[rows[t]]
        others[place] = columns[t]
        costs[place] = _cost(side, rows[t], other, columns[t], order)
        at[rows[t]] += 1
    return Pairs(starts, others, costs)


@compiled
def _settle(side: Side, other: Side, pairs: Pairs) -> None:
    """Settle every free point of a set; settled ones of the other set stay so."""
    _reduce(side, other, pairs)
    n = len(other.low)
    away, before, reached = np.full(n, np.inf), np.empty(n, np.int64), np.empty(n, np.int64)
    for source in range(len(side.low)):
        if side.mate[source] == FREE:
            _augment(side, other, pairs, source, away, before, reached)


@compiled
def _reduce(side: Side, other: Side, pairs: Pairs) -> None:
    """Let free points take their cheapest choice, at the price of the second cheapest."""
    waiting = np.flatnonzero(side.mate == FREE)
    n, n_waiting = len(waiting), len(waiting)
    for turn in range(REDUCTIONS * n):
        if n_waiting == 0:
            break
        # First in, first out: two points that outbid each other do not use up the turns of all.
        i = waiting[turn % n]
        n_waiting -= 1
        best, second, choice = side.alone[i], np.inf, ALONE
        for t in range(pairs.starts[i], pairs.starts[i + 1]):
            offer = pairs.costs[t] - other.price[pairs.others[t]]
            if offer < best:
                best, second, choice = offer, best, pairs.others[t]
            elif offer < second:
                second = offer
        side.mate[i] = choice
        if choice == ALONE:
            side.price[i] = best
            continue
        side.price[i] = second
        other.price[choice] -= second - best
        former = other.mate[choice]
        other.mate[choice] = i
        if former >= 0:
            side.mate[former] = FREE
            waiting[(turn + n_waiting + 1) % n] = former
            n_waiting += 1


@compiled
def _augment(
    side: Side, other: Side, pairs: Pairs, source: int, away: Vector, before: Indices, reached: Indices
) -> None:
    """Settle one point along the shortest path to a free or lone one, or to one that had better be alone."""
    heap = [(0.0, np.int64(0))]
    heap.clear()
    n_reached = 0
    limit, last, lone = np.inf, np.int64(FREE), np.int64(source)
    i, base = np.int64(source), 0.0
    while True:
        # From point i of the set, reached at this length: alone, or to others.
        if base + side.alone[i] - side.price[i] < limit:
            limit, last, lone = base + side.alone[i] - side.price[i], np.int64(FREE), i
        for t in range(pairs.starts[i], pairs.starts[i + 1]):
            j = pairs.others[t]
            length = base + max(pairs.costs[t] - side.price[i] - other.price[j], 0.0)
            if length < limit and length < away[j]:
                if away[j] == np.inf:
                    reached[n_reached] = j
                    n_reached += 1
                away[j], before[j] = length, i
                heappush(heap, (length, j))
        found = False
        while len(heap) > 0:
            length, j = heappop(heap)
            if length == away[j]:
                found = length < limit
                break
        if not found:
            break
        if other.mate[j] < 0:
            limit, last = length, j
            break
        i, base = other.mate[j], length
    for t in range(n_reached):
        j = reached[t]
        if away[j] < limit:
            side.price[other.mate[j]] += limit - away[j]
            other.price[j] -= limit - away[j]
        away[j] = np.inf
    side.price[source] += limit
    if last == FREE:
        last = side.mate[lone]
        side.mate[lone] = ALONE
        if lone == source:
            return
    while True:
        i = before[last]
        other.mate[last] = i
        side.mate[i], last = last, side.mate[i]
        if i == source:
            return


@compiled
def _lower_prices(first: Side, second: Side, rows: Indices, columns: Indices, order: int) -> None:
    """Lower the prices of the first set to what new pairs bear, and set free what is not at its price any more."""
    for t in range(len(rows)):
        i, j = rows[t], columns[t]
        offer = _cost(first, i, second, j, order) - second.price[j]
        if offer < first.price[i]:
            first.price[i] = offer
            if first.mate[i] >= 0:
                second.mate[first.mate[i]] = FREE
            first.mate[i] = FREE
