"""The loops of few points without compiled code: the algorithm of `toposcope.homology.loops` in sets of Python's bits.

The *vector* of an edge is the set of open loops whose cocycles contain it. Cost: O(n^2) steps and, for every loop that
is closed, one for each vector.
"""

import numpy as np

from toposcope.typing import Matrix


def plain_pairs(distances: Matrix, cap: float, n_steps: int) -> Matrix | None:
    """Return birth and death of every loop, open ones at infinity, shape (b, 2); None if that takes too many steps."""
    n = len(distances)
    first, second = np.triu_indices(n, 1)
    lengths = distances[first, second]
    order = np.argsort(lengths, kind="stable")[: np.count_nonzero(lengths <= cap)]
    near, active, parent = [1 << point for point in range(n)], [0] * n, list(range(n))
    vectors: list[dict[int, int]] = [{} for _ in range(n)]  # of active edges, by one end and the other
    edges_of: dict[int, list[tuple[int, int]]] = {}  # by their vector
    births: list[int] = []  # places of edges, as deaths; that of an open loop is the last
    deaths: list[int] = []

    def activate(vector: int, edges: list[tuple[int, int]]) -> None:
        edges_of.setdefault(vector, []).extend(edges)
        for a, b in edges:
            vectors[a][b] = vectors[b][a] = vector
            active[a] |= 1 << b
            active[b] |= 1 << a

    for edge, u, v in zip(order.tolist(), first[order].tolist(), second[order].tolist(), strict=True):
        lune = near[u] & near[v]
        near[u] |= 1 << v
        near[v] |= 1 << u
        if not lune:
            a, b = _root(parent, u), _root(parent, v)
            if a != b:
                parent[a] = b
                continue
            activate(1 << len(births), [(u, v)])
            births.append(edge)
            deaths.append(-1)
        elif voters := lune & (active[u] | active[v]):
            votes = set() if voters == lune else {0}
            while voters:
                w = voters.bit_length() - 1
                votes.add(vectors[u].get(w, 0) ^ vectors[v].get(w, 0))
                voters &= ~near[w]  # what is connected votes alike
            while len(votes) > 1:
                vanishing = min(votes) ^ max(votes)
                loop = vanishing.bit_length() - 1
                deaths[loop] = edge
                n_steps -= len(edges_of)
                if n_steps < 0:
                    return None
                for vector in [vector for vector in edges_of if vector >> loop & 1]:
                    edges = edges_of.pop(vector)
                    if vector != vanishing:
                        activate(vector ^ vanishing, edges)
                        continue
                    for a, b in edges:
                        del vectors[a][b], vectors[b][a]
                        active[a] ^= 1 << b
                        active[b] ^= 1 << a
                votes = {vote ^ vanishing if vote >> loop & 1 else vote for vote in votes}
            if vector := votes.pop():
                activate(vector, [(u, v)])
    ends = np.append(lengths, np.inf)
    return np.column_stack([ends[np.array(births, np.int64)], ends[np.array(deaths, np.int64)]])


def _root(parent: list[int], point: int) -> int:
    while parent[point] != point:
        parent[point] = point = parent[parent[point]]
    return point
