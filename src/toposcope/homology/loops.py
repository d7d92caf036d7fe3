"""Loops of a Vietoris-Rips filtration: H1 of all points, exact.

The edges enter in order of length. `toposcope.kernels.lunes` finds which of them open a loop, and what the points of
the others' lunes vote; `toposcope.kernels.annotations` finds which loops close so that they agree. Once every loop is
closed and no later edge can open another, nothing longer is looked at. The algorithm and its proof:
``docs/methods/loops.md``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count
from toposcope.homology.diagram import Diagram, sorted_pairs
from toposcope.homology.memory import check_fits
from toposcope.homology.plain_loops import plain_pairs
from toposcope.homology.point_cloud import Metric, as_cloud, outlasts_rounding
from toposcope.typing import Indices, Matrix, Vector

if TYPE_CHECKING:
    from toposcope.kernels.loop_edges import Scale

# Chosen on benchmarks/loops.py; no result depends on them.
FIRST_EDGE_SHARE = 1 / 4  # of the edges, which is written first
GROWTH = 2  # how many times as many the next
# for each entry of the matrix: its distance, the id of its edge if that is active, and the keys and chains of edges
BYTES_PER_ENTRY = 24
# up to so many points, entries a step, and vectors looked at, Python counts loops as long as kernels are not compiled
MAX_PLAIN_POINTS, PLAIN_ENTRIES_PER_STEP, MAX_PLAIN_STEPS = 1000, 12, 10_000_000
MAX_POINTS = 1 << 16  # an edge's ends are numbers of 16 bits each


def loop_diagram(distances: Matrix, threshold: float = np.inf) -> Diagram:
    """Return H1 of a matrix of distances, bars of positive length only."""
    pairs = _pairs_of_few(distances, threshold)
    if pairs is None:
        pairs = LoopFiltration(distances, threshold).pairs()
    is_open = np.isinf(pairs[:, 1])
    finite = pairs[~is_open]
    bars = sorted_pairs(finite[finite[:, 1] > finite[:, 0]])
    return Diagram(bars, 1, engine="lunes", **without_death(pairs[is_open, 0], distances, threshold))


def _pairs_of_few(distances: Matrix, threshold: float) -> Matrix | None:
    """Return birth and death of every loop where Python is done before the kernels are compiled."""
    from toposcope.kernels.compiled import patience
    from toposcope.kernels.lunes import enter

    if len(distances) > MAX_PLAIN_POINTS or not patience.lasts(enter, 1 + distances.size // PLAIN_ENTRIES_PER_STEP):
        return None
    return plain_pairs(distances, cap_of(distances, distances.max(axis=1, initial=0), threshold), MAX_PLAIN_STEPS)


def without_death(births: Vector, distances: Matrix, threshold: float) -> dict[str, Any]:
    """Return the births of the classes alive at the cap, by the field of a Diagram: all are essential, or truncated."""
    is_capped = len(births) > 0 and threshold < distances.max(where=np.isfinite(distances), initial=0)
    return {"truncated_births" if is_capped else "essential_births": births}


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
        from toposcope.kernels.annotations import no_annotations
        from toposcope.kernels.loop_edges import survey

        self._distances = np.ascontiguousarray(distances)
        self._bits = self._distances.view(np.int64)
        sums, largest, least = survey(self._bits)
        # The most central points have the first labels.
        self._order = np.argsort(sums, kind="stable")
        self._state = no_annotations()
        self._joins = np.empty((0, 2), np.int32)
        self._run(cap_of(self._distances, largest.view(np.float64), threshold), int(least), keeps_cycles)

    def _run(self, cap: float, least: int, keeps_cycles: bool) -> None:
        from toposcope.kernels.annotations import N_OPEN, with_room
        from toposcope.kernels.loop_edges import first_later_birth, scale_of
        from toposcope.kernels.lunes import empty_graph, enter

        n = len(self._order)
        graph, scale = empty_graph(n), scale_of(n, least, cap)
        votes = np.empty(graph.neighbours.shape[1], np.uint64), np.empty((n, 2), np.int32)
        row, blocked = 0, 0
        for keys, reached in self._buckets(scale):
            place = 0
            while (place := enter(keys, place, graph, self._state, *votes, keeps_cycles)) < len(keys):
                self._state = with_room(self._state)
            if self._state.counters[N_OPEN] == 0 and reached >= blocked:
                row, blocked = first_later_birth(self._bits, self._order, graph.neighbours, reached, scale.cap, row)
                if row == n:
                    break
        self._joins = graph.joins[: graph.n_joins[0]]

    def _buckets(self, scale: "Scale") -> Iterator[tuple[NDArray[np.uint64], int]]:
        """Yield the edges bucket by bucket, in order, each with the bits of a length that is reached with it."""
        from toposcope.kernels.loop_edges import bucket_sizes, edges_of, sort_bucket

        label = np.empty(len(self._order), np.int32)
        label[self._order] = np.arange(len(self._order))
        sizes = bucket_sizes(self._bits, scale)
        used = np.flatnonzero(sizes)
        share = FIRST_EDGE_SHARE * sizes.sum()
        while len(used):
            part = used[: 1 + np.searchsorted(np.cumsum(sizes[used]), share)]
            keys = edges_of(self._bits, label, scale, part[0], sizes[part[0] : part[-1] + 1])
            spare, begin = np.empty(sizes[part].max(), np.uint64), 0
            for bucket in part.tolist():
                of_bucket = keys[begin : begin + sizes[bucket]]
                sort_bucket(of_bucket, spare, self._bits, self._order)
                yield of_bucket, min(scale.cap, scale.least + ((bucket + 1) << scale.shift) - 1)
                begin += len(of_bucket)
            used, share = used[len(part) :], GROWTH * share

    def pairs(self) -> Matrix:
        """Return birth and death of every loop in the order they were opened, open ones at infinity; shape (b, 2)."""
        from toposcope.kernels.annotations import N_LOOPS

        count = self._state.counters[N_LOOPS]
        births, deaths = self._state.births[:count], self._state.deaths[:count]
        lengths = self._lengths(deaths)
        lengths[deaths[:, 0] < 0] = np.inf
        return np.column_stack([self._lengths(births), lengths])

    def ends(self) -> Indices:
        """Return the ends of the edges that open and close every loop, in the order of `pairs`; shape (b, 4).

        Of loops that are open, those of the closing edge mean nothing.
        """
        from toposcope.kernels.annotations import N_LOOPS

        count = self._state.counters[N_LOOPS]
        ends = self._order[np.stack([self._state.births[:count], self._state.deaths[:count]], axis=1)]
        return np.asarray(np.sort(ends, axis=2).reshape(-1, 4))

    def cycle(self, loop: int) -> NDArray[np.int64]:
        """Return the edges of the cycle that was closed with a loop, as numbers of points; shape (k, 2).

        The sum that vanished is that of the cycles through one edge that opened a loop each, along the spanning tree;
        the edges of the tree in it are the ones below which an odd number of the others' ends lies.
        """
        from toposcope.kernels.loop_cycles import odd_branches

        begin, end = self._state.kept_places[loop]
        chords = self._state.births[self._state.kept[begin:end]]
        edges = np.concatenate([chords, self._joins[odd_branches(self._joins, chords, len(self._order))]])
        return np.asarray(self._order[edges])

    def _lengths(self, ends: NDArray[np.int32]) -> Vector:
        points = self._order[ends]
        return self._distances[points[:, 0], points[:, 1]]


def cap_of(distances: Matrix, largest: Vector, threshold: float) -> float:
    """Return the longest length that an edge can have and still change a loop; below 0 if there is none."""
    # From the least row maximum on, one point sees all others, and the complex is a cone.
    cap = min(float(largest.min(initial=np.inf)), threshold)
    if np.isfinite(cap):
        return cap
    return float(distances.max(where=np.isfinite(distances), initial=0))


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
    Of the many cycles of a class this is a sum of cycles through the spanning tree (``docs/methods/loops.md``). It runs
    along edges of the relative neighbourhood graph, from neighbour to neighbour, and need not be the shortest.

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
