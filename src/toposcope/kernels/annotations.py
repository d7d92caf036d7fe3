"""Which loops an edge is in: persistent cohomology by annotations, over two elements.

Every open loop has a cocycle, a set of edges. The *vector* of an edge is the set of open loops whose cocycles contain
it; an edge is *active* if its vector is not empty. Edges of one vector share an *id*, and no two ids have the same
vector, so that vectors are compared by their ids; id 0 is the empty vector. When a loop is closed, the sum that
vanishes is added to all vectors that contain the loop: ids become empty, or become one with others.

Source: de Silva, Morozov & Vejdemo-Johansson 2011, "Dualities in persistent (co)homology"; Boissonnat, Dey & Maria
2015, "The compressed annotation matrix", of which this is the form for edges.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, wide
from toposcope.kernels.sets import ONE, Parents, find
from toposcope.typing import Indices

Numbers = NDArray[np.int32]

START, LENGTH, SIGNATURE, CODE, FIRST, LAST, SLOT, SEEN = range(8)
"""Of an id: where its vector lies, how long it is, the loops in it modulo 64 as bits, its hash; its first and last edge; its place in the table; and
the loop whose holders it was last listed among."""
N_IDS, N_MEMBERS, N_HOLDERS, N_EDGES, FREE_HOLDER, FREE_EDGE, N_SLOTS, N_LOOPS, N_OPEN, N_KEPT, EMPTIED = range(11)
"""Counters: how many of each are in use, the first of those that were given back, and the first of the edges whose
vectors became empty since the last `release`."""
NONE, REMOVED = -1, -1


class Annotations(NamedTuple):
    """The vectors of all active edges, and the loops."""

    count: Indices  # shape (11,); the counters
    parent: Parents  # by id; what it became one with, 0 if its vector is empty
    ids: Indices  # shape (i, 8); the fields above, by id
    members: Numbers  # vectors, each from the latest loop to the earliest
    table: Numbers  # ids by the hash of their vectors; 0 where there is none
    holders: Numbers  # shape (h, 2); chained: an id whose vector may contain a loop, and the next of that loop
    edges: Numbers  # shape (e, 3); chained: the ends of an active edge, and the next edge of its id
    holding: Numbers  # shape (l, 2); by loop, the first of its holders, and how many there are
    births: Numbers  # shape (l, 2); by loop, the edges that opened and closed it; -1 while it is open
    deaths: Numbers  # shape (l, 2); by loop, the edges that opened and closed it; -1 while it is open
    kept: Numbers  # the loops whose sum was closed, by the loop it closed, itself first; empty unless asked for
    kept_places: Indices  # shape (l, 2); by loop, where that sum begins and ends


@compiled
def no_annotations() -> Annotations:
    """Return the state before the first loop."""
    count = np.zeros(11, np.int64)
    count[N_IDS], count[FREE_HOLDER], count[FREE_EDGE], count[EMPTIED] = 1, NONE, NONE, NONE
    return Annotations(
        count,
        np.zeros(64, np.int32),
        np.zeros((64, 8), np.int64),
        np.empty(256, np.int32),
        np.zeros(128, np.int32),
        np.empty((256, 2), np.int32),
        np.empty((256, 3), np.int32),
        np.empty((64, 2), np.int32),
        np.empty((64, 2), np.int32),
        np.empty((64, 2), np.int32),
        np.empty(64, np.int32),
        np.zeros((64, 2), np.int64),
    )


@compiled
def open_loop(state: Annotations, u: int, v: int) -> tuple[Annotations, int, int]:
    """Open a loop with an edge, which alone has it in its vector; return its id and what `activate` returns, too."""
    loop = state.count[N_LOOPS]
    if loop == len(state.births):
        state = _grown(state, N_LOOPS, 0)
    state.births[loop, 0], state.births[loop, 1] = u, v
    state.deaths[loop, 0] = state.deaths[loop, 1] = NONE
    state.holding[loop, 0], state.holding[loop, 1] = NONE, 0
    state.count[N_LOOPS] += 1
    state.count[N_OPEN] += 1
    vector = np.empty(1, np.int32)
    vector[0] = loop
    state, number = id_of(state, vector)
    state, edge = activate(state, u, v, number)
    return state, number, edge


@compiled
def activate(state: Annotations, u: int, v: int, number: int) -> tuple[Annotations, int]:
    """Give an edge an id that is not 0; return its place in `edges`, too."""
    if state.count[FREE_EDGE] == NONE and state.count[N_EDGES] == len(state.edges):
        state = _grown(state, N_EDGES, 0)
    return state, _chain(state.count, state.ids, state.edges, u, v, number)


@compiled
def _chain(count: Indices, ids: Indices, edges: Numbers, u: int, v: int, number: int) -> int:
    edge = count[FREE_EDGE]
    if edge != NONE:
        count[FREE_EDGE] = edges[edge, 2]
    else:
        edge = count[N_EDGES]
        count[N_EDGES] += 1
    edges[edge, 0], edges[edge, 1], edges[edge, 2] = u, v, ids[number, FIRST]
    if ids[number, FIRST] == NONE:
        ids[number, LAST] = edge
    ids[number, FIRST] = edge
    return int(edge)


@compiled
def agree(
    state: Annotations, votes: Numbers, is_silent: bool, u: int, v: int, keeps: bool
) -> tuple[Annotations, int]:
    """Close loops with an edge until all votes are alike, and 0 if some point votes so; return the id they agree on.

    A vote is a pair of ids, the sum of whose vectors it is. The edges that became inactive are chained from `EMPTIED`,
    until they are released.
    """
    for k in range(0 if is_silent else 1, len(votes)):
        differing = _differing(state.parent, votes, k, not is_silent)
        if len(differing):
            delta = sum_of(state, differing)
            if len(delta):
                state = _substitute(state, delta, u, v, keeps)
    if is_silent or not len(votes):
        return state, 0
    agreed = _differing(state.parent, votes, 0, False)
    if len(agreed) > 1:
        return id_of(state, sum_of(state, agreed))
    return state, np.int64(agreed[0]) if len(agreed) else 0


@compiled
def _differing(parent: Parents, votes: Numbers, k: int, with_first: bool) -> Numbers:
    """Return the ids whose sum is that of a vote, and of the first one; what is there twice is left out."""
    numbers, count = np.empty(4, np.int32), 0
    for row in range(2 if with_first else 1):
        for side in range(2):
            number = find(parent, wide(votes[0 if row else k, side]))
            place = 0
            while place < count and numbers[place] != number:
                place += 1
            if number and place == count:
                numbers[count] = number
                count += 1
            elif number:
                count -= 1
                numbers[place] = numbers[count]
    return numbers[:count]


@compiled
def release(count: Indices, edges: Numbers) -> None:
    """Give back the edges that became inactive."""
    edge = count[EMPTIED]
    while edge != NONE:
        following = edges[edge, 2]
        edges[edge, 2] = count[FREE_EDGE]
        count[FREE_EDGE], edge = edge, following
    count[EMPTIED] = NONE


@compiled
def sum_of(state: Annotations, numbers: Numbers) -> Numbers:
    """Return the sum of the vectors of some ids."""
    total = np.empty(0, np.int32)
    for number in numbers:
        start, length = state.ids[number, START], state.ids[number, LENGTH]
        room = np.empty(length + len(total), np.int32)
        size = _merged(state.members[start : start + length], total, room)
        total = room[:size]
    return total


@compiled
def id_of(state: Annotations, vector: Numbers) -> tuple[Annotations, int]:
    """Return the id of a vector that is not empty, a new one if there is none."""
    code = _code(vector)
    number = _lookup(state.ids, state.members, state.table, vector, code)
    if number:
        return state, number
    number = state.count[N_IDS]
    if number == len(state.parent):
        state = _grown(state, N_IDS, 0)
    state = _with_slots(_with_room(state, len(vector)), 1)
    while state.count[N_HOLDERS] + len(vector) > len(state.holders):
        state = _grown(state, N_HOLDERS, 0)
    _store(state, number, vector, code)
    return state, number


@compiled
def _store(state: Annotations, number: int, vector: Numbers, code: int) -> None:
    """Take a vector as that of a new id."""
    start, ids = state.count[N_MEMBERS], state.ids
    state.count[N_IDS] += 1
    state.count[N_MEMBERS] += len(vector)
    for k in range(len(vector)):
        state.members[start + k] = vector[k]
        _hold(state, vector[k], number)
    state.parent[number] = number
    ids[number, START], ids[number, LENGTH], ids[number, CODE] = start, len(vector), code
    ids[number, SIGNATURE] = _signature(state.members, start, len(vector))
    ids[number, FIRST] = ids[number, LAST] = ids[number, SEEN] = NONE
    _put(state, number)


@compiled
def _merged(a: Numbers, b: Numbers, total: Numbers) -> int:
    """Write the sum of two vectors, what is in one of them alone; return how long it is."""
    i = j = k = 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] > b[j]):
            total[k] = a[i]
            i += 1
            k += 1
        elif i == len(a) or a[i] < b[j]:
            total[k] = b[j]
            j += 1
            k += 1
        else:
            i += 1
            j += 1
    return k


@compiled
def _substitute(state: Annotations, delta: Numbers, u: int, v: int, keeps: bool) -> Annotations:
    """Let a sum of open loops vanish: an edge closes the latest of them, and it is the sum of the others."""
    loop = delta[0]
    state.deaths[loop, 0], state.deaths[loop, 1] = u, v
    state.count[N_OPEN] -= 1
    if keeps:
        state = _kept(state, delta)
    found = np.empty(state.holding[loop, 1], np.int32)
    n_found, n_members = _ids_with(state, loop, found)
    state = _with_room(state, n_members + n_found * len(delta))
    while state.count[N_HOLDERS] + n_found * (len(delta) - 1) > len(state.holders):
        state = _grown(state, N_HOLDERS, 0)
    state = _with_slots(state, n_found)
    _add_to_all(state, delta, found[:n_found])
    return state


@compiled
def _ids_with(state: Annotations, loop: int, found: Numbers) -> tuple[int, int]:
    """List the ids whose vectors contain a loop; return how many, and the lengths of these vectors together."""
    parent, ids, members, holders = state.parent, state.ids, state.members, state.holders
    n_found = n_members = 0
    node, last = state.holding[loop, 0], np.int32(NONE)
    while node != NONE:
        number, last, node = holders[node, 0], node, holders[node, 1]
        if parent[number] != number or not ids[number, SIGNATURE] >> (loop & 63) & 1 or ids[number, SEEN] == loop:
            continue
        k, end = ids[number, START], ids[number, START] + ids[number, LENGTH]
        while k < end and members[k] > loop:
            k += 1
        if k < end and members[k] == loop:
            ids[number, SEEN] = loop
            found[n_found] = number
            n_found += 1
            n_members += ids[number, LENGTH]
    if last != NONE:
        holders[last, 1] = state.count[FREE_HOLDER]
        state.count[FREE_HOLDER] = state.holding[loop, 0]
    return n_found, n_members


@compiled
def _add_to_all(state: Annotations, delta: Numbers, numbers: Numbers) -> None:
    """Add a sum to the vectors of some ids; there is room for all that this takes."""
    count, parent, ids, members, table = state.count, state.parent, state.ids, state.members, state.table
    code = _code(delta)
    fresh = np.empty(len(delta), np.int32)
    for number in numbers:
        start = count[N_MEMBERS]
        length, n_fresh = _add(members, ids[number, START], ids[number, LENGTH], delta, start, fresh)
        table[ids[number, SLOT]] = REMOVED
        ids[number, CODE] ^= code
        other = 0
        if length:
            other = _lookup(ids, members, table, members[start : start + length], ids[number, CODE])
        if length and not other:
            ids[number, START], ids[number, LENGTH] = start, length
            ids[number, SIGNATURE] = _signature(members, start, length)
            count[N_MEMBERS] += length
            _put(state, number)
            for k in range(n_fresh):
                _hold(state, fresh[k], number)
            continue
        parent[number] = other
        if other:
            state.edges[ids[other, LAST], 2] = ids[number, FIRST]
            ids[other, LAST] = ids[number, LAST]
        else:
            state.edges[ids[number, LAST], 2] = count[EMPTIED]
            count[EMPTIED] = ids[number, FIRST]


@compiled
def _add(
    members: Numbers, begin: int, length: int, delta: Numbers, start: int, fresh: Numbers
) -> tuple[int, int]:
    """Write the sum of a vector and another behind the members; return how long it is, and how much of it is new."""
    i, end, j, k, n_fresh = begin, begin + length, 0, start, 0
    while i < end or j < len(delta):
        if j == len(delta) or (i < end and members[i] > delta[j]):
            members[k] = members[i]
            i += 1
            k += 1
        elif i == end or members[i] < delta[j]:
            members[k] = fresh[n_fresh] = delta[j]
            j += 1
            k += 1
            n_fresh += 1
        else:
            i += 1
            j += 1
    return k - start, n_fresh


@compiled
def _signature(members: Numbers, start: int, length: int) -> int:
    signature = np.int64(0)
    for k in range(start, start + length):
        signature |= np.int64(1) << np.int64(members[k] & 63)
    return signature


@compiled
def _code(vector: Numbers) -> int:
    """Return the hash of a vector; that of a sum is the sum, bit by bit."""
    code = np.int64(0)
    for loop in vector:  # the mixing of SplitMix64 (Steele, Lea & Flood 2014)
        word = (np.uint64(loop) + ONE) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        code ^= np.int64(word ^ (word >> np.uint64(31)))
    return code


@compiled
def _lookup(ids: Indices, members: Numbers, table: Numbers, vector: Numbers, code: int) -> int:
    """Return the id of a vector, 0 if there is none."""
    mask = len(table) - 1
    slot = code & mask
    while table[slot]:
        number = table[slot]
        if number != REMOVED and ids[number, CODE] == code and ids[number, LENGTH] == len(vector):
            start, k = ids[number, START], 0
            while k < len(vector) and members[start + k] == vector[k]:
                k += 1
            if k == len(vector):
                return int(number)
        slot = (slot + 1) & mask
    return 0


@compiled
def _with_slots(state: Annotations, n_more: int) -> Annotations:
    """Return the state with room in the table for so many more."""
    if 2 * (state.count[N_SLOTS] + n_more) > len(state.table):
        state = _grown(state, N_SLOTS, n_more)
        state.count[N_SLOTS] = 0
        for other in range(1, state.count[N_IDS]):
            if state.parent[other] == other:
                _put(state, other)
    return state


@compiled
def _put(state: Annotations, number: int) -> None:
    mask = len(state.table) - 1
    slot = state.ids[number, CODE] & mask
    while state.table[slot] > 0:
        slot = (slot + 1) & mask
    state.count[N_SLOTS] += state.table[slot] == 0
    state.table[slot] = number
    state.ids[number, SLOT] = slot


@compiled
def _hold(state: Annotations, loop: int, number: int) -> None:
    """Note that the vector of an id contains a loop."""
    node = state.count[FREE_HOLDER]
    if node != NONE:
        state.count[FREE_HOLDER] = state.holders[node, 1]
    else:
        node = state.count[N_HOLDERS]
        state.count[N_HOLDERS] += 1
    state.holders[node, 0], state.holders[node, 1] = number, state.holding[loop, 0]
    state.holding[loop, 0] = node
    state.holding[loop, 1] += 1


@compiled
def _kept(state: Annotations, delta: Numbers) -> Annotations:
    """Keep the sum that vanished."""
    while len(state.kept) < state.count[N_KEPT] + len(delta):
        state = _grown(state, N_KEPT, 0)
    begin = state.count[N_KEPT]
    state.kept[begin : begin + len(delta)] = delta
    state.count[N_KEPT] += len(delta)
    state.kept_places[delta[0], 0], state.kept_places[delta[0], 1] = begin, state.count[N_KEPT]
    return state


@compiled
def _with_room(state: Annotations, length: int) -> Annotations:
    """Return the state with room for so many more members; vectors that are no longer used are dropped first."""
    if state.count[N_MEMBERS] + length <= len(state.members):
        return state
    old = state.members
    state = _grown(state, N_MEMBERS, length)
    end = 0
    for number in range(1, state.count[N_IDS]):
        if state.parent[number] == number:
            start, size = state.ids[number, START], state.ids[number, LENGTH]
            state.members[end : end + size] = old[start : start + size]
            state.ids[number, START] = end
            end += size
    state.count[N_MEMBERS] = end
    return state


@compiled
def _grown(state: Annotations, which: int, room: int) -> Annotations:
    """Return the state with longer arrays of one kind; members and table are new, for as many as are in use."""
    count, parent, ids, members, table, holders, edges, holding, births, deaths, kept, kept_places = state
    if which == N_IDS:
        parent, ids = _longer(parent), _more_rows(ids)
    elif which == N_LOOPS:
        holding, births, deaths = _more_rows(holding), _more_rows(births), _more_rows(deaths)
        kept_places = _more_rows(kept_places)
    elif which == N_HOLDERS:
        holders = _more_rows(holders)
    elif which == N_EDGES:
        edges = _more_rows(edges)
    elif which == N_KEPT:
        kept = _longer(kept)
    else:
        used, length = 0, 0
        for number in range(1, count[N_IDS]):
            if parent[number] == number:
                used += 1
                length += ids[number, LENGTH]
        if which == N_MEMBERS:
            members = np.empty(max(len(members), 2 * (length + room)), np.int32)
        else:
            size = len(table)
            while size < 4 * (used + room):
                size *= 2
            table = np.zeros(size, np.int32)
    return Annotations(
        count, parent, ids, members, table, holders, edges, holding, births, deaths, kept, kept_places
    )


@compiled
def _longer(array: Numbers) -> Numbers:
    longer = np.zeros(2 * len(array), array.dtype)
    longer[: len(array)] = array
    return longer


@compiled
def _more_rows(array: Numbers) -> Numbers:
    longer = np.zeros((2 * len(array), array.shape[1]), array.dtype)
    longer[: len(array)] = array
    return longer
