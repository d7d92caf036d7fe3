"""Loops that are born and closed at one length: what ties among distances take from the relative neighbourhood graph.

Of the edges of one length t, relative to all shorter ones, those that a point refutes bound a triangle and vanish. The
others, in any order, are related by triangles whose longest edges are among them; a relation is needed for every
connected component of the points that come with or before an edge at both its ends, since those of one component
differ by tetrahedra. Edges of length t, less the rank of their relations, less the components they join, is the number
of loops born at t that live longer than that.

Cost: O(nd) for each edge that has ties, and O(s^2 d) for s points in its lune.
Source: the exact sequence of the pair, see ``docs/methods/loops.md``.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.bit_sets import empty_tree_inside, largest, toggle
from toposcope.kernels.compiled import compiled
from toposcope.kernels.euclidean_prim import squared_distance
from toposcope.kernels.loop_reduction import Sums, stored
from toposcope.kernels.relative_neighbours import TIE_TOLERANCE, Measured, edge_length
from toposcope.kernels.union_find import Parents, find, join
from toposcope.typing import Indices, Matrix

LATER, VANISHES = -2, -1
"""In place of the number of an edge: it comes later than the edge in question; it is shorter, or refuted."""


class Graph(NamedTuple):
    """Edges that no point refutes, by ascending length.

    Attributes
    ----------
    cloud : Measured
    edges : ndarray, shape (m, 3), int64
        As of `empty_lunes`.
    lengths : ndarray, shape (m,), float64
    codes, places : ndarray, shape (m,), int64
        ``a * n + b`` of the ends a < b, ascending, and the number of the edge that has it.
    """

    cloud: Measured
    edges: Indices
    lengths: Matrix
    codes: Indices
    places: Indices


@compiled
def joins_and_births(graph: Graph) -> tuple[NDArray[np.bool_], Indices]:
    """Return which edges join components, and how many loops of positive length are born at each length.

    Returns
    -------
    joins : ndarray, shape (m,), bool
    births : ndarray, shape (m,), int64
        At the first edge of each length; 0 elsewhere.
    """
    edges, lengths = graph.edges, graph.lengths
    parent = np.arange(len(graph.cloud.points))
    joins, births = np.zeros(len(edges), np.bool_), np.zeros(len(edges), np.int64)
    begin = 0
    while begin < len(edges):
        end, is_tied = begin, False
        while end < len(edges) and lengths[end] == lengths[begin]:
            joins[end] = join(parent, edges[end, 0], edges[end, 1])
            births[begin] += not joins[end]
            is_tied |= edges[end, 2] == 1
            end += 1
        if is_tied:
            births[begin] -= _rank(_relations(graph, begin, end), end - begin)
        begin = end
    return joins, births


@compiled
def _relations(graph: Graph, begin: int, end: int) -> Indices:
    """Return the relations among the edges of one length: in each row up to five of them, numbered from 0."""
    n = len(graph.cloud.points)
    lune, sides = np.empty(n, np.int64), np.empty((n, 2), np.int64)
    relations, count = np.empty((1024, 5), np.int64), 0
    for e in range(begin, end):
        if graph.edges[e, 2] == 0:
            continue
        u, v = graph.edges[e, 0], graph.edges[e, 1]
        size = 0
        for w in range(n):
            if w in (u, v) or _is_far(graph, e, w):
                continue
            sides[size, 0], sides[size, 1] = _before(graph, u, w, begin, e), _before(graph, v, w, begin, e)
            if sides[size, 0] != LATER and sides[size, 1] != LATER:
                lune[size] = w
                size += 1
        parent = _components(graph, lune[:size], begin, e)
        for k in range(size):
            if find(parent, k) != k:
                continue
            if count == len(relations):
                relations = np.concatenate((relations, np.empty_like(relations)))
            # A triangle of the first component bounds the edge itself; those of the others are added to it.
            relations[count] = VANISHES
            relations[count, :2] = sides[k]
            if k == size - 1:
                relations[count, 4] = e - begin
            else:
                relations[count, 2:4] = sides[size - 1]
            count += 1
    return relations[:count]


@compiled
def _is_far(graph: Graph, e: int, w: int) -> bool:
    """Return whether a point is certainly farther from an end of an edge than the edge is long."""
    u, v = graph.edges[e, 0], graph.edges[e, 1]
    above = squared_distance(graph.cloud.points[u], graph.cloud.points[v]) * (1 + TIE_TOLERANCE)
    return (
        squared_distance(graph.cloud.points[u], graph.cloud.points[w]) > above
        or squared_distance(graph.cloud.points[v], graph.cloud.points[w]) > above
    )


@compiled
def _before(graph: Graph, a: int, b: int, begin: int, e: int) -> int:
    """Return the number, from 0 at `begin`, of an edge that comes before another of the same length, or what it is."""
    length = edge_length(graph.cloud, a, b)
    if length != graph.lengths[e]:
        return VANISHES if length < graph.lengths[e] else LATER
    code = min(a, b) * len(graph.cloud.points) + max(a, b)
    k = np.searchsorted(graph.codes, code)
    if k == len(graph.codes) or graph.codes[k] != code:
        return VANISHES
    return int(graph.places[k] - begin) if graph.places[k] < e else LATER


@compiled
def _components(graph: Graph, lune: Indices, begin: int, e: int) -> Parents:
    """Return a union-find of the points of a lune, by the edges among them that come before."""
    parent = np.arange(len(lune))
    n_components = len(lune)
    for i in range(len(lune) - 1, 0, -1):
        for j in range(i):
            if n_components == 1:
                return parent
            if find(parent, i) != find(parent, j) and _before(graph, lune[i], lune[j], begin, e) != LATER:
                n_components -= join(parent, i, j)
    return parent


@compiled
def _rank(relations: Indices, n_edges: int) -> int:
    """Return the rank of a matrix over two elements, a row a line of at most five places."""
    column = empty_tree_inside(n_edges)
    # The reduced column whose largest member is each edge.
    reduced = Sums(np.zeros(n_edges, np.int64), np.zeros(n_edges, np.int64), np.empty(1024, np.int32), 0)
    rank = 0
    for r in range(len(relations)):
        for k in relations[r]:
            if k != VANISHES:
                toggle(column, k)
        top = largest(column)
        while top >= 0 and reduced.stops[top]:
            for k in range(reduced.starts[top], reduced.stops[top]):
                toggle(column, reduced.members[k])
            top = largest(column)
        if top >= 0:
            rank += 1
            reduced = stored(reduced, top, column)
    return rank
