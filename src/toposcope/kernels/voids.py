"""The voids of a Vietoris-Rips filtration: which edges open one, and which close one.

An edge adds the suspension of its lune (`toposcope.kernels.lunes`). Each further component of the lune closes a loop
or opens a void. A void's cocycle is a set of triangles. For points x and y of the lune that are neighbours, the values
of uvx and uvy differ by the sum of those of uxy and vxy, so that they follow along a tree of each component, up to a
constant; where no values satisfy all edges of the lune, the void closes, or the latest of several is added to the
others. Where one point of the lune sees all of it, nothing opens or closes.

Cost: O(n / 64) words for most edges, and for each point of a lune without such a point.
Source: cocycles over time, de Silva, Morozov & Vejdemo-Johansson 2011, "Dualities in persistent (co)homology".
"""

from typing import Any

import numpy as np

from toposcope.kernels.annotations import (
    EMPTIED,
    NO_ROOM,
    NONE,
    Annotations,
    Numbers,
    activate,
    agree,
    open_loop,
    substitute,
    sum_of_votes,
)
from toposcope.kernels.compiled import compiled, inlined, wide
from toposcope.kernels.lunes import Graph, inactivate, mark, set_active
from toposcope.kernels.sets import ONE, ZERO, Words, join, lowest_bit
from toposcope.kernels.void_cocycles import (
    DONE,
    END_A,
    END_B,
    FIRST,
    NEXT,
    NEXT_OF_VOID,
    SEEN,
    VOID,
    Voids,
    add,
    close_void,
    ones,
    open_void,
    take,
)
from toposcope.kernels.void_lunes import LARGEST, N_COMPONENTS, N_STEMS, Lune, center_of, span
from toposcope.typing import Indices


@compiled
def enter_with_voids(ends: Numbers, place: int, graph: Graph, loops: Annotations, voids: Voids, lune: Lune) -> int:
    """Let edges enter, in order, from one on; return the place of one for which there is no room, or how many."""
    near, active, votes, no = graph.neighbours, graph.active, np.empty((2, 2), np.int32), place < 0
    while place < len(ends):
        u, v, number, some = wide(ends[place, 0]), wide(ends[place, 1]), wide(0), ZERO
        for i in range(len(lune.points)):
            lune.points[i] = near[u, i] & near[v, i]
            some |= lune.points[i]
        if not some:
            if not join(graph.parent, u, v):
                number = open_loop(loops, u, v)
                if number == NO_ROOM:
                    return place
                set_active(active, u, v, number)
            mark(near, graph.central, u, v)
            place += 1
            continue
        center = center_of(near, lune.points)
        if center >= 0:
            votes[0, 0], votes[0, 1] = active.ids[u, center], active.ids[v, center]
            if votes[0, 0] or votes[0, 1]:
                number = agree(loops, votes, wide(1), no, u, v, no)
        else:
            span(near, lune)
            number = _close_loops(active.ids, loops, lune, votes, u, v, place)
            if loops.counters[EMPTIED] != NONE:
                inactivate(active, loops)
        if number == NO_ROOM:
            return place
        if center >= 0:
            if (voids.first[u, center] != NONE or voids.first[v, center] != NONE) and not _extend_from(
                voids, lune, center, u, v, place
            ):
                return place
        elif not _extend(voids, near, lune, u, v, place) or not _open_voids(voids, lune, u, v, place):
            return place
        if number:
            activate(loops, u, v, number)
            set_active(active, u, v, number)
        mark(near, graph.central, u, v)
        place += 1
    return place


@compiled
def _close_loops(ids: Numbers, loops: Annotations, lune: Lune, votes: Numbers, u: int, v: int, place: int) -> int:
    """Close loops until all components of a lune vote as the largest does; return the id they agree on."""
    root, no = lune.roots[lune.counters[LARGEST]], u < 0  # a constant would be compiled once more
    votes[0, 0], votes[0, 1] = ids[u, root], ids[v, root]
    for q in range(lune.counters[N_COMPONENTS]):
        votes[1, 0], votes[1, 1] = ids[u, lune.roots[q]], ids[v, lune.roots[q]]
        if votes[0, 0] or votes[0, 1] or votes[1, 0] or votes[1, 1]:
            length = sum_of_votes(loops, votes, wide(1), not no)
            if length:
                if not substitute(loops, length, u, v, no):
                    return NO_ROOM
                lune.closing[q] = place
    return int(agree(loops, votes, wide(1), no, u, v, no))


@compiled
def _extend_from(voids: Voids, lune: Lune, center: int, u: int, v: int, place: int) -> bool:
    """Give all voids their triangles with an edge whose lune one point sees; return whether there was room."""
    for side in range(2):  # rows of the first edge wait for those of the same void at the second
        row = wide(voids.first[u if side == 0 else v, center])
        while row != NONE and side == 0:
            voids.heads[voids.rows[row, VOID], SEEN] = row
            row = wide(voids.rows[row, NEXT])
        while row != NONE:
            void = wide(voids.rows[row, VOID])
            if not _take_from(voids, lune, void, row, wide(voids.heads[void, SEEN]), u, v, place):
                return False
            row = wide(voids.rows[row, NEXT])
    row = wide(voids.first[u, center])
    while row != NONE:
        void = wide(voids.rows[row, VOID])
        if voids.heads[void, SEEN] == row and not _take_from(voids, lune, void, row, wide(NONE), u, v, place):
            return False
        row = wide(voids.rows[row, NEXT])
    return True


@compiled
def _take_from(voids: Voids, lune: Lune, void: int, row: int, other: int, u: int, v: int, place: int) -> bool:
    """Give a void the points of a lune that are in one of two of its rows, or the rest of the lune if that is less."""
    voids.heads[void, SEEN] = NONE
    if voids.heads[void, DONE] == place:
        return True
    for i in range(len(lune.values)):
        word = voids.bits[row, i]
        if other != NONE:
            word ^= voids.bits[other, i]
        lune.values[i] = word & lune.points[i]
    _choose_fewer(lune.values, lune.points)
    return take(voids, void, u, v, lune.values, place)


@compiled
def _extend(voids: Voids, near: Words, lune: Lune, u: int, v: int, place: int) -> bool:
    """Give all voids their triangles with an edge, close those that can have none; return whether there was room."""
    entries, hot = _rows_at(voids, lune, u, v)
    closed, n_closed = np.empty((len(hot), 3), np.int64), 0
    for h in range(len(hot)):  # the latest first
        void, entry, k = hot[h, 0], hot[h, 1], 0
        if voids.heads[void, DONE] == place:
            continue
        while entry != NONE:
            _differ(voids, lune, entries[entry, 0], entries[entry, 1])
            entry = entries[entry, 2]
        while True:
            x, y = _solve(near, lune)
            while x >= 0 and k < n_closed and not _is_odd(lune, closed[k, 1], closed[k, 2]):
                k += 1
            _clear(lune)
            if x < 0 or k == n_closed:
                break
            if not add(voids, void, closed[k, 0]):
                return False
            _differ_by_all(voids, lune, void, u, v)
        if x >= 0:
            closed[n_closed, 0], closed[n_closed, 1], closed[n_closed, 2] = void, x, y
            n_closed += 1
        elif not take(voids, void, u, v, lune.values, place):
            return False
    for k in range(n_closed):
        close_void(voids, closed[k, 0], u, v)
    return True


@compiled
def _open_voids(voids: Voids, lune: Lune, u: int, v: int, place: int) -> bool:
    """Open a void for each component but the largest that closed no loop; return whether there was room."""
    for q in range(lune.counters[N_COMPONENTS]):
        if q != lune.counters[LARGEST] and lune.closing[q] != place:
            if not open_void(voids, u, v, lune.components[q], place):
                return False
            lune.closing[q] = place
    return True


@compiled
def _rows_at(voids: Voids, lune: Lune, u: int, v: int) -> tuple[Indices, Indices]:
    """List the rows between an end of an edge and its lune that have points of the lune, by void, the latest first."""
    entries, hot, n_entries, n_hot = np.empty((64, 3), np.int64), np.empty((16, 2), np.int64), 0, 0
    for i in range(len(lune.points)):
        word = lune.points[i] & (voids.held[u, i] | voids.held[v, i])
        while word:
            x = (i << 6) + lowest_bit(word)
            word &= word - ONE
            for side in range(2):
                row = wide(voids.first[u if side == 0 else v, x])
                while row != NONE:
                    j = 0
                    while j < len(lune.points) and not voids.bits[row, j] & lune.points[j]:
                        j += 1
                    if j < len(lune.points):
                        void = wide(voids.rows[row, VOID])
                        if n_entries == len(entries):
                            entries = _longer(entries)
                        if voids.heads[void, SEEN] == NONE:
                            if n_hot == len(hot):
                                hot = _longer(hot)
                            hot[n_hot, 0] = void
                            n_hot += 1
                        entries[n_entries, 0], entries[n_entries, 1] = x, row
                        entries[n_entries, 2] = voids.heads[void, SEEN]
                        voids.heads[void, SEEN] = n_entries
                        n_entries += 1
                    row = wide(voids.rows[row, NEXT])
    for h in range(n_hot):
        void, k = hot[h, 0], h
        while k > 0 and hot[k - 1, 0] < void:
            hot[k, 0], hot[k, 1] = hot[k - 1, 0], hot[k - 1, 1]
            k -= 1
        hot[k, 0], hot[k, 1] = void, voids.heads[void, SEEN]
        voids.heads[void, SEEN] = NONE
    return entries, hot[:n_hot]


@inlined
def _differ(voids: Voids, lune: Lune, x: int, row: int) -> None:
    lune.touched[x >> 6] |= ONE << np.uint64(x & 63)
    for i in range(len(lune.points)):
        lune.differences[x, i] ^= voids.bits[row, i] & lune.points[i]


@compiled
def _differ_by_all(voids: Voids, lune: Lune, void: int, u: int, v: int) -> None:
    row = wide(voids.heads[void, FIRST])
    while row != NONE:
        a, b = wide(voids.rows[row, END_A]), wide(voids.rows[row, END_B])
        if a in (u, v):
            a, b = b, a
        if b in (u, v) and _bit(lune.points, a):
            _differ(voids, lune, a, row)
        row = wide(voids.rows[row, NEXT_OF_VOID])


@compiled
def _solve(near: Words, lune: Lune) -> tuple[int, int]:
    """Find the values of one void along the trees; return an edge of the lune that they do not satisfy, or -1."""
    values, differences, n_words = lune.values, lune.differences, len(lune.values)
    for i in range(n_words):
        values[i] = ZERO
    for k in range(lune.counters[N_STEMS]):
        x = lune.stems[k]
        flip = ZERO - _bit(values, x)
        if flip or _bit(lune.touched, x):
            for i in range(n_words):
                values[i] ^= lune.children[k, i] & (differences[x, i] ^ flip)
    for q in range(lune.counters[N_COMPONENTS]):
        _choose_fewer(values, lune.components[q])
    for i in range(n_words):
        word = values[i] | lune.touched[i]
        while word:
            x = (i << 6) + lowest_bit(word)
            word &= word - ONE
            flip = ZERO - _bit(values, x)
            for j in range(n_words):
                wrong = (differences[x, j] ^ values[j] ^ flip) & near[x, j] & lune.points[j]
                if wrong:
                    return x, (j << 6) + lowest_bit(wrong)
    return -1, -1


@inlined
def _is_odd(lune: Lune, x: int, y: int) -> bool:
    return bool(_bit(lune.differences[x], y) ^ _bit(lune.values, x) ^ _bit(lune.values, y))


@inlined
def _clear(lune: Lune) -> None:
    for i in range(len(lune.touched)):
        while lune.touched[i]:
            x = (i << 6) + lowest_bit(lune.touched[i])
            lune.touched[i] &= lune.touched[i] - ONE
            for j in range(len(lune.touched)):
                lune.differences[x, j] = ZERO


@inlined
def _bit(words: Words, x: int) -> Any:
    return words[x >> 6] >> np.uint64(x & 63) & ONE


@compiled
def _choose_fewer(values: Words, component: Words) -> None:
    """Change all values of a component if most of them are 1."""
    surplus = 0
    for i in range(len(values)):
        surplus += 2 * ones(values[i] & component[i]) - ones(component[i])
    if surplus > 0:
        for i in range(len(values)):
            values[i] ^= component[i]


@compiled
def _longer(array: Any) -> Any:
    longer = np.zeros((2 * len(array), array.shape[1]), array.dtype)
    for i in range(len(array)):
        for j in range(array.shape[1]):
            longer[i, j] = array[i, j]
    return longer
