"""What a merge tree says about a loss landscape: how deep its basins are, and how wide at each level."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.homology.arrays import as_count
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

N_LEVELS = 64
MAX_BASINS = 100


def average_persistence(tree: Sublevel) -> float:
    """Return the mean of the finite lifetimes of a merge tree; NaN if there are none.

    The lowest minimum of a connected domain never dies and is not part of the mean: one basin has no average
    persistence, rather than one of zero.

    Parameters
    ----------
    tree : Sublevel

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

    Parameters
    ----------
    tree : Sublevel

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
        Quantiles of the values at which widths are counted, at least 2, beside those of births and deaths.
    max_basins : int
        At least 1; of more, the most persistent.

    Returns
    -------
    Profile

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

    Returns
    -------
    Profile

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
    """Count the vertices of each basin level by level.

    Parameters
    ----------
    components : callable
        From a level to the number of each vertex's component of the sublevel set, 0 for those above the level.
    """
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
