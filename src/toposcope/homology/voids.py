"""Voids of a Vietoris-Rips filtration: H2 of all points, exact.

The edges enter in order of length, up to the length at which one point sees all others;
`toposcope.kernels.voids` finds which of them open and close a void. The algorithm: ``docs/methods/loops.md``.
"""

import numpy as np

from toposcope.homology.diagram import Diagram, sorted_pairs
from toposcope.homology.loops import cap_of, without_death
from toposcope.typing import Matrix

EDGES_AT_ONCE = 4096  # of those that open and close voids; a few seconds where they take longest


def void_diagram(distances: Matrix, threshold: float = np.inf) -> Diagram:
    """Return H2 of a matrix of distances, bars of positive length only."""
    from toposcope.kernels.annotations import no_annotations, with_room
    from toposcope.kernels.lunes import empty_graph
    from toposcope.kernels.void_cocycles import N_VOIDS, no_voids, with_rows
    from toposcope.kernels.void_lunes import no_lune
    from toposcope.kernels.voids import enter_with_voids

    n = len(distances)
    cap = cap_of(distances, distances.max(axis=1, initial=0), threshold)
    with np.errstate(over="ignore"):
        order = np.argsort(distances.sum(axis=1), kind="stable")  # the most central points have the first labels
    sides = np.ascontiguousarray(distances[np.ix_(order, order)])
    enters = np.triu(sides <= cap, 1)
    ends = np.argwhere(enters)[np.argsort(sides[enters], kind="stable")].astype(np.int32)
    graph, loops, voids, lune, place = empty_graph(n), no_annotations(), no_voids(n), no_lune(n), 0
    while place < len(ends):
        upto = ends[: place + EDGES_AT_ONCE]  # between two calls, Ctrl-C is heard
        while (place := enter_with_voids(upto, place, graph, loops, voids, lune)) < len(upto):
            loops, voids = with_room(loops), with_rows(voids)
    count = voids.counters[N_VOIDS]
    births, deaths = voids.births[:count], voids.deaths[:count]
    is_closed = deaths[:, 0] >= 0
    pairs = np.column_stack([sides[tuple(births[is_closed].T)], sides[tuple(deaths[is_closed].T)]])
    bars = sorted_pairs(pairs[pairs[:, 1] > pairs[:, 0]])
    unending = sides[tuple(births[~is_closed].T)]
    return Diagram(bars, 2, engine="lunes", **without_death(unending, distances, threshold))
