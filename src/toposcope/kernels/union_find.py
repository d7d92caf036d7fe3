"""Union-find over integer vertices, path-halving (Tarjan & van Leeuwen 1984)."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Parents = NDArray[np.integer[Any]]


@numba.njit(cache=True, nogil=True)
def find(parent: Parents, vertex: int) -> int:
    """Return the root of a vertex, halving the path on the way."""
    while parent[vertex] != vertex:
        parent[vertex] = parent[parent[vertex]]
        vertex = parent[vertex]
    return vertex


@numba.njit(cache=True, nogil=True)
def join(parent: Parents, a: int, b: int) -> bool:
    """Join the trees of two vertices; return whether they were two. The root of higher number stays a root."""
    a, b = find(parent, a), find(parent, b)
    if a == b:
        return False
    parent[min(a, b)] = max(a, b)
    return True
