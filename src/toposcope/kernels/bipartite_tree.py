"""Maximum spanning tree of the complete bipartite graph of a dense matrix, by Boruvka's rounds.

In each round every component picks its heaviest edge that leaves it; components at least halve, so there are at most
log2(m + n) rounds. Ties are broken by the position of the entry, which makes the order total and the picks free of
cycles; the *multiset* of tree weights does not depend on how ties are broken.

Cost: O(mn log(m + n)) time in the worst case, O(m + n) memory beside the matrix, which is read in place.
Source: Boruvka 1926; the filtration is that of Rieck et al. 2019, arXiv:1812.09764, section 3.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.union_find import find


@numba.njit(cache=True, nogil=True)
def bipartite_tree_weights(W: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the |weights| of the maximum spanning tree of a matrix, unsorted.

    Parameters
    ----------
    W : ndarray, shape (m, n), float32 or float64
        Finite entries; entry (i, j) is the edge between row vertex i and column vertex m + j.

    Returns
    -------
    ndarray, shape (m + n - 1,), dtype of W
    """
    m, n = W.shape
    n_vertices = m + n
    weights = np.empty(n_vertices - 1, W.dtype)
    parent = np.arange(n_vertices)
    component = np.arange(n_vertices)
    best_weight = np.empty(n_vertices, W.dtype)
    best_row = np.empty(n_vertices, np.int64)
    best_column = np.empty(n_vertices, np.int64)
    found = 0
    while found < n_vertices - 1:
        best_row[:] = -1
        best_weight[:] = -1
        # Entries are met in the order of their position, so a strict comparison keeps the first of equals.
        for i in range(m):
            row_component = component[i]
            row_best = best_weight.dtype.type(-1)
            row_best_column = -1
            for j in range(n):
                column_component = component[m + j]
                if column_component == row_component:
                    continue
                weight = abs(W[i, j])
                if weight > row_best:
                    row_best = weight
                    row_best_column = j
                if weight > best_weight[column_component]:
                    best_weight[column_component] = weight
                    best_row[column_component] = i
                    best_column[column_component] = j
            if row_best > best_weight[row_component]:
                best_weight[row_component] = row_best
                best_row[row_component] = i
                best_column[row_component] = row_best_column
        for c in range(n_vertices):
            if best_row[c] < 0:
                continue
            a = find(parent, best_row[c])
            b = find(parent, m + best_column[c])
            if a != b:
                parent[a] = b
                weights[found] = best_weight[c]
                found += 1
        for v in range(n_vertices):
            component[v] = find(parent, v)
    return weights
