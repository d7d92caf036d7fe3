"""Which points and entries a bar's ends come from: the edges that begin and end the bars of a filtration."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array, as_count, as_float_matrix
from toposcope.homology.loops import LoopFiltration, check_loops_fit
from toposcope.homology.point_cloud import Cloud, Metric, as_cloud, outlasts_rounding
from toposcope.typing import Indices, Matrix

FILL = -1  # in place of a point or entry where a cloud of a batch has fewer bars than another


def rips_pairings(points: ArrayLike | Any, *, max_dimension: int = 1, metric: Metric = "euclidean") -> list[Indices]:
    """Return the points that the bars of H0 and H1 come from, in the order of `rips`' ``diagram.pairs``.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d), or (n, n) distances
        As of `rips`, all points; of a tensor on a GPU, a copy on the host.
    max_dimension : int
        0 or 1.
    metric : "euclidean", "cosine" or "precomputed"

    Returns
    -------
    list of ndarray, int64
        Index 0: the two ends of the edge that ends each bar of H0, shape (n - 1, 2), fewer where distances are
        infinite. Index 1: the two ends of the edge that begins each bar of H1 and the two of the edge that ends it,
        shape (b, 4). Of two ends the smaller comes first.

    Raises
    ------
    ToposcopeError
        As of `rips`; also if `max_dimension` is above 1, or H1 of all points does not fit in memory.

    Notes
    -----
    Where lengths are equal, several pairings are valid, and this is one of them, the same at every call.

    Examples
    --------
    >>> import numpy as np
    >>> h0, h1 = rips_pairings(np.array([[0.0, 0.0], [3.0, 0.0], [1.0, 0.0]]))
    >>> h0.tolist(), h1.shape
    ([[0, 2], [1, 2]], (0, 4))
    """
    max_dimension = _as_dimension(max_dimension)
    cloud = as_cloud(points, metric, "points")
    if max_dimension == 0:
        return [cloud.tree_edges()]
    hint = "take fewer points, or max_dimension=0 for H0 alone"
    check_loops_fit(cloud.shape[0], "points", hint, allocated=cloud.distance_bytes)
    return [cloud.tree_edges(), _loops(cloud)]


def rips_pairings_batch(
    stack: ArrayLike | Any,
    *,
    max_dimension: int = 1,
    metric: Metric = "euclidean",
    lengths: ArrayLike | None = None,
) -> list[Indices]:
    """Return the same of several clouds of one shape.

    Parameters
    ----------
    stack : array-like or torch.Tensor, shape (b, n, d), or (b, n, n) distances
    max_dimension : int
        0 or 1.
    metric : "euclidean", "cosine" or "precomputed"
    lengths : array-like of int, shape (b,), optional
        How many points of each cloud count, from 1 to n: the first so many. What lies behind them is not looked at.

    Returns
    -------
    list of ndarray, int64
        Shapes (b, n - 1, 2) and (b, most bars of a cloud, 4). Behind the last bar of a cloud all numbers are -1.

    Raises
    ------
    ToposcopeError
        As of `rips_pairings`, or if `lengths` does not fit the stack.
    """
    max_dimension = _as_dimension(max_dimension)
    clouds = _as_stack(stack, "stack")
    counts = _as_lengths(lengths, clouds)
    pairings = [
        rips_pairings(
            cloud[:count, :count] if metric == "precomputed" else cloud[:count],
            max_dimension=max_dimension,
            metric=metric,
        )
        for cloud, count in zip(clouds, counts.tolist(), strict=True)
    ]
    n_bars = [clouds.shape[1] - 1, max((len(p[1]) for p in pairings if max_dimension), default=0)]
    return [_padded([p[k] for p in pairings], n_bars[k]) for k in range(max_dimension + 1)]


def neural_persistence_pairing(W: ArrayLike | Any) -> Indices:
    """Return the entries of a weight matrix that its neural persistence comes from, in the order of ``deaths``.

    Parameters
    ----------
    W : array-like or torch.Tensor, shape (m, n)
        As of `neural_persistence`; of a tensor on a GPU, a copy on the host.

    Returns
    -------
    ndarray, shape (m + n - 1, 2), int64
        Row and column of each entry of the maximum spanning tree, the heaviest first. ``deaths`` are their magnitudes
        over ``scale``; where these are equal, several trees are valid, and this is one, the same at every call.

    Raises
    ------
    ToposcopeError
        If W is not a finite floating-point matrix.

    Examples
    --------
    >>> import numpy as np
    >>> neural_persistence_pairing(np.array([[0.5, -2.0], [1.0, 0.1]])).tolist()
    [[0, 1], [1, 0], [0, 0]]
    """
    sizes = np.abs(as_float_matrix(W, "W"))
    m, n = sizes.shape
    graph = np.full((m + n, m + n), -np.inf)
    graph[:m, m:], graph[m:, :m] = sizes, sizes.T
    weights, ends = _prim(-graph)
    ends[:, 1] -= m
    return ends[np.argsort(weights, kind="stable")]


def neural_persistence_pairing_batch(stack: ArrayLike | Any) -> Indices:
    """Return the same of several matrices of one shape, (b, m, n); shape (b, m + n - 1, 2)."""
    return np.stack([neural_persistence_pairing(W) for W in _as_stack(stack, "stack")])


def _as_dimension(value: Any) -> int:
    max_dimension = as_count(value, "max_dimension", 0)
    if max_dimension > 1:
        raise ToposcopeError(f"max_dimension: expected 0 or 1, got {max_dimension}; pairings are of H0 and H1")
    return max_dimension


def _as_stack(values: Any, name: str) -> NDArray[Any]:
    stack = as_array(values, name)
    if stack.ndim != 3 or 0 in stack.shape:
        raise ToposcopeError(f"{name}: expected several matrices of one shape, (b, n, d), got shape {stack.shape}")
    return stack


def _as_lengths(values: Any, clouds: NDArray[Any]) -> Indices:
    b, n, _ = clouds.shape
    if values is None:
        return np.full(b, n)
    counts = as_array(values, "lengths")
    if counts.shape != (b,) or counts.dtype.kind not in "iu" or counts.min() < 1 or counts.max() > n:
        raise ToposcopeError(
            f"lengths: expected {b} whole numbers from 1 to {n}, got {counts.dtype} of shape {counts.shape}"
        )
    return counts.astype(np.int64)


def _padded(pairings: list[Indices], n_bars: int) -> Indices:
    padded = np.full((len(pairings), n_bars, pairings[0].shape[1]), FILL)
    for k, pairing in enumerate(pairings):
        padded[k, : len(pairing)] = pairing
    return padded


def _prim(distances: Matrix) -> tuple[Any, Indices]:
    n = len(distances)
    lengths, ends = np.empty(n - 1), np.empty((n - 1, 2), np.int64)
    nearest, source, outside, added = np.full(n, np.inf), np.zeros(n, np.int64), np.ones(n, np.bool_), 0
    for k in range(n - 1):
        outside[added] = False
        closer = outside & (distances[added] < nearest)
        nearest[closer], source[closer] = distances[added][closer], added
        others = np.flatnonzero(outside)
        new = int(others[np.argmin(nearest[others])])
        lengths[k], ends[k] = nearest[new], sorted((source[new], new))
        added = new
    return lengths, ends


def _loops(cloud: Cloud) -> Indices:
    filtration = LoopFiltration(cloud.distances(np.arange(cloud.shape[0])), np.inf)
    pairs, ends = filtration.pairs(), filtration.ends()
    kept = np.flatnonzero(np.isfinite(pairs[:, 1]))
    kept = kept[outlasts_rounding(pairs[kept], cloud)]
    return ends[kept[np.lexsort((pairs[kept, 1], pairs[kept, 0]))]]
