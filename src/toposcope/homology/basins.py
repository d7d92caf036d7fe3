"""What the merge tree and the critical points of a function say about it: basins, their depths and widths, saddles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array, as_count
from toposcope.homology.diagram import MAX_BASINS, N_LEVELS
from toposcope.homology.sublevel import (
    Sublevel,
    as_edges,
    as_vertex_values,
    ring_structure,
    sublevel_graph,
    sublevel_grid,
)
from toposcope.typing import Indices, Vector

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart


# Around a vertex of Freudenthal's triangulation: each neighbour shares a triangle with the next, and the last with the
# first.
_LINK = ((-1, -1), (-1, 0), (0, 1), (1, 1), (1, 0), (0, -1))


def average_persistence(tree: Sublevel) -> float:
    """Return the mean of the finite lifetimes of a merge tree; NaN if there are none.

    The lowest minimum of a connected domain never dies and is not part of the mean: one basin has no average
    persistence, rather than one of zero.

    Returns
    -------
    float
        In units of the function.
    """
    lifetimes = tree.diagram.lifetimes
    return float(lifetimes.mean()) if len(lifetimes) else float("nan")


def saddle_minimum_distance(tree: Sublevel) -> float:
    """Return the saddle-minimum average distance (SMAD): how far above its minimum a basin first meets another.

    The mean over all minima of (value of the lowest saddle that joins its component to another) - (value of the
    minimum): the mean length of the leaf edges of the merge tree. NaN if no two basins meet.

    Returns
    -------
    float
        In units of the function. It differs from `average_persistence` in that the elder rule does not apply: the older
        of two components counts from its minimum to the first saddle too, and the lowest minimum is one of the mean.

    Notes
    -----
    Source: Chen, Hadler et al. 2026, "Landscaper: understanding loss landscapes through multi-dimensional topological
    analysis", arXiv:2602.07135, in the form of the authors' program: a distance in loss and not in the plane, over the
    edges of the merge tree that join a saddle and a minimum. Theirs is 0, not NaN, for a single basin.
    """
    first: dict[int, float] = {}
    saddles = dict(zip(tree.saddles.tolist(), tree.diagram.pairs[:, 1].tolist(), strict=True))
    births = dict(zip(tree.minima.tolist(), tree.diagram.pairs[:, 0].tolist(), strict=True))
    births |= dict(zip(tree.essential_minima.tolist(), tree.essential_births.tolist(), strict=True))
    for survivor, dying, saddle in tree.merges.tolist():  # in the order of the saddles
        first.setdefault(survivor, saddles[saddle] - births[survivor])
        first.setdefault(dying, saddles[saddle] - births[dying])
    return float(np.mean(list(first.values()))) if first else float("nan")


@dataclass(frozen=True, eq=False)
class Profile:
    """Widths of the basins of a function by level: its topological landscape profile.

    Basins are the branches of the merge tree: one from each minimum to the saddle at which it joins an older one. From
    there on its vertices count in the older one's width.

    Attributes
    ----------
    levels : ndarray, shape (l,), float64
        Values of the function, ascending; among them are all births and deaths below, and for each death the float64
        number before it, at which the two components are still apart.
    minima : ndarray, shape (b,), int64
        Lowest vertex of each basin, the most persistent basin first.
    births, deaths : ndarray, shape (b,), float64
        Values of the minimum and of the saddle; infinite for basins that join no other.
    parents : ndarray, shape (b,), int64
        The basin that each one joins, always an earlier one; -1 for none.
    widths : ndarray, shape (b, l), int64
        Vertices of the basin's component of the sublevel set at each level; 0 outside birth <= level < death.
    n_vertices, n_basins : int
        Of the whole function. Of more than `max_basins` basins the most persistent are here, and the vertices of the
        others count from their saddles on.
    """

    levels: Vector
    minima: Indices
    births: Vector
    deaths: Vector
    parents: Indices
    widths: NDArray[np.int64]
    n_vertices: int
    n_basins: int

    def __repr__(self) -> str:
        return f"Profile({len(self.minima)} of {self.n_basins} basins, {self.n_vertices} vertices)"

    def plot(self, title: str = "value of the function") -> "Chart":
        """Draw the profile: each basin a funnel, as wide at each level as its share of the vertices.

        Parameters
        ----------
        title : str
            Of the axis of values.
        """
        from toposcope.charts.merge_tree import profile

        shares = self.widths / self.n_vertices
        return profile(self.levels, self.births, self.deaths, self.parents, shares, title=title, n_basins=self.n_basins)


def profile_grid(
    values: ArrayLike | Any,
    *,
    connectivity: Literal["4", "8", "freudenthal"] = "8",
    n_levels: int = N_LEVELS,
    max_basins: int = MAX_BASINS,
) -> Profile:
    """Return the topological landscape profile of a function on a grid.

    Parameters
    ----------
    values : array-like or torch.Tensor, shape (m, n)
        Finite real numbers; computed in float64.
    connectivity : "4", "8" or "freudenthal"
        As for `sublevel_grid`.
    n_levels : int
        Quantiles of the values at which widths are counted, at least 2, besides those of births and deaths.
    max_basins : int
        At least 1; of more, the most persistent.

    Raises
    ------
    ToposcopeError
        As `sublevel_grid` does, or if an option is out of range.

    Notes
    -----
    O(l m n) time for l levels. Widths are counts of vertices: shares of the area of the grid, not of the space of
    weights. Source: Geniesse et al. 2024, "Visualizing loss functions as topological landscape profiles",
    arXiv:2411.12136.

    Examples
    --------
    >>> found = profile_grid([[0.0, 3.0, 1.0, 2.0, 0.5]])
    >>> found.births, found.deaths
    (array([0. , 0.5, 1. ]), array([inf,  3.,  2.]))
    >>> found.widths[:, found.levels == 2]
    array([[1],
           [3],
           [0]])
    """
    from scipy.ndimage import label

    grid = as_vertex_values(values, dimension=2)
    neighbours = ring_structure(connectivity)

    def components(level: float) -> Indices:
        return np.asarray(label(grid <= level, neighbours)[0]).ravel()

    return _profile(sublevel_grid(grid, connectivity=connectivity), grid.ravel(), components, n_levels, max_basins)


def profile_graph(
    values: ArrayLike | Any, edges: ArrayLike | Any, *, n_levels: int = N_LEVELS, max_basins: int = MAX_BASINS
) -> Profile:
    """Return the topological landscape profile of a function on the vertices of a graph.

    Parameters
    ----------
    values : array-like or torch.Tensor, shape (n,)
        Finite real numbers; computed in float64.
    edges : array-like or torch.Tensor, shape (k, 2)
        As for `sublevel_graph`: those of `delaunay_edges`, say.
    n_levels, max_basins : int
        As for `profile_grid`.

    Raises
    ------
    ToposcopeError
        As `sublevel_graph` does, or if an option is out of range.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    function = as_vertex_values(values, dimension=1)
    pairs = as_edges(edges, len(function))
    heights = function[pairs].max(axis=1)
    n = len(function)

    def components(level: float) -> Indices:
        low, high = pairs[heights <= level].T
        graph = coo_array((np.ones(len(low), np.int8), (low, high)), shape=(n, n))
        return np.asarray(np.where(function <= level, connected_components(graph, directed=False)[1] + 1, 0))

    return _profile(sublevel_graph(function, pairs), function, components, n_levels, max_basins)


def _profile(
    tree: Sublevel, values: Vector, components: Callable[[float], Indices], n_levels: int, max_basins: int
) -> Profile:
    """Count the vertices of each basin level by level."""
    n_levels, max_basins = as_count(n_levels, "n_levels", 2), as_count(max_basins, "max_basins", 1)
    branches = tree.branches()
    chosen = branches.most_persistent(max_basins)
    minima, births, deaths = branches.minima[chosen], branches.births[chosen], branches.deaths[chosen]
    place = np.full(len(branches.minima) + 1, -1)  # the last entry is that of -1, no parent
    place[chosen] = np.arange(len(chosen))
    saddles = deaths[np.isfinite(deaths)]
    quantiles = np.quantile(values, np.linspace(0, 1, n_levels), method="lower")
    levels = np.unique(np.concatenate([quantiles, births, saddles, np.nextafter(saddles, -np.inf)]))
    widths = np.zeros((len(minima), len(levels)), np.int64)
    for i, level in enumerate(levels.tolist()):
        labels = components(level)
        alive = np.flatnonzero((births <= level) & (level < deaths))
        widths[alive, i] = np.bincount(labels)[labels[minima[alive]]]
    return Profile(
        levels, minima, births, deaths, place[branches.parents[chosen]], widths, len(values), len(branches.minima)
    )


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
