"""Maximum spanning tree of a small dense bipartite graph by Prim's algorithm.

Cost: O((m + n)^2) time; O(m + n) memory beside the matrix, and a transposed copy of one of 16 or 32 bits.
Source: Prim 1957.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.kernels.magnitudes import Entries, Keys

NO_OFFER = -1
INSIDE = -2
HALF = (1 << 32) - 1

Offers = NDArray[np.int64]
"""Heaviest edge from every vertex to the tree; `NO_OFFER` where there is none, `INSIDE` for vertices of the tree."""


@compiled
def prim_keys(matrix: Entries) -> Keys:
    """Return the keys of the tree in the order they are added, shape (m + n - 1,)."""
    if matrix.buffer.itemsize == 8:
        return _with_long_keys(matrix)
    return _with_short_keys(matrix)


@compiled
def prim_keys_of_each(matrix: Entries, m: int) -> Keys:
    """Return the same of several matrices of m rows each that lie in one below the other, shape (r, m + n - 1)."""
    buffer, starts, n, step, mask, contiguous = matrix
    keys = np.empty((len(starts) // m, m + n - 1), buffer.dtype)
    for r in range(len(keys)):
        keys[r] = prim_keys(Entries(buffer, starts[r * m : (r + 1) * m], n, step, mask, contiguous))
    return keys


@compiled
def _with_short_keys(matrix: Entries) -> Keys:
    """Offer keys with the number of their vertex behind them, in one word: the largest offer holds both."""
    buffer, starts, n, step, mask, _ = matrix
    m = len(starts)
    by_column = np.empty((n, m), buffer.dtype)
    for i in range(m):
        for j in range(n):
            by_column[j, i] = buffer[starts[i] + j * step]
    tree = np.empty(m + n - 1, buffer.dtype)
    rows, columns = np.full(m, NO_OFFER), np.full(n, NO_OFFER)
    added = 0
    for k in range(m + n - 1):
        if added < m:
            rows[added] = INSIDE
            row = buffer[starts[added] : starts[added] + (n - 1) * step + 1 : step]
            best = max(_offer_all(columns, row, mask, m), _largest(rows))
        else:
            columns[added - m] = INSIDE
            best = max(_offer_all(rows, by_column[added - m], mask, 0), _largest(columns))
        tree[k] = best >> 32
        added = best & HALF
    return tree


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
def _with_long_keys(matrix: Entries) -> Keys:
    buffer, starts, n, step, mask, _ = matrix
    m = len(starts)
    tree = np.empty(m + n - 1, buffer.dtype)
    offer = np.full(m + n, NO_OFFER)
    added = 0
    for k in range(m + n - 1):
        offer[added] = INSIDE
        if added < m:
            for j in range(n):
                if offer[m + j] != INSIDE:
                    offer[m + j] = max(offer[m + j], np.int64(buffer[starts[added] + j * step] & mask))
        else:
            for i in range(m):
                if offer[i] != INSIDE:
                    offer[i] = max(offer[i], np.int64(buffer[starts[i] + (added - m) * step] & mask))
        added = int(np.argmax(offer))
        tree[k] = offer[added]
    return tree
