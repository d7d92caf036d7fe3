"""Union-find over integer vertices, path-halving."""

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True)
def find(parent: NDArray[np.int64], vertex: int) -> int:
    """Return the root of a vertex, halving the path on the way."""
    while parent[vertex] != vertex:
        parent[vertex] = parent[parent[vertex]]
        vertex = parent[vertex]
    return vertex
