"""Minimum spanning tree of a complete graph given by its matrix of lengths, by Prim's algorithm.

Cost: O(n^2) time, O(n) memory beside the matrix.
Source: Prim 1957.
"""

import numpy as np

from toposcope.kernels.compiled import compiled
from toposcope.typing import Matrix, Vector


@compiled
def prim_lengths(lengths: Matrix) -> Vector:
    """Return the edge lengths of the tree, in the order they are added; shape (n - 1,).

    Parameters
    ----------
    lengths : ndarray, shape (n, n), float64
        Symmetric.
    """
    n = len(lengths)
    tree = np.empty(n - 1)
    nearest = np.full(n, np.inf)
    outside = np.arange(1, n)
    n_outside = n - 1
    added = 0
    for k in range(n - 1):
        closest = 0
        shortest = np.inf
        for o in range(n_outside):
            vertex = outside[o]
            nearest[vertex] = min(nearest[vertex], lengths[added, vertex])
            if nearest[vertex] < shortest:
                shortest = nearest[vertex]
                closest = o
        tree[k] = shortest
        added = outside[closest]
        n_outside -= 1
        outside[closest] = outside[n_outside]
    return tree
