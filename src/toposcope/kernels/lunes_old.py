"""The lunes of edges: which edges join components, open a loop, or can close one.

The edges of a Vietoris-Rips filtration enter one by one. The *lune* of an edge is the set of points whose edges to both
its ends came earlier: the link of the edge when it enters. An edge whose lune is empty joins two components or opens a
loop. Any point of the lune, its *apex*, makes a triangle that cancels the edge at once; and for every connected
component of the lune but that of the apex, one more triangle may close a loop. Nothing else changes H0 or H1: see
``docs/methods/loops.md`` for the proof.

Every point carries the set of its neighbours so far, as bits, so that a lune is the intersection of two of them.
Points are labelled by how central they are, the most central first: these see most of a lune, and their bits are the
first.

Cost: O(n / 64) words an edge, a few times; n^2 / 8 bytes for the sets.
Source: the lune and the relative neighbourhood graph of Toussaint 1980; that births are its edges, Koyama, Memoli,
Robins & Turner 2023, arXiv:2307.16333.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.kernels.sets import ONE, ZERO, Parents, Words, join, lowest_bit

JOINS = -1  # in place of an apex: the edge joined two components. The edge that opened loop k has -2 - k

MAX_COLUMNS = 1 << 18
"""Columns after which a scan pauses: they are reduced before there are more, whatever their number."""

N_CENTRAL = 3
"""Points of a lune from which the others are reached, before the others are looked at one by one (measured)."""


class Edges(NamedTuple):
    """The edges by rank, the earliest first."""

    # shape (n (n - 1); of each pair of points, at `pair_index`; without meaning for pairs that have not entered
    rank: NDArray[np.int32]
    ends: NDArray[np.int32]  # shape (m, 2); the smaller first
    apex: NDArray[np.int32]  # shape (m,); A point of the lune; below zero where there is none


@compiled
def pair_index(n: int, a: int, b: int) -> int:
    """Return the place of a pair of points, a < b, among all pairs row by row."""
    return a * (2 * n - a - 1) // 2 + b - a - 1


@compiled
def scan_lunes(
    edges: Edges, begin: int, neighbours: Words, parent: Parents, opened: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Let edges enter, and find the births and columns in their lunes."""
    n, n_words = neighbours.shape
    reached, rest = np.empty(n_words, np.uint64), np.empty(n_words, np.uint64)
    births = np.empty(len(edges.ends) - begin, np.int32)
    # An edge adds fewer columns than there are points.
    columns = np.empty((MAX_COLUMNS + n, 3), np.int32)
    n_births = n_columns = 0
    e = begin - 1
    while e + 1 < len(edges.ends) and n_columns < MAX_COLUMNS:
        e += 1
        u, v = int(edges.ends[e, 0]), int(edges.ends[e, 1])
        edges.rank[pair_index(n, u, v)] = e
        some = ZERO
        for i in range(n_words):
            both = neighbours[u, i] & neighbours[v, i]
            reached[i] = rest[i] = both
            some |= both
        neighbours[u, v >> 6] |= ONE << np.uint64(v & 63)
        neighbours[v, u >> 6] |= ONE << np.uint64(u & 63)
        if not some:
            edges.apex[e] = JOINS
            if not join(parent, u, v):
                edges.apex[e] = -2 - opened - n_births
                births[n_births] = e
                n_births += 1
            continue
        apex = _first(reached)
        edges.apex[e] = apex
        if _reach_from_central(neighbours, reached, rest, apex):
            continue
        for i in range(n_words):
            reached[i] &= ~rest[i]
        while not _reach(neighbours, reached, rest):
            other = _first(rest)
            columns[n_columns, 0], columns[n_columns, 1], columns[n_columns, 2] = e, apex, other
            n_columns += 1
            reached[:] = ZERO
            reached[other >> 6] = ONE << np.uint64(other & 63)
            rest[other >> 6] ^= reached[other >> 6]
    return births[:n_births], columns[:n_columns], e + 1


@compiled
def _first(words: Words) -> int:
    """Return the smallest member of a set that is not empty."""
    i = 0
    while not words[i]:
        i += 1
    return int((i << 6) + lowest_bit(words[i]))


@compiled
def _reach_from_central(neighbours: Words, lune: Words, rest: Words, apex: int) -> bool:
    """Take what the apex and a few more points of the lune see from `rest`; return whether none is left.

    A point that comes before another that reached it is passed over: it is not worth a second look.
    """
    i = apex >> 6
    word = lune[i]
    for _ in range(N_CENTRAL):
        x = (i << 6) + lowest_bit(word)
        some = ZERO
        for j in range(len(rest)):
            left = rest[j] & ~neighbours[x, j]
            rest[j] = left
            some |= left
        if not some:
            return True
        word = (word & (word - ONE)) & ~rest[i]
        while not word:
            i += 1
            if i == len(rest):
                return False
            word = lune[i] & ~rest[i]
    return False


@compiled
def _reach(neighbours: Words, reached: Words, rest: Words) -> bool:
    """Move points that see one in `reached` from `rest` to it until no more can move; return whether none is left."""
    changed = True
    while changed:
        changed = False
        some = ZERO
        for i in range(len(rest)):
            word = rest[i]
            while word:
                bit = word & (~word + ONE)
                word ^= bit
                x = (i << 6) + lowest_bit(bit)
                for j in range(len(reached)):
                    if neighbours[x, j] & reached[j]:
                        reached[i] |= bit
                        rest[i] ^= bit
                        changed = True
                        break
            some |= rest[i]
        if not some:
            return True
    return False


@compiled
def odd_branches(tree: NDArray[np.int32], chords: NDArray[np.int32], n: int) -> NDArray[np.bool_]:
    """Return which edges of a spanning tree, with the chords, make a cycle over two elements."""
    odd = np.zeros(n, np.bool_)
    for k in range(len(chords)):
        for end in chords[k]:
            odd[end] = not odd[end]
    degree = np.zeros(n, np.int64)
    # The sum of the numbers of a leaf's edges is the number of its one edge.
    edge_sum = np.zeros(n, np.int64)
    for k in range(len(tree)):
        for end in tree[k]:
            degree[end] += 1
            edge_sum[end] += k
    chosen = np.zeros(len(tree), np.bool_)
    for point in range(n):
        leaf = point
        while degree[leaf] == 1:
            k = edge_sum[leaf]
            other = tree[k, 0] + tree[k, 1] - leaf
            if odd[leaf]:
                chosen[k] = True
                odd[other] = not odd[other]
            degree[leaf] -= 1
            degree[other] -= 1
            edge_sum[other] -= k
            leaf = other
    return chosen
