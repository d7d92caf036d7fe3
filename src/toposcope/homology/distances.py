"""Distances between two diagrams, matching to the diagonal included, ground metric l-infinity (METHODS 4).

All are exact and ours. Where the bars of both diagrams share one birth, as in H0 of Vietoris-Rips and in neural
persistence, the points lie on a line and a dynamic programme or a greedy matching suffices, for tens of
thousands of points. Other diagrams, H1 for instance, need a general assignment or matching, for a few thousand points.

Other libraries are not used. Hera's auction (``gudhi.hera``) is approximate, to a relative error of 1 percent unless
told otherwise, and does not return when the tolerance asked of it is near rounding error. ``gudhi.bottleneck_distance``
3.13 returns too much on about one pair of small diagrams in 250 (GUDHI pull request 1367). ``persim.wasserstein`` is
another quantity, with the Euclidean ground metric.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.diagram import Diagram, as_diagram
from toposcope.homology.memory import check_fits

Points = NDArray[np.float64]
Vector = NDArray[np.float64]

FEWER_POINTS = "compare diagrams of fewer points, for instance from fewer landmarks (max_points)"


def wasserstein(first: Diagram, second: Diagram, order: Literal[1, 2] = 2) -> float:
    """Return the exact Wasserstein distance of two diagrams of one dimension.

    Parameters
    ----------
    first, second : Diagram
        Finite points only; essential and truncated classes are not matched. Either may be empty: the distance is then
        that of the other to the diagonal.
    order : 1 or 2

    Raises
    ------
    ToposcopeError
        If the dimensions differ, the order is another, or the matrix of costs would not fit in memory.

    Notes
    -----
    No cost is subtracted from another, so nearly equal diagrams lose no digits. For k >= l points:

    - On a line (all bars share their lower end, or all their upper): O(kl) time at worst, far less where the diagrams
      are alike; O(k) memory.
    - In general an assignment problem: a pair costs its distance, or that of both to the diagonal if that is less;
      k - l points of the larger diagram go to the diagonal alone. O(k^3) time at worst, 8 k^2 bytes.
    """
    if not isinstance(order, int) or isinstance(order, bool) or order not in (1, 2):
        raise ToposcopeError(f"order: expected 1 or 2, got {order!r}")
    a, b, exponent = _prepared(first, second)
    if not len(a) or not len(b):
        total = math.fsum((_to_diagonal(np.concatenate([a, b])) ** order).tolist())
    elif (line := _on_a_line(a, b)) is not None:
        from toposcope.kernels.noncrossing_matching import cheapest_matching

        x, y, x_alone, y_alone = line
        total = cheapest_matching(x, y, x_alone**order, y_alone**order, order)
    else:
        total = _cheapest_assignment(a, b, order)
    return float(np.ldexp(total ** (1 / order), exponent))


def bottleneck(first: Diagram, second: Diagram) -> float:
    """Return the exact bottleneck distance of two diagrams of one dimension, finite points only.

    Raises
    ------
    ToposcopeError
        If the dimensions differ, or the matrix of costs would not fit in memory.

    Notes
    -----
    The distance is one of the pair or diagonal costs; the least sufficient one is found by bisection. A cost t suffices
    if the points of each diagram farther than t from the diagonal can all be matched within t: matchings that cover
    either side can be combined into one that covers both (Mendelsohn & Dulmage 1958). For k and l points:

    - On a line (all bars share their lower end, or all their upper) the matchings are greedy: O((k + l) log(k + l))
      time to sort, then at most 63 steps of O(k + l); O(k + l) memory.
    - In general one bipartite matching for each of O(log kl) steps; about 48 kl bytes.
    """
    a, b, exponent = _prepared(first, second)
    if (line := _on_a_line(a, b)) is not None:
        from toposcope.kernels.noncrossing_matching import least_dearest

        least = least_dearest(*line)
    else:
        least = _least_sufficient(a, b)
    return float(np.ldexp(least, exponent))


def _on_a_line(a: Points, b: Points) -> tuple[Vector, Vector, Vector, Vector] | None:
    """Return both diagrams as ascending positions and distances to the diagonal, if all bars share an end.

    The positions are the other ends, not the lifetimes, whose differences would be rounded twice. None if no end is
    shared.
    """
    lower, upper = np.concatenate([a, b]).T
    if (lower == lower[:1]).all():
        x, y = a[:, 1], b[:, 1]
    elif (upper == upper[:1]).all():
        x, y = -a[:, 0], -b[:, 0]
    else:
        return None
    return np.sort(x), np.sort(y), np.sort(_to_diagonal(a)), np.sort(_to_diagonal(b))


def _cheapest_assignment(a: Points, b: Points, order: int) -> float:
    """Return the least sum of costs to the power of the order, wherever the points lie."""
    from scipy.optimize import linear_sum_assignment

    if len(a) < len(b):
        a, b = b, a
    k, n = len(a), len(b)
    check_fits(8 * k**2, f"wasserstein of {k} and {n} points that share no birth", FEWER_POINTS)
    a_alone, b_alone = _to_diagonal(a) ** order, _to_diagonal(b) ** order
    costs = np.empty((k, k))
    costs[:, n:] = a_alone[:, None]
    # A few rows at a time, so that no second matrix of this size is made.
    step = 2**18 // k + 1
    for start in range(0, k, step):
        rows = slice(start, start + step)
        pairs = _between(a[rows], b) ** order
        np.minimum(pairs, a_alone[rows, None] + b_alone, out=costs[rows, :n])
    return float(costs[linear_sum_assignment(costs)].sum())


def _least_sufficient(a: Points, b: Points) -> float:
    """Return the bottleneck distance, wherever the points lie."""
    # Two matrices, and the indices of a graph that may have all of the edges.
    check_fits(48 * len(a) * len(b), f"bottleneck of {len(a)} and {len(b)} points that share no birth", FEWER_POINTS)
    between, a_alone, b_alone = _between(a, b), _to_diagonal(a), _to_diagonal(b)
    alone = np.concatenate([[0.0], a_alone, b_alone])
    # All alone suffices, so no pair that costs more need be looked at.
    candidates = np.concatenate([alone, between[between < alone.max()]])
    candidates.sort()
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        limit = candidates[middle]
        close = between <= limit
        if _covers(close[a_alone > limit]) and _covers(close[:, b_alone > limit].T):
            high = middle
        else:
            low = middle + 1
    return float(candidates[high])


def _covers(edges: NDArray[np.bool_]) -> bool:
    """Tell whether some matching covers every row."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    if not edges.any(axis=1).all():
        return False
    return edges.size == 0 or bool((maximum_bipartite_matching(csr_array(edges), perm_type="column") >= 0).all())


def _prepared(first: Diagram, second: Diagram) -> tuple[Points, Points, int]:
    """Return the bars of positive length as (low, high), in units of a power of two, and its exponent.

    The unit keeps squares in range. A bar of length zero lies on the diagonal and costs nothing to match there.
    """
    first, second = as_diagram(first, "first"), as_diagram(second, "second")
    if first.dimension != second.dimension:
        raise ToposcopeError(
            f"diagrams: dimensions {first.dimension} and {second.dimension} differ; compare H0 with H0 and H1 with H1"
        )
    ends = [np.sort(diagram.pairs, axis=1) for diagram in (first, second)]
    a, b = (e[e[:, 1] > e[:, 0]] for e in ends)
    # Differences, not coordinates, are squared.
    reach = np.concatenate([a, b])
    with np.errstate(over="ignore"):
        span = float(np.ptp(reach)) if len(reach) else 0.0
    if not math.isfinite(span):
        raise ToposcopeError(
            f"diagrams: births and deaths of {len(reach)} bars span more than the range of float64; divide them by a "
            "constant"
        )
    exponent = int(np.frexp(span)[1])
    return np.ldexp(a, -exponent), np.ldexp(b, -exponent), exponent


def _between(a: Points, b: Points) -> Points:
    """Distance of every pair, shape (k, l)."""
    lower, upper = (a[:, None, end] - b[None, :, end] for end in (0, 1))
    np.abs(lower, out=lower)
    np.abs(upper, out=upper)
    return np.maximum(lower, upper, out=lower)


def _to_diagonal(points: Points) -> Vector:
    """Distance to the nearest point of the diagonal: half the lifetime."""
    return (points[:, 1] - points[:, 0]) / 2
