"""Loops of a Vietoris-Rips filtration: H1 of all points, exact.

The edges enter in order of length. `toposcope.kernels.lunes` finds which of them open a loop, and the few triangles
that can close one; `toposcope.kernels.loop_reduction` finds which loop each closes. Once every loop is closed and no
later edge can open another, nothing longer is looked at. The algorithm and its proof: ``docs/methods/loops.md``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count
from toposcope.homology.diagram import Diagram, sorted_pairs
from toposcope.homology.memory import check_fits
from toposcope.homology.point_cloud import Metric, as_cloud, outlasts_rounding
from toposcope.homology.tuning import BYTES_PER_ENTRY, FIRST_EDGE_SHARE, GROWTH, N_SAMPLED_DISTANCES
from toposcope.typing import Indices, Matrix, Vector

MAX_POINTS = 1 << 16  # edges are numbered in 32 bits


def loop_diagram(distances: Matrix, threshold: float = np.inf) -> Diagram:
    """Return H1 of a matrix of distances, bars of positive length only."""
    filtration = LoopFiltration(distances, threshold)
    pairs = filtration.pairs()
    is_open = np.isinf(pairs[:, 1])
    finite = pairs[~is_open]
    bars = sorted_pairs(finite[finite[:, 1] > finite[:, 0]])
    return Diagram(bars, 1, *without_death(int(is_open.sum()), distances, threshold), engine="lunes")


def without_death(count: int, distances: Matrix, threshold: float) -> tuple[int, int]:
    """Return how many of the classes alive at the cap are essential, and how many truncated: none or all."""
    is_capped = count > 0 and threshold < distances.max(where=np.isfinite(distances), initial=0)
    return (0, count) if is_capped else (count, 0)


def loop_bytes(n: int) -> int:
    """Return about the most bytes that the loops of n points take, their distances included."""
    return BYTES_PER_ENTRY * n * n


def check_loops_fit(n: int, name: str, hint: str, *, allocated: int = 0) -> None:
    """Refuse more points than memory, or the numbering of edges, has room for; `hint` is what the user can do instead.

    Of what is needed, `allocated` bytes are allocated already.
    """
    if n > MAX_POINTS:
        raise ToposcopeError(f"{name}: H1 of {n} points, and at most {MAX_POINTS} can be taken; {hint}")
    check_fits(loop_bytes(n) - allocated, f"{name}: H1 of {n} points", hint)


class LoopFiltration:
    """The filtration of a cloud, run up to where its last loop is closed; `cycle` needs ``keeps_cycles``."""

    def __init__(self, distances: Matrix, threshold: float, *, keeps_cycles: bool = False) -> None:
        from toposcope.kernels.loop_reduction import no_loops
        from toposcope.kernels.lunes import Edges

        n = len(distances)
        self._distances = distances
        # The most central points have the first labels.
        with np.errstate(over="ignore"):
            self._order = np.argsort(distances.sum(axis=1), kind="stable")
        # As large as they can become; what is not written takes no memory.
        n_edges = n * (n - 1) // 2
        self._edges = Edges(np.empty(n_edges, np.int32), np.empty((n_edges, 2), np.int32), np.empty(n_edges, np.int32))
        self._loops = no_loops()
        self._run(_cap(distances, threshold), keeps_cycles)

    def _run(self, cap: float, keeps_cycles: bool) -> None:
        from toposcope.kernels.loop_edges import edges_between, first_row_with_possible_births
        from toposcope.kernels.loop_reduction import ALIVE, close_loops, opened
        from toposcope.kernels.lunes import scan_lunes
        from toposcope.kernels.sets import empty_tree

        n = len(self._order)
        label = np.empty(n, np.int32)
        label[self._order] = np.arange(n)
        neighbours = np.zeros((n, -(-n // 64)), np.uint64)
        neighbours[np.arange(n), np.arange(n) // 64] = np.left_shift(np.uint64(1), np.arange(n, dtype=np.uint64) % 64)
        parent = np.arange(n, dtype=np.int32)
        above, stop, row = -np.inf, 0, 0
        for upto in _parts(self._distances, cap):
            ends = edges_between(self._distances, label, above, upto)
            end = stop + len(ends)
            self._edges.ends[stop:end] = ends
            del ends
            entering = self._edges._replace(ends=self._edges.ends[:end], apex=self._edges.apex[:end])
            while stop < end:
                births, columns, stop = scan_lunes(entering, stop, neighbours, parent, len(self._loops.births))
                loops = opened(self._loops, births)
                room = empty_tree(end), empty_tree(len(loops.births)), empty_tree(len(loops.births))
                self._loops = close_loops(columns, n, entering, loops, room, keeps_cycles)
            if upto < cap and not (self._loops.deaths == ALIVE).any():
                row = first_row_with_possible_births(self._distances, label, neighbours, upto, cap, row)
                if row == n:
                    break
            above = upto
        self._edges = self._edges._replace(ends=self._edges.ends[:stop], apex=self._edges.apex[:stop])

    def pairs(self) -> Matrix:
        """Return birth and death of every loop in the order they were opened, open ones at infinity; shape (b, 2)."""
        is_open = self._loops.deaths < 0
        births, deaths = self._lengths(self._loops.births), self._lengths(np.maximum(self._loops.deaths, 0))
        deaths[is_open] = np.inf
        return np.column_stack([births, deaths])

    def cycle(self, loop: int) -> NDArray[np.int64]:
        """Return the edges of the cycle that was closed with a loop, as numbers of points; shape (k, 2).

        The column holds the edges of the cycle that opened loops; those of the spanning tree that make it a cycle are
        the ones below which an odd number of its ends lies.
        """
        from toposcope.kernels.lunes import JOINS, odd_branches

        cycles = self._loops.cycles
        members = cycles.members[cycles.starts[loop] : cycles.stops[loop]]
        chords = self._edges.ends[self._loops.births[members]]
        tree = self._edges.ends[self._edges.apex == JOINS]
        edges = np.concatenate([chords, tree[odd_branches(tree, chords, len(self._order))]])
        return np.asarray(self._order[edges])

    def _lengths(self, ranks: NDArray[np.int32]) -> Vector:
        if not len(ranks):
            return np.empty(0)
        ends = self._order[self._edges.ends[ranks]]
        return self._distances[ends[:, 0], ends[:, 1]]


def _cap(distances: Matrix, threshold: float) -> float:
    """Return the longest length that an edge can have and still change a loop; below 0 if there is none."""
    # From the least row maximum on, one point sees all others, and the complex is a cone.
    cap = min(float(distances.max(axis=1).min()), threshold)
    if np.isfinite(cap):
        return cap
    return float(distances.max(where=np.isfinite(distances), initial=0))


def _parts(distances: Matrix, cap: float) -> Iterator[float]:
    """Yield the longest length of each part of the edges, the last of which is `cap`."""
    n = len(distances)
    sampled = (
        np.random.default_rng(0).integers(0, n, (2, N_SAMPLED_DISTANCES))
        if n * (n - 1) // 2 > N_SAMPLED_DISTANCES
        else np.empty((2, 0), int)
    )
    lengths = distances[*sampled[:, sampled[0] != sampled[1]]]
    lengths = np.sort(lengths[lengths <= cap])
    share, before = FIRST_EDGE_SHARE, -np.inf
    while share < 1 and len(lengths):
        upto = float(lengths[int(share * len(lengths))])
        if before < upto < cap:
            yield upto
            before = upto
        share *= GROWTH
    yield cap


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
    """Divide a cycle into closed paths that visit no point twice."""
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
