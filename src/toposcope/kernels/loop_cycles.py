"""Which edges of a spanning tree make a cycle with some that are not in it."""

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled


@compiled
def odd_branches(tree: NDArray[np.int32], chords: NDArray[np.int32], n: int) -> NDArray[np.bool_]:
    """Return which edges of a spanning tree, with the chords, make a cycle over two elements."""
    odd = np.zeros(n, np.bool_)
    for k in range(len(chords)):
        for end in chords[k]:
            odd[end] = not odd[end]
    degree = np.zeros(n, np.int64)
    # The sum of the numbers of a leaf's edges is the number of its one edge.
    edge_sum = np.zeros(n, np.int64)
    for k in range(len(tree)):
        for end in tree[k]:
            degree[end] += 1
            edge_sum[end] += k
    chosen = np.zeros(len(tree), np.bool_)
    for point in range(n):
        leaf = point
        while degree[leaf] == 1:
            k = edge_sum[leaf]
            other = tree[k, 0] + tree[k, 1] - leaf
            if odd[leaf]:
                chosen[k] = True
                odd[other] = not odd[other]
            degree[leaf] -= 1
            degree[other] -= 1
            edge_sum[other] -= k
            leaf = other
    return chosen
