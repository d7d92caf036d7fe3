"""Union-find over integer vertices, path-halving (Tarjan & van Leeuwen 1984)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled

Parents = NDArray[np.integer[Any]]


@compiled
def find(parent: Parents, vertex: int) -> int:
    """Return the root of a vertex, halving the path on the way."""
    while parent[vertex] != vertex:
        parent[vertex] = parent[parent[vertex]]
        vertex = parent[vertex]
    return vertex


@compiled
def join(parent: Parents, a: int, b: int) -> bool:
    """Join the trees of two vertices; return whether they were two. The root of higher number stays a root."""
    a, b = find(parent, a), find(parent, b)
    if a == b:
        return False
    parent[min(a, b)] = max(a, b)
    return True
