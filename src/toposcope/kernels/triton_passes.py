"""The passes of `device_bipartite_tree` as Triton kernels, for formats of at most 32 bits.

Threads meet only in sums that give each its own place, in maxima and in minima: what they write does not depend on
which comes first, but for the order in which survivors are stored.

Cost: O(mn) for each pass over the matrix, one launch and no copy of it; three launches for a round of joining.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from toposcope.kernels.device_bipartite_tree import NONE, Edges, Forest, key_mask

RUN = 4096
"""Entries that one program compares with the threshold."""

TILE = (32, 128)
"""Rows and columns that one program chooses among."""

WIDTH = 1024
"""Edges or vertices of one program."""

HALF = (1 << 32) - 1
"""The low half of a word, in which a choice holds its column, counted from the end: of equal keys the first wins."""


class TritonPasses:
    """Passes by Triton on the device of the tensors, which must be the current one."""

    def above(self, bits: Tensor, threshold: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """See `Passes`."""
        if bits.is_contiguous():
            # One long row: narrow matrices would be read in short runs.
            bits = bits.view(1, -1)
        m, n = bits.shape
        run = min(RUN, triton.next_power_of_2(n))
        keys = torch.empty(capacity + 1, dtype=bits.dtype, device=bits.device)
        positions = torch.empty(capacity + 1, dtype=torch.int64, device=bits.device)
        found = torch.zeros(1, dtype=torch.int64, device=bits.device)
        _above[(m * triton.cdiv(n, run),)](
            bits, threshold, keys, positions, found, n, *bits.stride(), len(keys), MASK=key_mask(bits), RUN=run
        )
        count = min(int(found), len(keys))
        return keys[:count], positions[:count]

    def leaving(self, bits: Tensor, labels: Tensor, others: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `Passes`."""
        n = bits.shape[1]
        best = torch.full_like(rows, -1)
        programs = triton.cdiv(len(rows), TILE[0]) * triton.cdiv(n, TILE[1])
        if programs:
            _leaving[(programs,)](
                bits,
                labels,
                others,
                rows,
                best,
                len(rows),
                n,
                *bits.stride(),
                MASK=key_mask(bits),
                HALF=HALF,
                ROWS=TILE[0],
                COLUMNS=TILE[1],
            )
        return (best >> 32).to(bits.dtype), HALF - (best & HALF)

    def join(self, forest: Forest, edges: Edges, waiting: Tensor | None) -> Tensor:
        """See `Passes`."""
        n_vertices, n_edges = len(forest.labels), len(edges.keys)
        first = torch.full_like(forest.labels, NONE)
        parent = torch.empty_like(forest.labels)
        joined = torch.zeros(1, dtype=torch.int32, device=first.device)
        # A component of no vertex: all choose.
        nobody = torch.full_like(first[0], -1) if waiting is None else waiting
        _choose[(triton.cdiv(n_edges, WIDTH),)](forest.labels, edges.a, edges.b, first, nobody, n_edges, WIDTH=WIDTH)
        grid = (triton.cdiv(n_vertices, WIDTH),)
        _join[grid](
            forest.labels,
            forest.keys,
            edges.keys,
            edges.a,
            edges.b,
            first,
            parent,
            joined,
            n_vertices,
            NONE=NONE,
            WIDTH=WIDTH,
        )
        _relabel[grid](forest.labels, parent, n_vertices, WIDTH=WIDTH)
        return joined


@triton.jit
def _above(
    bits,
    threshold,
    keys,
    positions,
    found,
    n,
    row_stride,
    column_stride,
    capacity,
    MASK: tl.constexpr,
    RUN: tl.constexpr,
):
    """Collect the entries of one run that are above the threshold."""
    runs = tl.cdiv(n, RUN)
    row = (tl.program_id(0) // runs).to(tl.int64)
    column = (tl.program_id(0) % runs).to(tl.int64) * RUN + tl.arange(0, RUN)
    entry = tl.load(bits + row * row_stride + column * column_stride, mask=column < n, other=0)
    key = entry & MASK
    above = key > tl.load(threshold)
    count = tl.sum(above.to(tl.int32), axis=0)
    if count > 0:
        place = tl.atomic_add(found, count.to(tl.int64), sem="relaxed") + tl.cumsum(above.to(tl.int32), axis=0) - 1
        above = above & (place < capacity)
        tl.store(keys + place, key, mask=above)
        tl.store(positions + place, row * n + column, mask=above)


@triton.jit
def _leaving(
    bits,
    labels,
    others,
    rows,
    best,
    n_rows,
    n,
    row_stride,
    column_stride,
    MASK: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Choose for some rows among some columns of other components; best holds key and column in one word."""
    tiles = tl.cdiv(n, COLUMNS)
    k = (tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % tiles).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.load(rows + k, mask=k < n_rows, other=0)
    label = tl.load(labels + row)
    other = tl.load(others + column, mask=column < n, other=-1)
    inside = (k < n_rows)[:, None] & (column < n)[None, :]
    leaving = inside & (label[:, None] != other[None, :])
    key = tl.load(bits + row[:, None] * row_stride + column[None, :] * column_stride, mask=leaving, other=0) & MASK
    choice = tl.where(leaving, (key.to(tl.int64) << 32) | (HALF - column)[None, :], -1)
    heaviest = tl.max(choice, axis=1)
    # It only grows: what is behind an old value needs no atomic maximum.
    known = tl.load(best + k, mask=k < n_rows, other=-1)
    tl.atomic_max(best + k, heaviest, mask=(k < n_rows) & (heaviest > known), sem="relaxed")


@triton.jit
def _choose(labels, a, b, first, waiting, n_edges, WIDTH: tl.constexpr):
    """Give to every component but the one that waits its first leaving edge."""
    edge = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = edge < n_edges
    from_a = tl.load(labels + tl.load(a + edge, mask=inside, other=0), mask=inside, other=0)
    from_b = tl.load(labels + tl.load(b + edge, mask=inside, other=0), mask=inside, other=0)
    leaving = inside & (from_a != from_b)
    idle = tl.load(waiting)
    # It only falls: what is behind an old value needs no atomic minimum.
    at_a = leaving & (from_a != idle)
    at_a = at_a & (edge < tl.load(first + from_a, mask=at_a, other=0))
    tl.atomic_min(first + from_a, edge, mask=at_a, sem="relaxed")
    at_b = leaving & (from_b != idle)
    at_b = at_b & (edge < tl.load(first + from_b, mask=at_b, other=0))
    tl.atomic_min(first + from_b, edge, mask=at_b, sem="relaxed")


@triton.jit
def _join(labels, keys, edge_keys, a, b, first, parent, joined, n_vertices, NONE: tl.constexpr, WIDTH: tl.constexpr):
    """Point every component to the one it chose; of two that chose the same edge, the one of smaller number stays."""
    vertex = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = vertex < n_vertices
    edge = tl.load(first + vertex, mask=inside, other=NONE)
    chooses = edge < NONE
    from_a = tl.load(labels + tl.load(a + edge, mask=chooses, other=0), mask=chooses, other=0)
    from_b = tl.load(labels + tl.load(b + edge, mask=chooses, other=0), mask=chooses, other=0)
    other = from_a + from_b - vertex
    its_edge = tl.load(first + other, mask=chooses, other=NONE)
    moves = chooses & ((its_edge != edge) | (other < vertex))
    tl.store(parent + vertex, tl.where(moves, other, vertex), mask=inside)
    tl.store(keys + vertex, tl.load(edge_keys + edge, mask=moves, other=0), mask=moves)
    if tl.sum(moves.to(tl.int32), axis=0) > 0:
        tl.store(joined, 1)


@triton.jit
def _relabel(labels, parent, n_vertices, WIDTH: tl.constexpr):
    """Follow the parents of every label to the component that stayed."""
    vertex = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = vertex < n_vertices
    label = tl.load(labels + vertex, mask=inside, other=0)
    above = tl.load(parent + label, mask=inside, other=0)
    while tl.max((above != label).to(tl.int32), axis=0) > 0:
        label = above
        above = tl.load(parent + label, mask=inside, other=0)
    tl.store(labels + vertex, label, mask=inside)
