"""Loops of points of the plane or space without the matrix of their distances.

Edges enter as in `toposcope.kernels.lunes`, but most need not be looked at: where neither end has an active edge, all
points of the lune vote 0, so the edge is in no cocycle and closes nothing. What is looked at, in the order of the
filtration, are the edges with empty lunes, which are known before, and those of points with active edges: a heap holds
the next edge of each such point. Only neighbours to which one end has an active edge may vote other than 0, so votes
are taken from the lists of both ends; the tree of boxes says whether any other point is in the lune.

Cost: O(log n) for each edge that is looked at, and its candidates. In a cloud without large holes these are a few for
each loop. Where a hole is large, all edges across a cut from it are active: O(n^2) edges with O(n) candidates each.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.annotations import (
    EMPTIED,
    N_EDGES,
    NO_ROOM,
    NONE,
    Annotations,
    Numbers,
    activate,
    agree,
    open_loop,
    release,
)
from toposcope.kernels.box_tree import BoxTree, comes_before, new_stack, next_neighbours, point_of_lune
from toposcope.kernels.compiled import compiled, wide
from toposcope.kernels.sets import Parents, find, join
from toposcope.typing import Indices, Matrix, Vector

N_NEXT = 8  # neighbours looked up at a time

HEAP_SIZE, FREE_LANE, N_LANES = range(3)
BEGIN, IS_SHORT = range(2)


class Front(NamedTuple):
    """The points with active edges, and the next edge of each.

    Each has a lane while it is in the heap, where it stays until the next of its edges after its last active one.
    """

    counters: Indices  # shape (3,); how many are in the heap, the first free lane, and how many lanes there are
    lane: Numbers  # shape (n,); of each point, -1 if it has none
    point: Numbers  # shape (l,); of each lane; the next free one of a free one
    place: Numbers  # shape (l,); of each lane, where in the lists its next edge is
    listed: Numbers  # shape (l,); of each lane, how many are listed
    lengths: Matrix  # shape (l, N_NEXT)
    others: Numbers  # shape (l, N_NEXT)
    heap: Numbers  # shape (l,); lanes, that of the earliest edge first, none before that at half its place
    keys: Vector  # shape (l,); the lengths of their edges


@compiled
def _is_earlier(front: Front, length: float, lane: int, k: int) -> bool:
    """Return whether the next edge of a lane comes before that of the heap's place k."""
    if length != front.keys[k]:
        return bool(length < front.keys[k])
    a, b = _next_ends(front, lane)
    c, d = _next_ends(front, wide(front.heap[k]))
    return a < c or (a == c and b < d)


@compiled
def _next_ends(front: Front, lane: int) -> tuple[int, int]:
    """Return the ends of the next edge of a lane, the smaller first."""
    a, b = wide(front.point[lane]), wide(front.others[lane, front.place[lane]])
    return min(a, b), max(a, b)


@compiled
def _sink(front: Front, lane: int) -> None:
    """Put a lane into the heap, whose first place is free."""
    length, size, k = front.lengths[lane, front.place[lane]], front.counters[HEAP_SIZE], 0
    while 2 * k + 1 < size:
        child = 2 * k + 1
        if child + 1 < size and _is_earlier(front, front.keys[child + 1], wide(front.heap[child + 1]), child):
            child += 1
        if _is_earlier(front, length, lane, child):
            break
        front.heap[k], front.keys[k] = front.heap[child], front.keys[child]
        k = child
    front.heap[k], front.keys[k] = lane, length


@compiled
def _rise(front: Front, lane: int) -> None:
    """Put one more lane into the heap."""
    length, k = front.lengths[lane, front.place[lane]], front.counters[HEAP_SIZE]
    front.counters[HEAP_SIZE] += 1
    while k and _is_earlier(front, length, lane, (k - 1) // 2):
        front.heap[k], front.keys[k] = front.heap[(k - 1) // 2], front.keys[(k - 1) // 2]
        k = (k - 1) // 2
    front.heap[k], front.keys[k] = lane, length


@compiled
def _look_up(front: Front, tree: BoxTree, lane: int, after: float, beyond: int, stack: Numbers) -> int:
    """List the next neighbours of a lane's point; return how many boxes were visited."""
    found, visits = next_neighbours(
        tree, wide(front.point[lane]), after, beyond, front.lengths[lane], front.others[lane], stack
    )
    front.place[lane], front.listed[lane] = 0, found
    return visits


@compiled
def _enlist(front: Front, tree: BoxTree, u: int, v: int, length: float, stack: Numbers) -> int:
    """Let the edges of u after uv be looked at; return how many boxes were visited."""
    if front.lane[u] != NONE:
        return 0
    lane = front.counters[FREE_LANE]
    if lane != NONE:
        front.counters[FREE_LANE] = front.point[lane]
    else:
        lane = front.counters[N_LANES]
        front.counters[N_LANES] += 1
    front.lane[u], front.point[lane] = lane, u
    visits = _look_up(front, tree, lane, length, v, stack)
    if front.listed[lane]:
        _rise(front, lane)
    else:
        _dismiss(front, lane)
    return visits


@compiled
def _dismiss(front: Front, lane: int) -> None:
    """Free a lane."""
    front.lane[front.point[lane]] = NONE
    front.point[lane] = front.counters[FREE_LANE]
    front.counters[FREE_LANE] = lane


@compiled
def _advance(front: Front, tree: BoxTree, first: Numbers, stack: Numbers) -> int:
    """Take the earliest edge off the heap; return how many boxes were visited."""
    lane, visits = wide(front.heap[0]), 0
    if first[front.point[lane]] != NONE:
        place = front.place[lane]
        front.place[lane] += 1
        if front.place[lane] == front.listed[lane]:
            visits = _look_up(front, tree, lane, front.lengths[lane, place], wide(front.others[lane, place]), stack)
        if front.listed[lane]:
            _sink(front, lane)
            return visits
    _dismiss(front, lane)
    front.counters[HEAP_SIZE] -= 1
    if front.counters[HEAP_SIZE]:
        _sink(front, wide(front.heap[front.counters[HEAP_SIZE]]))
    return visits


class Sides(NamedTuple):
    """The active edges, from both ends: edge e is side 2 e of its first end and side 2 e + 1 of its second."""

    first: Numbers  # shape (n,); of each point, -1 if it has none
    links: Numbers  # shape (s, 2); the side before and the side after of the same point
    ids: Numbers  # shape (s / 2,); the id that each edge was given


@compiled
def _add_edge(sides: Sides, edge: int, u: int, v: int, number: int) -> None:
    sides.ids[edge] = number
    for side, end in ((2 * edge, u), (2 * edge + 1, v)):
        after = sides.first[end]
        sides.links[side, 0], sides.links[side, 1] = NONE, after
        if after != NONE:
            sides.links[after, 0] = side
        sides.first[end] = side


@compiled
def _remove_emptied(sides: Sides, state: Annotations) -> None:
    edge = wide(state.counters[EMPTIED])
    while edge != NONE:
        for k in range(2):
            before, after = sides.links[2 * edge + k, 0], sides.links[2 * edge + k, 1]
            if after != NONE:
                sides.links[after, 0] = before
            if before != NONE:
                sides.links[before, 1] = after
            else:
                sides.first[state.edges[edge, k]] = after
        edge = wide(state.edges[edge, 2])
    release(state)


class Lune(NamedTuple):
    """What is known of the points of a lune."""

    place: Numbers  # shape (n,); 1 + its place among those that may vote, 0 of all others
    voters: Numbers  # shape (c, 3); points to which an end has an active edge, and the ids of their edges to both ends
    votes: Numbers  # shape (c, 2)
    centres: Numbers  # shape (c,); points that voted for all that they see


class Walk(NamedTuple):
    """How far the filtration has come."""

    progress: Indices  # shape (2,); the first of the edges with empty lunes that has not entered; if voters lack room
    joins: NDArray[np.bool_]  # shape (e,); which of these joined components
    parent: Numbers  # shape (n,); the components
    front: Front
    sides: Sides
    lune: Lune


def beginning(n: int, n_edges: int) -> Walk:
    """Return the state before the first edge."""
    lanes, size = np.array([0, NONE, 0]), 64
    front = Front(
        lanes,
        np.full(n, NONE, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty((size, N_NEXT)),
        np.empty((size, N_NEXT), np.int32),
        np.empty(size, np.int32),
        np.empty(size),
    )
    sides = Sides(np.full(n, NONE, np.int32), np.empty((2 * size, 2), np.int32), np.empty(size, np.int32))
    voters = np.empty((size, 3), np.int32), np.empty((size, 2), np.int32), np.empty(size, np.int32)
    lune = Lune(np.zeros(n, np.int32), *voters)
    return Walk(np.zeros(2, np.int64), np.zeros(n_edges, np.bool_), np.arange(n, dtype=np.int32), front, sides, lune)


def with_longer(walk: Walk, state: Annotations) -> Walk:
    """Return the walk with room for what lacked it."""
    front, sides, lune = walk.front, walk.sides, walk.lune
    if front.counters[N_LANES] + 2 > len(front.point):
        front = front._replace(**{name: _twice(getattr(front, name)) for name in Front._fields[2:]})
    if state.counters[N_EDGES] + 1 > len(sides.ids):
        sides = Sides(sides.first, _twice(sides.links), _twice(sides.ids))
    if walk.progress[IS_SHORT]:
        walk.progress[IS_SHORT] = 0
        lune = Lune(lune.place, _twice(lune.voters), _twice(lune.votes), _twice(lune.centres))
    return walk._replace(front=front, sides=sides, lune=lune)


def _twice(array: NDArray[Any]) -> NDArray[Any]:
    longer = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


@compiled
def _voters(tree: BoxTree, edges: Numbers, sides: Sides, lune: Lune, u: int, v: int, length: float) -> tuple[int, int]:
    """List the points of a lune to which an end has an active edge; return how many, and how many were looked at.

    The number is below zero if they are too many.
    """
    count, visits = 0, 0
    for k in range(2):
        end, other = (v, u) if k else (u, v)
        side = wide(sides.first[end])
        while side != NONE:
            visits += 1
            w, number = wide(edges[side >> 1, 1 - (side & 1)]), sides.ids[side >> 1]
            side = wide(sides.links[side, 1])
            if lune.place[w]:
                lune.voters[lune.place[w] - 1, 1 + k] = number
            elif comes_before(tree, other, w, length, u, v):
                if count == len(lune.voters):
                    _unmark(lune, count)
                    return NO_ROOM, visits
                lune.voters[count, 0], lune.voters[count, 1 + k], lune.voters[count, 2 - k] = w, number, 0
                count += 1
                lune.place[w] = count
    return count, visits


@compiled
def _unmark(lune: Lune, count: int) -> None:
    for k in range(count):
        lune.place[lune.voters[k, 0]] = 0


@compiled
def _votes(
    tree: BoxTree, parent: Parents, lune: Lune, count: int, u: int, v: int, length: float, stack: Numbers
) -> tuple[int, bool, int]:
    """List votes that are not 0; return how many, whether any is 0, and how many points and boxes were visited.

    Points that have been passed over come behind those that are left, so that all can be unmarked.
    """
    n_votes, visits, is_silent, left = 0, 0, False, count
    voters = lune.voters
    while left:
        left -= 1
        w = wide(voters[left, 0])
        a, b = find(parent, wide(voters[left, 1])), find(parent, wide(voters[left, 2]))
        if a == b:
            is_silent = True
        else:
            lune.votes[n_votes, 0], lune.votes[n_votes, 1], lune.centres[n_votes] = a, b, w
            n_votes += 1
        visits += left
        rest = 0
        for k in range(left):
            if not comes_before(tree, w, wide(voters[k, 0]), length, u, v):
                for field in range(3):
                    voters[rest, field], voters[k, field] = voters[k, field], voters[rest, field]
                rest += 1
        left = rest
    if n_votes and not is_silent:
        other, more = point_of_lune(tree, u, v, length, lune.place, lune.centres, n_votes, stack)
        is_silent, visits = other != NONE, visits + more
    return n_votes, is_silent, visits


@compiled
def walk_on(
    tree: BoxTree, edges: Numbers, lengths: Vector, walk: Walk, state: Annotations, upto: float, budget: int
) -> tuple[bool, int]:
    """Open and close loops; return whether that is done, and what is left of a budget of visits.

    `edges` are those with empty lunes, in order, and `lengths` theirs. It ends where no loop is open and no such edge
    is left, and at edges longer than `upto`. It is not done where room is needed, and where the budget is spent: then
    the rest is below zero.
    """
    n, front, sides, lune = len(tree.points), walk.front, walk.sides, walk.lune
    stack = new_stack(tree)
    while budget >= 0:
        if front.counters[N_LANES] + 2 > len(front.point) or state.counters[N_EDGES] + 1 > len(sides.ids):
            return False, budget
        begin = walk.progress[BEGIN]
        length = lengths[begin] if begin < len(edges) else np.inf
        u, v = (wide(edges[begin, 0]), wide(edges[begin, 1])) if begin < len(edges) else (n, n)
        is_empty = True
        if front.counters[HEAP_SIZE] and front.keys[0] <= length:
            a, b = _next_ends(front, wide(front.heap[0]))
            is_empty = not (front.keys[0] < length or a < u or (a == u and b < v))
            if not is_empty:
                length, u, v = front.keys[0], a, b
        if u == n or length > upto:
            return True, budget
        number, edge = 0, 0
        if is_empty:
            walk.joins[begin] = join(walk.parent, u, v)
            if not walk.joins[begin]:
                number, edge = open_loop(state, u, v)
                if number == NO_ROOM:
                    return False, budget
            walk.progress[BEGIN] += 1
        else:
            count, visits = _voters(tree, state.edges, sides, lune, u, v, length)
            budget -= visits
            if count == NO_ROOM:
                walk.progress[IS_SHORT] = 1
                return False, budget
            if count:
                n_votes, is_silent, visits = _votes(tree, state.parent, lune, count, u, v, length, stack)
                budget -= visits
                _unmark(lune, count)
                if n_votes:
                    number = agree(state, lune.votes, n_votes, is_silent, u, v, False)
                    if state.counters[EMPTIED] != NONE:
                        _remove_emptied(sides, state)
                    if number == NO_ROOM:
                        return False, budget
                    if number:
                        edge = activate(state, u, v, number)
        if number:
            _add_edge(sides, edge, u, v, number)
        while front.counters[HEAP_SIZE] and front.keys[0] == length:
            a, b = _next_ends(front, wide(front.heap[0]))
            if a != u or b != v:
                break
            budget -= 1 + _advance(front, tree, sides.first, stack)
        if number:
            budget -= _enlist(front, tree, u, v, length, stack) + _enlist(front, tree, v, u, length, stack)
    return False, budget


@compiled
def join_rest(edges: Numbers, walk: Walk) -> None:
    """Let the edges with empty lunes that have not entered join components, and open no loops."""
    for k in range(walk.progress[BEGIN], len(edges)):
        walk.joins[k] = join(walk.parent, wide(edges[k, 0]), wide(edges[k, 1]))
