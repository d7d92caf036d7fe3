"""Minimum spanning trees by Prim's algorithm: of a small or low-dimensional cloud, and of a matrix of lengths.

Cost: O(n^2 d) time; O(n) memory next to the input, and a copy of points of few coordinates. Lengths come from
coordinate differences in float64, and are compared by their bits: whole numbers, of which a processor compares several
at once.
Source: Prim 1957; the tree lengths are the H0 deaths of the Vietoris-Rips filtration.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, compiled_fused, compiled_sums, inlined
from toposcope.kernels.pairwise import edge_squares
from toposcope.typing import Indices, Matrix, Vector

MAX_PRIM_COLUMNS = 40  # up to so many coordinates, Prim's algorithm measures several points at once, not one faster

Clouds = NDArray[np.float64]
NO_LENGTH = np.int64(np.iinfo(np.int64).max)  # above the bits of all lengths, infinity included


class Tree(NamedTuple):
    """A minimum spanning tree."""

    squares: Vector  # shape (n - 1,); squared lengths of the edges, to the last bit those of all pairs
    ends: Indices  # shape (n - 1, 2); of each edge, the smaller first


@compiled_sums
def squared_distance(a: Vector, b: Vector) -> float:
    """Return the squared distance of two points from their coordinate differences."""
    squared = 0.0
    for t in range(len(a)):
        difference = a[t] - b[t]
        squared += difference * difference
    return squared


@compiled
def squared_distances(points: Matrix, pairs: NDArray[np.int64]) -> Vector:
    """Return the squared distances of pairs of points, by their first two numbers; shape (m,)."""
    squares = np.empty(len(pairs))
    for k in range(len(pairs)):
        squares[k] = squared_distance(points[pairs[k, 0]], points[pairs[k, 1]])
    return squares


@compiled_sums
def _four_squares(a: Vector, b: Vector, c: Vector, d: Vector, e: Vector) -> tuple[float, float, float, float]:
    """Return the squared distances of four points from a fifth: four sums at once wait less for each other."""
    to_a = to_b = to_c = to_d = 0.0
    for t in range(len(e)):
        from_a, from_b, from_c, from_d = a[t] - e[t], b[t] - e[t], c[t] - e[t], d[t] - e[t]
        to_a += from_a * from_a
        to_b += from_b * from_b
        to_c += from_c * from_c
        to_d += from_d * from_d
    return to_a, to_b, to_c, to_d


@inlined
def _grow(points: Matrix, n: int, ends: Indices, room: tuple[Any, ...]) -> None:
    """Write the tree of the first n points."""
    # Points of few coordinates are kept by columns, those outside the tree first, and measured column by column. Behind
    # them stand others, so that four can be taken at a time; what is computed of these is not used.
    columns, added, fresh, offers, outside, source, nearest = room
    n_columns, closest = len(columns), 0
    for o in range(n):
        outside[o], nearest[o] = o, NO_LENGTH
        for t in range(n_columns):
            columns[t, o] = points[o, t]
    for k in range(n - 1):
        last, own = n - 1 - k, outside[closest]
        outside[closest], nearest[closest], source[closest] = outside[last], nearest[last], source[last]
        for t in range(n_columns):
            added[t], columns[t, closest] = columns[t, closest], columns[t, last]
        for o in range(last if n_columns else 0):
            fresh[o] = 0
        for t in range(0, n_columns - 3, 4):
            for o in range(last):
                a, b = columns[t, o] - added[t], columns[t + 1, o] - added[t + 1]
                c, e = columns[t + 2, o] - added[t + 2], columns[t + 3, o] - added[t + 3]
                fresh[o] += a * a + b * b + c * c + e * e
        for t in range(n_columns - n_columns % 4, n_columns):
            for o in range(last):
                fresh[o] += (columns[t, o] - added[t]) * (columns[t, o] - added[t])
        for o in range(0, 0 if n_columns else last, 4):
            fresh[o], fresh[o + 1], fresh[o + 2], fresh[o + 3] = _four_squares(
                points[outside[o]], points[outside[o + 1]], points[outside[o + 2]], points[outside[o + 3]], points[own]
            )
        shortest = NO_LENGTH
        for o in range(last):
            source[o] = own if offers[o] < nearest[o] else source[o]  # no branch, so that several are made at once
            nearest[o] = min(nearest[o], offers[o])
            shortest = min(shortest, nearest[o])
        closest = _place(nearest, shortest)
        put_edge(ends, k, source[closest], outside[closest])


@inlined
def _place(values: Indices, value: Any) -> int:
    """Return the first place of a value that is there."""
    place = 0
    while values[place] != value:
        place += 1
    return place


@inlined
def put_edge(ends: Indices, k: int, a: int, b: int) -> None:
    """Write an edge, its smaller end first."""
    ends[k, 0], ends[k, 1] = min(a, b), max(a, b)


@compiled_fused
def _grow_all(clouds: Clouds, counts: Indices, ends: NDArray[np.int64], room: tuple[Any, ...]) -> None:
    for r in range(len(clouds)):
        _grow(clouds[r], counts[r], ends[r], room)


def prim_tree(points: Matrix) -> Tree:
    """Return the minimum spanning tree of points."""
    squares, ends = prim_trees(points[None], np.array([len(points)]))
    return Tree(squares[0], ends[0])


def prim_trees(clouds: Clouds, counts: Indices) -> Tree:
    """Return the trees of the first so many points of several clouds of one shape, (r, n, d).

    Shapes (r, n - 1) and (r, n - 1, 2); what lies behind a smaller tree means nothing.
    """
    r, n, d = clouds.shape
    trees = Tree(np.empty((r, n - 1)), np.empty((r, n - 1, 2), np.int64))
    columns, fresh = np.empty((d if d <= MAX_PRIM_COLUMNS else 0, n)), np.empty(n + 3)
    # Made here: a kernel that makes its arrays takes much longer to compile.
    room = columns, np.empty(d), fresh, fresh.view(np.int64), *np.zeros((3, n + 3), np.int64)
    _grow_all(clouds, counts, trees.ends, room)
    for points, ends, squares, count in zip(clouds, trees.ends, trees.squares, counts.tolist(), strict=True):
        edge_squares(points, ends[: max(count - 1, 0)], squares)
    return trees


@compiled
def matrix_tree(lengths: Matrix) -> tuple[Vector, Indices]:
    """Return the lengths of the tree's edges, in the order they are added, and their ends, the smaller first.

    Edges of infinite length join the components that others leave.
    """
    n = len(lengths)
    tree, ends = np.empty(n - 1), np.empty((n - 1, 2), np.int64)
    bits, found = lengths.view(np.int64), tree.view(np.int64)
    nearest, source, barred, own = np.empty(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), 0
    for o in range(n):
        nearest[o] = NO_LENGTH
    for k in range(n - 1):
        nearest[own] = barred[own] = shortest = NO_LENGTH
        for o in range(n):
            offer = bits[own, o] & NO_LENGTH | barred[o]  # without its sign, which zero may have
            source[o] = own if offer < nearest[o] else source[o]
            nearest[o] = min(nearest[o], offer)
            shortest = min(shortest, nearest[o])
        new = _place(nearest, shortest)
        found[k] = shortest
        put_edge(ends, k, source[new], new)
        own = new
    return tree, ends
