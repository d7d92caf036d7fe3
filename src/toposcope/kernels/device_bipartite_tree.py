"""Maximum spanning tree of the complete bipartite graph of a dense matrix, on the device where the matrix lies.

The algorithm of `bipartite_tree`, as whole-array operations:

1. A sample gives a threshold that about 4 (m + n) entries exceed.
2. One pass collects these.
3. Boruvka's rounds on them join nearly all vertices in one giant component.
4. Each component left outside chooses its heaviest leaving entry by reading its own rows and columns, in rounds.

Edges are put in one order, heaviest first and equal ones as they are stored, and every component chooses the first
edge that leaves it. So only pairs can choose each other, and no result depends on what the device does first.

Cost: O(mn + (m + n) log^2(m + n)) work for weights of one scale, at worst O(mn log(m + n)); O(m + n) memory next to the
matrix and one block of it. Only the weights of the tree leave the device, and in each round how many are still outside.
Source: Boruvka 1926; the filtration is that of Rieck et al. 2019, arXiv:1812.09764, section 3.
"""

import numpy as np
import torch
from torch import Tensor

from toposcope.typing import Vector

# Chosen on an H100 (benchmarks/gpu.py); no result depends on them.
DEVICE_SURVIVORS_PER_VERTEX = 4  # entries to collect
DEVICE_SAMPLED_ABOVE = 32  # entries of the sample above the threshold
DEVICE_BLOCK_ENTRIES = 1 << 24  # that torch copies at once
KEY_TYPES = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
"""The integers whose order, without the sign bit, is that of the magnitudes."""


NO_EDGE = 1 << 40  # in place of the rank of an edge where there is none


def key_mask(bits: Tensor) -> int:
    """Return all bits but the sign."""
    return torch.iinfo(bits.dtype).max


class Forest:
    """The trees grown so far."""

    def __init__(self, n_vertices: int, bits: Tensor) -> None:
        self.labels = torch.arange(n_vertices, device=bits.device)
        self.keys = torch.full((n_vertices,), -1, dtype=bits.dtype, device=bits.device)


class SortedEdges:
    """Edges in their order: heaviest first, equal ones as they come."""

    def __init__(self, keys: Tensor, positions: Tensor, shape: torch.Size) -> None:
        m, n = shape
        self.keys, order = keys.sort(descending=True, stable=True)
        positions = positions[order]
        self.a = torch.div(positions, n, rounding_mode="floor")
        self.b = positions - self.a * n + m


def device_tree_weights(W: Tensor) -> Vector:
    """Return the weights |w| of the maximum spanning tree, ascending; shape (m + n - 1,)."""
    with torch.no_grad():
        bits = W.detach().view(KEY_TYPES[W.dtype])
        if bits.stride(0) < bits.stride(1):
            bits = bits.T
        # The last component was joined to no other: the first key is -1.
        keys = _tree_keys(bits).sort().values[1:]
        return np.asarray(keys.cpu().view(W.dtype).double())


def _tree_keys(bits: Tensor) -> Tensor:
    m, n = bits.shape
    forest = Forest(m + n, bits)
    if 2 * DEVICE_SURVIVORS_PER_VERTEX * (m + n) < m * n:
        edges = _heavy(bits)
        while len(edges.keys) and _join(forest, edges, None):
            pass
    while True:
        labels, others = forest.labels[:m], forest.labels[m:]
        largest = torch.zeros_like(forest.labels).scatter_add_(0, forest.labels, forest.labels.new_ones(m + n)).argmax()
        rows, columns = ((part != largest).nonzero().squeeze(1) for part in (labels, others))
        if not len(rows) + len(columns):
            return forest.keys
        row_keys, row_columns = _leaving(bits, labels, others, rows)
        column_keys, column_rows = _leaving(bits.T, others, labels, columns)
        # Rows and columns must agree on the order of equal entries: that of their positions.
        positions, order = torch.cat([rows * n + row_columns, column_rows * n + columns]).sort()
        edges = SortedEdges(torch.cat([row_keys, column_keys])[order], positions, bits.shape)
        _join(forest, edges, largest)


def _heavy(bits: Tensor) -> SortedEdges:
    """Collect the entries above a threshold, which is raised until they are few enough."""
    m, n = bits.shape
    target = DEVICE_SURVIVORS_PER_VERTEX * (m + n)
    sample = _sample(bits, DEVICE_SAMPLED_ABOVE * m * n // target) & key_mask(bits)
    threshold = sample.topk(DEVICE_SAMPLED_ABOVE).values[-1]
    while True:
        keys, positions = _above(bits, threshold, 2 * target)
        if len(keys) <= 2 * target:
            return SortedEdges(keys, positions, bits.shape)
        threshold = keys.median()


def _sample(bits: Tensor, count: int) -> Tensor:
    """Read entries at the points of the R2 sequence (Roberts 2018): evenly spread, the same ones at every call."""
    k = torch.arange(1, count + 1, device=bits.device)
    # Fractions of 2^31: the powers of 1 / 1.3247..., the plastic number.
    i = ((k * 1621087445 & 0x7FFFFFFF) * bits.shape[0]) >> 31
    j = ((k * 1223722707 & 0x7FFFFFFF) * bits.shape[1]) >> 31
    return bits[i, j]


def _above(bits: Tensor, threshold: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Return the keys above a threshold and their row-major positions; where they are more than `capacity`, not all."""
    n = bits.shape[1]
    mask, height = key_mask(bits), max(1, DEVICE_BLOCK_ENTRIES // n)
    keys: list[Tensor] = []
    positions: list[Tensor] = []
    n_found = 0
    for k, rows in enumerate(torch.split(bits, height)):
        block = (rows & mask).flatten()
        places = (block > threshold).nonzero().squeeze(1)
        keys.append(block[places])
        positions.append(places + k * height * n)
        n_found += len(places)
        if n_found > capacity:
            break
    return torch.cat(keys), torch.cat(positions)


def _leaving(bits: Tensor, labels: Tensor, others: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the heaviest key of each row among the columns of other components, and the first column that holds it.

    A row whose component holds all columns has key -1 and any column.
    """
    mask = key_mask(bits)
    keys: list[Tensor] = []
    columns: list[Tensor] = []
    for chosen in torch.split(rows, max(1, DEVICE_BLOCK_ENTRIES // bits.shape[1])):
        block = (bits[chosen] & mask).masked_fill_(labels[chosen].unsqueeze(1) == others, -1)
        best = block.max(dim=1)  # torch promises the first index of equal ones
        keys.append(best.values)
        columns.append(best.indices)
    return torch.cat(keys), torch.cat(columns)


def _join(forest: Forest, edges: SortedEdges, waiting: Tensor | None) -> Tensor:
    """Join every component but the one that waits along its first leaving edge; return whether any had one."""
    vertices = torch.arange(len(forest.labels), device=forest.labels.device)
    a, b = forest.labels[edges.a], forest.labels[edges.b]
    order = torch.arange(len(a), device=a.device).masked_fill_(a == b, NO_EDGE)
    first = torch.full_like(vertices, NO_EDGE)
    first.scatter_reduce_(0, a, order, "amin").scatter_reduce_(0, b, order, "amin")
    if waiting is not None:
        first.index_fill_(0, waiting, NO_EDGE)
    chosen = first.clamp(max=len(a) - 1)
    parent = torch.where(first < NO_EDGE, a[chosen] + b[chosen] - vertices, vertices)
    # Two that chose the same edge: the one of smaller number stays.
    parent = torch.where((first[parent] == first) & (vertices < parent), vertices, parent)
    joined = parent != vertices
    forest.keys = torch.where(joined, edges.keys[chosen], forest.keys)
    for _ in range(len(vertices).bit_length()):
        parent = parent[parent]
    forest.labels = parent[forest.labels]
    return joined.any()
