"""Cheapest matching of two sets of points of the plane, each point alone or with one of the other set.

An assignment problem, solved on few of the pairs: at first the cheapest of each point of one set, then also those that
cost less than the two prices found so far, until there is none: no pair that was left out could make the matching
cheaper. Points are passed over by runs of neighbours where no run of the other set is near enough. Prices come from a
few rounds of bids, each with smaller steps; from these, successive shortest paths make the matching exact.

SciPy's ``linear_sum_assignment`` gives the same sums from the k x k matrix of costs, in hundreds of times the time for
the H1 diagrams of 1,000 hidden states (``benchmarks/hidden_states.py``).

Cost: O(E) bids for E pairs listed, then O(E log E) per path, most paths far shorter; O(k l / 32) at worst to look at
all runs; O(k + l) memory for near neighbours, at worst O(kl). Prices are sums of differences of costs and of steps in
proportion to the mean price: nothing is rounded next to a large one.
Source: Bertsekas 1988 (bids with ever smaller steps); Jonker & Volgenant 1987 (paths); Volgenant 1996 (few pairs).
"""

from typing import NamedTuple

import numpy as np

from toposcope.kernels.boruvka import insert_ascending
from toposcope.kernels.compiled import compiled, inlined
from toposcope.typing import Indices, Matrix, Vector

BOX_RUN = 32  # points that are passed over at once
PAIRS_AT_FIRST, PAIRS_ADDED = 8, 4  # pairs listed for each point, at first and in a round
LAST_STEP = 1 / 16  # of bids in the last round, in mean prices; each earlier one is four times the next
N_BID_ROUNDS, N_BID_ROUNDS_SAVED = 3, 2  # besides as many as the order; fewer where the pairs that matter are known
MAX_RAISE = 4.0  # of a price by one bid, in steps beyond the one that is due
MIN_OUTBID = 0.2  # share of the points; where fewer are outbid, prices hardly matter, and bids end
MAX_OUTBID = 24  # times that a point is outbid on average before the pairs listed are too few for all
FREE = -1
ALONE = -2


class Side(NamedTuple):
    """One of the two sets, and its part of the matching."""

    low: Vector  # shape (k,); coordinates
    high: Vector  # shape (k,); coordinates
    alone: Vector  # shape (k,); cost of leaving a point alone
    price: Vector  # shape (k,); at most the cost of being alone; no listed pair costs less than its two prices
    partner: Indices  # shape (k,); index of the partner, `ALONE`, or `FREE` as long as neither is decided


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

    The indices of the two points of each pair come with its cost less the price. Bounds and prices `before` are
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
    near, least, run_offers = np.empty(n_runs, np.int64), np.empty(n_runs), np.empty(BOX_RUN)
    for group in range(groups.shape[1]):
        begin, end = group * BOX_RUN, min((group + 1) * BOX_RUN, len(side.low))
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
                first, hit = run * BOX_RUN, False
                lows, highs = other.low[first : first + BOX_RUN], other.high[first : first + BOX_RUN]
                prices = price[first : first + BOX_RUN]
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
    boxes = np.empty((5, -(-len(side.low) // BOX_RUN)))
    for i in range(len(side.low)):
        box, low, high, value = i // BOX_RUN, side.low[i], side.high[i], values[i]
        if i % BOX_RUN == 0:
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


class Listed(NamedTuple):
    """The pairs that were looked at closely, by the points of either set."""

    by_first: Pairs
    by_second: Pairs


class Partners(NamedTuple):
    """A cheapest matching: the partner of every point in the other set, negative where it is alone; what was listed."""

    of_first: Indices
    of_second: Indices
    listed: Listed


def cheapest_partners(
    a: Matrix, b: Matrix, a_alone: Vector, b_alone: Vector, order: int, by_distance: Listed | None = None
) -> Partners:
    """Match two sets of points, some of them with nothing, at the least sum of costs."""
    first, second = _free(a, a_alone), _free(b, b_alone)
    before = np.full(len(a), -np.inf), np.full(len(b), -np.inf)
    n_left = N_BID_ROUNDS + order
    if by_distance is None:
        none = np.empty(0, np.int64)
        listed = _listed(first, second, none, none, order)
        rows, columns, _ = cheapest_pairs(first, second, first.alone, before, listed.by_first, PAIRS_AT_FIRST, order)
        listed = _listed(first, second, rows, columns, order)
    else:
        listed = Listed(*(Pairs(pairs.starts, pairs.others, pairs.costs**2) for pairs in by_distance))
        n_left -= N_BID_ROUNDS_SAVED
    step = 0.0
    while True:
        is_exact = n_left == 0
        if not is_exact:
            total = _reopen(first, second, listed.by_first)
            step = step / 4 if step else LAST_STEP * 4.0 ** (n_left - 1) * total / len(a)
            n_outbid = _bid(first, second, listed.by_first, step)
            is_hopeless = n_outbid == MAX_OUTBID * len(a)
            is_hopeless = is_hopeless or _bid(second, first, listed.by_second, step) == MAX_OUTBID * len(b)
            is_exact = is_hopeless or n_outbid < MIN_OUTBID * len(a)
            n_left = 0 if is_exact else n_left - 1
            if is_hopeless:
                second.price[:] = 0.0
            _reopen(first, second, listed.by_first)
        if is_exact:
            _match_free(first, second, listed.by_first)
            _match_free(second, first, listed.by_second)
        rows, columns, offers = cheapest_pairs(first, second, first.price, before, listed.by_first, PAIRS_ADDED, order)
        if is_exact and len(rows) == 0:
            return Partners(first.partner, second.partner, listed)
        _lower_prices(first, second, rows, offers)
        before = first.price.copy(), second.price.copy()
        new = _listed(first, second, rows, columns, order)
        listed = Listed(*(merged(some, more) for some, more in zip(listed, new, strict=True)))


def _free(points: Matrix, alone: Vector) -> Side:
    n = len(points)
    return Side(points[:, 0].copy(), points[:, 1].copy(), alone, np.zeros(n), np.full(n, FREE))


def _listed(first: Side, second: Side, rows: Indices, columns: Indices, order: int) -> Listed:
    return Listed(by_point(first, second, rows, columns, order), by_point(second, first, columns, rows, order))


@compiled
def _reopen(side: Side, other: Side, pairs: Pairs) -> float:
    """Set all points free, and the prices of a set to the most that listed pairs bear; return their sum."""
    total = 0.0
    for i in range(len(side.low)):
        price = side.alone[i]
        for t in range(pairs.starts[i], pairs.starts[i + 1]):
            price = min(price, pairs.costs[t] - other.price[pairs.others[t]])
        side.price[i], side.partner[i] = price, FREE
        total += price
    for j in range(len(other.low)):
        other.partner[j] = FREE
    return total


@compiled
def _bid(side: Side, other: Side, pairs: Pairs, step: float) -> int:
    """Match the free points of a set, or leave them alone, at a cost at most a step above the least for each.

    Each takes the cheapest partner from whoever has it, and pays for it what makes the second cheapest as good, and a
    step. Return how many were outbid; some points remain free if that is `MAX_OUTBID` for each.
    """
    n, begin, n_outbid = len(side.low), 0, 0
    waiting, n_waiting = np.empty(n, np.int64), 0
    for i in range(n):
        if side.partner[i] == FREE:
            waiting[n_waiting] = i
            n_waiting += 1
    while n_waiting > 0 and n_outbid < MAX_OUTBID * n:
        i = waiting[begin]
        begin, n_waiting = (begin + 1) % n, n_waiting - 1
        best, second, partner = side.alone[i], np.inf, np.int64(ALONE)
        for t in range(pairs.starts[i], pairs.starts[i + 1]):
            # Without branches, which would be mispredicted.
            offer = pairs.costs[t] - other.price[pairs.others[t]]
            second = min(second, max(best, offer))
            partner = pairs.others[t] if offer < best else partner
            best = min(best, offer)
        side.partner[i] = partner
        if partner == ALONE:
            side.price[i] = best
            continue
        rise = min(second - best, MAX_RAISE * step)
        side.price[i] = best + rise
        other.price[partner] -= rise + step
        outbid, other.partner[partner] = other.partner[partner], i
        if outbid >= 0:
            side.partner[outbid] = FREE
            waiting[(begin + n_waiting) % n] = outbid
            n_waiting += 1
            n_outbid += 1
    return n_outbid


@compiled
def _match_free(side: Side, other: Side, pairs: Pairs) -> None:
    """Match every free point of a set or leave it alone; no point of the other set becomes free."""
    n = len(other.low)
    away, before, reached = np.full(n, np.inf), np.empty(n, np.int64), np.empty(n, np.int64)
    lengths, ends = np.empty(len(pairs.others)), np.empty(len(pairs.others), np.int64)
    for source in range(len(side.low)):
        if side.partner[source] == FREE:
            _augment(side, other, pairs, source, away, before, reached, lengths, ends)


@inlined
def _augment(
    side: Side,
    other: Side,
    pairs: Pairs,
    source: int,
    away: Vector,
    before: Indices,
    reached: Indices,
    lengths: Vector,
    ends: Indices,
) -> None:
    """Match one point along the shortest path to a point of the other set without a partner, or to one better alone.

    The last two are room for a heap of paths: their lengths and where they end.
    """
    n_reached = n_paths = 0
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
                if other.partner[j] < 0:
                    limit, last = length, j  # no path through it can be shorter
                    continue
                place = n_paths
                n_paths += 1
                while place > 0:
                    above = (place - 1) >> 1
                    if lengths[above] < length or (lengths[above] == length and ends[above] <= j):
                        break
                    lengths[place], ends[place] = lengths[above], ends[above]
                    place = above
                lengths[place], ends[place] = length, j
        is_shorter = False
        length, j = 0.0, np.int64(FREE)
        while n_paths > 0:
            length, j = lengths[0], ends[0]
            n_paths -= 1
            _sift(lengths, ends, n_paths)
            if length == away[j]:
                is_shorter = length < limit
                break
        if not is_shorter:
            break
        i, base = other.partner[j], length
    for t in range(n_reached):
        j = reached[t]
        if away[j] < limit:
            side.price[other.partner[j]] += limit - away[j]
            other.price[j] -= limit - away[j]
        away[j] = np.inf
    side.price[source] += limit
    if last == FREE:
        last = side.partner[lone]
        side.partner[lone] = ALONE
        if lone == source:
            return
    while True:
        i = before[last]
        other.partner[last] = i
        side.partner[i], last = last, side.partner[i]
        if i == source:
            return


@inlined
def _sift(lengths: Vector, ends: Indices, n_paths: int) -> None:
    """Put the path behind the last one in the place of the first, and restore the order of the heap."""
    length, end, place = lengths[n_paths], ends[n_paths], 0
    while 2 * place + 1 < n_paths:
        below = 2 * place + 1
        if below + 1 < n_paths and (
            lengths[below + 1] < lengths[below]
            or (lengths[below + 1] == lengths[below] and ends[below + 1] < ends[below])
        ):
            below += 1
        if length < lengths[below] or (length == lengths[below] and end <= ends[below]):
            break
        lengths[place], ends[place] = lengths[below], ends[below]
        place = below
    lengths[place], ends[place] = length, end


@compiled
def _lower_prices(side: Side, other: Side, rows: Indices, offers: Vector) -> None:
    """Lower the prices of a set to what new pairs bear, and set free what is not at its price any more."""
    for t in range(len(rows)):
        i = rows[t]
        if offers[t] < side.price[i]:
            side.price[i] = offers[t]
            if side.partner[i] >= 0:
                other.partner[side.partner[i]] = FREE
            side.partner[i] = FREE
