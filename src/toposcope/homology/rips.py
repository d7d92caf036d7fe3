"""Vietoris-Rips persistence of a point cloud: H0, H1 and H2, by engines of its own."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError, warn_caller
from toposcope.homology.arrays import as_count, as_indices, as_number, warn_without_gradient
from toposcope.homology.diagram import Diagram
from toposcope.homology.loop_births import tree_and_births
from toposcope.homology.loops import MAX_POINTS, check_loops_fit, loop_bytes, loop_diagram
from toposcope.homology.memory import check_fits, may_not_fit, total_memory
from toposcope.homology.point_cloud import (
    Cloud,
    DeviceEuclidean,
    Directions,
    Euclidean,
    Metric,
    as_cloud,
    is_large,
    outlasts_rounding,
    trees_batch,
)
from toposcope.homology.voids import void_diagram
from toposcope.typing import Indices, Matrix, Vector

# from H2 on, for each entry of the matrix: its distance, twice, the edge made of it, twice, and numbers of ids and rows
ENGINE_BYTES = 48
MAX_DIMENSION = 2
MIN_POINTS, MIN_WIDTH, MIN_COORDINATES = 2000, 256, 3_000_000  # of wide clouds; no result depends on them
N_SAMPLED = 8  # points whose distances show whether many are equal
MAX_MEMORY_SHARE = 0.5  # of the machine, which H1 may take where the user sets no number of points
DEFAULT_LANDMARKS = 2000  # of larger clouds
OTHER_TOOLS = {
    2: "geoph computes H1 of all points of a plane",
    3: "for all points of space there are geoph's Delaunay-Rips and GUDHI's alpha filtration, which differ from Rips",
}
"""By the number of coordinates: what takes flat clouds of more points than the matrix of distances has room for."""


def rips(
    points: ArrayLike | Any,
    *,
    metric: Metric = "euclidean",
    max_dimension: int = 1,
    max_points: int | None = None,
    landmarks: ArrayLike | None = None,
    threshold: float = np.inf,
) -> list[Diagram]:
    """Return the Vietoris-Rips persistence diagrams of a point cloud, one per dimension.

    An edge enters the filtration at its length. Coefficients are in the field of two elements.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d), or (n, n) distances
        One point a row, any floating-point dtype; computed in float64. Of a tensor on a GPU, the
        Euclidean H0 is computed there; the result has no gradient, that of `toposcope.torch.rips` has. Or what
        `toposcope.homology.point_cloud.with_distances` returned: then all dimensions are of the distances it holds.
    metric : "euclidean", "cosine" or "precomputed"
        ``"cosine"`` is 1 - cos of the angle at the origin. ``"precomputed"`` takes a matrix of distances; an infinite
        one is no edge, so that classes may be essential in any dimension, and a cover radius infinite.
    max_dimension : int
        Highest homology dimension, 0 to 2; GUDHI computes higher ones.
    max_points : int, optional
        Dimensions 1 and up use all points if n is at most this, else that many farthest-point landmarks; their
        diagrams then carry ``cover_radius``, and that of H1 the exact ``births`` of all points (unless they need all
        distances, as for many equal ones and for precomputed ones). If left out, H1 uses all points as long as
        that takes at most half of the machine's memory (22,000 points in 24 GB), else 2,000 landmarks, and H2
        uses at most 2,000 landmarks. H0 always uses all points.
    landmarks : array-like of int, optional
        Use these points for dimensions 1 and up, whatever `max_points`: for example a beginning of the order that
        `farthest_points` returned for this cloud or a like one.
    threshold : float
        Filtration cap, inclusive. What is alive at the cap is born at ``truncated_births``, unless no finite distance
        is longer.

    Returns
    -------
    list of Diagram
        Index k holds dimension k. H0 has n - 1 finite points (duplicates give bars of length zero) less the truncated,
        and one essential class; where distances are infinite, one for each component, and fewer points.
        ``engine`` names the algorithm that ran.

    Raises
    ------
    ToposcopeError
        If the points are not a finite floating-point matrix or do not fit the metric, an option is out of range, or the
        distances would not fit in memory.

    Notes
    -----
    H0: O(n^2 d) time, O(nd) memory, never n x n; see `toposcope.kernels.boruvka`. H1: O(n^2 d) time for the
    distances and near O(n^3 / 64) for the rest, which stops at the last death; 24 n^2 bytes are counted on; see
    `toposcope.homology.loops`. H2: 48 n^2 bytes and those of the cocycles; see `toposcope.homology.voids`. H2 may
    take more memory than is counted on before the run. Bars of length zero are left out from H1 on: how many there
    are depends on the order of equal distances.

    Lengths are those of float64 coordinate differences; one below 1e-154 of the largest coordinate counts as zero.

    Equal angles have equal cosine distances, to the last bit, where every row is a multiple of whole numbers (without
    common factor: of squared norm at most 2^26.5, so up to 9,000 entries of two digits). A row is taken for such a
    multiple if its entries are one up to 4 units in their last place, with a least entry up to 128. In other clouds
    equal angles differ by rounding, and from H1 on bars no longer than a bound of it are left out: about
    1e-16 (2 d + 30), d the number of columns.
    """
    warn_without_gradient(points)
    max_dimension = as_count(max_dimension, "max_dimension", 0)
    if max_dimension > MAX_DIMENSION:
        raise ToposcopeError(f"max_dimension: expected 0, 1 or 2, got {max_dimension}; gudhi.RipsComplex has H3 and up")
    max_points = None if max_points is None else as_count(max_points, "max_points", 1)
    threshold = as_number(threshold, "threshold", 0)
    cloud = as_cloud(points, metric, "points")
    chosen = None if landmarks is None else as_indices(landmarks, "landmarks", cloud.shape[0])
    n = cloud.shape[0] if chosen is None else len(chosen)
    for_loops = n if chosen is not None else points_for_loops(n, max_points)
    for_voids = n if chosen is not None else min(n, max_points or DEFAULT_LANDMARKS)
    if max_dimension > 1:
        hint = f"lower max_points for landmarks, or max_dimension to 1 for H1 of {for_loops} points"
        check_fits(ENGINE_BYTES * for_voids**2, f"points: H2 of {for_voids} points", hint)
    if max_dimension > 0:
        hint = "lower max_points for landmarks, or max_dimension to 0 for H0 alone"
        check_loops_fit(for_loops, "points", hint, allocated=cloud.distance_bytes if for_loops == cloud.shape[0] else 0)
        if for_loops < n and max_points is None and isinstance(cloud, Euclidean) and cloud.shape[1] in OTHER_TOOLS:
            warn_caller(
                f"points: H1 is of {for_loops} landmarks of the {n} points, exact within twice its cover_radius; "
                f"{OTHER_TOOLS[cloud.shape[1]]}"
            )
    lengths, births = None, None
    keeps_births = max_dimension > 0 and for_loops < cloud.shape[0] and threshold == np.inf
    if keeps_births or _is_wide(cloud):
        lengths, births = tree_and_births(cloud) or (None, None)
    diagrams = [_components(cloud, lengths, threshold)]
    if max_dimension > 0:
        sample = _sample(cloud, for_loops, chosen)
        distances = cloud.distances(sample.indices)
        if max_dimension == 1 and isinstance(cloud, Euclidean):
            cloud = replace(cloud, points=cloud.points[:1].copy())  # the others may take more memory than loops do
        diagrams.append(_loops(cloud, distances, sample.cover_radius, threshold, births if keeps_births else None))
    if max_dimension > 1:
        diagrams.append(_voids(cloud, _sample(cloud, for_voids, chosen), threshold))
    return diagrams


def _is_wide(cloud: Cloud) -> bool:
    """Return whether the graph that births are of gives the tree sooner than the tree's own rounds do.

    Of equal distances, as of quantised weights, it keeps many edges.
    """
    from scipy.spatial.distance import cdist

    n, d = cloud.shape
    if isinstance(cloud, DeviceEuclidean) or not isinstance(cloud, Euclidean | Directions):
        return False
    if n < MIN_POINTS or d < MIN_WIDTH or n * d < MIN_COORDINATES:
        return False
    points = cloud.sphere.points if isinstance(cloud, Directions) else cloud.points
    squares = cdist(points[:: n // N_SAMPLED], points, "sqeuclidean")
    return bool(len(np.unique(np.round(squares / squares.max(), 9))) > squares.size / 2)


def points_for_loops(n: int, max_points: int | None = None) -> int:
    """Return how many of n points `rips` uses for H1: n, or how many landmarks."""
    n = as_count(n, "n", 0)
    if max_points is not None:
        return min(n, as_count(max_points, "max_points", 1))
    memory = total_memory() if may_not_fit(loop_bytes(n)) else None
    all_fit = n <= MAX_POINTS and (memory is None or loop_bytes(n) <= MAX_MEMORY_SHARE * memory)
    return n if all_fit else DEFAULT_LANDMARKS


def expected_seconds(n: int, d: int, *, max_dimension: int = 1, max_points: int | None = None) -> float:
    """Return about how long `rips` of n points in d dimensions takes on one processor (of 2.5 GHz).

    Fitted to clouds of up to 10,000 points, of random weights and of embeddings (``benchmarks/loops.py``). H2
    is not included: its time depends on the cloud.
    """
    if max_dimension == 0:
        return 2e-11 * n * n * d + 5e-9 * n * n
    m = points_for_loops(n, max_points)
    loops = 6e-11 * m * m * d + 1.5e-8 * m * m + 1e-12 * m**3
    return loops if m == n else loops + 3e-10 * n * m * d + (1.2e-11 * d + 8e-9) * n * n


def farthest_points(points: ArrayLike | Any, count: int, *, metric: Metric = "euclidean") -> tuple[Indices, Vector]:
    """Choose landmarks greedily, each the farthest from those before it, starting farthest from the centroid.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d), or (n, n) distances
    count : int
        How many, at most n.
    metric : "euclidean", "cosine" or "precomputed"
        Of a matrix of distances the first landmark is an end of the longest.

    Returns
    -------
    indices : ndarray, shape (count,), int64
        Any beginning of it is what a smaller count would return.
    cover_radii : ndarray, shape (count,), float64
        Every point is within ``cover_radii[k]`` of one of the first k + 1 landmarks.

    Raises
    ------
    ToposcopeError
        As `rips` does.

    Notes
    -----
    O(nd) time a landmark. Source: Gonzalez 1985; de Silva & Carlsson 2004 for landmarks of complexes.
    """
    count = as_count(count, "count", 1)
    cloud = as_cloud(points, metric, "points")
    if count > cloud.shape[0]:
        raise ToposcopeError(f"count: expected at most the number of points, {cloud.shape[0]}, got {count}")
    return cloud.landmarks(count)


def _components(cloud: Cloud, lengths: Vector | None, threshold: float) -> Diagram:
    """Return H0, from the lengths of the minimum spanning tree where they are known already, for a large cloud."""
    engine = "lunes"
    if lengths is None or not is_large(cloud.shape) or isinstance(cloud, DeviceEuclidean):
        lengths, engine = cloud.tree()
    return _component_diagram(lengths, threshold, engine)


def components_batch(stack: NDArray[Any]) -> list[Diagram | None]:
    """Return H0 of many small Euclidean clouds of one shape, whose trees are made in one compiled call."""
    return [None if tree is None else _component_diagram(tree, np.inf, "prim") for tree in trees_batch(stack)]


def _component_diagram(lengths: Vector, threshold: float, engine: str) -> Diagram:
    finite = lengths[: np.searchsorted(lengths, np.inf)]
    deaths = finite if threshold == np.inf else finite[finite <= threshold]
    pairs = np.zeros((len(deaths), 2))
    pairs[:, 1] = deaths
    return Diagram(
        pairs,
        dimension=0,
        engine=engine,
        essential_births=np.zeros(1 + len(lengths) - len(finite)),
        truncated_births=np.zeros(len(finite) - len(deaths)) if len(finite) > len(deaths) else None,
    )


class _Sample(NamedTuple):
    """Points that stand for a cloud, and how far from them another point can be."""

    indices: Indices
    cover_radius: float


def _sample(cloud: Cloud, size: int, chosen: Indices | None) -> _Sample:
    """Return the chosen points, or all of them, or landmarks."""
    if chosen is not None:
        return _Sample(chosen, cloud.cover_radius(chosen))
    if size == cloud.shape[0]:
        return _Sample(np.arange(size), 0.0)
    indices, radii = cloud.landmarks(size)
    return _Sample(indices, float(radii[-1]))


def _loops(cloud: Cloud, distances: Matrix, radius: float, threshold: float, births: Vector | None) -> Diagram:
    diagram = loop_diagram(distances, threshold)
    pairs = diagram.pairs[outlasts_rounding(diagram.pairs, cloud)]
    return replace(diagram, pairs=pairs, cover_radius=radius, births=births)


def _voids(cloud: Cloud, sample: _Sample, threshold: float) -> Diagram:
    diagram = void_diagram(cloud.distances(sample.indices), threshold)
    pairs = diagram.pairs[outlasts_rounding(diagram.pairs, cloud)]
    return replace(diagram, pairs=pairs, cover_radius=sample.cover_radius)
