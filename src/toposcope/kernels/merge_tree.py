"""Merge tree of a function on the vertices of a grid or a graph, by descents and a union-find over basins.

Vertices are in the total order of (value, index), which breaks every tie. Each vertex points at a lower neighbour;
following pointers ends at a local minimum, and a path never rises, so all of it is there by the time its first vertex
is. The vertices whose paths end at one minimum are its basin. Components can meet only at a vertex that has lower
neighbours in two basins: these alone are sorted, and visited in ascending order, the younger components at each
attached to the oldest.

On a grid the lower neighbours are first grouped by their joins around the ring of eight cells, which separates
almost all vertices from saddles without looking further than one cell.

Cost: O(n) plus the saddles, O(s log n) for s of them; two integers a vertex of memory at most, and one byte (grids).
Source: Carr, Snoeyink & Axen 2003, "Computing contour trees in all dimensions", section 4 (join trees); the elder rule
of Edelsbrunner, Letscher & Zomorodian 2002.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.kernels.sets import find
from toposcope.typing import Indices, Matrix, Vector


@compiled
def grid_basins(
    padded: Matrix, steps: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[Indices, Indices, Indices, Indices]:
    """Send every vertex of a grid downwards, and find the vertices that join basins."""
    m, n = padded.shape[0] - 2, padded.shape[1] - 2
    width = n + 2
    lower = np.empty((m, n), np.uint8)
    for i in range(m):
        up, row, down = padded[i], padded[i + 1], padded[i + 2]
        into = lower[i]
        for j in range(n):
            value = row[j + 1]
            # Of equals the earlier is lower. A loop without branches is compiled to vector instructions.
            into[j] = (
                np.uint8(up[j] <= value)
                | np.uint8(up[j + 1] <= value) << 1
                | np.uint8(up[j + 2] <= value) << 2
                | np.uint8(row[j + 2] < value) << 3
                | np.uint8(down[j + 2] < value) << 4
                | np.uint8(down[j + 1] < value) << 5
                | np.uint8(down[j] < value) << 6
                | np.uint8(row[j] <= value) << 7
            )
    parent = np.full(padded.size, -1, np.int64)
    max_saddles = 0
    for i in range(m):
        for j in range(n):
            vertex = (i + 1) * width + j + 1
            parent[vertex] = vertex + steps[lower[i, j], 0]
            max_saddles += max(counts[lower[i, j]] - 1, 0)
    saddles, ends = np.empty(max_saddles, np.int64), np.empty((max_saddles, 2), np.int64)
    n_saddles = 0
    for i in range(m):
        for j in range(n):
            for group in range(1, counts[lower[i, j]]):
                vertex = (i + 1) * width + j + 1
                # In this order of the vertices the descents are short and their memory near.
                first = find(parent, vertex)
                second = find(parent, vertex + steps[lower[i, j], group])
                if first != second:
                    saddles[n_saddles], ends[n_saddles, 0], ends[n_saddles, 1] = vertex, first, second
                    n_saddles += 1
    return parent, _roots(parent), saddles[:n_saddles], ends[:n_saddles]


@compiled
def graph_basins(values: Vector, edges: NDArray[np.int64]) -> tuple[Indices, Indices, Indices, Indices]:
    """Send every vertex of a graph down its steepest descent, and find the edges that join basins."""
    n, k = len(values), len(edges)
    parent = np.arange(n)
    for e in range(k):
        low, high = edges[e]
        if _before(values, high, low):
            low, high = high, low
        if _before(values, low, parent[high]):
            parent[high] = low
    for v in range(n):
        parent[v] = find(parent, v)
    between = 0
    for e in range(k):
        between += parent[edges[e, 0]] != parent[edges[e, 1]]
    saddles, ends = np.empty(between, np.int64), np.empty((between, 2), np.int64)
    n_saddles = 0
    for e in range(k):
        a, b = edges[e]
        if parent[a] != parent[b]:
            saddles[n_saddles] = b if _before(values, a, b) else a
            ends[n_saddles, 0], ends[n_saddles, 1] = parent[a], parent[b]
            n_saddles += 1
    return parent, _roots(parent), saddles, ends


@compiled
def join_basins(
    births: Vector, heights: Vector, saddles: Indices, ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join basins by the elder rule."""
    parent = np.arange(len(births))
    merges = np.empty((len(births), 3), np.int64)
    n_merges = 0
    start = 0
    while start < len(saddles):
        stop = start
        oldest = len(births)
        while stop < len(saddles) and saddles[stop] == saddles[start]:
            oldest = min(oldest, find(parent, ends[stop, 0]), find(parent, ends[stop, 1]))
            stop += 1
        for e in range(start, stop):
            for end in range(2):
                root = find(parent, ends[e, end])
                if root == oldest:
                    continue
                parent[root] = oldest
                # A minimum that dies at its own height is one vertex of a plateau.
                if births[root] < heights[e]:
                    merges[n_merges] = oldest, root, saddles[e]
                    n_merges += 1
        start = stop
    return merges[:n_merges], _roots(parent)


@compiled
def _roots(parent: Indices) -> Indices:
    """Return the roots of a union-find forest, ascending."""
    count = 0
    for v in range(len(parent)):
        count += parent[v] == v
    roots = np.empty(count, np.int64)
    count = 0
    for v in range(len(parent)):
        if parent[v] == v:
            roots[count] = v
            count += 1
    return roots


@compiled
def _before(values: Vector, a: int, b: int) -> bool:
    """Return whether vertex a comes before vertex b in the order of (value, index)."""
    return bool(values[a] < values[b] or (values[a] == values[b] and a < b))
