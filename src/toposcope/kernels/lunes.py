"""The lunes of edges: which edges join components, open a loop, or close one.

The edges of a Vietoris-Rips filtration enter one by one. The *lune* of an edge is the set of points whose edges to both
its ends came earlier. An edge with an empty lune joins two components or opens a loop. Otherwise each point w of the
lune *votes* with the sum of the vectors of its two edges: what the vector of the new edge must be if the triangle is to
bound. The points of a connected part of the lune vote alike, and loops are closed until all points do. See
``docs/methods/loops.md`` for the proof.

Every point carries the set of its neighbours so far, as bits, and of those of them to which its edge is active. Points
are labelled by how central they are, the most central first: these see most of a lune, and their bits are the first.

Cost: O(n / 64) words an edge, a few times; n^2 / 4 bytes for the sets, and 4 n^2 for the ids of active edges.
Source: the lune and the relative neighbourhood graph of Toussaint 1980; that births are its edges, Koyama, Memoli,
Robins & Turner 2023, arXiv:2307.16333.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.annotations import (
    EMPTIED,
    NO_ROOM,
    NONE,
    Annotations,
    Numbers,
    activate,
    agree,
    open_loop,
    release,
)
from toposcope.kernels.compiled import compiled_in_place, compiled_within, inlined, wide
from toposcope.kernels.sets import ONE, ZERO, Parents, Words, find, join, lowest_bit

EMPTY, SILENT, LOUD = range(3)
"""A lune: without points; with points that vote for 0 for certain; with none of these."""


class ActiveEdges(NamedTuple):
    """The active edges by their ends."""

    bits: Words  # shape (n, n / 64)
    degree: Numbers  # shape (n,)
    ids: Numbers  # shape (n, n); the id that an edge was given, 0 for one that never was active


class Graph(NamedTuple):
    """The edges that have entered, by labels of points."""

    neighbours: Words  # shape (n, n / 64); a point is its own neighbour
    central: Words  # shape (n,); the first word of each, close together in memory
    hints: NDArray[np.int32]  # shape (n,); the word in which a lune of a point last had a member
    parent: Parents  # shape (n,); the components
    active: ActiveEdges
    joins: NDArray[np.int32]  # shape (n, 2); the edges that joined components
    n_joins: NDArray[np.int64]  # shape (1,); how many these are


def empty_graph(n: int) -> Graph:
    """Return the graph of n points before the first edge."""
    neighbours = np.zeros((n, max(-(-n // 64), 1)), np.uint64)
    points = np.arange(n)
    neighbours[points, points // 64] = np.left_shift(ONE, (points % 64).astype(np.uint64))
    active = ActiveEdges(np.zeros_like(neighbours), np.zeros(n, np.int32), np.zeros((n, n), np.int32))
    parent, joins = points.astype(np.int32), np.empty((max(n - 1, 0), 2), np.int32)
    central = neighbours[:, 0].copy()
    return Graph(neighbours, central, np.zeros(n, np.int32), parent, active, joins, np.zeros(1, np.int64))


@compiled_in_place
def enter(
    keys: NDArray[np.uint64], place: int, graph: Graph, state: Annotations, voters: Words, votes: Numbers, keeps: bool
) -> int:
    """Let edges enter, in order, from one on; return the place of one for which the state has no room, or how many.

    The ends of each are the last two numbers of 16 bits of a key. For one lune there is room in `voters` and `votes`.
    """
    while True:
        place, lune = _let_pass(
            keys,
            place,
            graph.neighbours,
            graph.central,
            graph.hints,
            graph.active.bits,
            graph.active.degree,
            voters,
        )
        if place == len(keys):
            return place
        u, v = _ends(keys[place])
        if lune != EMPTY:
            if not _settle(graph, state, u, v, voters, votes, lune == SILENT, keeps):
                return place
        elif find(graph.parent, u) != find(graph.parent, v):
            join(graph.parent, u, v)
            graph.joins[graph.n_joins[0], 0], graph.joins[graph.n_joins[0], 1] = u, v
            graph.n_joins[0] += 1
        else:
            number = open_loop(state, u, v)
            if number == NO_ROOM:
                return place
            set_active(graph.active, u, v, number)
        mark(graph.neighbours, graph.central, u, v)
        place += 1


@compiled_within
def _let_pass(
    keys: NDArray[np.uint64],
    place: int,
    neighbours: Words,
    central: Words,
    hints: Numbers,
    active: Words,
    degree: Numbers,
    voters: Words,
) -> tuple[int, int]:
    """Let edges enter up to one that may change a component or a loop; return its place, and what its lune is like."""
    n_words = neighbours.shape[1]
    for k in range(place, len(keys)):
        u, v = _ends(keys[k])
        if not degree[u] and not degree[v]:
            if not central[u] & central[v]:
                i = wide(hints[u])
                if not neighbours[u, i] & neighbours[v, i]:
                    i = 0
                    while i < n_words and not neighbours[u, i] & neighbours[v, i]:
                        i += 1
                    if i == n_words:
                        return k, EMPTY
                    hints[u] = i
        else:
            some, any_voter, silent = ZERO, ZERO, ZERO
            for i in range(n_words):
                lune = neighbours[u, i] & neighbours[v, i]
                voting = lune & (active[u, i] | active[v, i])
                voters[i] = voting
                some |= lune
                silent |= lune ^ voting
                any_voter |= voting
            if not some:
                return k, EMPTY
            if any_voter:
                return k, SILENT if silent else LOUD
        mark(neighbours, central, u, v)
    return len(keys), EMPTY


@inlined
def _ends(key: Any) -> tuple[int, int]:
    return wide(key >> np.uint64(16) & np.uint64(0xFFFF)), wide(key & np.uint64(0xFFFF))


@inlined
def mark(neighbours: Words, central: Words, u: int, v: int) -> None:
    """Make two points neighbours."""
    neighbours[u, v >> 6] |= ONE << np.uint64(v & 63)
    neighbours[v, u >> 6] |= ONE << np.uint64(u & 63)
    central[u], central[v] = neighbours[u, 0], neighbours[v, 0]


@compiled_within
def _settle(
    graph: Graph, state: Annotations, u: int, v: int, voters: Words, votes: Numbers, is_silent: bool, keeps: bool
) -> bool:
    """Let the points of a lune vote, close loops until they agree, and give the edge what they voted.

    Return whether there was room for that.
    """
    active = graph.active
    n_votes, is_silent = _votes(graph.neighbours, active.ids, state.parent, u, v, voters, votes, is_silent)
    if not n_votes:
        return True
    number = agree(state, votes, n_votes, is_silent, u, v, keeps)
    if state.counters[EMPTIED] != NONE:
        inactivate(active, state)
    if number == NO_ROOM:
        return False
    if number:
        activate(state, u, v, number)
        set_active(active, u, v, number)
    return True


@inlined
def set_active(active: ActiveEdges, u: int, v: int, number: int) -> None:
    """Make an edge active."""
    active.ids[u, v] = active.ids[v, u] = number
    active.bits[u, v >> 6] |= ONE << np.uint64(v & 63)
    active.bits[v, u >> 6] |= ONE << np.uint64(u & 63)
    active.degree[u] += 1
    active.degree[v] += 1


@compiled_within
def inactivate(active: ActiveEdges, state: Annotations) -> None:
    """Take the edges whose vectors became empty out of the active ones."""
    edge = state.counters[EMPTIED]
    while edge != NONE:
        a, b = state.edges[edge, 0], state.edges[edge, 1]
        active.bits[a, b >> 6] &= ~(ONE << np.uint64(b & 63))
        active.bits[b, a >> 6] &= ~(ONE << np.uint64(a & 63))
        active.degree[a] -= 1
        active.degree[b] -= 1
        edge = state.edges[edge, 2]
    release(state)


@compiled_within
def _votes(
    neighbours: Words,
    ids: Numbers,
    parent: Parents,
    u: int,
    v: int,
    voters: Words,
    votes: Numbers,
    is_silent: bool,
) -> tuple[int, bool]:
    """List the votes that are not 0, each as two ids; return how many, and whether any is 0."""
    count, n_words = 0, len(voters)
    for i in range(n_words):
        while voters[i]:
            w = (i << 6) + lowest_bit(voters[i])
            a, b = find(parent, wide(ids[u, w])), find(parent, wide(ids[v, w]))
            for k in range(i, n_words):
                voters[k] &= ~neighbours[w, k]
            if a == b:
                is_silent = True
            elif not count or votes[0, 0] != a or votes[0, 1] != b:
                votes[count, 0], votes[count, 1] = a, b
                count += 1
    return count, is_silent
