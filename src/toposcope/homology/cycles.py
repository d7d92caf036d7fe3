"""Which points lie on a loop: a cycle for each of the longest bars of H1."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.homology.arrays import as_count
from toposcope.homology.loops import LoopFiltration, check_loops_fit
from toposcope.homology.point_cloud import Metric, as_cloud, outlasts_rounding
from toposcope.typing import Indices


@dataclass(frozen=True, eq=False)
class Loop:
    """A bar of H1 with a cycle that stands for it.

    Attributes
    ----------
    birth, death : float
    paths : tuple of ndarray of int64
        Closed paths through points, each in the order it visits them; most often one. Together they are a cycle over
        the field of two elements: its longest edge is as long as `birth`, and it first bounds triangles at `death`.
    """

    birth: float
    death: float
    paths: tuple[Indices, ...]

    def __repr__(self) -> str:
        return f"Loop(birth={self.birth:.4g}, death={self.death:.4g}, {len(self.points)} points)"

    @property
    def points(self) -> NDArray[np.int64]:
        """The points on it, ascending."""
        return np.unique(np.concatenate(self.paths))


def longest_loops(points: ArrayLike | Any, count: int = 1, *, metric: Metric = "euclidean") -> list[Loop]:
    """Return the loops of a point cloud that live longest, with the points on them.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d), or (n, n) distances
    count : int
        How many; fewer are returned if there are fewer of positive length. Those that no triangle closes, where
        distances are infinite, are not among them.
    metric : "euclidean", "cosine" or "precomputed"

    Returns
    -------
    list of Loop
        The longest bar first; of equally long ones the earlier born.

    Raises
    ------
    ToposcopeError
        As of `toposcope.homology.rips`.

    Notes
    -----
    Of the many cycles of a class this is the one that the reduction of the boundary matrix finds. It runs along edges
    of the relative neighbourhood graph, from neighbour to neighbour, and need not be the shortest.

    Examples
    --------
    >>> import numpy as np
    >>> angles = np.arange(6) * np.pi / 3
    >>> [loop] = longest_loops(np.column_stack([np.cos(angles), np.sin(angles)]))
    >>> loop.points.tolist(), len(loop.paths)
    ([0, 1, 2, 3, 4, 5], 1)
    """
    count = as_count(count, "count", 0)
    cloud = as_cloud(points, metric, "points")
    n = cloud.shape[0]
    check_loops_fit(n, "points", "take fewer points")
    filtration = LoopFiltration(cloud.distances(np.arange(n)), np.inf, keeps_cycles=True)
    pairs = filtration.pairs()
    births, deaths = pairs.T
    by_length = np.lexsort((births, births - deaths))[np.count_nonzero(np.isinf(deaths)) :][:count]
    return [
        Loop(float(births[k]), float(deaths[k]), closed_paths(filtration.cycle(k)))
        for k in by_length[outlasts_rounding(pairs[by_length], cloud)].tolist()
    ]


def closed_paths(edges: NDArray[np.int64]) -> tuple[Indices, ...]:
    """Divide a cycle into closed paths that visit no point twice.

    Parameters
    ----------
    edges : ndarray, shape (k, 2), int64
        Distinct, and an even number of them at every point.

    Returns
    -------
    tuple of ndarray of int64
    """
    neighbours: dict[int, set[int]] = {}
    for a, b in edges.tolist():
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    paths = []
    while neighbours:
        path = [next(iter(neighbours))]
        place = {path[0]: 0}
        while True:
            here = path[-1]
            there = min(neighbours[here])
            for a, b in ((here, there), (there, here)):
                neighbours[a].remove(b)
            if there in place:
                break
            place[there] = len(path)
            path.append(there)
        # What led to the path is walked again, from another end.
        for a, b in pairwise(path[: place[there] + 1]):
            neighbours[a].add(b)
            neighbours[b].add(a)
        paths.append(np.array(path[place[there] :]))
        neighbours = {point: others for point, others in neighbours.items() if others}
    return tuple(paths)
