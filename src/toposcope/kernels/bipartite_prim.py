"""Maximum spanning tree of a small dense bipartite graph by Prim's algorithm.

Cost: O((m + n)^2) time, O(m + n) memory beside the matrix.
Source: Prim 1957.
"""

import numba
import numpy as np

from toposcope.kernels.magnitudes import Entries, Keys

NONE = -1
INSIDE = -2


@numba.njit(cache=True, nogil=True)
def prim_keys(matrix: Entries) -> Keys:
    """Return the keys of the tree in the order they are added, shape (m + n - 1,)."""
    buffer, starts, n, step, mask, _ = matrix
    m = len(starts)
    tree = np.empty(m + n - 1, buffer.dtype)
    # The heaviest edge to the tree of every vertex: none yet, or of no more use once the vertex is inside.
    offer = np.full(m + n, NONE)
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
