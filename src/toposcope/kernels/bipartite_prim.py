"""Maximum spanning tree of a small dense bipartite graph by Prim's algorithm.

Cost: O((m + n)^2) time; O(m + n) memory next to the matrix, and a transposed copy of one of 16 or 32 bits.
Source: Prim 1957.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, kernel_or_python, wide
from toposcope.kernels.magnitudes import Entries, Keys
from toposcope.typing import Indices

NO_OFFER = -1
INSIDE = -2
HALF = (1 << 32) - 1

Offers = NDArray[np.int64]
"""Heaviest edge from every vertex to the tree; `NO_OFFER` where there is none, `INSIDE` for vertices of the tree."""


class PrimTrees(NamedTuple):
    """The trees of several matrices, in the order in which vertices are added to that of the first row."""

    keys: Keys  # shape (r, m + n - 1)
    vertices: Indices  # shape (r, m + n - 1); rows are 0 to m - 1, columns from m on


def prim_keys(matrix: Entries) -> Keys:
    """Return the keys of the tree in the order they are added, shape (m + n - 1,)."""
    keys: Keys = prim_trees(matrix, len(matrix.starts)).keys[0]
    return keys


def prim_trees(matrix: Entries, m: int) -> PrimTrees:
    """Return the trees of several matrices of m rows each that lie in one below the other."""
    shape = (len(matrix.starts) // m, m + matrix.n - 1)
    keys, vertices = np.empty(shape, matrix.buffer.dtype), np.empty(shape, np.int64)
    # Chosen here: a kernel would be compiled with both.
    if keys.itemsize == 8:
        kernel_or_python(_fill_with_long_keys, keys.size * max(m, matrix.n))(matrix, keys, vertices)
    else:
        by_column, row = np.empty((matrix.n, m), keys.dtype), np.empty(matrix.n, keys.dtype)
        fill = kernel_or_python(_fill_with_short_keys, keys.size * max(m, matrix.n))
        fill(matrix, keys, vertices, by_column, row)
    return PrimTrees(keys, vertices)


def prim_entries(matrix: Entries, m: int) -> Indices:
    """Return row and column of every edge of the trees, the heaviest first, shape (r, m + n - 1, 2)."""
    keys, vertices = prim_trees(matrix, m)
    entries = np.empty((*keys.shape, 2), np.int64)
    _look_up_entries(matrix, keys, vertices, entries)
    return np.take_along_axis(entries, np.argsort(-keys, axis=1, kind="stable")[:, :, None], axis=1)


@compiled
def _look_up_entries(matrix: Entries, keys: Keys, vertices: Indices, entries: NDArray[np.int64]) -> None:
    """Look up which vertex of the tree each was added to: an earlier one of the other side to which it has its key."""
    buffer, starts, n, step, mask, _ = matrix
    n_edges = keys.shape[1]
    m = n_edges + 1 - n
    turn = np.zeros(n_edges + 1, np.int64)
    for r in range(len(keys)):
        for k in range(n_edges):
            turn[vertices[r, k]] = k + 1
        for k in range(n_edges):
            vertex = vertices[r, k]
            i, j, key = vertex, vertex - m, keys[r, k]
            if vertex < m:
                j = 0
                while turn[m + j] > k or buffer[starts[r * m + i] + j * step] & mask != key:
                    j += 1
            else:
                i = 0
                while turn[i] > k or buffer[starts[r * m + i] + j * step] & mask != key:
                    i += 1
            entries[r, k, 0], entries[r, k, 1] = i, j


@compiled
def _fill_with_short_keys(matrix: Entries, keys: Keys, vertices: Indices, by_column: Keys, row: Keys) -> None:
    """Offer keys with the number of their vertex behind them, in one word: the largest offer holds both.

    The last two are room for a matrix by columns, and for one row.
    """
    buffer, starts, n, step, mask, _ = matrix
    n_vertices = keys.shape[1] + 1
    m = n_vertices - n
    offers = np.empty(n_vertices, np.int64)
    rows, columns = offers[:m], offers[m:]
    for r in range(len(keys)):
        for i in range(m):
            for j in range(n):
                by_column[j, i] = buffer[starts[r * m + i] + j * step]
        offers[:] = NO_OFFER
        added = 0
        for k in range(n_vertices - 1):
            offers[added] = INSIDE
            if added < m:
                for j in range(n):
                    row[j] = buffer[starts[r * m + added] + j * step]
                best = max(_offer_all(columns, row, mask, m), _largest(rows))
            else:
                best = max(_offer_all(rows, by_column[added - m], mask, wide(0)), _largest(columns))
            keys[r, k] = best >> 32
            vertices[r, k] = added = best & HALF


@compiled
def _offer_all(offers: Offers, keys: Keys, mask: Any, first: int) -> int:
    """Offer the edges from a vertex to all of the other side, numbered from `first`; return the largest offer."""
    best = NO_OFFER
    for j in range(len(offers)):
        old = offers[j]
        # A choice and no branch, so that several are made at once.
        new = old if old == INSIDE else max(old, np.int64(keys[j] & mask) << 32 | (first + j))
        offers[j] = new
        best = max(best, new)
    return best


@compiled
def _largest(offers: Offers) -> int:
    best = NO_OFFER
    for j in range(len(offers)):
        best = max(best, offers[j])
    return best


@compiled
def _fill_with_long_keys(matrix: Entries, keys: Keys, vertices: Indices) -> None:
    buffer, starts, n, step, mask, _ = matrix
    n_vertices = keys.shape[1] + 1
    m = n_vertices - n
    offer = np.empty(n_vertices, np.int64)
    for r in range(len(keys)):
        offer[:] = NO_OFFER
        added = 0
        for k in range(n_vertices - 1):
            offer[added] = INSIDE
            if added < m:
                for j in range(n):
                    if offer[m + j] != INSIDE:
                        offer[m + j] = max(offer[m + j], np.int64(buffer[starts[r * m + added] + j * step] & mask))
            else:
                for i in range(m):
                    if offer[i] != INSIDE:
                        key = buffer[starts[r * m + i] + (added - m) * step]
                        offer[i] = max(offer[i], np.int64(key & mask))
            best = NO_OFFER
            for vertex in range(n_vertices):
                if offer[vertex] > best:
                    best, added = offer[vertex], vertex
            keys[r, k], vertices[r, k] = best, added
