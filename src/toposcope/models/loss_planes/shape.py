"""The shape of the loss on a plane: its merge tree, its critical points, and what they come to in numbers."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    Diagram,
    Profile,
    Sublevel,
    average_persistence,
    bottleneck,
    critical_points,
    critical_points_of_triangles,
    delaunay_edges,
    nearest_neighbour_edges,
    profile_graph,
    profile_grid,
    saddle_minimum_distance,
    sublevel_graph,
    sublevel_grid,
    wasserstein,
)
from toposcope.homology.scattered import N_NEIGHBOURS
from toposcope.models.loss_planes.surface import Surface
from toposcope.typing import Indices, Vector

N_PROFILE_LEVELS = 32  # of a profile, besides those of minima and saddles

Graph = Literal["triangulation", "nearest"]
"""Which points are neighbours: those of Freudenthal's or Delaunay's triangulation, or the 8 nearest."""
CONNECTIVITY: dict[Graph, Literal["8", "freudenthal"]] = {"triangulation": "freudenthal", "nearest": "8"}


@dataclass(frozen=True, eq=False)
class Shape:
    """The merge tree of the loss on a plane, and its statistics."""

    # shape (n,); losses, those that are not finite replaced by the largest finite one: as a plateau they are the
    # highest place of the plane, and a basin behind them persists at least as long as its bar
    values: Vector
    n_not_finite: int
    tree: Sublevel
    statistics: dict[str, float]  # those that are defined
    # whether the lowest point lies on the border of the plane, so that the basin it belongs to goes on outside
    minimum_on_border: bool
    n_on_border: int  # minima on the border: their basins may go on outside, and their bars are those of the plane
    n_within_rounding: int  # bars no longer than a loss may be wrong by rounding


def shape_of(surface: Surface, graph: Graph = "triangulation") -> Shape:
    """Describe the loss on a plane; statistics are in nats per token unless they are counts or shares."""
    measured = surface.values
    finite = np.isfinite(measured)
    if not finite.any():
        raise ToposcopeError("plane: the loss is finite nowhere on it; take a smaller span")
    values = np.where(finite, measured, measured[finite].max())
    tree = _tree(surface, values, graph)
    lifetimes, border = tree.diagram.lifetimes, surface.sample.border()
    statistics = {
        "average_persistence": average_persistence(tree),
        "max_persistence": float(lifetimes.max(initial=0)),
        "total_persistence": float(lifetimes.sum()),
        "smad": saddle_minimum_distance(tree),
        "minima": float(len(tree.minima) + len(tree.essential_minima)),
        "saddles": _n_saddles(surface, values) if graph == "triangulation" else np.nan,
        "side_basin_share": _side_share(_profile(surface, values, graph), values),
        "range": float(np.ptp(values)),
        "centre_height": _centre_height(surface, values),
    }
    return Shape(
        values,
        int((~finite).sum()),
        tree,
        {name: value for name, value in statistics.items() if np.isfinite(value)},
        bool(border[values.argmin()]),
        int(border[np.concatenate([tree.minima, tree.essential_minima])].sum()),
        int((lifetimes <= surface.rounding * np.abs(values).max()).sum()),
    )


def distances_between(diagrams: list[Diagram]) -> dict[str, float]:
    """Return the mean ``wasserstein_1`` and ``bottleneck`` distance of the pairs of some diagrams; of one, nothing."""
    pairs = [(a, b) for k, a in enumerate(diagrams) for b in diagrams[:k]]
    if not pairs:
        return {}
    return {
        "wasserstein_1": float(np.mean([wasserstein(a, b, 1) for a, b in pairs])),
        "bottleneck": float(np.mean([bottleneck(a, b) for a, b in pairs])),
    }


def _profile(surface: Surface, values: Vector, graph: Graph = "triangulation") -> Profile:
    """Return the topological profile of finite losses on a plane."""
    if surface.sample.shape is None:
        return profile_graph(values, _edges(surface, graph), n_levels=N_PROFILE_LEVELS)
    return profile_grid(
        values.reshape(surface.sample.shape), connectivity=CONNECTIVITY[graph], n_levels=N_PROFILE_LEVELS
    )


def _tree(surface: Surface, values: Vector, graph: Graph) -> Sublevel:
    if surface.sample.shape is None:
        return sublevel_graph(values, _edges(surface, graph))
    return sublevel_grid(values.reshape(surface.sample.shape), connectivity=CONNECTIVITY[graph])


def _edges(surface: Surface, graph: Graph) -> Indices:
    points = surface.sample.coordinates
    return nearest_neighbour_edges(points, N_NEIGHBOURS) if graph == "nearest" else delaunay_edges(points)


def _n_saddles(surface: Surface, values: Vector) -> float:
    if surface.sample.shape is not None:
        points = critical_points(values.reshape(surface.sample.shape))
    else:
        from scipy.spatial import Delaunay

        points = critical_points_of_triangles(values, Delaunay(surface.sample.coordinates).simplices)
    return float(points.multiplicities.sum())


def _side_share(profile: Profile, values: Vector) -> float:
    """Return the share of a profile's area that is not of the basins without a saddle; those left out of it count."""
    heights = np.diff(profile.levels)
    whole = np.searchsorted(np.sort(values), profile.levels[:-1], side="right") @ heights
    deepest = profile.widths[np.isinf(profile.deaths), :-1].sum(axis=0) @ heights
    return float((whole - deepest) / whole) if whole > 0 else np.nan


def _centre_height(surface: Surface, values: Vector) -> float:
    centre = np.flatnonzero((surface.sample.coordinates == 0).all(axis=1))
    return float(values[centre[0]] - values.min()) if len(centre) else np.nan
