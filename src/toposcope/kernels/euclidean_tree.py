"""Euclidean minimum spanning tree of a large cloud: Boruvka's rounds on lists of nearest neighbours.

Every point carries a short list of its nearest points and a bound of the distance of all others. In a round each
component but the largest takes the shortest listed edge that leaves it. It is the shortest of all if no member's bound
is below; the lists of members whose bound is below are renewed, without the component's own points.

Cost: O(n^2 d) in one BLAS pass for the first lists, then far less; O(n d) memory, never n x n.
Source: Boruvka 1926; the idea of lists and of the largest component not choosing is from practice, the bound from
`neighbour_search`. The tree lengths are the H0 deaths of the Vietoris-Rips filtration.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.kernels.neighbour_search import N_LISTED, Neighbours, ProductSearch, difference_search, rounding
from toposcope.kernels.union_find import Parents, find, join
from toposcope.typing import Indices, Matrix, Vector

Search = Callable[[NDArray[np.int64], Parents], Neighbours]
"""From some points, and the component of every point, to the nearest points outside."""

MIN_POINTS_PER_SEARCH = 3
"""The last search may be used for one point in so many; for more, Prim's algorithm is quicker."""

MAX_RELATIVE_ERROR = 0.25
"""Products whose relative error may exceed this are not made: its bound no longer holds."""


def boruvka_squares(points: Matrix) -> Vector | None:
    """Return the squared edge lengths of the minimum spanning tree, unsorted; shape (n - 1,), float64.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64, C-contiguous
        No coordinate above one; no two points equal, which would only make it slow.

    Returns
    -------
    ndarray, or None where so many distances are equal to rounding that Prim's algorithm is quicker.
    """
    n = len(points)
    return tree_squares(n, neighbour_searches(points), n // MIN_POINTS_PER_SEARCH)


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


def tree_squares(n: int, searches: Sequence[Search], limit: int) -> Vector | None:
    """Return the same of n points that only the searches know.

    Parameters
    ----------
    n : int
    searches : sequence of callable
        From quick to exact; each is used only for points that the bounds of those before it leave undecided.
    limit : int
        None is returned when the last search would be needed for more points at once.
    """
    parent = np.arange(n, dtype=np.int32)
    lists = searches[0](np.arange(n), parent)
    squares = np.empty(n - 1)
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
        n_edges = _join(labels, largest, parent, lists.indices, lists.squares, squares, n_edges)
    return squares


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
def _undecided(
    labels: Parents,
    largest: int,
    indices: NDArray[np.int32],
    squares: Matrix,
    beyond: Vector,
) -> Indices:
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
    n_edges: int,
) -> int:
    """Join every component along its choice; return how many edges `tree` holds."""
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
            n_edges += 1
    return n_edges
