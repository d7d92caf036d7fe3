"""Distances between two diagrams, matching to the diagonal included, ground metric l-infinity.

Formulas, sources and cost: ``docs/methods/diagrams.md``.

All are exact and ours. Where the bars of both diagrams share one birth, as in H0 of Vietoris-Rips and in neural
persistence, the points lie on a line and a dynamic programme or a greedy matching suffices, for tens of
thousands of points. Other diagrams, H1 for instance, need a general assignment or matching in the plane, which looks
closely at neighbours only.

Other libraries are not used. Hera's auction (``gudhi.hera``) is approximate, to a relative error of 1 percent by
default, and does not return when the tolerance asked of it is near rounding error. ``gudhi.bottleneck_distance``
3.13 returns too much on about one pair of small diagrams in 250 (GUDHI pull request 1367). ``persim.wasserstein`` is
another quantity, with the Euclidean ground metric. SciPy's assignment is exact, from a dense matrix; what it takes is
in `toposcope.kernels.plane_matching`.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import shown
from toposcope.homology.diagram import Diagram, as_diagram
from toposcope.typing import Indices, Matrix, Vector

if TYPE_CHECKING:
    from toposcope.kernels.plane_matching import Listed


TILE = 32  # points of a tile, as many as the matching passes over together


def wasserstein(first: Diagram, second: Diagram, order: Literal[1, 2] = 2) -> float:
    """Return the exact Wasserstein distance of two diagrams of one dimension.

    Parameters
    ----------
    first, second : Diagram
        Either may be empty: the distance is then that of the other to the diagonal.
    order : 1 or 2

    Returns
    -------
    float
        Infinite if the diagrams differ in their number of essential or of truncated classes, which nothing else can be
        matched with. As many are matched in the order of their births, each at the distance of these (as GUDHI does);
        they cost nothing where a diagram knows their number alone.

    Raises
    ------
    ToposcopeError
        If the dimensions differ, or the order is another.

    Notes
    -----
    Nearly equal diagrams lose no digits, but for order 2 where bars are closer to each other than about 1e-8 of their
    lifetimes: squared, such differences are below the rounding of the lifetimes, so another matching may seem as cheap.
    The distance is then too large, by at most 1e-8 of the longest lifetime times the root of k. For k >= l points:

    - On a line (all bars share their lower end, or all their upper): O(kl) time at worst, far less where the diagrams
      are alike; O(k) memory.
    - In general an assignment problem, solved on few of the pairs: the prices found prove that no other pair could make
      it cheaper. O(k^2) time for looking at all pairs, and O(k^3) at worst; about 1 kB a point.
    """
    _check_order(order)
    return _Matching(first, second).wasserstein(order)


def bottleneck(first: Diagram, second: Diagram) -> float:
    """Return the exact bottleneck distance of two diagrams of one dimension; infinite where `wasserstein` is.

    Raises
    ------
    ToposcopeError
        If the dimensions differ.

    Notes
    -----
    The distance is one of the pair or diagonal costs; the least sufficient one is found by bisection, in at most 63
    steps. A cost t suffices if the points of each diagram farther than t from the diagonal can all be matched within t:
    matchings that cover either side can be combined into one that covers both (Mendelsohn & Dulmage 1958). For k and l
    points:

    - On a line (all bars share their lower end, or all their upper) the matchings are greedy: O((k + l) log(k + l))
      time to sort, then O(k + l) a step.
    - In general one bipartite matching a step, by augmenting paths among points within t: at worst O(k l) a path. It
      begins with that of the least sufficient t so far, where most pairs are near enough for a smaller one too.

    Memory is O(k + l).
    """
    return _Matching(first, second).bottleneck()


class DiagramDistances(NamedTuple):
    """The distances of two diagrams."""

    wasserstein_1: float
    wasserstein_2: float
    bottleneck: float


def diagram_distances(first: Diagram, second: Diagram) -> DiagramDistances:
    """Return both Wasserstein distances and the bottleneck distance of two diagrams, in less time than one by one.

    Raises
    ------
    ToposcopeError
        If the dimensions differ.

    Notes
    -----
    What `wasserstein` and `bottleneck` return, up to rounding where several matchings cost the same. In the plane, the
    pairs of points that the first distance looked at are what the second looks at first.

    Examples
    --------
    >>> a, b = Diagram(np.array([[0.0, 1.0], [0.5, 3.0]]), 1), Diagram(np.array([[0.0, 2.5]]), 1)
    >>> diagram_distances(a, b)
    DiagramDistances(wasserstein_1=1.0, wasserstein_2=0.7071067811865476, bottleneck=0.5)
    """
    bars = _Matching(first, second)
    return DiagramDistances(bars.wasserstein(1), bars.wasserstein(2), bars.bottleneck())


def matching(first: Diagram, second: Diagram, order: Literal[1, 2] = 2) -> Indices:
    """Return the partner in the second diagram of every point of the first, in an exact cheapest matching.

    Parameters
    ----------
    first, second : Diagram
        Finite points only.
    order : 1 or 2
        Of the Wasserstein distance whose matching it is.

    Returns
    -------
    ndarray, shape (k,), int64
        Indices into ``second.pairs``; -1 for a point that is matched to the diagonal, as all bars of length zero are.
        Of several matchings that cost the same, always the same one.

    Raises
    ------
    ToposcopeError
        As `wasserstein` does, or if that distance is infinite: then no matching is the cheapest.

    Notes
    -----
    See `wasserstein` for the cost; on a line it takes O(kl) bytes at worst.
    """
    _check_order(order)
    a, b, _, _ = _bars(first, second)
    if _unmatched(first, second):
        raise ToposcopeError(f"diagrams: no matching has a finite cost, {_unmatched(first, second)}")
    partners = np.full(len(first.pairs), -1)
    if len(a) and len(b):
        from toposcope.kernels.noncrossing_matching import cheapest_partners_on_line
        from toposcope.kernels.plane_matching import cheapest_partners

        if line := _on_a_line(a, b):
            x, y, x_alone, y_alone = line
            rows, columns = (np.lexsort((-points[:, 0], points[:, 1])) for points in (a, b))
            matched = cheapest_partners_on_line(x, y, x_alone**order, y_alone**order, order)
        else:
            rows, columns = _tiles(a), _tiles(b)
            a, b = a[rows], b[columns]
            matched = cheapest_partners(a, b, _to_diagonal(a) ** order, _to_diagonal(b) ** order, order).of_first
        # Bars of length zero were left out.
        first_bars, second_bars = (np.flatnonzero(diagram.lifetimes > 0) for diagram in (first, second))
        paired = matched >= 0
        partners[first_bars[rows[paired]]] = second_bars[columns[matched[paired]]]
    return partners


def _least_sufficient(covers: Callable[[float], bool], highest: float) -> float:
    """Return the least cost at which `covers` holds, as it does at the highest.

    It is found by bisection over the bits of a float64, which are ordered as numbers of at least 0 are: at most 63
    steps whatever the scales, and the result is one of the costs, to the bit.
    """
    low, high = 0, int(np.float64(highest).view(np.int64))
    while low < high:
        middle = (low + high) // 2
        if covers(float(np.int64(middle).view(np.float64))):
            high = middle
        else:
            low = middle + 1
    return float(np.int64(high).view(np.float64))


def _on_a_line(a: Matrix, b: Matrix) -> tuple[Vector, Vector, Vector, Vector] | None:
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


def _tiles(points: Matrix) -> Indices:
    """Return the order of points by tiles of near ones: strips of the lower end, and the lifetime in each."""
    ascending = np.argsort(points[:, 0], kind="stable")
    width = TILE * max(1, round(math.sqrt(len(points) / TILE)))
    lifetimes = points[ascending, 1] - points[ascending, 0]
    return np.asarray(ascending[np.lexsort([lifetimes, np.arange(len(points)) // width])])


class _Matching:
    """The bars of two diagrams that are to be matched; the pairs that one distance looked at serve the next."""

    def __init__(self, first: Diagram, second: Diagram) -> None:
        self.a, self.b, self.unending, self.exponent = _bars(first, second)
        self.is_infinite = bool(_unmatched(first, second))
        self.line = _on_a_line(self.a, self.b)
        if self.line is None:
            self.a, self.b = self.a[_tiles(self.a)], self.b[_tiles(self.b)]
        self.listed: Listed | None = None

    def wasserstein(self, order: int) -> float:
        """Return the Wasserstein distance."""
        if self.is_infinite:
            return math.inf
        cost = math.fsum([self._least_cost(order), *(self.unending**order).tolist()])
        return float(np.ldexp(cost ** (1 / order), self.exponent))

    def _least_cost(self, order: int) -> float:
        from toposcope.kernels.compiled import kernel_or_python

        a, b = self.a, self.b
        if not len(a) or not len(b):
            return math.fsum((_to_diagonal(np.concatenate([a, b])) ** order).tolist())
        if self.line is not None:
            from toposcope.kernels.noncrossing_matching import cheapest_matching

            x, y, x_alone, y_alone = self.line
            return kernel_or_python(cheapest_matching, len(x) * len(y))(x, y, x_alone**order, y_alone**order, order)
        from toposcope.kernels.plane_matching import cheapest_partners

        a_alone, b_alone = _to_diagonal(a) ** order, _to_diagonal(b) ** order
        match = kernel_or_python(cheapest_partners, 2 * len(a) * len(b))
        partners = match(a, b, a_alone, b_alone, order, self.listed if order == 2 else None)
        self.listed = partners.listed if order == 1 else self.listed
        paired = partners.of_first >= 0
        costs = np.abs(a[paired] - b[partners.of_first[paired]]).max(axis=1, initial=0) ** order
        return math.fsum(np.concatenate([costs, a_alone[~paired], b_alone[partners.of_second < 0]]).tolist())

    def bottleneck(self) -> float:
        """Return the bottleneck distance."""
        if self.is_infinite:
            return math.inf
        alone = np.concatenate([_to_diagonal(self.a), _to_diagonal(self.b)])  # all alone is a matching
        covers = self._covers_in_plane() if self.line is None else self._covers_on_line
        least = max(_least_sufficient(covers, alone.max(initial=0.0)), self.unending.max(initial=0.0))
        return float(np.ldexp(least, self.exponent))

    def _covers_on_line(self, limit: float) -> bool:
        from toposcope.kernels.bottleneck_matching import covers_on_line
        from toposcope.kernels.compiled import kernel_or_python

        assert self.line is not None
        x, y, x_alone, y_alone = self.line
        covers = kernel_or_python(covers_on_line, len(x) + len(y))
        return covers(x, y, x_alone, limit) and covers(y, x, y_alone, limit)

    def _covers_in_plane(self) -> Callable[[float], bool]:
        """Return the test of a limit, which begins with the matching of the least sufficient one so far."""
        from toposcope.kernels.bottleneck_matching import FREE, covers_in_plane
        from toposcope.kernels.compiled import kernel_or_python

        # Ascending in the lower end, then the upper.
        a, b = (np.ascontiguousarray(points[np.lexsort(points.T[::-1])]) for points in (self.a, self.b))
        sides = (a, b, _to_diagonal(a)), (b, a, _to_diagonal(b))
        partners = [np.full(len(side[0]), FREE) for side in sides]

        def covers(limit: float) -> bool:
            covers_side = kernel_or_python(covers_in_plane, 1 + len(a) * len(b) // 16)
            trial = [partner.copy() for partner in partners]
            if not all(covers_side(*side, limit, partner) for side, partner in zip(sides, trial, strict=True)):
                return False
            partners[:] = trial
            return True

        return covers


def unending_costs(first: Diagram, second: Diagram) -> Vector:
    """Return how far apart the births of matched classes without a death are; none where a diagram does not say."""
    births = [
        (first.essential_births, second.essential_births),
        (first.truncated_births, second.truncated_births),
    ]
    # On a line, the order matches at the least cost, whatever the power.
    known = [np.abs(a - b) for a, b in births if a is not None and b is not None and len(a) == len(b)]
    return np.concatenate([np.empty(0), *known])


def _bars(first: Diagram, second: Diagram) -> tuple[Matrix, Matrix, Vector, int]:
    """Return the bars of positive length as (low, high), `unending_costs`, and the exponent of two that is their unit.

    It keeps squares in range. A bar of length zero lies on the diagonal and costs nothing to match there.
    """
    first, second = as_diagram(first, "first"), as_diagram(second, "second")
    if first.dimension != second.dimension:
        raise ToposcopeError(
            f"diagrams: dimensions {first.dimension} and {second.dimension} differ; compare H0 with H0 and H1 with H1"
        )
    ends = [np.sort(diagram.pairs, axis=1) for diagram in (first, second)]
    a, b = (e[e[:, 1] > e[:, 0]] for e in ends)
    both = np.concatenate([a, b])
    with np.errstate(over="ignore"):
        unending = unending_costs(first, second)
        # differences, not coordinates, are squared
        span = max(float(np.ptp(both)) if len(both) else 0.0, float(unending.max(initial=0)))
    if not math.isfinite(span):
        raise ToposcopeError(
            f"diagrams: births and deaths of {len(both) + len(unending)} bars span more than the range of float64; "
            "divide them by a constant"
        )
    exponent = int(np.frexp(span)[1])
    return np.ldexp(a, -exponent), np.ldexp(b, -exponent), np.ldexp(unending, -exponent), exponent


def _unmatched(first: Diagram, second: Diagram) -> str:
    """Return in which classes without a death the diagrams differ in number; empty if in none."""
    for name in ("n_essential", "n_truncated"):
        counts = getattr(first, name), getattr(second, name)
        if counts[0] != counts[1]:
            return f"their {name} are {counts[0]} and {counts[1]}; compare filtrations without a cap"
    return ""


def _check_order(order: object) -> None:
    if not isinstance(order, int) or isinstance(order, bool) or order not in (1, 2):
        raise ToposcopeError(f"order: expected 1 or 2, got {shown(order)}")


def _to_diagonal(points: Matrix) -> Vector:
    """Distance to the nearest point of the diagonal: half the lifetime."""
    return (points[:, 1] - points[:, 0]) / 2
