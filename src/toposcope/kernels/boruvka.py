"""Euclidean minimum spanning tree of a large cloud: Boruvka's rounds on lists of nearest neighbours.

Every point carries a short list of its nearest points and a bound of the distance of all others. In a round each
component but the largest takes the shortest listed edge that leaves it. It is the shortest of all if no member's bound
is below; the lists of members whose bound is below are renewed, without the component's own points.

For a block of rows one product gives |y|^2 - 2 x.y, and with |x|^2 a *lower bound* of every squared distance: the
rounding error is at most c (|x| + |y|)^2 (Higham 2002, section 3.1), and it is subtracted, the mixed term by one more
coordinate of the product. The few entries of least bound are measured exactly, from coordinate differences in float64.
So nothing depends on how the product was rounded: points too close to each other for float32 are searched for again in
float64, and at last by differences.

Cost: O(n^2 d) in one BLAS pass for the first lists, then far less; O(n d) memory, never n x n.
Source: Boruvka 1926. The tree lengths are the H0 deaths of the Vietoris-Rips filtration.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.kernels.prim import Tree, put_edge, squared_distance
from toposcope.kernels.sets import Parents, find, join
from toposcope.typing import Indices, Matrix, Vector

# Chosen on two cores (benchmarks/point_clouds.py), those of devices on an H100; no result depends on them.
N_LISTED = 10  # neighbours of a point
BOUNDS_BYTES, DEVICE_BOUNDS_BYTES = 1 << 24, 1 << 28  # of the bounds held at once
BOUNDS_RUN = 256  # bounds compared at once with the last one kept
MIN_POINTS_PER_SEARCH = 3  # the last search is for at most one point in so many; for more, Prim's algorithm is quicker
# up to so many columns a tree of boxes finds the nearest: so many, then more where components are larger; for more
# points than one in so many the last search takes longer than Prim's algorithm
MAX_FLAT_COLUMNS, N_NEAREST, MIN_FLAT_POINTS_PER_SEARCH = 3, (N_LISTED + 1, 4 * N_LISTED), 16
FLAT_ROWS = 4096  # searched for at once
FLAT_TOLERANCE = 1e-12  # relative, of the squared distances that these searches compare
MAX_RELATIVE_ERROR = 0.25  # products whose relative error may exceed this are not made: their bound no longer holds


class Neighbours(NamedTuple):
    """The nearest points outside the component of each of k points."""

    indices: NDArray[np.int32]  # shape (k, N_LISTED)
    squares: Matrix  # shape (k, N_LISTED); exact squared distances, ascending; infinite where there are fewer points
    # shape (k,); no point that is neither listed nor of the own component has a smaller squared distance
    beyond: Vector


def rounding(d: int, dtype: type[np.floating[Any]]) -> tuple[float, float]:
    """Return c and t such that a squared distance in d dimensions is at most c (|x| + |y|)^2 + t below its product.

    The product has d + 2 terms; its factors and the squared norms in it are rounded too, and terms may underflow. The
    usual bound, linear in d, needs c well below one.
    """
    format = np.finfo(dtype)
    return 2.02 * (d + 8) * float(format.eps) / 2, 8 * (d + 2) * float(format.tiny)


def product_factors(points: Matrix, dtype: type[np.floating[Any]]) -> tuple[NDArray[Any], Vector]:
    """Return what lower bounds of squared distances are made of: ``(left_factor(right) @ right.T)[i] + own[i]``."""
    n, d = points.shape
    relative, absolute = rounding(d, dtype)
    # Bounds are tightest about the centre; lengths are measured on the points as they are.
    centre, squared_norms, right = points.mean(axis=0), np.empty(n), np.empty((n, d + 2), dtype)
    for begin in range(0, n, 256):  # no second copy of the points
        rows = slice(begin, begin + 256)
        centred = points[rows] - centre
        squared_norms[rows] = np.einsum("ij,ij->i", centred, centred)
        right[rows, :d] = centred
    right[:, d] = np.sqrt(relative * squared_norms)
    right[:, d + 1] = (1 - relative) * squared_norms
    return right, (1 - relative) * squared_norms - absolute


def left_factor(right: NDArray[Any]) -> NDArray[Any]:
    """Return the left factor of bounds from some rows of the right one."""
    left = -2 * right
    left[:, -1] = 1
    return left


class ProductSearch:
    """Search by products in one precision."""

    def __init__(self, points: Matrix, dtype: type[np.floating[Any]]) -> None:
        self._points = points
        self._right, self._own = product_factors(points, dtype)
        self._left = left_factor(self._right)

    def __call__(self, rows: Indices, labels: Parents) -> Neighbours:
        """Return the neighbours of some points outside their components."""
        n = len(self._points)
        lists = _unfilled(len(rows))
        height = max(16, BOUNDS_BYTES // (self._left.itemsize * n))
        block = np.empty((min(height, len(rows)), n), self._left.dtype)
        for begin in range(0, len(rows), height):
            chosen = rows[begin : begin + height]
            part = slice(begin, begin + len(chosen))
            bounds = np.matmul(self._left[chosen], self._right.T, out=block[: len(chosen)])
            _least(bounds, chosen, labels, lists.indices[part], lists.beyond[part])
            lists.beyond[part] += self._own[chosen]
        _measure(self._points, rows, lists.indices, lists.squares)
        return lists


def difference_search(points: Matrix, rows: Indices, labels: Parents) -> Neighbours:
    """Return the neighbours of some points outside their components, from coordinate differences alone."""
    lists = _unfilled(len(rows))
    _scan(points, rows, labels, lists.indices, lists.squares, lists.beyond)
    return lists


def _unfilled(count: int) -> Neighbours:
    return Neighbours(np.empty((count, N_LISTED), np.int32), np.empty((count, N_LISTED)), np.empty(count))


@compiled
def insert_ascending(values: Any, indices: Any, value: float, index: int) -> None:
    """Put a value in its place in an ascending list, whose last one is dropped."""
    k = len(values) - 1
    while k > 0 and values[k - 1] > value:
        values[k] = values[k - 1]
        indices[k] = indices[k - 1]
        k -= 1
    values[k] = value
    indices[k] = index


@compiled
def _least(
    bounds: NDArray[np.floating[Any]], rows: Indices, labels: Parents, indices: NDArray[np.int32], beyond: Vector
) -> None:
    """List the columns of least bound outside each row's component, and the last bound kept."""
    n = bounds.shape[1]
    words = np.zeros(BOUNDS_RUN // 8, np.uint64)
    flags = words.view(np.uint8)
    least = np.empty(N_LISTED, bounds.dtype)
    for r in range(len(rows)):
        own = labels[rows[r]]
        least[:] = np.inf
        indices[r] = -1
        last = least[N_LISTED - 1]
        for c in range(0, n, BOUNDS_RUN):
            run = bounds[r, c : c + BOUNDS_RUN]
            others = labels[c : c + BOUNDS_RUN]
            for j in range(len(run)):
                flags[j] = (run[j] < last) & (others[j] != own)
            flags[len(run) :] = 0
            for w in range(len(words)):
                if words[w] == 0:
                    continue
                for j in range(8 * w, min(8 * w + 8, len(run))):
                    if flags[j] and run[j] < last:
                        insert_ascending(least, indices[r], run[j], c + j)
                        last = least[N_LISTED - 1]
        beyond[r] = last


@compiled
def _measure(points: Matrix, rows: Indices, indices: NDArray[np.int32], squares: Matrix) -> None:
    """Measure the listed points exactly, and sort the lists."""
    for r in range(len(rows)):
        listed = indices[r].copy()
        indices[r] = -1
        squares[r] = np.inf
        for k in range(N_LISTED):
            if listed[k] >= 0:
                insert_ascending(
                    squares[r], indices[r], squared_distance(points[rows[r]], points[listed[k]]), listed[k]
                )


@compiled
def _scan(
    points: Matrix, rows: Indices, labels: Parents, indices: NDArray[np.int32], squares: Matrix, beyond: Vector
) -> None:
    for r in range(len(rows)):
        own = labels[rows[r]]
        indices[r] = -1
        squares[r] = np.inf
        for j in range(len(points)):
            if labels[j] == own:
                continue
            square = squared_distance(points[rows[r]], points[j])
            if square < squares[r, N_LISTED - 1]:
                insert_ascending(squares[r], indices[r], square, j)
        beyond[r] = squares[r, N_LISTED - 1]


Search = Callable[[NDArray[np.int64], Parents], Neighbours]
"""From some points, and the component of every point, to the nearest points outside."""


def boruvka_tree(points: Matrix) -> Tree | None:
    """Return the minimum spanning tree, or None where Prim's algorithm is quicker."""
    n = len(points)
    if points.shape[1] <= MAX_FLAT_COLUMNS:
        from scipy.spatial import cKDTree

        nearest = [partial(_flat_search, points, cKDTree(points), k) for k in N_NEAREST]
        return tree_by_searches(n, [*nearest, partial(difference_search, points)], n // MIN_FLAT_POINTS_PER_SEARCH)
    return tree_by_searches(n, neighbour_searches(points), n // MIN_POINTS_PER_SEARCH)


def _flat_search(points: Matrix, tree: Any, k: int, rows: Indices, labels: Parents) -> Neighbours:
    """Return those of the nearest points, few columns each, that are outside the components."""
    n, lists = len(points), _unfilled(len(rows))
    for begin in range(0, len(rows), FLAT_ROWS):
        chosen, part = rows[begin : begin + FLAT_ROWS], slice(begin, begin + FLAT_ROWS)
        distances, nearest = tree.query(points[chosen], k)
        own = (nearest == n) | (labels[np.minimum(nearest, n - 1)] == labels[chosen, None])
        order = np.argsort(own, axis=1, kind="stable")[:, :N_LISTED]
        lists.indices[part] = np.where(np.take_along_axis(own, order, 1), -1, np.take_along_axis(nearest, order, 1))
        # No other is nearer than the last one listed, where the list is full; else than the last one found.
        last = np.where(lists.indices[part, -1] >= 0, np.take_along_axis(distances, order, 1)[:, -1], distances[:, -1])
        lists.beyond[part] = last**2 * (1 - FLAT_TOLERANCE)
    _measure(points, rows, lists.indices, lists.squares)
    return lists


def neighbour_searches(points: Matrix) -> list[Search]:
    """Return searches for the nearest points, from quick to exact; what one leaves undecided is left to the next."""
    products = [
        made_on_first_call(partial(ProductSearch, points, dtype))
        for dtype in (np.float32, np.float64)
        if rounding(points.shape[1], dtype)[0] < MAX_RELATIVE_ERROR
    ]
    return [*products, partial(difference_search, points)]


def made_on_first_call(make: Callable[[], Search]) -> Search:
    """Return a search that is made at its first call: few clouds need the second precision."""
    made = cache(make)
    return lambda rows, labels: made()(rows, labels)


def tree_by_searches(n: int, searches: Sequence[Search], limit: int) -> Tree | None:
    """Return the same of n points that only the searches know."""
    parent = np.arange(n, dtype=np.int32)
    lists = searches[0](np.arange(n), parent)
    tree = Tree(np.empty(n - 1), np.empty((n - 1, 2), np.int64))
    n_edges = 0
    while n_edges < n - 1:
        labels, largest = _labels(parent)
        # The first lists are fresh: the same search would only repeat them.
        for search in searches if n_edges else searches[1:]:
            undecided = _undecided(labels, largest, *lists)
            if search is searches[-1] and len(undecided) > limit:
                return None
            if len(undecided):
                renewed = search(undecided, labels)
                lists.indices[undecided], lists.squares[undecided] = renewed.indices, renewed.squares
                lists.beyond[undecided] = renewed.beyond
        n_edges = _join(labels, largest, parent, lists.indices, lists.squares, *tree, n_edges)
    return tree


@compiled
def _labels(parent: Parents) -> tuple[Parents, int]:
    labels = np.empty_like(parent)
    sizes = np.zeros(len(parent), np.int64)
    for vertex in range(len(parent)):
        labels[vertex] = find(parent, vertex)
        sizes[labels[vertex]] += 1
    return labels, int(np.argmax(sizes))


@compiled
def _first_leaving(labels: Parents, vertex: int, indices: NDArray[np.int32]) -> int:
    """Return the place on a point's list of the first point of another component, or the length of the list."""
    for k in range(N_LISTED):
        if indices[vertex, k] >= 0 and labels[indices[vertex, k]] != labels[vertex]:
            return k
    return N_LISTED


@compiled
def _undecided(labels: Parents, largest: int, indices: NDArray[np.int32], squares: Matrix, beyond: Vector) -> Indices:
    """Return the points from which an edge shorter than their component's choice might leave unlisted."""
    n = len(labels)
    choice = np.full(n, np.inf)
    for vertex in range(n):
        if labels[vertex] != largest:
            k = _first_leaving(labels, vertex, indices)
            if k < N_LISTED:
                choice[labels[vertex]] = min(choice[labels[vertex]], squares[vertex, k])
    undecided = np.empty(n, np.int64)
    count = 0
    for vertex in range(n):
        # No square is below zero, whatever the bound.
        if labels[vertex] != largest and max(beyond[vertex], 0.0) < choice[labels[vertex]]:
            undecided[count] = vertex
            count += 1
    return undecided[:count]


@compiled
def _join(
    labels: Parents,
    largest: int,
    parent: Parents,
    indices: NDArray[np.int32],
    squares: Matrix,
    tree: Vector,
    ends: Indices,
    n_edges: int,
) -> int:
    """Join every component along its choice; return how many edges the tree holds."""
    n = len(labels)
    shortest = np.full(n, np.inf)
    start = np.full(n, -1, np.int64)
    end = np.full(n, -1, np.int64)
    for vertex in range(n):
        if labels[vertex] == largest:
            continue
        k = _first_leaving(labels, vertex, indices)
        if k < N_LISTED and squares[vertex, k] < shortest[labels[vertex]]:
            shortest[labels[vertex]] = squares[vertex, k]
            start[labels[vertex]] = vertex
            end[labels[vertex]] = indices[vertex, k]
    for component in range(n):
        if start[component] >= 0 and join(parent, start[component], end[component]):
            tree[n_edges] = shortest[component]
            put_edge(ends, n_edges, start[component], end[component])
            n_edges += 1
    return n_edges
