"""The cocycles of voids: sets of triangles as rows of bits, one for each edge in a triangle, of the third points.

Each triangle is in three rows. Compiled functions make no array longer: what lacks room changes nothing, says so, and
is called again after `with_rows`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.annotations import NONE, Numbers
from toposcope.kernels.compiled import compiled, inlined, wide
from toposcope.kernels.sets import ONE, ZERO, Words, lowest_bit
from toposcope.typing import Indices

N_ROWS, N_USED, FREE_ROW, N_VOIDS, NEEDED = range(5)
"""Counters: how many rows there have been, how many are in use, the first that was given back; how many voids there
are; and for how many rows there was no room."""
VOID, END_A, END_B, NEXT, PREVIOUS, NEXT_OF_VOID = range(6)
"""Of a row: its void and edge; the rows after and before it at that edge; the next of its void."""
FIRST, SIZE, SEEN, DONE = range(4)
"""Of a void: its first row; how many it has; what was found of it at an edge; the last edge that it was given."""


class Voids(NamedTuple):
    """The cocycles of all open voids."""

    counters: Indices
    bits: Words  # shape (r, n / 64); the third points of a row
    rows: Numbers  # shape (r, 6); the fields above
    first: Numbers  # shape (n, n); the first row of an edge
    held: Words  # shape (n, n / 64); the edges that have rows
    places: Numbers  # shape (n, n); where the rows of one void are, while another is added to it
    heads: Numbers  # shape (v, 4); the fields above
    births: Numbers  # shape (v, 2); the edge that opened a void
    deaths: Numbers  # shape (v, 2); the edge that closed it, -1 while it is open


def no_voids(n: int) -> Voids:
    """Return the state before the first void."""
    sets, square = np.zeros((n, max(-(-n // 64), 1)), np.uint64), np.full((n, n), NONE, np.int32)
    rows = np.zeros((64, sets.shape[1]), np.uint64), np.empty((64, 6), np.int32)
    pairs = np.empty((64, 2), np.int32)
    counters = np.array([0, 0, NONE, 0, 0])
    return Voids(counters, *rows, square, sets, square.copy(), np.empty((64, 4), np.int32), pairs, pairs.copy())


def with_rows(voids: Voids) -> Voids:
    """Return the state with room for what lacked it."""
    counters = voids.counters
    if len(voids.rows) < counters[N_USED] + counters[NEEDED]:
        size = 2 * len(voids.rows) + int(counters[NEEDED])
        voids = voids._replace(bits=_resized(voids.bits, size), rows=_resized(voids.rows, size))
    if counters[N_VOIDS] == len(voids.heads):
        size = 2 * len(voids.heads)
        births, deaths = _resized(voids.births, size), _resized(voids.deaths, size)
        voids = voids._replace(heads=_resized(voids.heads, size), births=births, deaths=deaths)
    return voids


def _resized(array: NDArray[Any], size: int) -> NDArray[Any]:
    longer = np.zeros((size, array.shape[1]), array.dtype)
    longer[: len(array)] = array
    return longer


@inlined
def _is_room(voids: Voids, needed: int) -> bool:
    is_room = len(voids.rows) - voids.counters[N_USED] >= needed
    if not is_room:
        voids.counters[NEEDED] = needed
    return bool(is_room)


@compiled
def open_void(voids: Voids, u: int, v: int, points: Words, place: int) -> bool:
    """Open a void with the triangles of an edge and some points; return whether there was room."""
    void = voids.counters[N_VOIDS]
    if void == len(voids.births):
        return False
    voids.births[void, 0], voids.births[void, 1] = u, v
    voids.deaths[void, 0] = voids.heads[void, FIRST] = voids.heads[void, SEEN] = NONE
    voids.heads[void, SIZE] = 0
    if not take(voids, void, u, v, points, place):
        return False
    voids.counters[N_VOIDS] += 1
    return True


@compiled
def close_void(voids: Voids, void: int, u: int, v: int) -> None:
    """Note that an edge closes a void, and give back its rows."""
    voids.deaths[void, 0], voids.deaths[void, 1] = u, v
    row = wide(voids.heads[void, FIRST])
    while row != NONE:
        following = wide(voids.rows[row, NEXT_OF_VOID])
        _free(voids, row)
        row = following
    voids.heads[void, FIRST] = NONE


@compiled
def take(voids: Voids, void: int, u: int, v: int, points: Words, place: int) -> bool:
    """Add the triangles of an edge and some points, none of which it has, to a void; return whether there was room."""
    needed = 1
    for i in range(len(points)):
        needed += 2 * ones(points[i])
    if not _is_room(voids, needed):
        return False
    voids.heads[void, DONE] = place
    bit_u, bit_v = ONE << np.uint64(u & 63), ONE << np.uint64(v & 63)
    row = _row_of(voids, void, u, v) if needed > 1 else 0
    for i in range(len(points)):
        word = points[i]
        if word:
            voids.bits[row, i] = word
        while word:
            x = (i << 6) + lowest_bit(word)
            word &= word - ONE
            voids.bits[_row_of(voids, void, u, x), v >> 6] |= bit_v
            voids.bits[_row_of(voids, void, v, x), u >> 6] |= bit_u
    return True


@compiled
def _row_of(voids: Voids, void: int, a: int, b: int) -> int:
    row = wide(voids.first[a, b])
    while row != NONE and voids.rows[row, VOID] != void:
        row = wide(voids.rows[row, NEXT])
    return row if row != NONE else _new_row(voids, void, a, b)


@compiled
def _new_row(voids: Voids, void: int, a: int, b: int) -> int:
    row = voids.counters[FREE_ROW]
    if row != NONE:
        voids.counters[FREE_ROW] = voids.rows[row, NEXT_OF_VOID]
    else:
        row = voids.counters[N_ROWS]
        voids.counters[N_ROWS] += 1
    following = voids.first[a, b]
    if following != NONE:
        voids.rows[following, PREVIOUS] = row
    voids.rows[row, VOID], voids.rows[row, END_A], voids.rows[row, END_B] = void, min(a, b), max(a, b)
    voids.rows[row, NEXT], voids.rows[row, PREVIOUS] = following, NONE
    voids.rows[row, NEXT_OF_VOID] = voids.heads[void, FIRST]
    voids.first[a, b] = voids.first[b, a] = voids.heads[void, FIRST] = row
    voids.held[a, b >> 6] |= ONE << np.uint64(b & 63)
    voids.held[b, a >> 6] |= ONE << np.uint64(a & 63)
    voids.counters[N_USED] += 1
    voids.heads[void, SIZE] += 1
    return int(row)


@compiled
def add(voids: Voids, void: int, other: int) -> bool:
    """Add the triangles of another void to one, and give back rows that become empty; return whether there was room."""
    if not _is_room(voids, voids.heads[other, SIZE]):
        return False
    row = wide(voids.heads[void, FIRST])
    while row != NONE:
        voids.places[voids.rows[row, END_A], voids.rows[row, END_B]] = row
        row = wide(voids.rows[row, NEXT_OF_VOID])
    row = wide(voids.heads[other, FIRST])
    while row != NONE:
        a, b = wide(voids.rows[row, END_A]), wide(voids.rows[row, END_B])
        place = wide(voids.places[a, b])
        if place == NONE:
            place = _new_row(voids, void, a, b)
        for i in range(voids.bits.shape[1]):
            voids.bits[place, i] ^= voids.bits[row, i]
        row = wide(voids.rows[row, NEXT_OF_VOID])
    row, kept = wide(voids.heads[void, FIRST]), wide(NONE)
    while row != NONE:
        following, some = wide(voids.rows[row, NEXT_OF_VOID]), ZERO
        voids.places[voids.rows[row, END_A], voids.rows[row, END_B]] = NONE
        for i in range(voids.bits.shape[1]):
            some |= voids.bits[row, i]
        if some:
            voids.rows[row, NEXT_OF_VOID], kept = kept, row
        else:
            _free(voids, row)
        row = following
    voids.heads[void, FIRST] = kept
    return True


@compiled
def _free(voids: Voids, row: int) -> None:
    """Take a row from its edge, and give it back."""
    a, b = wide(voids.rows[row, END_A]), wide(voids.rows[row, END_B])
    before, following = voids.rows[row, PREVIOUS], voids.rows[row, NEXT]
    if following != NONE:
        voids.rows[following, PREVIOUS] = before
    if before != NONE:
        voids.rows[before, NEXT] = following
    else:
        voids.first[a, b] = voids.first[b, a] = following
        if following == NONE:
            voids.held[a, b >> 6] &= ~(ONE << np.uint64(b & 63))
            voids.held[b, a >> 6] &= ~(ONE << np.uint64(a & 63))
    voids.counters[N_USED] -= 1
    voids.heads[voids.rows[row, VOID], SIZE] -= 1
    for i in range(voids.bits.shape[1]):
        voids.bits[row, i] = ZERO
    voids.rows[row, NEXT_OF_VOID] = voids.counters[FREE_ROW]
    voids.counters[FREE_ROW] = row


@inlined
def ones(word: Any) -> int:
    """Return how many bits of a word are 1."""
    pairs = word - (word >> ONE & np.uint64(0x5555555555555555))
    nibbles = (pairs & np.uint64(0x3333333333333333)) + (pairs >> np.uint64(2) & np.uint64(0x3333333333333333))
    total = (nibbles + (nibbles >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)) * np.uint64(0x0101010101010101)
    return int(wide(total >> np.uint64(56)))
