"""H0 and H1 of clouds of the plane and space of any size, without the matrix of their distances.

The algorithm and its proof: ``docs/methods/loops.md``.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.homology.diagram import Diagram, sorted_pairs
from toposcope.homology.point_cloud import Cloud, Euclidean
from toposcope.homology.tuning import MAX_VISITS_PER_PAIR, MAX_VISITS_PER_POINT, MIN_TREE_POINTS, VISITS_AT_ONCE
from toposcope.typing import Matrix, Vector

MIN_EXPONENT = -500  # of two; the least length is 2^-511 of the largest coordinate, and has all its digits then


def is_plane(cloud: Cloud) -> bool:
    """Return whether the loops of a cloud are looked for in a tree of boxes first: Euclidean, of the plane or space."""
    return type(cloud) is Euclidean and cloud.shape[1] in (2, 3) and cloud.shape[0] >= MIN_TREE_POINTS


def plane_diagram(cloud: Euclidean, threshold: float, *, matrix_fits: bool) -> tuple[Vector, Diagram] | None:
    """Return the lengths of the minimum spanning tree, and H1; None where too many points would be visited.

    That happens where a hole is large, and with a threshold among coordinates below 1e-150. If the matrix of distances
    fits in memory, its engine is quicker then.
    """
    from toposcope.kernels.annotations import N_LOOPS, no_annotations, with_room
    from toposcope.kernels.box_tree import box_tree, relative_neighbours
    from toposcope.kernels.pairwise import first_occurrences
    from toposcope.kernels.plane_loops import beginning, join_rest, walk_on, with_longer
    from toposcope.kernels.prim import squared_distances

    if threshold < np.inf and cloud.exponent < MIN_EXPONENT:
        return None  # lengths may be rounded in the user's unit, in which the threshold is given
    points = cloud.points
    distinct = first_occurrences(points)
    tree, _ = box_tree(points[distinct])
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
    joined = np.sqrt(np.sort(squared_distances(tree.points, edges[walk.joins].astype(np.int64))))
    births, deaths = state.births[: state.counters[N_LOOPS]], state.deaths[: state.counters[N_LOOPS]]
    is_open = deaths[:, 0] < 0
    pairs = np.column_stack(
        [cloud.unscaled(_lengths(tree.points, ends)) for ends in (births[~is_open], deaths[~is_open])]
    )
    diagram = Diagram(sorted_pairs(pairs[pairs[:, 1] > pairs[:, 0]]), 1, 0, int(is_open.sum()), engine="boxes")
    return cloud.unscaled(np.concatenate([np.zeros(len(points) - n), joined])), diagram


def _lengths(points: Matrix, ends: NDArray[np.int32]) -> Vector:
    from toposcope.kernels.relative_neighbours import EUCLIDEAN, Measured, edge_lengths

    return edge_lengths(Measured(points, EUCLIDEAN, np.empty((0, 0))), ends.astype(np.int64))
