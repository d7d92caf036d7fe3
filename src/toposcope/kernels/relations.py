"""The loops of a relation of rows and columns: H0 and H1 of its Dowker complexes, entry by entry.

The complexes on the rows and on the columns have the homotopy type of the bipartite graph of the entries so far, with
every cycle of four filled. The *vector* of an entry is the set of open loops whose cocycles contain it. A new entry
(i, j) joins two components, opens a loop, or is in cycles of four: each, i - c - k - j, *votes* with the sum of the
vectors of the three entries that came earlier, and loops are closed until all votes are alike. Cycles through one row
or one column vote alike, so that one votes for each connected part of the graph between the columns of i and the rows
of j. See ``docs/methods/weight-loops.md`` for the proof.

Of random weights most loops close while the filled cycles grow together, and meanwhile a vector has hundreds of loops.
So vectors are rows of bits here, one for each open loop; those of `toposcope.kernels.annotations` are lists, which took
30 times as long. Compiled functions make no array longer: what lacks room changes nothing, and is called again after
`with_room`.

Cost: O(m / 64) words an entry while no loop is open, else up to O(mn / 64), most often far fewer; a loop that closes
takes O(active entries x open loops / 64); mn / 4 bytes for the sets, and 4 mn for the rows of active entries.
Source: Dowker 1952, "Homology groups of relations"; Chowdhury & Memoli 2018, "A functorial Dowker theorem".
"""

from typing import NamedTuple

import numpy as np

from toposcope.kernels.annotations import NONE, Numbers
from toposcope.kernels.compiled import compiled_in_place, compiled_within, inlined, wide
from toposcope.kernels.sets import ONE, ZERO, Parents, Words, find, join, lowest_bit
from toposcope.typing import Indices, Vector

UNBORN = -1.0  # in place of the magnitude at which a component was born
N_MERGES, N_LOOPS, N_OPEN, N_ROWS, FREE_ROW = range(5)
"""Counters: merges, loops, those that are open; rows that vectors have or had, and the first that was given back."""


class Relation(NamedTuple):
    """The entries so far, and the components and loops of the graph that they make.

    Vertices are the rows, and the columns behind them.
    """

    counters: Indices  # shape (5,)
    columns: Words  # shape (m, n / 64); the columns of each row
    rows: Words  # shape (n, m / 64); the rows of each column
    linked: Words  # shape (m, m / 64); the rows with which each shares a column
    parent: Parents  # shape (m + n,); the components
    oldest: Vector  # shape (m + n,); by root, the magnitude of the first entry
    merges: Vector  # shape (m, 2); the magnitudes at which components were born, and joined an older one
    places: Numbers  # shape (m, n); of an entry whose vector is not empty, 1 and the place of that, else 0
    vectors: Words  # shape (r, w)
    owners: Indices  # shape (r,); the entry of a vector; of a row that was given back, the next of these
    holders: Numbers  # shape (64 w,); the loop that a bit stands for, or none
    loops: Vector  # shape (l, 2); the magnitudes at which loops are opened and closed; 0 while they are open
    sums: Words  # shape (2, w); room for the vector of an entry, and for a sum that vanishes
    voters: Words  # shape (2, m / 64); room for the rows that still vote, and for those that wait
    unseen: Words  # shape (n / 64,); room for the columns that nothing was found through
    paths: Numbers  # shape (m, 2); room for the column and the row of paths


def empty_relation(m: int, n: int) -> Relation:
    """Return the relation of m rows and n columns before the first entry; rows are the fewer."""
    of_rows, of_columns = -(-m // 64), -(-n // 64)
    return Relation(
        np.array([0, 0, 0, 0, NONE]),
        np.zeros((m, of_columns), np.uint64),
        np.zeros((n, of_rows), np.uint64),
        np.zeros((m, of_rows), np.uint64),
        np.arange(m + n, dtype=np.int32),
        np.full(m + n, UNBORN),
        np.empty((m, 2)),
        np.zeros((m, n), np.int32),
        np.zeros((64, 1), np.uint64),
        np.empty(64, np.int64),
        np.full(64, NONE, np.int32),
        np.zeros((64, 2)),
        np.zeros((2, 1), np.uint64),
        np.empty((2, of_rows), np.uint64),
        np.empty(of_columns, np.uint64),
        np.empty((m, 2), np.int32),
    )


def with_room(relation: Relation) -> Relation:
    """Return the relation with room for what lacked it; vectors have bits for the open loops, and as many again."""
    count = relation.counters
    kept = np.flatnonzero(relation.vectors[: count[N_ROWS]].any(axis=1))
    is_open = np.flatnonzero(relation.holders != NONE)
    n_words = 1 + int(count[N_OPEN]) // 32
    vectors, owners = np.zeros((64 + 2 * len(kept), n_words), np.uint64), np.empty(64 + 2 * len(kept), np.int64)
    holders, bits = np.full(64 * n_words, NONE, np.int32), np.empty(len(relation.holders), np.int32)
    holders[: len(is_open)], bits[is_open] = relation.holders[is_open], np.arange(len(is_open))
    owners[: len(kept)] = relation.owners[kept]
    relation.places.reshape(-1)[owners[: len(kept)]] = 1 + np.arange(len(kept))
    _repack(relation.vectors, kept, bits, vectors)
    count[N_ROWS], count[FREE_ROW] = len(kept), NONE
    loops = np.zeros((2 * max(len(relation.loops), int(count[N_LOOPS])), 2))
    loops[: len(relation.loops)] = relation.loops
    sums = np.zeros((2, n_words), np.uint64)
    return relation._replace(vectors=vectors, owners=owners, holders=holders, loops=loops, sums=sums)


@compiled_in_place
def _repack(old: Words, kept: Indices, bits: Numbers, new: Words) -> None:
    """Write some vectors with other bits."""
    for k in range(len(kept)):
        for word in range(old.shape[1]):
            left = old[kept[k], word]
            while left:
                bit = bits[(word << 6) + lowest_bit(left)]
                left &= left - ONE
                new[k, bit >> 6] |= ONE << np.uint64(bit & 63)


@compiled_in_place
def enter(entries: Indices, magnitudes: Vector, place: int, relation: Relation) -> int:
    """Let entries enter, in order, from one on; return the place of one for which there is no room, or how many.

    Entry (i, j) of n columns has the number i n + j.
    """
    m, n = relation.places.shape
    while place < len(entries):
        i, j, magnitude = wide(entries[place] // n), wide(entries[place] % n), magnitudes[place]
        a, b = find(relation.parent, i), find(relation.parent, m + j)
        if a != b:
            _merge(relation, a, b, magnitude)
        elif not _is_linked(relation, i, j):
            if not _open_loop(relation, i, j, magnitude):
                return place
        elif relation.counters[N_OPEN] and not _close_loops(relation, i, j, magnitude):
            return place
        _relate(relation, i, j)
        place += 1
    return place


@compiled_within
def _merge(relation: Relation, a: int, b: int, magnitude: float) -> None:
    """Join two components at an entry; the younger one ends, and is noted if it was there before."""
    older, younger = max(relation.oldest[a], relation.oldest[b]), min(relation.oldest[a], relation.oldest[b])
    if younger > magnitude:
        count = relation.counters[N_MERGES]
        relation.merges[count, 0], relation.merges[count, 1] = younger, magnitude
        relation.counters[N_MERGES] += 1
    join(relation.parent, a, b)
    relation.oldest[max(a, b)] = max(older, magnitude)


@inlined
def _is_linked(relation: Relation, i: int, j: int) -> bool:
    """Return whether a row of column j shares a column with row i."""
    k, n_words = 0, relation.linked.shape[1]
    while k < n_words and not relation.linked[i, k] & relation.rows[j, k]:
        k += 1
    return bool(k < n_words)


@compiled_within
def _relate(relation: Relation, i: int, j: int) -> None:
    """Note an entry."""
    bit = ONE << np.uint64(i & 63)
    for word in range(relation.rows.shape[1]):
        new = relation.rows[j, word] & ~relation.linked[i, word]
        relation.linked[i, word] |= new
        while new:
            k = (word << 6) + lowest_bit(new)
            new &= new - ONE
            relation.linked[k, i >> 6] |= bit
    relation.rows[j, i >> 6] |= bit
    relation.columns[i, j >> 6] |= ONE << np.uint64(j & 63)


@compiled_within
def _open_loop(relation: Relation, i: int, j: int, magnitude: float) -> bool:
    """Open a loop with an entry, which alone has it in its vector; return whether there was room."""
    bit, count, holders = wide(0), relation.counters, relation.holders
    while bit < len(holders) and holders[bit] != NONE:
        bit += 1
    if bit == len(holders) or count[N_LOOPS] == len(relation.loops) or not _is_room(relation):
        return False
    holders[bit] = count[N_LOOPS]
    relation.loops[count[N_LOOPS], 0] = magnitude
    count[N_LOOPS] += 1
    count[N_OPEN] += 1
    row = _take_row(relation, i, j)
    relation.vectors[row, bit >> 6] = ONE << np.uint64(bit & 63)
    return True


@inlined
def _is_room(relation: Relation) -> bool:
    return bool(relation.counters[FREE_ROW] != NONE or relation.counters[N_ROWS] < len(relation.vectors))


@compiled_within
def _take_row(relation: Relation, i: int, j: int) -> int:
    """Return the place of an empty vector, which is an entry's from then on."""
    count, row = relation.counters, relation.counters[FREE_ROW]
    if row != NONE:
        count[FREE_ROW] = relation.owners[row]
    else:
        row = count[N_ROWS]
        count[N_ROWS] += 1
    relation.owners[row] = i * relation.places.shape[1] + j
    relation.places[i, j] = row + 1
    return int(row)


@compiled_within
def _close_loops(relation: Relation, i: int, j: int, magnitude: float) -> bool:
    """Close loops until all cycles of four through an entry vote alike, and give it that; return if there was room."""
    if not _is_room(relation):
        return False
    vector, difference = relation.sums[0], relation.sums[1]
    for path in range(_find_paths(relation, i, j)):
        c, k = wide(relation.paths[path, 0]), wide(relation.paths[path, 1])
        total = difference if path else vector
        for word in range(len(total)):
            total[word] = vector[word] if path else ZERO
        for place in (relation.places[i, c], relation.places[k, c], relation.places[k, j]):
            if place:
                _add(total, relation.vectors[place - 1])
        if path and _any(difference):
            _close_youngest(relation, vector, difference, magnitude)
    if _any(vector):
        _add(relation.vectors[_take_row(relation, i, j)], vector)
    return True


@inlined
def _add(total: Words, vector: Words) -> None:
    for word in range(len(total)):
        total[word] ^= vector[word]


@inlined
def _any(vector: Words) -> bool:
    some = ZERO
    for word in range(len(vector)):
        some |= vector[word]
    return bool(some != ZERO)


@compiled_within
def _close_youngest(relation: Relation, vector: Words, difference: Words, magnitude: float) -> None:
    """Let a sum of loops vanish: the youngest is closed, and is the sum of the others, in all vectors and one more."""
    count, vectors, loop, bit = relation.counters, relation.vectors, wide(NONE), wide(0)
    for word in range(len(difference)):
        left = difference[word]
        while left:
            k = (word << 6) + lowest_bit(left)
            left &= left - ONE
            if relation.holders[k] > loop:
                loop, bit = relation.holders[k], k
    relation.loops[loop, 1], relation.holders[bit] = magnitude, NONE
    count[N_OPEN] -= 1
    word, shift, n_columns = bit >> 6, np.uint64(bit & 63), relation.places.shape[1]
    if vector[word] >> shift & ONE:
        _add(vector, difference)
    for row in range(count[N_ROWS]):
        if vectors[row, word] >> shift & ONE:
            _add(vectors[row], difference)
            if not _any(vectors[row]):
                i, j = relation.owners[row] // n_columns, relation.owners[row] % n_columns
                relation.places[i, j] = 0
                relation.owners[row], count[FREE_ROW] = count[FREE_ROW], row


@compiled_within
def _find_paths(relation: Relation, i: int, j: int) -> int:
    """List the column and the row of one path from row i to column j for each part; return how many.

    A part is found from one of its rows: through each column of the rows found, the other rows of that column. Once
    every row is found, the columns that are left change nothing.
    """
    columns, rows, paths, unseen = relation.columns, relation.rows, relation.paths, relation.unseen
    left, waiting = relation.voters[0], relation.voters[1]
    n_left, first, count = 0, 0, 0
    for word in range(len(left)):
        left[word], waiting[word] = relation.linked[i, word] & rows[j, word], ZERO
        n_left += left[word] != ZERO
    for word in range(len(unseen)):
        unseen[word] = columns[i, word]
    while n_left:
        while not left[first]:
            first += 1
        k = (first << 6) + lowest_bit(left[first])
        left[first] &= left[first] - ONE
        n_left -= left[first] == ZERO
        paths[count, 0], paths[count, 1] = NONE, k
        while k >= 0:
            for word in range(len(unseen)):
                common = unseen[word] & columns[k, word]
                unseen[word] ^= common
                while common:
                    c = (word << 6) + lowest_bit(common)
                    common &= common - ONE
                    if paths[count, 0] == NONE:
                        paths[count, 0] = c
                    for other in range(first, len(left)):
                        new = left[other] & rows[c, other]
                        if new:
                            left[other] ^= new
                            waiting[other] |= new
                            n_left -= left[other] == ZERO
                    if not n_left:
                        return int(count + 1)
            k, word = -1, first
            while word < len(waiting) and not waiting[word]:
                word += 1
            if word < len(waiting):
                k = (word << 6) + lowest_bit(waiting[word])
                waiting[word] &= waiting[word] - ONE
        count += 1
    return int(count)


@compiled_in_place
def first_open_row(relation: Relation, row: int) -> int:
    """Return the first row, from one on, with an entry that is yet to come and could open a loop; m if there is none.

    An entry whose row shares a column with another of its column's rows never will.
    """
    m, n = relation.places.shape
    for i in range(row, m):
        for j in range(n):
            if not relation.columns[i, j >> 6] >> np.uint64(j & 63) & ONE and not _is_linked(relation, i, j):
                return int(i)
    return int(m)
