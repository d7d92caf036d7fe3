"""When loops are born, and how many there are, of clouds of any size.

A loop of a Vietoris-Rips filtration is born with an edge that no point refutes: none is nearer to both ends than they
are to each other. Such edges make the relative neighbourhood graph; those that join no components open a loop. So
births and their number need no n x n distances and no reduction.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.loops import MAX_POINTS, loop_bytes, loop_diagram
from toposcope.homology.memory import free_memory
from toposcope.homology.point_cloud import Cloud, Directions, Distances, Euclidean, Metric, as_cloud, from_centroid
from toposcope.typing import Indices, Matrix, Vector

if TYPE_CHECKING:
    from toposcope.kernels.relative_neighbours import Measured

# Chosen on benchmarks/loops.py; no result depends on them.
MIN_PIVOTS, MAX_PIVOTS = 64, 512  # within these as many as dimensions, half of them central and half random
PIVOT_RUN = 64  # pivots that are tried in a row
BLOCK_BYTES = 1 << 25  # of the bounds held at once
MIN_INTEGER_WIDTH = 64  # from so many coordinates on, products of integers are quicker than of floats
N_PRECISION_SAMPLES = 16  # points whose nearest neighbours decide the precision of the bounds
MAX_TRIALS_PER_POINT = 2000  # 140 in random clouds


def h1_births(points: ArrayLike | Any, *, metric: Metric = "euclidean") -> Vector:
    """Return the births of all H1 bars of positive length of a cloud of any size, exact.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d), or (n, n) distances
        One point a row, any floating-point dtype; computed in float64.
    metric : "euclidean", "cosine" or "precomputed"
        As of `toposcope.homology.rips`.

    Returns
    -------
    ndarray, shape (b,), float64
        Ascending; b is the number of bars. They are the births in ``rips(points)[1].pairs``, to the last bit as long
        as distances have all their digits (above 1e-307); of cosine distances that tie up to rounding (see there),
        also those of the bars left out.

    Raises
    ------
    ToposcopeError
        As of `toposcope.homology.rips`; for want of memory only if so many distances are equal that all are needed.

    Notes
    -----
    O(n^2 d) time, most of it one product by BLAS; O(nd) memory plus the relative neighbourhood graph, which has a few
    edges a point (up to n^2 / 2 where all distances are equal). With distinct distances b is the number of its edges
    less n - 1; equal distances are sorted out as in `toposcope.kernels.relative_neighbours`.

    Source: Koyama, Memoli, Robins and Turner 2023, arXiv:2307.16333; Toussaint 1980 for the graph.

    Examples
    --------
    >>> import numpy as np
    >>> square = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> h1_births(square)
    array([1.])
    """
    cloud = as_cloud(points, metric, "points")
    result = tree_and_births(cloud)
    births = _by_reduction(cloud) if result is None else result[1]
    if births is None:
        raise ToposcopeError(
            "points: so many of their distances are equal that births need all of them, for which there is no room in "
            "memory; take fewer points"
        )
    return births


def tree_and_births(cloud: Cloud) -> tuple[Vector, Vector] | None:
    """Return the lengths of the minimum spanning tree, as `Cloud.tree` does, and the births.

    Both are lengths of edges of the relative neighbourhood graph, made once; None if it needs all distances.
    """
    from toposcope.kernels.prim import squared_distances
    from toposcope.kernels.relative_neighbours import (
        COSINE,
        EUCLIDEAN,
        INTEGER,
        Graph,
        Measured,
        edge_lengths,
        joins_and_births,
    )

    if isinstance(cloud, Distances) and cloud.points is not None:
        cloud = cloud.points
    sphere = cloud.sphere if isinstance(cloud, Directions) else cloud
    if not isinstance(sphere, Euclidean):
        return None
    order = _from_centre(sphere)
    n, kind, integers = len(order), EUCLIDEAN if sphere is cloud else COSINE, np.empty((0, 0))
    if isinstance(cloud, Directions) and cloud.integers is not None:
        kind, integers = INTEGER, cloud.integers
    measured = Measured(sphere.points, order, kind, integers)
    edges = _empty_lunes(measured)
    if edges is None:
        return None
    lengths = edge_lengths(measured, edges)
    codes = edges[:, 0] * n + edges[:, 1]
    by_length = np.lexsort((codes, lengths))
    edges, lengths, codes = edges[by_length], lengths[by_length], codes[by_length]
    places = np.argsort(codes)
    joins, births = joins_and_births(Graph(measured, edges, lengths, codes[places], places))
    tree = lengths[joins]
    if kind != INTEGER:
        squares = squared_distances(sphere.points, order[edges[joins, :2]])
        tree = np.sqrt(np.sort(squares))  # as the tree's own algorithms measure them
    tree = sphere.unscaled(np.concatenate([np.zeros(cloud.shape[0] - n), tree]))
    return tree**2 / 2 if kind == COSINE else tree, sphere.unscaled(np.repeat(lengths, births))


def _by_reduction(cloud: Cloud) -> Vector | None:
    """Return the births from the n x n distances, if memory has room for them."""
    n, free = cloud.shape[0], free_memory()
    if n > MAX_POINTS or (free is not None and loop_bytes(n) - cloud.distance_bytes > free):
        return None
    births: Vector = loop_diagram(cloud.distances(np.arange(n))).pairs[:, 0]
    return births


def _from_centre(cloud: Euclidean) -> Indices:
    """Return the distinct points, those near the centroid first."""
    from toposcope.kernels.pairwise import first_occurrences

    distinct = first_occurrences(cloud.points)
    points = cloud.points if len(distinct) == len(cloud.points) else cloud.points[distinct]
    return distinct[np.argsort(from_centroid(points), kind="stable")]


def _empty_lunes(cloud: "Measured") -> Indices | None:
    """Return the edges that nothing refutes, block by block of their outer ends; None if ties make that too long."""
    from toposcope.kernels.relative_neighbours import Open, empty_lunes

    n, bounds = len(cloud.order), _bounds(cloud.points, cloud.order)
    height = max(1, BLOCK_BYTES // (bounds.dtype.itemsize * n))
    memory = np.empty(min(height, n) * n, bounds.dtype)
    half = min(n, min(max(cloud.points.shape[1], MIN_PIVOTS), MAX_PIVOTS) // 2)
    upper = bounds.above(np.union1d(np.arange(half), np.random.default_rng(0).choice(n, half, replace=False)))

    counts, reach = np.zeros((2, n + 1), np.int64), np.zeros(n, np.float32)
    open_edges = Open(np.empty((1024, 3), np.int64), np.empty(1024), counts[0], counts[1], reach)
    trials_left = MAX_TRIALS_PER_POINT * n
    for begin in range(0, n, height):
        rows = slice(begin, min(begin + height, n))
        near = np.argsort(np.ascontiguousarray(upper[:, rows].T), axis=1)[:, :PIVOT_RUN]
        shape = rows.stop - begin, rows.stop
        lower = bounds.below(rows, memory[: shape[0] * shape[1]].reshape(shape)).astype(np.float32, copy=False)
        open_edges, trials_left = empty_lunes(cloud, open_edges, lower, begin, upper, near, trials_left)
        if trials_left < 0:
            return None
    starts, m = open_edges.stops[:-1], open_edges.stops[-1]
    is_kept = np.arange(m) < np.repeat(starts + open_edges.kept[:-1], np.diff(open_edges.stops))
    return open_edges.edges[:m][is_kept]


class FloatProducts:
    """Bounds of squared distances from products of floats; of points in an order."""

    def __init__(self, points: Matrix, order: Indices, dtype: type[np.floating[Any]]) -> None:
        from toposcope.kernels.boruvka import product_factors, rounding

        self.dtype = np.dtype(dtype)
        self._right, self._own = product_factors(points[order], dtype)
        self._absolute = rounding(points.shape[1], dtype)[1]

    def below(self, rows: slice, out: NDArray[Any]) -> NDArray[Any]:
        """Bound those of some points from the points up to them from below."""
        from toposcope.kernels.boruvka import left_factor

        np.matmul(left_factor(self._right[rows]), self._right[: rows.stop].T, out=out)
        out += self._own[rows, None]
        return out

    def above(self, pivots: Indices) -> NDArray[np.float32]:
        """Bound those of some points from all points from above, as closely; shape (p, n)."""
        from toposcope.kernels.boruvka import left_factor
        from toposcope.kernels.relative_neighbours import TIE_TOLERANCE

        products, norms = left_factor(self._right[pivots]) @ self._right.T, self._right[:, -2].astype(float)
        upper: NDArray[np.float32] = products.astype(np.float32, copy=False)
        for k, p in enumerate(pivots):
            squares = products[k] + self._own[p] + 2 * (norms[p] + norms) ** 2 + 2 * self._absolute
            upper[k] = np.nextafter((squares * (1 + TIE_TOLERANCE)).astype(np.float32), np.float32(np.inf))
        return upper


class IntegerProducts:
    """The same from products of integers."""

    dtype = np.dtype(np.float32)

    def __init__(self, points: Matrix, order: Indices) -> None:
        from toposcope.kernels.integer_products import rounded

        self.points = rounded(points, order)

    def below(self, rows: slice, out: NDArray[Any]) -> NDArray[Any]:
        """Bound those of some points from the points up to them from below."""
        return self._bound(rows, -1.0, out)

    def above(self, pivots: Indices) -> NDArray[np.float32]:
        """Bound those of some points from all points from above, as closely; shape (p, n)."""
        return self._bound(pivots, 1.0, np.empty((len(pivots), len(self.points.units)), np.float32))

    def _bound(self, rows: slice | Indices, sign: float, out: NDArray[Any]) -> NDArray[Any]:
        from toposcope.kernels.integer_products import distance_bounds

        distance_bounds(self.points.some(rows), self.points, sign, out)
        return out


def _bounds(points: Matrix, order: Indices) -> FloatProducts | IntegerProducts:
    """Return the quickest bounds that separate a point's nearest neighbours from others."""
    from scipy.spatial.distance import cdist

    from toposcope.kernels.boruvka import rounding

    some = np.linspace(0, len(order) - 1, min(len(order), N_PRECISION_SAMPLES)).astype(int)
    squares = cdist(points[order[some]], points, "sqeuclidean")
    squares[np.arange(len(some)), order[some]] = np.inf
    nearest = np.median(squares[:, order].min(axis=1))
    if points.shape[1] >= MIN_INTEGER_WIDTH:
        integers = IntegerProducts(points, order)
        if nearest > 8 * np.median((integers.points.norms * integers.points.errors)[some]):
            return integers
    relative, _ = rounding(points.shape[1], np.float32)
    margins = 4 * relative * ((points[order[some]] - points.mean(axis=0)) ** 2).sum(axis=1)
    return FloatProducts(points, order, np.float32 if nearest > 2 * np.median(margins) else np.float64)
