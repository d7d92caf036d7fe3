"""Which points and entries a bar's ends come from: the edges that begin and end the bars of a filtration."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array, as_count, as_magnitudes, not_finite
from toposcope.homology.loops import LoopFiltration, check_loops_fit
from toposcope.homology.point_cloud import (
    Cloud,
    Metric,
    as_cloud,
    check_metric,
    is_large,
    outlasts_rounding,
    spanning_trees,
)
from toposcope.typing import Indices

FILL = -1  # in place of a point or entry where a cloud of a batch has fewer bars than another


def rips_pairings(points: ArrayLike | Any, *, max_dimension: int = 1, metric: Metric = "euclidean") -> list[Indices]:
    """Return the points that the bars of H0 and H1 come from, in the order of `rips`' ``diagram.pairs``.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d), or (n, n) distances
        As of `rips`, all points. Of a tensor on a GPU, a copy on the host; the tree of a large Euclidean cloud is
        searched on the GPU.
    max_dimension : int
        0 or 1.
    metric : "euclidean", "cosine" or "precomputed"

    Returns
    -------
    list of ndarray, int64
        Index 0: the point that begins each bar of H0 and the two ends of the edge that ends it, shape (n - 1, 3),
        fewer where distances are infinite. The edge joins two components, and that without the least point dies: the
        bar began with its least one. Index 1: the two ends of the edge that begins each bar of H1 and the two of the
        edge that ends it, shape (b, 4). Of two ends the smaller comes first.

    Raises
    ------
    ToposcopeError
        As of `rips`; also if `max_dimension` is above 1, or H1 of all points does not fit in memory.

    Notes
    -----
    Where lengths are equal, several pairings are valid, and this is one of them, the same at every call. Lengths that
    are computed from the points anew, in another order of sums, agree with the diagram's up to rounding.

    H0: O(n^2 d) time, O(nd) memory. H1: as of `rips`, with the n x n distances.

    Examples
    --------
    >>> import numpy as np
    >>> h0, h1 = rips_pairings(np.array([[0.0, 0.0], [3.0, 0.0], [1.0, 0.0]]))
    >>> h0.tolist(), h1.shape
    ([[2, 0, 2], [1, 1, 2]], (0, 4))
    """
    from toposcope.kernels.merge_tree import join_basins

    edges, *loops = rips_edges(points, "points", max_dimension, metric)
    # Every edge joins two components: at heights of their own, none is left out.
    order = np.arange(len(edges))
    merges, _ = join_basins(
        np.zeros(1 + edges.max(initial=0)), (order + 1).astype(np.float64), order, np.ascontiguousarray(edges)
    )
    return [np.column_stack([merges[:, 1], edges]), *loops]


def rips_edges(points: ArrayLike | Any, name: str, max_dimension: int, metric: Metric) -> list[Indices]:
    """Return the ends of edges alone, shapes (n - 1, 2) and (b, 4)."""
    max_dimension = _as_dimension(max_dimension)
    cloud = as_cloud(points, metric, name)
    if max_dimension == 0:
        return [cloud.tree_edges()]
    hint = "take fewer points, or max_dimension=0 for H0 alone"
    check_loops_fit(cloud.shape[0], name, hint, allocated=cloud.distance_bytes)
    return [cloud.tree_edges(), _loops(cloud)]


def rips_pairings_batch(
    stack: ArrayLike | Any,
    *,
    max_dimension: int = 1,
    metric: Metric = "euclidean",
    lengths: ArrayLike | None = None,
    names: Sequence[str] | None = None,
) -> list[Indices]:
    """Return the ends of the edges that begin and end the bars of several clouds of one shape.

    Parameters
    ----------
    stack : array-like or torch.Tensor, shape (b, n, d), or (b, n, n) distances
    max_dimension : int
        0 or 1.
    metric : "euclidean", "cosine" or "precomputed"
    lengths : array-like of int, shape (b,), optional
        How many points of each cloud count, from 1 to n: the first so many. What lies behind them is not looked at.
    names : sequence of str, shape (b,), optional
        How messages call the clouds; ``stack[0]`` and so on.

    Returns
    -------
    list of ndarray, int64
        As of `rips_pairings`, but for the points that begin the bars of H0: shapes (b, n - 1, 2) and (b, most bars of a
        cloud, 4). Behind the last bar of a cloud all numbers are -1.

    Raises
    ------
    ToposcopeError
        As of `rips_pairings`, or if `lengths` does not fit the stack.
    """
    max_dimension = _as_dimension(max_dimension)
    check_metric(metric)
    clouds = _as_stack(stack, "stack")
    counts = _as_lengths(lengths, clouds)
    names = _as_names(names, clouds)
    if metric == "precomputed" and clouds.shape[1] != clouds.shape[2]:
        raise ToposcopeError(f"{names[0]}: expected (n, n) distances, got shape {clouds.shape[1:]}")
    if metric == "euclidean" and max_dimension == 0 and (edges := _trees(clouds, counts)) is not None:
        return [edges]
    pairings = [
        rips_edges(cloud[:count, :count] if metric == "precomputed" else cloud[:count], names[k], max_dimension, metric)
        for k, (cloud, count) in enumerate(zip(clouds, counts.tolist(), strict=True))
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
    return _tree_entries(W, "W")


def _tree_entries(W: ArrayLike | Any, name: str) -> Indices:
    from toposcope.kernels.bipartite_tree import bipartite_tree_entries

    # By rows: of other matrices, rows and columns may be exchanged.
    weights = np.ascontiguousarray(as_array(W, name))
    entries = bipartite_tree_entries(as_magnitudes(weights, name))
    _check_finite(weights[*entries[0]], weights, name)
    return entries


def neural_persistence_pairing_batch(stack: ArrayLike | Any, *, names: Sequence[str] | None = None) -> Indices:
    """Return the same of several matrices of one shape, (b, m, n); shape (b, m + n - 1, 2).

    Messages call them by their `names`, or ``stack[0]`` and so on.
    """
    from toposcope.kernels.bipartite_prim import prim_entries
    from toposcope.kernels.bipartite_tree import is_small

    matrices = np.ascontiguousarray(_as_stack(stack, "stack"))
    names = _as_names(names, matrices)
    r, m, n = matrices.shape
    if not is_small(m, n):
        return np.stack([_tree_entries(W, name) for W, name in zip(matrices, names, strict=True)])
    entries = prim_entries(as_magnitudes(matrices.reshape(-1, n), "stack").entries, m)
    for heaviest, W, name in zip(matrices[np.arange(r), *entries[:, 0].T], matrices, names, strict=True):
        _check_finite(heaviest, W, name)
    return entries


def _as_names(names: Sequence[str] | None, stack: NDArray[Any]) -> Sequence[str]:
    if names is None:
        return [f"stack[{k}]" for k in range(len(stack))]
    if len(names) != len(stack):
        raise ToposcopeError(f"names: expected {len(stack)}, one of each matrix, got {len(names)}")
    return names


def _check_finite(heaviest: float, matrix: NDArray[Any], name: str) -> None:
    if not math.isfinite(heaviest):
        raise not_finite(name, as_magnitudes(matrix, name).n_not_finite(), matrix.size, matrix.shape)


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


def _trees(clouds: NDArray[Any], counts: Indices) -> Indices | None:
    """Return the edges of the trees of small clouds, made in one compiled call; None if that does not suit one."""
    b, n, d = clouds.shape
    if d == 1 or is_large((n, d)) or clouds.dtype.kind != "f":
        return None
    if counts.min() < n:
        clouds = np.where((np.arange(n) < counts[:, None])[:, :, None], clouds, 0)
    usual, _, (squares, ends) = spanning_trees(clouds, counts)
    if len(usual) < b:
        return None
    missing = np.arange(n - 1) >= counts[:, None] - 1
    squares[missing], ends[missing] = np.inf, FILL
    return np.take_along_axis(ends, np.argsort(squares, axis=1, kind="stable")[:, :, None], axis=1)


def _loops(cloud: Cloud) -> Indices:
    filtration = LoopFiltration(cloud.distances(np.arange(cloud.shape[0])), np.inf)
    pairs, ends = filtration.pairs(), filtration.ends()
    kept = np.flatnonzero(np.isfinite(pairs[:, 1]))
    kept = kept[outlasts_rounding(pairs[kept], cloud)]
    return ends[kept[np.lexsort((pairs[kept, 1], pairs[kept, 0]))]]
