"""H0 and H1 of clouds of the plane and space of any size, without the matrix of their distances.

The algorithm and its proof: ``docs/methods/loops.md``.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.homology.diagram import Diagram, bar_order
from toposcope.homology.point_cloud import Cloud, Euclidean
from toposcope.homology.tuning import MAX_VISITS_PER_PAIR, MAX_VISITS_PER_POINT, MIN_TREE_POINTS, VISITS_AT_ONCE
from toposcope.typing import Indices, Matrix, Vector

MIN_EXPONENT = -500  # of two; the least length is 2^-511 of the largest coordinate, and has all its digits then


def is_plane(cloud: Cloud) -> bool:
    """Return whether the loops of a cloud are looked for in a tree of boxes first: Euclidean, of the plane or space."""
    return type(cloud) is Euclidean and cloud.shape[1] in (2, 3) and cloud.shape[0] >= MIN_TREE_POINTS


class PlaneBars(NamedTuple):
    """The bars of H0 and H1, and the edges they come from, as numbers of points, the smaller end first."""

    lengths: Vector  # shape (n - 1,); of the minimum spanning tree, ascending
    tree_edges: Indices  # shape (n - 1, 2)
    h1: Diagram
    h1_edges: Indices  # shape (b, 4); of each bar, the edge that begins it and the one that ends it


def plane_bars(cloud: Euclidean, threshold: float, *, matrix_fits: bool) -> PlaneBars | None:
    """Return the bars of a cloud; None where too many points would be visited.

    That happens where a hole is large, and with a threshold among coordinates below 1e-150. If the matrix of distances
    fits in memory, its engine is quicker then.
    """
    from toposcope.kernels.annotations import N_LOOPS, no_annotations, with_room
    from toposcope.kernels.box_tree import box_tree, relative_neighbours
    from toposcope.kernels.pairwise import repeats
    from toposcope.kernels.plane_loops import beginning, join_rest, walk_on, with_longer
    from toposcope.kernels.prim import squared_distances

    if threshold < np.inf and cloud.exponent < MIN_EXPONENT:
        return None  # lengths may be rounded in the user's unit, in which the threshold is given
    points = cloud.points
    repeated = repeats(points)
    distinct = np.delete(np.arange(len(points)), repeated[:, 1])
    tree, order_in_tree = box_tree(points[distinct])
    numbers = distinct[order_in_tree]
    n = len(distinct)
    # Repeated points count: the matrix would have rows of them.
    budget = int(len(points) * (MAX_VISITS_PER_PAIR * len(points) if matrix_fits else MAX_VISITS_PER_POINT))
    edges, lengths, budget = relative_neighbours(tree, budget)
    if budget < 0:
        return None
    order = np.lexsort((edges[:, 1], edges[:, 0], lengths))
    edges, lengths = edges[order], lengths[order]
    walk, state, done = beginning(n, len(edges)), no_annotations(), False
    upto = float(np.ldexp(threshold, -cloud.exponent))
    while not done:
        at_once = min(budget, VISITS_AT_ONCE)  # between two calls, Ctrl-C is heard
        done, left = walk_on(tree, edges, lengths, walk, state, upto, at_once)
        budget += left - at_once
        if budget < 0:
            return None
        if not done:
            walk, state = with_longer(walk, state), with_room(state)
    join_rest(edges, walk)
    joins = edges[walk.joins].astype(np.int64)
    squares = squared_distances(tree.points, joins)
    by_length = np.argsort(squares, kind="stable")
    births, deaths = state.births[: state.counters[N_LOOPS]], state.deaths[: state.counters[N_LOOPS]]
    is_open = deaths[:, 0] < 0
    pairs = np.column_stack(
        [cloud.unscaled(_lengths(tree.points, ends)) for ends in (births[~is_open], deaths[~is_open])]
    )
    bars = bar_order(pairs)
    ends = numbers[np.stack([births[~is_open][bars], deaths[~is_open][bars]], axis=1)]
    return PlaneBars(
        cloud.unscaled(np.concatenate([np.zeros(len(repeated)), np.sqrt(squares[by_length])])),
        np.concatenate([repeated, np.sort(numbers[joins[by_length]], axis=1)]),
        Diagram(pairs[bars], 1, 0, int(is_open.sum()), engine="boxes"),
        np.sort(ends, axis=2).reshape(-1, 4),
    )


def _lengths(points: Matrix, ends: NDArray[np.int32]) -> Vector:
    from toposcope.kernels.relative_neighbours import EUCLIDEAN, Measured, edge_lengths

    return edge_lengths(Measured(points, EUCLIDEAN, np.empty((0, 0))), ends.astype(np.int64))
