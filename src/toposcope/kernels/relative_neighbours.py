"""The relative neighbourhood graph of a point cloud of any size: the edges that no point refutes.

A point *refutes* an edge if it is closer to both of its ends than they are to each other. Points are sorted by their
distance from the centroid, and an edge is tested in the row of its outer end v, which has few close neighbours:

1. one matrix product gives lower bounds of the squared distances from v to all points;
2. some points with known distances to all others, the *pivots*, refute most edges by these bounds;
3. the nearest neighbours of v refute most of the remaining edges;
4. every point that may be closer to v than the other end is tested on the edges that are left.

The last two steps compute distances from coordinate differences, and undecided cases are rounded as `edge_length` does,
so that the result equals that of the full distance matrix to the last bit. Loops born and closed at one length are
counted from the ties: see ``docs/methods/loops.md``.

Cost: one product of all pairs of points, O(n) comparisons with every pivot for each point, and O(d) for each of the few
points that are tested; O(nd) for each edge that has ties, and O(s^2 d) for s points in its lune; O(nd) memory.
Source: Toussaint 1980; the bounds are those of `toposcope.kernels.boruvka`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.boruvka import insert_ascending
from toposcope.kernels.compiled import compiled
from toposcope.kernels.pairwise import pair_distance
from toposcope.kernels.prim import squared_distance
from toposcope.kernels.sets import BitTree, Parents, empty_tree_inside, find, join, largest, toggle
from toposcope.kernels.whole_cosines import whole_length
from toposcope.typing import Indices, Matrix

Bounds = NDArray[np.float32]

EUCLIDEAN, COSINE, WHOLE = 0, 1, 2
"""What edges are as long as: the distance of two points, half its square, or the cosine distance of whole numbers."""

N_NEAREST = 8  # points near the outer end that are tried before all others

TILE = 4096  # bounds that are compared with every pivot while they are in the cache

TIE_TOLERANCE = 1e-9
"""Squared distances this close to each other, relatively, are compared as `edge_length` rounds them."""
LATER, VANISHES = -2, -1
"""In place of the number of an edge: it comes later than the edge in question; it is shorter, or refuted."""


class Measured(NamedTuple):
    """Points, and how edges between them are measured."""

    points: Matrix  # shape (n, d)
    kind: int
    # shape (n, d); rows of whole numbers of these directions, as of `whole_length`; without rows for the other kinds
    whole: Matrix


@compiled
def edge_length(cloud: Measured, a: int, b: int) -> float:
    """Return the length of an edge as it enters the filtration."""
    if cloud.kind == WHOLE:
        return whole_length(cloud.whole[a], cloud.whole[b])
    length = pair_distance(cloud.points, a, b)
    return length**2 / 2 if cloud.kind == COSINE else length


@compiled
def edge_lengths(cloud: Measured, edges: Indices) -> Matrix:
    """Return the lengths of edges, by their first two numbers; shape (m,)."""
    lengths = np.empty(len(edges))
    for e in range(len(edges)):
        lengths[e] = edge_length(cloud, edges[e, 0], edges[e, 1])
    return lengths


@compiled
def empty_lunes(cloud: Measured, lower: Bounds, begin: int, pivots: Bounds, trials_left: int) -> tuple[Indices, int]:
    """Return the edges that nothing refutes, of some points with all that come before them."""
    points = cloud.points
    n = points.shape[0]
    refutable, candidates, squares = np.empty(n, np.float32), np.empty(n, np.int64), np.empty(n)
    edges, n_edges = np.empty((1024, 3), np.int64), 0
    for r in range(len(lower)):
        v, row = begin + r, lower[r]
        row -= np.abs(row) * np.float32(2**-22)
        row[v] = np.inf
        _least_refutable(pivots, v, refutable)
        count = 0
        for u in range(v):
            candidates[count] = u
            count += row[u] <= refutable[u]
        near = _nearest(row)
        left, longest = 0, 0.0
        for u in candidates[:count]:
            square = squared_distance(points[v], points[u])
            if not _refuted_by_some(points, near, u, v, square):
                candidates[left], squares[left] = u, square
                left += 1
                longest = max(longest, square)
        if not left:
            continue
        others = np.flatnonzero(row <= longest * (1 + TIE_TOLERANCE))
        others = others[np.argsort(row[others])]
        for k in range(left):
            refuted, tied, tried = _refuted(cloud, row, others, candidates[k], v, squares[k])
            trials_left -= tried
            if trials_left < 0:
                return edges[:n_edges].copy(), trials_left
            if not refuted:
                if n_edges == len(edges):
                    edges = np.concatenate((edges, np.empty_like(edges)))
                edges[n_edges, 0], edges[n_edges, 1], edges[n_edges, 2] = candidates[k], v, tied
                n_edges += 1
    return edges[:n_edges].copy(), trials_left


@compiled
def _least_refutable(pivots: Bounds, v: int, least: Bounds) -> None:
    """Fill in, for every point before v, the square above which its edge to v is refuted by a pivot."""
    for begin in range(0, v, TILE):
        part = least[begin : min(begin + TILE, v)]
        part[:] = np.inf
        for p in range(len(pivots)):
            from_v, from_others = pivots[p, v], pivots[p, begin : begin + len(part)]
            for u in range(len(part)):
                part[u] = min(part[u], max(from_v, from_others[u]))


@compiled
def _nearest(row: Bounds) -> Indices:
    """Return the points of least bound, ascending."""
    places, bounds = np.full(N_NEAREST, -1), np.full(N_NEAREST, np.float32(np.inf))
    for w in range(len(row)):
        if row[w] < bounds[N_NEAREST - 1]:
            insert_ascending(bounds, places, row[w], w)
    return places[places >= 0]


@compiled
def _refuted_by_some(points: Matrix, some: Indices, u: int, v: int, square: float) -> bool:
    """Return whether one of some points certainly refutes an edge; they are tried up to u itself."""
    below = square * (1 - TIE_TOLERANCE)
    for w in some:
        if w == u:
            return False
        if squared_distance(points[w], points[u]) < below and squared_distance(points[w], points[v]) < below:
            return True
    return False


@compiled
def _refuted(cloud: Measured, row: Bounds, others: Indices, u: int, v: int, square: float) -> tuple[bool, bool, int]:
    """Return whether a point refutes an edge, whether one comes as near without being nearer, and how many were tried.

    `others` are by ascending bound of their distance from v.
    """
    above, below = square * (1 + TIE_TOLERANCE), square * (1 - TIE_TOLERANCE)
    points, length = cloud.points, edge_length(cloud, u, v)
    tied, tried = False, 0
    for w in others:
        if row[w] > above:
            break
        tried += 1
        if w == u:
            continue
        to_u = squared_distance(points[w], points[u])
        if to_u > above:
            continue
        to_v = squared_distance(points[w], points[v])
        if to_u < below and to_v < below:
            return True, False, tried
        if to_v <= above:
            from_u, from_v = edge_length(cloud, u, w), edge_length(cloud, v, w)
            if from_u < length and from_v < length:
                return True, False, tried
            tied |= from_u <= length and from_v <= length
    return False, tied, tried


class Sums(NamedTuple):
    """A set of edges for each edge."""

    starts: Indices  # shape (b,); where in `members` that of each edge lies
    stops: Indices  # shape (b,); where in `members` that of each edge lies
    members: NDArray[np.int32]  # the first `size` are in use; those of one set from the latest to the earliest
    size: int


class Graph(NamedTuple):
    """Edges that no point refutes, by ascending length."""

    cloud: Measured
    edges: Indices  # shape (m, 3); as of `empty_lunes`
    lengths: Matrix  # shape (m,)
    codes: Indices  # shape (m,); ``a * n + b`` of the ends a < b, ascending, and the number of the edge that has it
    places: Indices  # shape (m,); ``a * n + b`` of the ends a < b, ascending, and the number of the edge that has it


@compiled
def joins_and_births(graph: Graph) -> tuple[NDArray[np.bool_], Indices]:
    """Return which edges join components, and how many loops of positive length are born at each length."""
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
    """Return the rank of a matrix over two elements, each row of at most five places."""
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
            reduced = _stored(reduced, top, column)
    return rank


@compiled
def _stored(sums: Sums, edge: int, members: BitTree) -> Sums:
    """Return the sums with that of one edge: the members of a set, which is emptied."""
    starts, stops, listed, size = sums
    starts[edge] = size
    member = largest(members)
    while member >= 0:
        if size == len(listed):
            listed = np.concatenate((listed, np.empty_like(listed)))
        listed[size] = member
        size += 1
        toggle(members, member)
        member = largest(members)
    stops[edge] = size
    return Sums(starts, stops, listed, size)
