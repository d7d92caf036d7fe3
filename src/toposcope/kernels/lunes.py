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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.annotations import (
    N_LOOPS,
    N_OPEN,
    ActiveEdges,
    Annotations,
    activate,
    added,
    id_of,
    open_loop,
    substitute,
    sum_of_pair,
)
from toposcope.kernels.compiled import compiled, inlined
from toposcope.kernels.sets import ONE, ZERO, Parents, Words, find, join, lowest_bit


class Graph(NamedTuple):
    """The edges that have entered, by labels of points."""

    neighbours: Words  # shape (n, n / 64); a point is its own neighbour
    hints: NDArray[np.int32]  # shape (n,); the word in which a lune of a point last had a member
    parent: Parents  # shape (n,); the components
    active: ActiveEdges
    joins: NDArray[np.int32]  # shape (n, 2); the edges that joined components
    count: NDArray[np.int64]  # shape (1,); how many these are


@compiled
def enter(keys: NDArray[np.uint64], graph: Graph, state: Annotations, keeps: bool) -> Annotations:
    """Let edges enter, in order; the ends of each are the last two numbers of 16 bits of a key."""
    neighbours, degree, hints = graph.neighbours, graph.active.degree, graph.hints
    n_words = neighbours.shape[1]
    voters = np.empty(n_words, np.uint64)
    votes = np.empty((len(neighbours), 2), np.int32)
    for key in keys:
        u, v = np.int64(key >> np.uint64(16) & np.uint64(0xFFFF)), np.int64(key & np.uint64(0xFFFF))
        if not degree[u] and not degree[v]:
            hint = hints[u]
            meet = neighbours[u, hint] & neighbours[v, hint] != ZERO
            i = 0
            while not meet and i < n_words:
                if neighbours[u, i] & neighbours[v, i]:
                    hints[u] = i
                    meet = True
                i += 1
            if not meet:
                state = _open(graph, state, u, v)
        else:
            some, any_voter, silent = ZERO, ZERO, ZERO
            for i in range(n_words):
                lune = neighbours[u, i] & neighbours[v, i]
                may_vote = graph.active.bits[u, i] | graph.active.bits[v, i]
                voters[i] = lune & may_vote
                some |= lune
                silent |= lune & ~may_vote
                any_voter |= voters[i]
            if not some:
                state = _open(graph, state, u, v)
            elif any_voter:
                state = _settle(graph, state, u, v, voters, votes, silent != ZERO, keeps)
        neighbours[u, v >> 6] |= ONE << np.uint64(v & 63)
        neighbours[v, u >> 6] |= ONE << np.uint64(u & 63)
    return state


@compiled
def _open(graph: Graph, state: Annotations, u: int, v: int) -> Annotations:
    """Let an edge whose lune is empty join two components, or open a loop."""
    if join(graph.parent, u, v):
        graph.joins[graph.count[0], 0], graph.joins[graph.count[0], 1] = u, v
        graph.count[0] += 1
        return state
    return open_loop(state, graph.active, u, v)


@compiled
def _settle(
    graph: Graph,
    state: Annotations,
    u: int,
    v: int,
    voters: Words,
    votes: NDArray[np.int32],
    is_silent: bool,
    keeps: bool,
) -> Annotations:
    """Let the points of a lune vote, close loops until they agree, and give the edge what they voted."""
    neighbours, ids = graph.neighbours, graph.active.ids
    n_words = len(voters)
    count = 0
    for i in range(n_words):
        while voters[i]:
            w = (i << 6) + lowest_bit(voters[i])
            a, b = find(state.parent, ids[u, w]), find(state.parent, ids[v, w])
            for k in range(i, n_words):
                voters[k] &= ~neighbours[w, k]
            if a == b:
                is_silent = True
                continue
            if count and votes[0, 0] == a and votes[0, 1] == b:
                continue
            votes[count, 0], votes[count, 1] = a, b
            count += 1
    if not count:
        return state
    first = 0
    if not is_silent:
        first = 1
    for k in range(first, count):
        a, b = find(state.parent, votes[k, 0]), find(state.parent, votes[k, 1])
        c = d = 0
        if not is_silent:
            c, d = find(state.parent, votes[0, 0]), find(state.parent, votes[0, 1])
            if (a == c and b == d) or (a == d and b == c):
                continue
        if a == b and c == d:
            continue
        delta = sum_of_pair(state, a, b)
        if c != d:
            delta = added(delta, sum_of_pair(state, c, d))
        if len(delta):
            state = substitute(state, graph.active, delta, u, v, keeps)
    if is_silent:
        return state
    a, b = find(state.parent, votes[0, 0]), find(state.parent, votes[0, 1])
    if a == b:
        return state
    if a == 0 or b == 0:
        number = a + b
    else:
        state, number = id_of(state, sum_of_pair(state, a, b))
    return activate(state, graph.active, u, v, number)


@compiled
def is_any_open(state: Annotations) -> bool:
    """Return whether a loop is open."""
    return bool(state.count[N_OPEN] > 0)
