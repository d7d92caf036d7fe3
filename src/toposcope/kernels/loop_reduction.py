"""Which triangle closes which loop: the boundary matrix of the triangles that matter, reduced over two elements.

A column is the boundary of two triangles on one edge: the four other edges. An edge that has an apex is the boundary,
up to its two other sides, of a triangle that entered with it; it is replaced by these two sides, which are earlier,
until only edges of the relative neighbourhood graph are left. Of these the ones that joined components are left out:
they never are the latest of a loop's boundary. What remains are rows for loops, by the edge that opened each; a column
whose latest row is taken by an earlier column has that column added, until its latest row is free, and closes that
loop, or nothing is left of it.

Source: Edelsbrunner, Letscher & Zomorodian 2002 (reduction); Forman 1998, and the apparent pairs of Bauer 2021,
"Ripser: efficient computation of Vietoris-Rips persistence barcodes", section 3.5 (replacement).
"""

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.bit_sets import BitTree, empty_tree, largest, toggle
from toposcope.kernels.lunes import JOINS, Edges, pair_index

ALIVE = -1
"""In place of the rank of the edge that closed a loop."""


class Loops(NamedTuple):
    """Loops in the order they were opened, and the reduced column of each that was closed.

    Attributes
    ----------
    births, deaths : ndarray, shape (b,), int32
        Ranks of the edges that opened and closed each; `ALIVE` for those still open.
    starts, stops : ndarray, shape (b,), int64
        Where in `rows` the column that closed each lies: loops whose sum was closed, the latest first.
    rows : ndarray, int32
        Of which the first `size` are in use.
    size : int
    """

    births: NDArray[np.int32]
    deaths: NDArray[np.int32]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    rows: NDArray[np.int32]
    size: int


def no_loops() -> Loops:
    """Return the state before the first edge."""
    ranks, places = np.empty(0, np.int32), np.empty(0, np.int64)
    return Loops(ranks, ranks, places, places, np.empty(1024, np.int32), 0)


def opened(loops: Loops, births: NDArray[np.int32]) -> Loops:
    """Return loops with some more, all still open."""
    nowhere = np.zeros(len(births), np.int64)
    return Loops(
        np.concatenate((loops.births, births)),
        np.concatenate((loops.deaths, np.full(len(births), ALIVE, np.int32))),
        np.concatenate((loops.starts, nowhere)),
        np.concatenate((loops.stops, nowhere)),
        loops.rows,
        loops.size,
    )


@numba.njit(cache=True, nogil=True)
def close_loops(columns: NDArray[np.int32], n: int, edges: Edges, loops: Loops) -> Loops:
    """Reduce columns, in the order of their edges, and return the loops with those they close.

    Parameters
    ----------
    columns : ndarray, shape (c, 3), int32
        As of `scan_lunes`; all loops opened before the last of them are among `loops`.
    n : int
        Points.
    edges : Edges
    loops : Loops
        Changed in place, but for its rows, which may have to move.
    """
    chain, column = empty_tree(len(edges.ends)), empty_tree(len(loops.births))
    rows, size = loops.rows, loops.size
    n_open = np.count_nonzero(loops.deaths == ALIVE)
    n_before = 0  # loops opened before the edge of the column
    n_later = len(loops.births)
    for c in range(len(columns)):
        e, apex, other = columns[c]
        while n_before < len(loops.births) and loops.births[n_before] < e:
            n_before += 1
        if n_open == n_later - n_before:
            continue  # no loop is open: the column is a sum of earlier ones
        for x in edges.ends[e]:
            for y in (apex, other):
                toggle(chain, edges.rank[pair_index(n, min(x, y), max(x, y))])
        _replace(chain, column, n, edges)
        row = largest(column)
        while row >= 0 and loops.deaths[row] != ALIVE:
            for k in range(loops.starts[row], loops.stops[row]):
                toggle(column, rows[k])
            row = largest(column)
        if row < 0:
            continue
        loops.deaths[row] = e
        n_open -= 1
        loops.starts[row] = size
        member = row
        while member >= 0:
            if size == len(rows):
                rows = np.concatenate((rows, np.empty_like(rows)))
            rows[size] = member
            size += 1
            toggle(column, member)
            member = largest(column)
        loops.stops[row] = size
    return Loops(loops.births, loops.deaths, loops.starts, loops.stops, rows, size)


@numba.njit(cache=True, nogil=True)
def _replace(chain: BitTree, column: BitTree, n: int, edges: Edges) -> None:
    """Empty a chain of edges into a column of loops: edges by their two earlier sides, as long as they have an apex."""
    e = largest(chain)
    while e >= 0:
        toggle(chain, e)
        apex = edges.apex[e]
        if apex >= 0:
            for x in edges.ends[e]:
                toggle(chain, edges.rank[pair_index(n, min(x, apex), max(x, apex))])
        elif apex != JOINS:
            toggle(column, -2 - apex)
        e = largest(chain)
