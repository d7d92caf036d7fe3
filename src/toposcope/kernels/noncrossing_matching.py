"""Best matching of two sequences of points on a line, each of which may also stay alone at a cost of its own.

Of pairs x <= x' with y' >= y that cross, the partners can be swapped: the sum of |x - y|^order does not grow, because
the power is convex. Some best matching therefore crosses nowhere: it is a path through the grid of prefixes, as in the
alignment of two words. Two points that are cheaper alone stay alone: the path takes two steps instead of one.

Source: the alignment recurrence is that of Needleman & Wunsch 1970, its band that of Ukkonen 1985, the exact error of a
sum that of Knuth (The Art of Computer Programming 2, 4.2.2).
"""

import numpy as np

from toposcope.kernels.compiled import compiled, inlined
from toposcope.typing import Indices, Vector

PAIR, LEFT, RIGHT = 0, 1, 2
"""What a path does at a cell: match both points, or leave that of the first or second sequence alone."""
UNREACHED = 1e300  # cost of a prefix that no path reaches; finite, so that it can be added to and compared


@compiled
def cheapest_matching(x: Vector, y: Vector, x_alone: Vector, y_alone: Vector, order: int) -> float:
    """Return the least total cost, a matched pair costing |x - y|^order."""
    k, n = len(x), len(y)
    low, high = _band(x, y, x_alone, y_alone, order)
    # Offset c lies at (c - low) // 2 + 1 of the row of its parity; the cells at both ends are never reached.
    width = (high - low) // 2 + 3
    sums, rests = np.empty((2, width)), np.zeros((2, width))
    sums[:] = UNREACHED
    sums[-low % 2, -low // 2 + 1] = 0.0
    # Index 0 is the empty prefix, whose predecessors are not reached.
    left, left_alone = np.zeros(k + 1), np.zeros(k + 1)
    for i in range(k):
        left[i + 1], left_alone[i + 1] = x[i], x_alone[i]
    # Turned round, so that an anti-diagonal reads both sequences forwards.
    right, right_alone = np.zeros(n + 1), np.zeros(n + 1)
    for j in range(n):
        right[j], right_alone[j] = y[n - 1 - j], y_alone[n - 1 - j]
    for diagonal in range(1, k + n + 1):
        first = max(0, diagonal - n, (diagonal + low + 1) // 2)
        count = min(k, diagonal, (diagonal + high) // 2) - first + 1
        if count < 1:
            continue
        row = (diagonal + low) % 2
        here = (2 * first - diagonal - low) // 2 + 1
        # Offset c - 1 has the same index in the other row, or the one before.
        below = here - 1 + row
        turned = n - diagonal + first
        _fill(
            sums[row, here : here + count],
            rests[row, here : here + count],
            sums[1 - row, below : below + count],
            rests[1 - row, below : below + count],
            sums[1 - row, below + 1 : below + 1 + count],
            rests[1 - row, below + 1 : below + 1 + count],
            left[first : first + count],
            right[turned : turned + count],
            left_alone[first : first + count],
            right_alone[turned : turned + count],
            order,
        )
    end = k - n - low
    return float(sums[end % 2, end // 2 + 1] + rests[end % 2, end // 2 + 1])


@compiled
def cheapest_partners_on_line(x: Vector, y: Vector, x_alone: Vector, y_alone: Vector, order: int) -> Indices:
    """Return the place in `y` of the partner of each of `x` in such a matching; -1 for those that stay alone.

    O(kl) time at worst and as many bytes, for the choice at every cell of the band.
    """
    k, n = len(x), len(y)
    low, high = _band(x, y, x_alone, y_alone, order)
    choices = np.zeros((k + 1, high - low + 1), np.int8)
    sums, rests = np.empty((2, n + 1)), np.zeros((2, n + 1))
    sums[:] = UNREACHED
    for i in range(k + 1):
        here, above, first = i % 2, 1 - i % 2, max(0, i - high)
        if first > 0:
            sums[here, first - 1] = UNREACHED  # of two rows ago
        for j in range(first, min(n, i - low) + 1):
            best, rest, choice = (0.0 if i + j == 0 else 2 * UNREACHED), 0.0, PAIR
            if i > 0:
                best, rest = _added(sums[above, j], rests[above, j], x_alone[i - 1])
                choice = LEFT
            if j > 0:
                total, lost = _added(sums[here, j - 1], rests[here, j - 1], y_alone[j - 1])
                if i == 0 or (total - best) + (lost - rest) <= 0:
                    best, rest, choice = total, lost, RIGHT
            if i > 0 and j > 0:
                gap = abs(x[i - 1] - y[j - 1])
                total, lost = _added(sums[above, j - 1], rests[above, j - 1], gap * gap if order == 2 else gap)
                if (total - best) + (lost - rest) < 0:
                    best, rest, choice = total, lost, PAIR
            sums[here, j], rests[here, j], choices[i, j - i + high] = best, rest, choice
    partners = np.empty(k, np.int64)
    i, j = k, n
    while i > 0:
        choice = choices[i, j - i + high]
        if choice != LEFT:
            j -= 1
        if choice != RIGHT:
            i -= 1
            partners[i] = j if choice == PAIR else -1
    return partners


@inlined
def _added(before: float, rest: float, cost: float) -> tuple[float, float]:
    """Return a sum and the rest that rounding took from it, as of `_fill`."""
    total = before + cost
    added = total - before
    return total, rest + ((before - (total - added)) + (cost - added))


@compiled
def _fill(
    here: Vector,
    here_rest: Vector,
    below: Vector,
    below_rest: Vector,
    above: Vector,
    above_rest: Vector,
    x: Vector,
    y: Vector,
    x_alone: Vector,
    y_alone: Vector,
    order: int,
) -> None:
    """Replace D(i-1, j-1) along a row by D(i, j), given the rows of D(i-1, j) and D(i, j-1).

    A cost is a sum and the rest that rounding took from it. Each of the three candidates below is Knuth's exact sum,
    written out: the compiler turns this loop, and no call, into vector instructions.
    """
    for m in range(len(here)):
        gap = abs(x[m] - y[m])
        cost = gap * gap if order == 2 else gap
        before = here[m]
        pair = before + cost
        added = pair - before
        pair_rest = here_rest[m] + ((before - (pair - added)) + (cost - added))

        cost = x_alone[m]
        before = below[m]
        left = before + cost
        added = left - before
        left_rest = below_rest[m] + ((before - (left - added)) + (cost - added))

        cost = y_alone[m]
        before = above[m]
        right = before + cost
        added = right - before
        right_rest = above_rest[m] + ((before - (right - added)) + (cost - added))

        is_left = (left - right) + (left_rest - right_rest) < 0
        alone = left if is_left else right
        alone_rest = left_rest if is_left else right_rest
        is_pair = (pair - alone) + (pair_rest - alone_rest) < 0
        here[m] = pair if is_pair else alone
        here_rest[m] = pair_rest if is_pair else alone_rest


@inlined
def _band(x: Vector, y: Vector, x_alone: Vector, y_alone: Vector, order: int) -> tuple[int, int]:
    """Return the least and the greatest offset i - j of the prefixes that a cheapest matching can pass.

    From an offset c above 0, at least c of the x stay alone, and on the way to the last offset, k - l, at least
    c - (k - l) of the y: the least that so many can cost is compared with the cost of one matching. O(k + l) time.
    """
    k, n = len(x), len(y)
    # That matching: the largest with the largest and so on down, unless both are cheaper alone.
    paired = min(k, n)
    enough = 0.0
    for i in range(k - paired):
        enough += x_alone[i]
    for j in range(n - paired):
        enough += y_alone[j]
    for m in range(1, paired + 1):
        gap = abs(x[k - m] - y[n - m])
        enough += min(gap * gap if order == 2 else gap, x_alone[k - m] + y_alone[n - m])
    # Rounding, far less than this, must not shut the cheapest matching out.
    enough *= 1 + 1e-6
    return -_reach(y_alone, x_alone, enough), _reach(x_alone, y_alone, enough)


@compiled
def _reach(ahead: Vector, behind: Vector, enough: float) -> int:
    """Return how many points can stay alone before any of the other sequence does, at no more than this cost."""
    excess = len(ahead) - len(behind)
    reach = max(0, excess)
    spent = 0.0
    for i in range(reach):
        spent += ahead[i]
    for j in range(reach - excess):
        spent += behind[j]
    while reach < len(ahead):
        spent += ahead[reach] + behind[reach - excess]
        if spent > enough:
            break
        reach += 1
    return reach
