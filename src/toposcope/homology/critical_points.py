"""Critical points of a piecewise-linear function on a triangulated plane, and the Euler check on their number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array
from toposcope.homology.sublevel import as_vertex_values
from toposcope.typing import Indices

# Around a vertex of Freudenthal's triangulation: each neighbour shares a triangle with the next, and the last with the
# first.
_LINK = ((-1, -1), (-1, 0), (0, 1), (1, 1), (1, 0), (0, -1))


@dataclass(frozen=True, eq=False)
class CriticalPoints:
    """Critical vertices of a piecewise-linear function, as the sublevel sets see them.

    The lower link of a vertex is the part of the ring of its neighbours that is lower than it, edges included. Its
    Euler characteristic chi gives the index of the vertex, 1 - chi: what the vertex adds to the Euler characteristic
    of the sublevel set when it enters. A minimum (no lower neighbour) and a maximum (all of a closed ring is lower)
    have index 1, a saddle with k + 1 separate lower parts has -k, and any other vertex has 0.

    Attributes
    ----------
    minima : ndarray, shape (a,), int64
        Vertices, ascending.
    saddles : ndarray, shape (b,), int64
        Vertices, ascending.
    multiplicities : ndarray, shape (b,), int64
        Of each saddle: 1 for a simple one, 2 for a monkey saddle.
    maxima : ndarray, shape (c,), int64
        Vertices, ascending; all inside the domain.
    """

    minima: Indices
    saddles: Indices
    multiplicities: Indices
    maxima: Indices

    def __repr__(self) -> str:
        return (
            f"CriticalPoints({len(self.minima)} minima, {self.multiplicities.sum()} saddles, {len(self.maxima)} maxima)"
        )

    @property
    def index_sum(self) -> int:
        """Minima less saddles, with their multiplicities, plus maxima: the Euler characteristic, 1 for a rectangle."""
        return len(self.minima) - int(self.multiplicities.sum()) + len(self.maxima)


def critical_points(values: ArrayLike | Any) -> CriticalPoints:
    """Return the critical points of a function on a grid, linear on each triangle of Freudenthal's triangulation.

    Parameters
    ----------
    values : array-like or torch.Tensor, shape (m, n)
        Finite real numbers; computed in float64.

    Returns
    -------
    CriticalPoints
        Vertices are flat indices in C order: (i, j) is i * n + j. ``index_sum`` is 1 for every grid.

    Raises
    ------
    ToposcopeError
        If the grid is not a finite real matrix with at least one entry, or holds integers beyond 2^53.

    Notes
    -----
    O(mn) time and memory. Squares are cut along the diagonal on which both coordinates grow, as in
    ``sublevel_grid(values, connectivity="freudenthal")``. Ties are broken by the index of the vertex, so a plateau may
    have critical points that cancel at one height. The border counts as it is: a vertex there has an open ring of
    neighbours, so a minimum or a saddle of the function on the rectangle may lie on it, but never a maximum, which
    ends no hole of the sublevel set. Source: Banchoff 1967, "Critical points and curvature for embedded polyhedra";
    Edelsbrunner & Harer 2010, *Computational Topology*, section VI.3.

    Examples
    --------
    >>> critical_points([[0, 3, 1], [4, 5, 4], [2, 3, 2]])
    CriticalPoints(4 minima, 4 saddles, 1 maxima)
    """
    grid = as_vertex_values(values, dimension=2)
    m, n = grid.shape
    padded = np.full((m + 2, n + 2), np.inf)
    padded[1:-1, 1:-1] = grid
    lower = []
    for i, j in _LINK:
        neighbour = padded[1 + i : m + 1 + i, 1 + j : n + 1 + j]
        lower.append(neighbour <= grid if (i, j) < (0, 0) else neighbour < grid)  # of equals the earlier is lower
    ring = np.array(lower, np.int8)
    n_lower = ring.sum(axis=0, dtype=np.int64)
    n_lower_edges = (ring & np.roll(ring, 1, axis=0)).sum(axis=0, dtype=np.int64)
    return _classified(n_lower.ravel(), n_lower_edges.ravel())


def critical_points_of_triangles(values: ArrayLike | Any, triangles: ArrayLike | Any) -> CriticalPoints:
    """Return the critical points of a function that is linear on each triangle of a triangulated plane domain.

    Parameters
    ----------
    values : array-like or torch.Tensor, shape (n,)
        Finite real numbers; computed in float64.
    triangles : array-like or torch.Tensor, shape (t, 3)
        Vertices from 0 to n - 1, each triangle once.

    Returns
    -------
    CriticalPoints
        ``index_sum`` is the Euler characteristic of the domain: 1 for the convex hull of points (if each of them is a
        corner of some triangle).

    Raises
    ------
    ToposcopeError
        If the values are not a finite real vector, or the triangles are not triples of its vertices.

    Notes
    -----
    O(n log n) time. Everything else is as in `critical_points`.
    """
    function = as_vertex_values(values, dimension=1)
    n = len(function)
    corners = as_array(triangles, "triangles")
    if corners.ndim != 2 or corners.shape[1] != 3 or corners.dtype.kind not in "iu":
        raise ToposcopeError(
            f"triangles: expected integers of shape (t, 3), got {corners.dtype} of shape {corners.shape}"
        )
    if corners.size and (corners.min() < 0 or corners.max() >= n):
        raise ToposcopeError(f"triangles: expected vertices from 0 to {n - 1}, got {corners.min()} to {corners.max()}")
    rank = np.empty(n, np.int64)
    by_value = np.argsort(function, kind="stable")
    rank[by_value] = np.arange(n)
    ranked = np.sort(rank[corners.astype(np.int64)], axis=1)
    edges = np.unique(ranked[:, [[0, 1], [0, 2], [1, 2]]].reshape(-1, 2), axis=0)
    # A vertex is the upper end of an edge for each lower neighbour, and the top of a triangle for each lower link edge.
    return _classified(np.bincount(edges[:, 1], minlength=n)[rank], np.bincount(ranked[:, 2], minlength=n)[rank])


def _classified(n_lower: NDArray[np.int64], n_lower_edges: NDArray[np.int64]) -> CriticalPoints:
    """Sort vertices by the Euler characteristic of their lower links."""
    index = 1 - n_lower + n_lower_edges
    saddles = np.flatnonzero(index < 0)
    return CriticalPoints(
        minima=np.flatnonzero(n_lower == 0),
        saddles=saddles,
        multiplicities=-index[saddles],
        maxima=np.flatnonzero((index == 1) & (n_lower > 0)),
    )
