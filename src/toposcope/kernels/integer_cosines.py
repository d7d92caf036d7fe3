"""Cosine distances of integer rows: equal where the angles are equal, and in the order of the angles.

The cosine of a and b is a.b / sqrt(|a|^2 |b|^2). As long as |a|^2 |b|^2 is at most 2^53, its square is a quotient of
two integers that float64 holds, and so is that of the sine: IEEE division rounds equal quotients equally, and all
that follows grows with them.

Cost: O(d) a pair; that of all pairs is one product by BLAS, whose sums are exact in any order.
"""

from functools import partial

import numpy as np

from toposcope.kernels.boruvka import MIN_POINTS_PER_SEARCH, Neighbours, Search, neighbour_searches, tree_by_searches
from toposcope.kernels.compiled import compiled, compiled_sums
from toposcope.kernels.prim import put_edge
from toposcope.kernels.sets import Parents
from toposcope.typing import Indices, Matrix, Vector

MAX_SQUARED_NORM = 2.0**26.5


@compiled
def _cosine_distance(dot: float, norms: float) -> float:
    """Return 1 - cos from a dot product and the product of two squared norms."""
    square = dot * dot
    if 2 * square <= norms:
        return float(1 - np.copysign(np.sqrt(square / norms), dot))
    sine = (norms - square) / norms
    # 1 - |cos| without cancellation; in order with the other branch, whatever the rounding.
    small = min(sine / (1 + np.sqrt(1 - sine)), 1 - np.sqrt(0.5))
    return float(small if dot > 0 else 2 - small)


@compiled_sums
def _dot(a: Vector, b: Vector) -> float:
    dot = 0.0
    for t in range(len(a)):
        dot += a[t] * b[t]
    return dot


@compiled
def integer_distance(a: Vector, b: Vector) -> float:
    """Return the cosine distance of two integer rows, each of squared norm at most `MAX_SQUARED_NORM`."""
    return _cosine_distance(_dot(a, b), _dot(a, a) * _dot(b, b))


@compiled
def integer_distances(dots: Matrix, squared_norms: Vector) -> None:
    """Replace dot products of all rows, shape (n, n), by the cosine distances."""
    for i in range(len(dots)):
        for j in range(len(dots)):
            dots[i, j] = _cosine_distance(dots[i, j], squared_norms[i] * squared_norms[j])


@compiled
def integer_tree(rows: Matrix) -> tuple[Vector, Indices]:
    """Return the minimum spanning tree as `toposcope.kernels.prim.matrix_tree` does; O(n^2 d) time."""
    n = len(rows)
    lengths, ends = np.empty(n - 1), np.empty((n - 1, 2), np.int64)
    nearest, outside, source = np.full(n, np.inf), np.arange(n), np.zeros(n, np.int64)
    squared_norms = np.array([_dot(rows[i], rows[i]) for i in range(n)])
    closest = 0
    for k in range(n - 1):
        added = outside[closest]
        outside[closest], nearest[closest], source[closest] = (
            outside[n - 1 - k],
            nearest[n - 1 - k],
            source[n - 1 - k],
        )
        closest = 0
        for o in range(n - 1 - k):
            other = outside[o]
            length = _cosine_distance(_dot(rows[added], rows[other]), squared_norms[added] * squared_norms[other])
            if length < nearest[o]:
                nearest[o], source[o] = length, added
            if nearest[o] < nearest[closest]:
                closest = o
        lengths[k] = nearest[closest]
        put_edge(ends, k, source[closest], outside[closest])
    return lengths, ends


def boruvka_integer_tree(rows: Matrix, directions: Matrix) -> tuple[Vector, Indices] | None:
    """Return the same by Boruvka's rounds on chords between directions; None as `boruvka_tree` does."""
    searches = [partial(_with_exact_squares, search, rows) for search in neighbour_searches(directions)]
    tree = tree_by_searches(len(rows), searches, len(rows) // MIN_POINTS_PER_SEARCH)
    return None if tree is None else (tree.squares / 2, tree.ends)


def _with_exact_squares(search: Search, rows: Matrix, chosen: Indices, labels: Parents) -> Neighbours:
    """Search, and measure the squares of the chords on integer rows: twice the distance."""
    neighbours = search(chosen, labels)
    squares = _squares(rows, chosen, neighbours.indices.astype(np.int64))
    order = np.argsort(squares, axis=1, kind="stable")
    indices = np.take_along_axis(neighbours.indices, order, axis=1)
    return Neighbours(indices, np.take_along_axis(squares, order, axis=1), neighbours.beyond)


@compiled
def _squares(rows: Matrix, chosen: Indices, others: Indices) -> Matrix:
    squares = np.full(others.shape, np.inf)
    for r in range(len(chosen)):
        for k in range(others.shape[1]):
            if others[r, k] >= 0:
                squares[r, k] = 2 * integer_distance(rows[chosen[r]], rows[others[r, k]])
    return squares
