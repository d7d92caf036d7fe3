"""Which loops an edge is in: persistent cohomology by annotations, over two elements.

Every open loop has a cocycle, a set of edges. The *vector* of an edge is the set of open loops whose cocycles contain
it; an edge is *active* if its vector is not empty. Edges of one vector share an *id*, and no two ids have the same
vector, so that vectors are compared by their ids; id 0 is the empty vector. When a loop is closed, the sum that
vanishes is added to all vectors that contain the loop: ids become empty, or become one with others.

Compiled functions never make arrays longer: what lacks room changes nothing but what it has finished, says so, and is
called again after `with_room`. (An array that is replaced within a compiled loop is counted at every use of it, which
took four times as long as all the work.)

Source: de Silva, Morozov & Vejdemo-Johansson 2011, "Dualities in persistent (co)homology"; Boissonnat, Dey & Maria
2015, "The compressed annotation matrix", of which this is the form for edges.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, compiled_within, inlined, wide
from toposcope.kernels.sets import ONE, ZERO, Parents, find
from toposcope.typing import Indices

Numbers = NDArray[np.int32]

START, LENGTH, SIGNATURE, CODE, FIRST, LAST, SLOT, SEEN = range(8)
"""Of an id: where its vector lies, and how long it is; the loops in it modulo 64, as bits; its hash; its first and last
edge; its place in the table; and the loop among whose ids it was last found."""
N_IDS, N_MEMBERS, N_HOLDERS, N_EDGES, FREE_HOLDER, FREE_EDGE, N_SLOTS, N_LOOPS, N_OPEN, N_KEPT = range(10)
EMPTIED, NEEDED, NEEDED_HOLDERS = 10, 11, 12
LIMIT_OF_IDS, LIMIT_OF_MEMBERS, LIMIT_OF_HOLDERS, LIMIT_OF_EDGES, LIMIT_OF_SLOTS, LIMIT_OF_LOOPS, LIMIT_OF_KEPT = range(
    13, 20
)
"""Counters: how many of each are in use; the first of those that were given back; the first of the edges whose vectors
became empty since the last `release`; for how many members and holders there was no room; and how many of each there is
room for."""
NONE, REMOVED, NO_ROOM = -1, -1, -1
HELD = 7  # ids in a block of holders
SPARE = 2  # times as much room is made as is in use


class Annotations(NamedTuple):
    """The vectors of all active edges, and the loops."""

    counters: Indices  # shape (20,)
    parent: Parents  # by id; what it became one with, 0 if its vector is empty
    ids: Indices  # shape (i, 8); the fields above, by id
    members: Numbers  # vectors, each from the latest loop to the earliest
    table: Numbers  # ids by the hash of their vectors; 0 where there is none
    holders: Numbers  # shape (h, 8); chained: ids whose vectors may contain a loop, and the next block of that loop
    edges: Numbers  # shape (e, 3); chained: the ends of an active edge, and the next edge of its id
    holding: Numbers  # shape (l, 2); by loop, the first of its blocks, which alone may have room, and how many ids
    births: Numbers  # shape (l, 2); by loop, the edges that opened and closed it; -1 while it is open
    deaths: Numbers  # shape (l, 2); by loop, the edges that opened and closed it; -1 while it is open
    kept: Numbers  # the sums that vanished, each the loop it closed and those it was the sum of; empty unless asked for
    kept_places: Indices  # shape (l, 2); by loop, where its sum begins and ends
    sums: Numbers  # shape (3, l); room for a sum of vectors, for the next, and for what is new in one
    found: Numbers  # shape (7 h,); room for ids


def no_annotations() -> Annotations:
    """Return the state before the first loop."""
    count = np.zeros(20, np.int64)
    count[N_IDS], count[[FREE_HOLDER, FREE_EDGE, EMPTIED]] = 1, NONE
    pairs = np.empty((64, 2), np.int32)
    state = Annotations(
        count,
        np.zeros(64, np.int32),
        np.zeros((64, 8), np.int64),
        np.empty(256, np.int32),
        np.zeros(256, np.int32),
        np.empty((64, HELD + 1), np.int32),
        np.empty((256, 3), np.int32),
        pairs,
        pairs.copy(),
        pairs.copy(),
        np.empty(256, np.int32),
        np.zeros((64, 2), np.int64),
        np.empty((3, 0), np.int32),
        np.empty(0, np.int32),
    )
    return _with_limits(state)


def _with_limits(state: Annotations) -> Annotations:
    """Note how many of each there is room for, where compiled code looks it up."""
    arrays = state.parent, state.members, state.holders, state.edges, state.table, state.births, state.kept
    state.counters[LIMIT_OF_IDS:] = [len(array) for array in arrays]
    state.counters[LIMIT_OF_SLOTS] //= 2
    sums, found = np.empty((3, len(state.births)), np.int32), np.empty(HELD * len(state.holders), np.int32)
    return state._replace(sums=sums, found=found)


def with_room(state: Annotations) -> Annotations:
    """Return the state with room for what lacked it; members and holders that no vector has are dropped."""
    count = state.counters
    arrays: dict[str, Any] = {}
    for used, needed, names in (
        (N_IDS, 1, ("parent", "ids")),
        (N_EDGES, 1, ("edges",)),
        (N_LOOPS, 1, ("holding", "births", "deaths", "kept_places")),
        (N_KEPT, int(count[N_LOOPS]) + 1, ("kept",)),
    ):
        for name in names:
            old = getattr(state, name)
            if 2 * (count[used] + needed) > len(old):  # what is half full is soon full
                arrays[name] = np.zeros((SPARE * len(old) + needed, *old.shape[1:]), old.dtype)
                arrays[name][: len(old)] = old
    live = np.flatnonzero(state.parent[: count[N_IDS]] == np.arange(count[N_IDS]))[1:]
    length, old = int(state.ids[live, LENGTH].sum()), state.members
    arrays["members"] = np.empty(max(len(old), SPARE * (length + int(count[NEEDED]))), np.int32)
    if relists := bool(count[N_HOLDERS] + count[NEEDED_HOLDERS] > len(state.holders)):
        n_blocks = length // HELD + count[N_OPEN] + count[NEEDED_HOLDERS]
        arrays["holders"] = np.empty((max(len(state.holders), SPARE * int(n_blocks)), HELD + 1), np.int32)
    size = len(state.table)
    while size < 4 * (2 * len(live) + 1):  # of each id two slots: its own, and that of its next vector
        size *= 2
    state = state._replace(**arrays, table=np.zeros(size, np.int32))
    count[N_SLOTS], count[N_MEMBERS] = 0, length
    if relists:
        state.holding[:], count[N_HOLDERS], count[FREE_HOLDER] = (NONE, 0), 0, NONE
    _rebuild(count, state.ids, live, old, state.members, state.holders, state.holding, state.table, relists)
    return _with_limits(state)


@compiled
def _rebuild(
    count: Indices,
    ids: Indices,
    live: Indices,
    old: Numbers,
    members: Numbers,
    holders: Numbers,
    holding: Numbers,
    table: Numbers,
    relists: bool,
) -> None:
    """Fill the table with some ids, the members with their vectors, and new holders with these."""
    end = 0
    for number in live:
        _put(count, ids, table, number)
        start, length = ids[number, START], ids[number, LENGTH]
        ids[number, START] = end
        for k in range(start, start + length):
            members[end] = old[k]
            end += 1
        if relists:
            _hold(count, holders, holding, members[end - length : end], length, number)


@compiled_within
def _is_room(count: Indices, n_members: int, n_changed: int, length: int) -> bool:
    """Return whether so many ids, with so many members together, can get as many more each; and one of all else."""
    needed, n_holders = n_members + n_changed * length, (n_changed // HELD + 2) * length
    is_room = (
        (count[N_IDS] < count[LIMIT_OF_IDS])
        & (count[N_LOOPS] < count[LIMIT_OF_LOOPS])
        & ((count[FREE_EDGE] != NONE) | (count[N_EDGES] < count[LIMIT_OF_EDGES]))
        & (count[N_MEMBERS] + needed <= count[LIMIT_OF_MEMBERS])
        & (count[N_HOLDERS] + n_holders <= count[LIMIT_OF_HOLDERS])
        & (count[N_SLOTS] + n_changed <= count[LIMIT_OF_SLOTS])
        & (count[N_KEPT] + length <= count[LIMIT_OF_KEPT])
    )
    if not is_room:
        count[NEEDED], count[NEEDED_HOLDERS] = needed, n_holders
    return bool(is_room)


@compiled_within
def open_loop(state: Annotations, u: int, v: int) -> int:
    """Open a loop with an edge, which alone has it in its vector; return its id."""
    if not _is_room(state.counters, wide(0), wide(1), wide(1)):
        return NO_ROOM
    loop = state.counters[N_LOOPS]
    state.births[loop, 0], state.births[loop, 1] = u, v
    state.deaths[loop, 0] = state.deaths[loop, 1] = NONE
    state.holding[loop, 0], state.holding[loop, 1] = NONE, 0
    state.counters[N_LOOPS] += 1
    state.counters[N_OPEN] += 1
    state.sums[0, 0] = loop
    number = _id_of(state, wide(1))
    activate(state, u, v, number)
    return int(number)


@compiled_within
def activate(state: Annotations, u: int, v: int, number: int) -> None:
    """Give an edge an id, that `agree` returned."""
    count, ids, edges = state.counters, state.ids, state.edges
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


@compiled_within
def agree(state: Annotations, votes: Numbers, n_votes: int, is_silent: bool, u: int, v: int, keeps: bool) -> int:
    """Close loops with an edge until all votes are alike, and 0 if some point votes so; return the id they agree on.

    A vote is a pair of ids, the sum of whose vectors it is. The edges that became inactive are chained from `EMPTIED`,
    until they are released.
    """
    for k in range(0 if is_silent else 1, n_votes):
        length = sum_of_votes(state, votes, k, not is_silent)
        if length and not substitute(state, length, u, v, keeps):
            return NO_ROOM
    if is_silent or not n_votes:
        return 0
    a, b = find(state.parent, wide(votes[0, 0])), find(state.parent, wide(votes[0, 1]))
    if a == b:
        return 0
    length = sum_of_votes(state, votes, wide(0), is_silent) if a and b else wide(0)
    if not _is_room(state.counters, wide(0), wide(1), length):
        return NO_ROOM
    return _id_of(state, length) if a and b else a + b


@compiled_within
def release(state: Annotations) -> None:
    """Give back the edges that became inactive."""
    count, edges = state.counters, state.edges
    edge = count[EMPTIED]
    while edge != NONE:
        following = edges[edge, 2]
        edges[edge, 2] = count[FREE_EDGE]
        count[FREE_EDGE], edge = edge, following
    count[EMPTIED] = NONE


@compiled_within
def sum_of_votes(state: Annotations, votes: Numbers, k: int, with_first: bool) -> int:
    """Write the vector that a vote is, or the sum of it and the first one, to `sums`; return how long it is."""
    ids, sums, length, place = state.ids, state.sums, wide(0), wide(0)
    for n in range(4 if with_first else 2):  # what is the same in both cancels
        number = find(state.parent, wide(votes[k if n < 2 else 0, n & 1]))
        if number:
            begin, delta, total = ids[number, START], sums[place, :length], sums[1 - place]
            length, _ = _add(state.members, begin, ids[number, LENGTH], delta, total, wide(0), sums[2])
            place = 1 - place
    for i in range(length if place else 0):
        sums[0, i] = sums[1, i]
    return int(length)


@compiled_within
def _id_of(state: Annotations, length: int) -> int:
    """Return the id of the sum, which is not empty, a new one if there is none; there is room for it."""
    count, ids, vector = state.counters, state.ids, state.sums[0, :length]
    code, start = _code(vector), count[N_MEMBERS]
    for k in range(length):
        state.members[start + k] = vector[k]
    number = _lookup(ids, state.members, state.table, start, length, code)
    if number:
        return number
    number = count[N_IDS]
    count[N_IDS] += 1
    count[N_MEMBERS] += length
    _hold(count, state.holders, state.holding, vector, length, number)
    state.parent[number] = number
    ids[number, START], ids[number, LENGTH], ids[number, CODE] = start, length, code
    ids[number, SIGNATURE] = _signature(state.members, start, length)
    ids[number, FIRST] = ids[number, LAST] = ids[number, SEEN] = NONE
    _put(count, ids, state.table, number)
    return int(number)


@compiled_within
def substitute(state: Annotations, length: int, u: int, v: int, keeps: bool) -> bool:
    """Let the sum of open loops vanish: an edge closes the latest of them, and it is the sum of the others.

    Return whether there was room for that.
    """
    count, delta = state.counters, state.sums[0, :length]
    loop = wide(delta[0])
    n_found, n_members, last = _ids_with(state.ids, state.members, state.holders, state.holding, loop, state.found)
    if not _is_room(count, n_members, n_found, length):
        return False
    state.deaths[loop, 0], state.deaths[loop, 1] = u, v
    count[N_OPEN] -= 1
    if keeps:
        state.kept_places[loop, 0] = count[N_KEPT]
        for k in range(len(delta)):
            state.kept[count[N_KEPT]] = delta[k]
            count[N_KEPT] += 1
        state.kept_places[loop, 1] = count[N_KEPT]
    _add_to_all(state, delta, state.found, n_found)
    state.holders[last, HELD], count[FREE_HOLDER] = count[FREE_HOLDER], state.holding[loop, 0]
    return True


@compiled_within
def _ids_with(
    ids: Indices, members: Numbers, holders: Numbers, holding: Numbers, loop: int, found: Numbers
) -> tuple[int, int, int]:
    """List the ids whose vectors contain a loop, of which there are some.

    Return how many, the lengths of these vectors together, and the last holder.
    """
    n_held = n_found = n_members = 0
    block = last = holding[loop, 0]
    size = (holding[loop, 1] - 1) % HELD + 1
    while block != NONE:
        for k in range(size):
            found[n_held + k] = holders[block, k]
        n_held += size
        last, block, size = block, holders[block, HELD], HELD
    for n in range(n_held):
        number = found[n]
        if not ids[number, SIGNATURE] >> (loop & 63) & 1 or ids[number, SEEN] == loop:
            continue
        k, end = ids[number, START], ids[number, START] + ids[number, LENGTH]
        while k < end and members[k] > loop:
            k += 1
        if k < end and members[k] == loop:
            ids[number, SEEN] = loop
            found[n_found] = number
            n_found += 1
            n_members += ids[number, LENGTH]
    for k in range(n_found):
        ids[found[k], SEEN] = NONE
    return n_found, n_members, last


@compiled_within
def _add_to_all(state: Annotations, delta: Numbers, numbers: Numbers, n_numbers: int) -> None:
    """Add a sum to the vectors of some ids; there is room for all that this takes."""
    count, parent, ids, members, table = state.counters, state.parent, state.ids, state.members, state.table
    holders, holding, edges = state.holders, state.holding, state.edges
    code, fresh = _code(delta), state.sums[2]
    for n in range(n_numbers):
        number = wide(numbers[n])
        start = count[N_MEMBERS]
        length, n_fresh = _add(members, ids[number, START], ids[number, LENGTH], delta, members, start, fresh)
        table[ids[number, SLOT]] = REMOVED
        ids[number, CODE] ^= code
        other = 0
        if length:
            other = _lookup(ids, members, table, start, length, ids[number, CODE])
        if length and not other:
            ids[number, START], ids[number, LENGTH] = start, length
            ids[number, SIGNATURE] = _signature(members, start, length)
            count[N_MEMBERS] += length
            _put(count, ids, table, number)
            _hold(count, holders, holding, fresh, n_fresh, number)
            continue
        parent[number], ids[number, SIGNATURE] = other, 0
        if other:
            edges[ids[other, LAST], 2] = ids[number, FIRST]
            ids[other, LAST] = ids[number, LAST]
        else:
            edges[ids[number, LAST], 2] = count[EMPTIED]
            count[EMPTIED] = ids[number, FIRST]


@compiled_within
def _add(
    members: Numbers, begin: int, length: int, delta: Numbers, total: Numbers, start: int, fresh: Numbers
) -> tuple[int, int]:
    """Write the sum of a vector and another from a place on; return how long it is, and how much of it is new."""
    # Unsigned: a place below zero would count from the end.
    i, end, j, n_delta = np.uint64(begin), np.uint64(begin + length), ZERO, np.uint64(len(delta))
    k, n_fresh, latest = np.uint64(start), ZERO, delta[0] if n_delta else NONE
    while i < end and members[i] > latest:
        total[k] = members[i]
        i += ONE
        k += ONE
    while i < end and j < n_delta:  # without branches: which is larger cannot be predicted
        a, b = members[i], delta[j]
        total[k], fresh[n_fresh] = max(a, b), b
        n_fresh += np.uint64(a < b)
        i += np.uint64(a >= b)
        j += np.uint64(a <= b)
        k += np.uint64(a != b)
    while i < end:
        total[k] = members[i]
        i += ONE
        k += ONE
    while j < n_delta:
        total[k] = fresh[n_fresh] = delta[j]
        j += ONE
        k += ONE
        n_fresh += ONE
    return wide(k) - start, wide(n_fresh)


@compiled_within
def _signature(members: Numbers, start: int, length: int) -> int:
    signature = np.int64(0)
    for k in range(start, start + length):
        signature |= np.int64(1) << np.int64(members[k] & 63)
    return int(signature)


@compiled_within
def _code(vector: Numbers) -> int:
    """Return the hash of a vector; that of a sum is the sum, bit by bit."""
    code = np.int64(0)
    for loop in vector:  # the mixing of SplitMix64 (Steele, Lea & Flood 2014)
        word = (np.uint64(loop) + ONE) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        code ^= np.int64(word ^ (word >> np.uint64(31)))
    return int(code)


@compiled_within
def _lookup(ids: Indices, members: Numbers, table: Numbers, start: int, length: int, code: int) -> int:
    """Return the id of a vector behind all others, 0 if there is none."""
    mask = len(table) - 1
    slot = code & mask
    while table[slot]:
        number = table[slot]
        if number != REMOVED and ids[number, CODE] == code and ids[number, LENGTH] == length:
            begin, k = ids[number, START], 0
            while k < length and members[begin + k] == members[start + k]:
                k += 1
            if k == length:
                return int(number)
        slot = (slot + 1) & mask
    return 0


@inlined
def _put(count: Indices, ids: Indices, table: Numbers, number: int) -> None:
    """Put an id into the table."""
    mask = len(table) - 1
    slot = ids[number, CODE] & mask
    while table[slot] > 0:
        slot = (slot + 1) & mask
    count[N_SLOTS] += table[slot] == 0
    table[slot] = number
    ids[number, SLOT] = slot


@compiled_within
def _hold(count: Indices, holders: Numbers, holding: Numbers, loops: Numbers, n_loops: int, number: int) -> None:
    """Note that the vector of an id contains some loops."""
    for k in range(n_loops):
        loop, first = loops[k], holding[loops[k], 0]
        place = holding[loop, 1] % HELD
        if place == 0:
            block = count[FREE_HOLDER]
            if block != NONE:
                count[FREE_HOLDER] = holders[block, HELD]
            else:
                block = count[N_HOLDERS]
                count[N_HOLDERS] += 1
            holders[block, HELD], holding[loop, 0], first = first, block, block
        holders[first, place] = number
        holding[loop, 1] += 1
