"""Graphs on scattered points, for the sublevel persistence of a function known there."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError, warn_caller
from toposcope.homology.arrays import as_count, as_float_matrix
from toposcope.homology.point_cloud import Euclidean
from toposcope.typing import Indices

N_NEIGHBOURS = 8  # of the graphs of nearest neighbours in the literature on loss landscapes


def delaunay_edges(points: ArrayLike | Any) -> Indices:
    """Return the edges of the Delaunay triangulation of a point cloud.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d)
        At least d + 2 points in d >= 2 dimensions, any floating-point dtype; computed in float64.

    Returns
    -------
    ndarray, shape (k, 2), int64
        Smaller vertex first, sorted, none twice. A point that Qhull leaves out of the triangulation, because it
        duplicates another to rounding error, is joined to the vertex nearest to it.

    Raises
    ------
    ToposcopeError
        If the cloud is not a finite floating-point matrix, is too small, or lies in a hyperplane.

    Notes
    -----
    Qhull (Barber, Dobkin & Huhdanpaa 1996) through SciPy: O(n log n) time in the plane, and O(n^ceil(d/2)) simplices in
    the worst case, which is out of reach beyond about ten dimensions.
    """
    from scipy.spatial import Delaunay, QhullError

    cloud = _scaled(points)
    n, d = cloud.shape
    if d < 2 or n < d + 2:
        raise ToposcopeError(
            f"points: expected at least d + 2 points in d >= 2 dimensions, got shape {cloud.shape}; "
            "nearest_neighbour_edges has no such need"
        )
    try:
        triangulation = Delaunay(cloud)
    except QhullError as error:
        reason = " ".join(str(error).split("\n", maxsplit=1)[0].split())
        raise ToposcopeError(
            f"points: expected points that span their {d} dimensions, got shape {cloud.shape} ({reason})"
        ) from error
    corners = triangulation.simplices
    sides = [corners[:, [a, b]] for a in range(d + 1) for b in range(a)]
    return _distinct(np.concatenate([*sides, triangulation.coplanar[:, [0, 2]]]), n)


def nearest_neighbour_edges(points: ArrayLike | Any, k: int) -> Indices:
    """Return the edges from each point of a cloud to its k nearest others, in Euclidean distance.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d)
        Any floating-point dtype; computed in float64.
    k : int
        From 1 to n - 1.

    Returns
    -------
    ndarray, shape (e, 2), int64
        Smaller vertex first, sorted, none twice: two points are joined if either is among the k nearest of the other.

    Warns
    -----
    UserWarning
        If the graph is disconnected, with the number of its components.

    Raises
    ------
    ToposcopeError
        If the cloud is not a finite floating-point matrix, or k is out of range.

    Notes
    -----
    A k-d tree: O(n log n) time in few dimensions, towards O(n^2 d) in many. Which of several points at equal distance
    counts among the k is left to the tree.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    cloud = _scaled(points)
    n = len(cloud)
    if not 1 <= (k := as_count(k, "k", 1)) < n:
        raise ToposcopeError(f"k: expected at most n - 1 = {n - 1} for points of shape {cloud.shape}, got {k}")
    _, nearest = cKDTree(cloud).query(cloud, k + 1)
    # A point is its own nearest, but among duplicates it may come later or be crowded out.
    itself = nearest == np.arange(n)[:, None]
    itself[~itself.any(axis=1), -1] = True
    edges = _distinct(np.column_stack([np.repeat(np.arange(n), k), nearest[~itself]]), n)
    graph = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    n_components = int(connected_components(graph, directed=False, return_labels=False))
    if n_components > 1:
        warn_caller(
            f"the graph of the {k} nearest neighbours of {n} points falls into {n_components} components, each with a "
            "minimum that never dies; a larger k joins them",
        )
    return edges


def _scaled(points: Any) -> NDArray[np.float64]:
    """Return points in units of a power of two, which moves no neighbour and keeps squares in range."""
    return Euclidean.of(as_float_matrix(points, "points").astype(np.float64), "points").points


def _distinct(edges: NDArray[Any], n_vertices: int) -> Indices:
    """Return edges smaller vertex first, sorted, each once."""
    low, high = np.sort(edges.astype(np.int64), axis=1).T
    keys = np.unique(low * n_vertices + high)
    return np.column_stack(np.divmod(keys, n_vertices))
