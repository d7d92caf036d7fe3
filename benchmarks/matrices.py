"""Matrices that make a maximum spanning tree hard, and baselines for it: used by `benchmarks/neural_persistence.py`."""

from collections.abc import Iterator

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree

Matrix = NDArray[np.float32]
Vector = NDArray[np.float64]


def gaussian(m: int, n: int) -> Matrix:
    """Make standard normal entries, always the same."""
    return np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)


def hard_cases(m: int, n: int) -> Iterator[tuple[str, Matrix]]:
    """Yield named matrices of one shape, one at a time."""
    rng = np.random.default_rng(1)
    plain = gaussian(m, n)
    yield "heavy tails (Cauchy)", rng.standard_cauchy((m, n)).astype(np.float32)
    for name, rows, columns in (("rows", 7, m + n), ("columns", m + n, 7), ("rows and columns", 2, 3)):
        dead = plain.copy()
        dead[::rows], dead[:, ::columns] = 0, 0
        yield f"zero {name}", dead
    row_scale, column_scale = 10 ** rng.uniform(-8, 8, (m, 1)), 10 ** rng.uniform(-8, 8, (1, n))
    yield "rows on scales 1e-8 to 1e8", (plain * row_scale).astype(np.float32)
    yield "columns on scales 1e-8 to 1e8", (plain * column_scale).astype(np.float32)
    yield "both on scales 1e-8 to 1e8", (plain * row_scale * column_scale).astype(np.float32)
    for rank in (1, 8):
        factors = rng.standard_normal((m, rank)), rng.standard_normal((rank, n))
        yield f"rank {rank}", (factors[0] @ factors[1]).astype(np.float32)
    for name, step, largest in (("8 bits", 1 / 30, 127), ("4 bits", 1 / 2, 7), ("ternary", 1, 1)):
        yield f"quantised, {name}", np.round(plain / step).clip(-largest, largest).astype(np.float32)
    yield "signs", np.sign(plain)
    yield "half zeros", np.where(rng.random((m, n)) < 0.5, 0, plain).astype(np.float32)
    yield "99.9% zeros", np.where(rng.random((m, n)) < 0.999, 0, plain).astype(np.float32)
    yield "all equal", np.ones((m, n), np.float32)
    blocks = np.zeros((m, n), np.float32)
    for k in range(8):
        part = np.s_[k * m // 8 : (k + 1) * m // 8, k * n // 8 : (k + 1) * n // 8]
        blocks[part] = plain[part]
    yield "8 diagonal blocks", blocks
    yield "sorted ascending", np.sort(plain, axis=None).reshape(m, n)


@numba.njit(nogil=True)
def row_and_column_maxima(bits: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Make the bare pass, the floor: it reads every weight and keeps the largest |w| of each row and column.

    On the bit patterns, since Numba vectorises integer maxima but not floating-point ones: the quickest such pass.
    """
    m, n = bits.shape
    rows, columns = np.zeros(m, np.uint32), np.zeros(n, np.uint32)
    for i in range(m):
        row = bits[i]
        largest = np.uint32(0)
        for j in range(n):
            key = row[j] & np.uint32(0x7FFFFFFF)
            largest = max(largest, key)
            columns[j] = max(columns[j], key)
        rows[i] = largest
    return rows, columns


@numba.njit(nogil=True)
def sorted_deaths(W: Matrix) -> Matrix:
    """Kruskal's algorithm in Numba: sort all entries, join what is not yet joined."""
    m, n = W.shape
    magnitudes = np.abs(W).ravel()
    order = np.argsort(magnitudes)
    parent = np.arange(m + n)
    deaths = np.empty(m + n - 1, W.dtype)
    found = 0
    for k in range(len(order) - 1, -1, -1):
        a, b = order[k] // n, m + order[k] % n
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a != b:
            parent[a] = b
            deaths[found] = magnitudes[order[k]]
            found += 1
            if found == len(deaths):
                break
    deaths /= deaths[0]
    return deaths


def scipy_deaths(W: Matrix) -> Vector:
    """Deaths from SciPy's minimum spanning tree of 2 - |W| / max|W|: an entry of 0 would be no edge to it."""
    m, n = W.shape
    magnitude = np.abs(W).astype(np.float64)
    costs = 2 - magnitude / magnitude.max()
    columns = np.tile(np.arange(m, m + n, dtype=np.int32), m)
    starts = np.concatenate([np.arange(0, m * n + 1, n), np.full(n, m * n)]).astype(np.int32)
    tree = minimum_spanning_tree(csr_array((costs.ravel(), columns, starts), shape=(m + n, m + n)))
    return np.asarray(2 - np.sort(tree.data))


def textbook_deaths(W: Matrix) -> Vector:
    """Deaths by Kruskal's algorithm in plain Python."""
    m, n = W.shape
    largest = float(np.abs(W).max())
    edges = sorted(((abs(float(W[i, j])), i, m + j) for i in range(m) for j in range(n)), reverse=True)
    parent = list(range(m + n))

    def find(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]
            vertex = parent[vertex]
        return vertex

    deaths = []
    for weight, i, j in edges:
        a, b = find(i), find(j)
        if a != b:
            parent[a] = b
            deaths.append(weight / largest)
    return np.array(deaths)
