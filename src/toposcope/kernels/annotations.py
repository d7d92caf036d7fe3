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
from toposcope.kernels.sets import ONE, Parents, find
from toposcope.typing import Indices

Numbers = NDArray[np.int32]

START, LENGTH, SIGNATURE, CODE, FIRST, LAST, SLOT, SEEN = range(8)
"""Of an id: where its vector lies, and how long it is; the loops in it modulo 64, as bits; its hash; its first and last
edge; its place in the table; and the loop among whose ids it was last found."""
N_IDS, N_MEMBERS, N_HOLDERS, N_EDGES, FREE_HOLDER, FREE_EDGE, N_SLOTS, N_LOOPS, N_OPEN, N_KEPT = range(10)
EMPTIED, NEEDED = 10, 11
LIMIT_OF_IDS, LIMIT_OF_MEMBERS, LIMIT_OF_HOLDERS, LIMIT_OF_EDGES, LIMIT_OF_SLOTS, LIMIT_OF_LOOPS, LIMIT_OF_KEPT = range(
    12, 19
)
"""Counters: how many of each are in use; the first of those that were given back; the first of the edges whose vectors
became empty since the last `release`; for how many numbers there was no room; and how many there is room for."""
NONE, REMOVED, NO_ROOM = -1, -1, -1
SPARE = 2  # times as much room is made as is in use


class Annotations(NamedTuple):
    """The vectors of all active edges, and the loops."""

    counters: Indices  # shape (19,)
    parent: Parents  # by id; what it became one with, 0 if its vector is empty
    ids: Indices  # shape (i, 8); the fields above, by id
    members: Numbers  # vectors, each from the latest loop to the earliest
    table: Numbers  # ids by the hash of their vectors; 0 where there is none
    holders: Numbers  # shape (h, 2); chained: an id whose vector may contain a loop, and the next of that loop
    edges: Numbers  # shape (e, 3); chained: the ends of an active edge, and the next edge of its id
    holding: Numbers  # shape (l, 2); by loop, the first of its holders, and how many there are
    births: Numbers  # shape (l, 2); by loop, the edges that opened and closed it; -1 while it is open
    deaths: Numbers  # shape (l, 2); by loop, the edges that opened and closed it; -1 while it is open
    kept: Numbers  # the sums that vanished, each the loop it closed and those it was the sum of; empty unless asked for
    kept_places: Indices  # shape (l, 2); by loop, where its sum begins and ends


def no_annotations() -> Annotations:
    """Return the state before the first loop."""
    count = np.zeros(19, np.int64)
    count[N_IDS], count[[FREE_HOLDER, FREE_EDGE, EMPTIED]] = 1, NONE
    pairs = np.empty((64, 2), np.int32)
    state = Annotations(
        count,
        np.zeros(64, np.int32),
        np.zeros((64, 8), np.int64),
        np.empty(256, np.int32),
        np.zeros(256, np.int32),
        np.empty((256, 2), np.int32),
        np.empty((256, 3), np.int32),
        pairs,
        pairs.copy(),
        pairs.copy(),
        np.empty(256, np.int32),
        np.zeros((64, 2), np.int64),
    )
    _set_limits(state)
    return state


def _set_limits(state: Annotations) -> None:
    """Note how many of each there is room for, where compiled code looks it up."""
    arrays = state.parent, state.members, state.holders, state.edges, state.table, state.births, state.kept
    state.counters[LIMIT_OF_IDS:] = [len(array) for array in arrays]
    state.counters[LIMIT_OF_SLOTS] //= 2


def with_room(state: Annotations) -> Annotations:
    """Return the state with room for what lacked it; members and holders that no vector has are dropped."""
    count, needed = state.counters, int(state.counters[NEEDED]) + 1
    arrays: dict[str, Any] = {}
    for used, names in (
        (N_IDS, ("parent", "ids")),
        (N_EDGES, ("edges",)),
        (N_LOOPS, ("holding", "births", "deaths", "kept_places")),
        (N_KEPT, ("kept",)),
    ):
        for name in names:
            old = getattr(state, name)
            if count[used] + needed > len(old):
                arrays[name] = np.zeros((SPARE * len(old) + needed, *old.shape[1:]), old.dtype)
                arrays[name][: len(old)] = old
    state = state._replace(**arrays)
    live = np.flatnonzero(state.parent[: count[N_IDS]] == np.arange(count[N_IDS]))[1:]
    length = int(state.ids[live, LENGTH].sum())
    if count[N_HOLDERS] + needed > len(state.holders):
        state = state._replace(holders=np.empty((max(len(state.holders), SPARE * (length + needed)), 2), np.int32))
        _list_holders(state, live)
    if count[N_MEMBERS] + needed > len(state.members):
        members = np.empty(max(len(state.members), SPARE * (length + needed)), np.int32)
        _compact(count, state.ids, live, state.members, members)
        state = state._replace(members=members)
    size = len(state.table)
    while size < 4 * (len(live) + needed):
        size *= 2
    state = state._replace(table=np.zeros(size, np.int32))
    count[N_SLOTS] = 0
    _refill(count, state.ids, live, state.table)  # each time, and so in the first call, which compiles it ahead
    _set_limits(state)
    return state


def _compact(count: Indices, ids: Indices, live: Indices, old: Numbers, members: Numbers) -> None:
    """Write the vectors of some ids one after the other."""
    count[N_MEMBERS] = end = int(ids[live, LENGTH].sum())
    members[:end] = old[_places(ids, live)]
    ids[live, START] = ids[live, LENGTH].cumsum() - ids[live, LENGTH]


def _list_holders(state: Annotations, live: Indices) -> None:
    """List the holders of every loop anew, one after the other."""
    count, holders, holding = state.counters, state.holders, state.holding[: state.counters[N_LOOPS]]
    loops = state.members[_places(state.ids, live)]
    end, n_held = len(loops), np.bincount(loops, minlength=len(holding))
    ends = n_held.cumsum()
    holders[:end, 0] = np.repeat(live, state.ids[live, LENGTH])[loops.argsort(kind="stable")]
    holders[:end, 1] = np.arange(1, end + 1)
    holders[ends[n_held > 0] - 1, 1] = NONE
    holding[:, 0], holding[:, 1] = np.where(n_held, ends - n_held, NONE), n_held
    count[N_HOLDERS], count[FREE_HOLDER] = end, NONE


def _places(ids: Indices, live: Indices) -> Indices:
    """Return where the members of the vectors of some ids lie, vector after vector."""
    length = ids[live, LENGTH]
    return np.repeat(ids[live, START] - length.cumsum() + length, length) + np.arange(length.sum())


@compiled
def _refill(count: Indices, ids: Indices, live: Indices, table: Numbers) -> None:
    for number in live:
        _put(count, ids, table, number)


@compiled_within
def _is_room(count: Indices, needed: int) -> bool:
    """Return whether there is room for so many members, holders and slots, and one of all else."""
    is_room = (
        (count[N_IDS] < count[LIMIT_OF_IDS])
        & (count[N_LOOPS] < count[LIMIT_OF_LOOPS])
        & ((count[FREE_EDGE] != NONE) | (count[N_EDGES] < count[LIMIT_OF_EDGES]))
        & (count[N_MEMBERS] + needed <= count[LIMIT_OF_MEMBERS])
        & (count[N_HOLDERS] + needed <= count[LIMIT_OF_HOLDERS])
        & (count[N_SLOTS] + needed <= count[LIMIT_OF_SLOTS])
        & (count[N_KEPT] + needed <= count[LIMIT_OF_KEPT])
    )
    if not is_room:
        count[NEEDED] = needed
    return bool(is_room)


@compiled_within
def open_loop(state: Annotations, u: int, v: int) -> int:
    """Open a loop with an edge, which alone has it in its vector; return its id."""
    if not _is_room(state.counters, wide(1)):
        return NO_ROOM
    loop = state.counters[N_LOOPS]
    state.births[loop, 0], state.births[loop, 1] = u, v
    state.deaths[loop, 0] = state.deaths[loop, 1] = NONE
    state.holding[loop, 0], state.holding[loop, 1] = NONE, 0
    state.counters[N_LOOPS] += 1
    state.counters[N_OPEN] += 1
    vector = np.empty(1, np.int32)
    vector[0] = loop
    number = _id_of(state, vector)
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
        delta = sum_of_differing(state.parent, state.ids, state.members, votes, k, not is_silent)
        if len(delta) and not substitute(state, delta, u, v, keeps):
            return NO_ROOM
    if is_silent or not n_votes:
        return 0
    a, b = find(state.parent, wide(votes[0, 0])), find(state.parent, wide(votes[0, 1]))
    if a == b:
        return 0
    agreed = np.empty(0, np.int32)
    if a and b:
        agreed = sum_of_differing(state.parent, state.ids, state.members, votes, wide(0), is_silent)  # which it is not
    if not _is_room(state.counters, len(agreed)):
        return NO_ROOM
    return _id_of(state, agreed) if a and b else a + b


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
def sum_of_differing(
    parent: Parents, ids: Indices, members: Numbers, votes: Numbers, k: int, with_first: bool
) -> Numbers:
    """Return the vector that a vote is, or the sum of it and the first one."""
    numbers = np.zeros(4, np.int32)
    for side in range(2):
        numbers[side] = find(parent, wide(votes[k, side]))
        if with_first:
            numbers[2 + side] = find(parent, wide(votes[0, side]))
    size = 0
    for i in range(4):
        for j in range(i):
            if numbers[i] == numbers[j]:
                numbers[i] = numbers[j] = 0
        size += ids[numbers[i], LENGTH]
    total, room, length = np.empty(size, np.int32), np.empty(size, np.int32), 0
    for i in range(4):
        if not numbers[i]:
            continue
        start = ids[numbers[i], START]
        end = start + ids[numbers[i], LENGTH]
        a = c = 0
        while a < length or start < end:
            if start == end or (a < length and total[a] > members[start]):
                room[c] = total[a]
                a += 1
                c += 1
            elif a == length or total[a] < members[start]:
                room[c] = members[start]
                start += 1
                c += 1
            else:
                a += 1
                start += 1
        total, room, length = room, total, c
    return total[:length]


@compiled_within
def _id_of(state: Annotations, vector: Numbers) -> int:
    """Return the id of a vector that is not empty, a new one if there is none; there is room for it."""
    count, ids = state.counters, state.ids
    code = _code(vector)
    number = _lookup(ids, state.members, state.table, vector, code)
    if number:
        return number
    number, start = count[N_IDS], count[N_MEMBERS]
    count[N_IDS] += 1
    count[N_MEMBERS] += len(vector)
    for k in range(len(vector)):
        state.members[start + k] = vector[k]
        _hold(count, state.holders, state.holding, vector[k], number)
    state.parent[number] = number
    ids[number, START], ids[number, LENGTH], ids[number, CODE] = start, len(vector), code
    ids[number, SIGNATURE] = _signature(state.members, start, wide(len(vector)))
    ids[number, FIRST] = ids[number, LAST] = ids[number, SEEN] = NONE
    _put(count, ids, state.table, number)
    return int(number)


@compiled_within
def substitute(state: Annotations, delta: Numbers, u: int, v: int, keeps: bool) -> bool:
    """Let a sum of open loops vanish: an edge closes the latest of them, and it is the sum of the others.

    Return whether there was room for that.
    """
    count, loop = state.counters, delta[0]
    found = np.empty(state.holding[loop, 1], np.int32)
    n_found, n_members, last = _ids_with(
        state.parent, state.ids, state.members, state.holders, state.holding, loop, found
    )
    if not _is_room(state.counters, n_members + n_found * len(delta)):
        return False
    state.deaths[loop, 0], state.deaths[loop, 1] = u, v
    count[N_OPEN] -= 1
    if keeps:
        state.kept_places[loop, 0] = count[N_KEPT]
        for k in range(len(delta)):
            state.kept[count[N_KEPT]] = delta[k]
            count[N_KEPT] += 1
        state.kept_places[loop, 1] = count[N_KEPT]
    _add_to_all(state, delta, found, n_found)
    state.holders[last, 1], count[FREE_HOLDER] = count[FREE_HOLDER], state.holding[loop, 0]
    return True


@compiled_within
def _ids_with(
    parent: Parents, ids: Indices, members: Numbers, holders: Numbers, holding: Numbers, loop: int, found: Numbers
) -> tuple[int, int, int]:
    """List the ids whose vectors contain a loop, of which there are some.

    Return how many, the lengths of these vectors together, and the last holder.
    """
    n_found = n_members = 0
    node = last = holding[loop, 0]
    while node != NONE:
        last = node
        number, node = holders[node, 0], holders[node, 1]
        if not ids[number, SIGNATURE] >> (loop & 63) & 1 or parent[number] != number or ids[number, SEEN] == loop:
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
    code = _code(delta)
    fresh = np.empty(len(delta), np.int32)
    for n in range(n_numbers):
        number = numbers[n]
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
            _put(count, ids, table, number)
            for k in range(n_fresh):
                _hold(count, holders, holding, fresh[k], number)
            continue
        parent[number] = other
        if other:
            edges[ids[other, LAST], 2] = ids[number, FIRST]
            ids[other, LAST] = ids[number, LAST]
        else:
            edges[ids[number, LAST], 2] = count[EMPTIED]
            count[EMPTIED] = ids[number, FIRST]


@compiled_within
def _add(members: Numbers, begin: int, length: int, delta: Numbers, start: int, fresh: Numbers) -> tuple[int, int]:
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


@inlined
def _hold(count: Indices, holders: Numbers, holding: Numbers, loop: int, number: int) -> None:
    """Note that the vector of an id contains a loop."""
    node = count[FREE_HOLDER]
    if node != NONE:
        count[FREE_HOLDER] = holders[node, 1]
    else:
        node = count[N_HOLDERS]
        count[N_HOLDERS] += 1
    holders[node, 0], holders[node, 1] = number, holding[loop, 0]
    holding[loop, 0] = node
    holding[loop, 1] += 1
