"""The relative neighbourhood graph of a point cloud of any size: the edges that no point refutes.

A point *refutes* an edge if it is closer to both of its ends than they are to each other. Points are sorted by their
distance from the centroid, and an edge belongs to the row of its outer end v, which has few close neighbours:

1. one matrix product gives lower bounds of the squared distances from v to the points before it;
2. of some points with upper bounds of their distances to all others, the *pivots*, those near v refute most edges;
3. the other ends of the edges of v that are kept so far, shortest first, refute most of the remaining ones;
4. every point before v that may be closer to v than the other end is tested on the edges that are left;
5. so is every point after v, in its own row, on the few edges that are left of earlier rows.

The last three steps compute distances from coordinate differences, and undecided cases are rounded as `edge_length`
does, so that the result equals that of the full distance matrix to the last bit. Loops born and closed at one length
are counted from the ties: see ``docs/methods/loops.md``.

Cost: half a product of all pairs of points, O(n) comparisons with a few pivots for each point, and O(d) for each of the
few points that are tested; O(nd) for each edge that has ties, and O(s^2 d) for s points in its lune; O(nd) memory.
Source: Toussaint 1980; the bounds are those of `toposcope.kernels.boruvka` and `toposcope.kernels.integer_products`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.kernels.integer_cosines import integer_distance
from toposcope.kernels.pairwise import pair_distance
from toposcope.kernels.prim import squared_distance
from toposcope.kernels.sets import BitTree, Parents, empty_tree_inside, find, join, largest, toggle
from toposcope.typing import Indices, Matrix, Vector

Bounds = NDArray[np.float32]

EUCLIDEAN, COSINE, INTEGER = 0, 1, 2
"""What edges are as long as: the distance of two points, half its square, or the cosine distance of integers."""

N_FIRST = 8  # pivots whose bounds of all points are compared; the others' only where these refute nothing
TILE, RUN = 2048, 64  # bounds that are compared with every pivot while they are in the cache; and at once

TIE_TOLERANCE = 1e-9
"""Squared distances this close to each other, relatively, are compared as `edge_length` rounds them."""
REACH = 2**-22  # what covers the rounding of a bound to float32, relatively
LATER, VANISHES = -2, -1
"""In place of the number of an edge: it comes later than the edge in question; it is shorter, or refuted."""


class Measured(NamedTuple):
    """Points, and how edges between them are measured."""

    points: Matrix  # shape (n, d)
    order: Indices  # shape (m,); which of them, in the order in which they are numbered from here on
    kind: int
    # shape (n, d); integer rows of these directions, as of `integer_distance`; without rows for the other kinds
    integers: Matrix


@compiled
def edge_square(cloud: Measured, a: int, b: int) -> float:
    """Return the squared distance of two points."""
    return squared_distance(cloud.points[cloud.order[a]], cloud.points[cloud.order[b]])


@compiled
def edge_length(cloud: Measured, a: int, b: int) -> float:
    """Return the length of an edge as it enters the filtration."""
    a, b = cloud.order[a], cloud.order[b]
    if cloud.kind == INTEGER:
        return integer_distance(cloud.integers[a], cloud.integers[b])
    length = pair_distance(cloud.points, a, b)
    return length**2 / 2 if cloud.kind == COSINE else length


@compiled
def edge_lengths(cloud: Measured, edges: Indices) -> Matrix:
    """Return the lengths of edges, by their first two numbers; shape (m,)."""
    lengths = np.empty(len(edges))
    for e in range(len(edges)):
        lengths[e] = edge_length(cloud, edges[e, 0], edges[e, 1])
    return lengths


class Open(NamedTuple):
    """Edges that no point up to their outer end refutes, one outer end after the other."""

    edges: Indices  # shape (m, 3); the inner and the outer end, and 1 if a point comes as near without being nearer
    squares: Vector  # shape (m,)
    stops: Indices  # shape (n + 1,); the number of edges before each outer end's, and in all
    kept: Indices  # shape (n,); of each outer end's edges the first so many are not refuted by later points either
    reach: Bounds  # shape (n,); no point farther from the outer end refutes any of its edges


@compiled
def empty_lunes(
    cloud: Measured, found: Open, lower: Bounds, begin: int, pivots: Bounds, near: Indices, trials_left: int
) -> tuple[Open, int]:
    """Add the edges of the next outer ends, and take away what these points refute; the trials left may end it.

    `near` are the pivots near each of these points, ascending.
    """
    n = len(pivots[0])
    candidates, bounds = np.empty(n, np.int64), np.empty(n, np.float32)
    for r in range(len(lower)):
        v, row = begin + r, lower[r, : begin + r]
        row -= np.abs(row) * np.float32(REACH) + np.finfo(np.float32).tiny
        trials_left -= _take_away(cloud, found, row, v, candidates)
        count = _unrefuted(row, pivots, near[r], v, bounds, candidates)
        order = candidates[:count][np.argsort(row[candidates[:count]])]
        size = found.stops[v]
        while size + count > len(found.edges):
            edges, squares = np.empty((2 * len(found.edges), 3), np.int64), np.empty(2 * len(found.edges))
            edges[:size], squares[:size] = found.edges[:size], found.squares[:size]
            found = Open(edges, squares, found.stops, found.kept, found.reach)
        for u in order:
            square = edge_square(cloud, v, u)
            if not _refuted_by_kept(cloud, found, v, size, u, square):
                found.edges[size, 0], found.edges[size, 1], found.edges[size, 2] = u, v, 0
                found.squares[size] = square
                size += 1
                found.reach[v] = max(found.reach[v], square * (1 + REACH))
        found.kept[v] = size - found.stops[v]
        bounds[:v] = found.reach[v]
        count = _below(row, bounds, candidates)
        order = candidates[:count][np.argsort(row[candidates[:count]])]
        for e in range(size - 1, found.stops[v] - 1, -1):
            for w in order:
                if row[w] > found.squares[e] * (1 + TIE_TOLERANCE):
                    break
                trials_left -= 1
                if _is_taken_away(cloud, found, e, w):
                    break
        found.stops[v + 1] = found.stops[v] + found.kept[v]
        if trials_left < 0:
            break
    return found, trials_left


@compiled
def _take_away(cloud: Measured, found: Open, row: Bounds, w: int, places: Indices) -> int:
    """Take away the edges that a point beyond their outer ends refutes; return how many it was tried on."""
    tried = 0
    for v in places[: _below(row, found.reach, places)]:
        longest = -1.0
        for e in range(found.stops[v] + found.kept[v] - 1, found.stops[v] - 1, -1):
            square, above = found.squares[e], found.squares[e] * (1 + TIE_TOLERANCE)
            may_refute = row[v] <= above and row[found.edges[e, 0]] <= above
            tried += may_refute
            if not (may_refute and _is_taken_away(cloud, found, e, w)):
                longest = max(longest, square)
        found.reach[v] = longest * (1 + REACH)
    return tried


@compiled
def _is_taken_away(cloud: Measured, found: Open, e: int, w: int) -> bool:
    """Take an edge away if a point refutes it, and return whether; or note that the point comes as near."""
    square = found.squares[e]
    u, v = found.edges[e, 0], found.edges[e, 1]
    above, below = square * (1 + TIE_TOLERANCE), square * (1 - TIE_TOLERANCE)
    if w == u:
        return False
    to_u = edge_square(cloud, w, u)
    if to_u > above:
        return False
    to_v = edge_square(cloud, w, v)
    if to_v > above:
        return False
    if to_u >= below or to_v >= below:
        length, from_u, from_v = edge_length(cloud, u, v), edge_length(cloud, u, w), edge_length(cloud, v, w)
        if from_u >= length or from_v >= length:
            found.edges[e, 2] |= from_u <= length and from_v <= length
            return False
    found.kept[v] -= 1
    last = found.stops[v] + found.kept[v]
    found.edges[e], found.squares[e] = found.edges[last], found.squares[last]
    return True


@compiled
def _unrefuted(row: Bounds, pivots: Bounds, near: Indices, v: int, least: Bounds, candidates: Indices) -> int:
    """List the points before v whose edge to v no near pivot refutes; return how many they are."""
    n_first = min(N_FIRST, len(near))
    for begin in range(0, v, TILE):
        part = least[begin : min(begin + TILE, v)]
        part[:] = np.inf
        for p in near[:n_first]:
            from_v, from_others = pivots[p, v], pivots[p, begin : begin + len(part)]
            for u in range(len(part)):
                part[u] = min(part[u], max(from_v, from_others[u]))
    count = _below(row, least, candidates)
    left = 0
    for u in candidates[:count]:
        bound, refuted = row[u], False
        for p in near[n_first:]:
            if pivots[p, v] >= bound:
                break
            if pivots[p, u] < bound:
                refuted = True
                break
        candidates[left] = u
        left += not refuted
    return left


@compiled
def _below(row: Bounds, least: Bounds, places: Indices) -> int:
    """List where a row is not above others; return at how many places."""
    count = 0
    for begin in range(0, len(row), RUN):
        part, other = row[begin : begin + RUN], least[begin : min(begin + RUN, len(row))]
        hit = False
        for k in range(len(other)):
            hit |= part[k] <= other[k]
        if hit:
            for k in range(len(other)):
                places[count] = begin + k
                count += part[k] <= other[k]
    return count


@compiled
def _refuted_by_kept(cloud: Measured, found: Open, v: int, stop: int, u: int, square: float) -> bool:
    """Return whether the inner end of another edge of v certainly refutes an edge."""
    below = square * (1 - TIE_TOLERANCE)
    for e in range(found.stops[v], stop):
        if found.squares[e] < below and edge_square(cloud, found.edges[e, 0], u) < below:
            return True
    return False


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
    parent = np.arange(len(graph.cloud.order))
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
    n = len(graph.cloud.order)
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
    above = edge_square(graph.cloud, u, v) * (1 + TIE_TOLERANCE)
    return edge_square(graph.cloud, u, w) > above or edge_square(graph.cloud, v, w) > above


@compiled
def _before(graph: Graph, a: int, b: int, begin: int, e: int) -> int:
    """Return the number, from 0 at `begin`, of an edge that comes before another of the same length, or what it is."""
    length = edge_length(graph.cloud, a, b)
    if length != graph.lengths[e]:
        return VANISHES if length < graph.lengths[e] else LATER
    code = min(a, b) * len(graph.cloud.order) + max(a, b)
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
