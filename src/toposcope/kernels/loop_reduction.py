"""Which triangle closes which loop: the boundary matrix of the triangles that matter, reduced over two elements.

A column is the boundary of two triangles on one edge: the four other edges. An edge that has an apex is the boundary,
up to its two other sides, of a triangle that entered with it; it is replaced by these two sides, which are earlier,
until only edges of the relative neighbourhood graph are left. Of these the ones that joined components are left out:
they never are the latest of a loop's boundary. What remains are rows for loops, by the edge that opened each. Of them
a closed loop is replaced by the open ones whose sum it is; the latest loop that is left is closed, and is from then on
the sum of the others. Most columns leave nothing.

What a closed loop is the sum of is brought up to date when it is used so often that this pays: loops that were open
when it was closed have been closed since. Without this, chains of replacements took nearly all the time on landmarks
of wide clouds.

Source: Edelsbrunner, Letscher & Zomorodian 2002 (reduction); Forman 1998, and the apparent pairs of Bauer 2021,
"Ripser: efficient computation of Vietoris-Rips persistence barcodes", section 3.5 (replacement of edges); Boissonnat,
Dey & Maria 2015, "The compressed annotation matrix" (what closed loops are the sum of, in the order of the filtration).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, inlined, wide
from toposcope.kernels.lunes_old import JOINS, Edges, pair_index
from toposcope.kernels.sets import BitTree, largest, toggle
from toposcope.typing import Indices

ALIVE = -1  # in place of the rank of the edge that closed a loop


class Sums(NamedTuple):
    """A set of loops for each loop."""

    starts: Indices  # shape (b,); where in `members` that of each loop lies
    stops: Indices  # shape (b,); where in `members` that of each loop lies
    members: NDArray[np.int32]  # the first `size` are in use; those of one set from the latest to the earliest
    size: int


class Loops(NamedTuple):
    """Loops in the order they were opened."""

    # shape (b,); ranks of the edges that opened and closed each; `ALIVE` for those still open
    births: NDArray[np.int32]
    # shape (b,); ranks of the edges that opened and closed each; `ALIVE` for those still open
    deaths: NDArray[np.int32]
    # loops, itself the latest, whose sum was closed when it was; of closed loops alone, and empty unless asked for
    cycles: Sums
    expressions: Sums  # loops, earlier than itself, whose sum a closed loop is


def no_loops() -> Loops:
    """Return the state before the first edge."""
    ranks, places = np.empty(0, np.int32), np.empty(0, np.int64)
    nothing = Sums(places, places, np.empty(1024, np.int32), 0)
    return Loops(ranks, ranks, nothing, nothing._replace(members=np.empty(1024, np.int32)))


def opened(loops: Loops, births: NDArray[np.int32]) -> Loops:
    """Return loops with some more, all still open."""
    nowhere = np.zeros(len(births), np.int64)

    def longer(sums: Sums) -> Sums:
        starts, stops = np.concatenate((sums.starts, nowhere)), np.concatenate((sums.stops, nowhere))
        return Sums(starts, stops, sums.members, sums.size)

    return Loops(
        np.concatenate((loops.births, births)),
        np.concatenate((loops.deaths, np.full(len(births), ALIVE, np.int32))),
        longer(loops.cycles),
        longer(loops.expressions),
    )


@compiled
def close_loops(
    columns: NDArray[np.int32],
    n: int,
    edges: Edges,
    loops: Loops,
    room: tuple[BitTree, BitTree, BitTree],
    keeps_cycles: bool,
) -> Loops:
    """Reduce columns, in the order of their edges, and return the loops with those they close."""
    births, deaths, cycles, expressions = loops
    n_loops = len(births)
    chain, column, left = room
    n_open = 0
    for death in deaths:
        n_open += death == ALIVE
    n_before = 0  # loops opened before the edge of the column
    used = 0  # members of sums, since these were brought up to date
    for c in range(len(columns)):
        e, apex, other = columns[c]
        while n_before < n_loops and births[n_before] < e:
            n_before += 1
        if n_open == n_loops - n_before:
            continue  # no loop is open: the column is a sum of earlier ones
        for x in edges.ends[e]:
            for y in (apex, other):
                toggle(chain, wide(edges.rank[pair_index(n, min(x, y), max(x, y))]))
        _replace(chain, column, n, edges)
        used += _reduce(column, left, deaths, expressions)
        latest = largest(left)
        if latest < 0:
            continue
        deaths[latest] = e
        n_open -= 1
        toggle(left, latest)
        expressions = stored(expressions, latest, left)
        if keeps_cycles:
            toggle(left, latest)
            for k in range(expressions.starts[latest], expressions.stops[latest]):
                toggle(left, wide(expressions.members[k]))
            cycles = stored(cycles, latest, left)
        if used > expressions.size + n_loops:
            expressions, used = _up_to_date(expressions, deaths, column, left), 0
    return Loops(births, deaths, cycles, expressions)


@compiled
def _reduce(column: BitTree, left: BitTree, deaths: NDArray[np.int32], expressions: Sums) -> int:
    """Empty a column of loops into one of open loops; return how many members of sums that took."""
    used = 0
    loop = largest(column)
    while loop >= 0:
        toggle(column, loop)
        if deaths[loop] == ALIVE:
            toggle(left, loop)
        else:
            for k in range(expressions.starts[loop], expressions.stops[loop]):
                toggle(column, wide(expressions.members[k]))
            used += expressions.stops[loop] - expressions.starts[loop]
        loop = largest(column)
    return used


@compiled
def stored(sums: Sums, loop: int, members: BitTree) -> Sums:
    """Return the sums with that of one loop: the members of a set, which is emptied."""
    starts, stops, listed, size = sums
    starts[loop] = size
    member = largest(members)
    while member >= 0:
        if size == len(listed):
            listed = np.concatenate((listed, np.empty_like(listed)))
        listed[size] = member
        size += 1
        toggle(members, member)
        member = largest(members)
    stops[loop] = size
    return Sums(starts, stops, listed, size)


@inlined
def _up_to_date(expressions: Sums, deaths: NDArray[np.int32], column: BitTree, left: BitTree) -> Sums:
    """Return the sums of closed loops in loops that are open; earlier loops first, so that each is replaced once."""
    renewed = Sums(
        np.zeros_like(expressions.starts), np.zeros_like(expressions.stops), np.empty_like(expressions.members), 0
    )
    for loop in range(len(deaths)):
        if deaths[loop] == ALIVE:
            continue
        for k in range(expressions.starts[loop], expressions.stops[loop]):
            toggle(column, wide(expressions.members[k]))
        _reduce(column, left, deaths, renewed)
        renewed = stored(renewed, loop, left)
    return renewed


@inlined
def _replace(chain: BitTree, column: BitTree, n: int, edges: Edges) -> None:
    """Empty a chain of edges into a column of loops: edges by their two earlier sides, as long as they have an apex."""
    e = largest(chain)
    while e >= 0:
        toggle(chain, e)
        apex = edges.apex[e]
        if apex >= 0:
            for x in edges.ends[e]:
                toggle(chain, wide(edges.rank[pair_index(n, min(x, apex), max(x, apex))]))
        elif apex != JOINS:
            toggle(column, wide(-2 - apex))
        e = largest(chain)
