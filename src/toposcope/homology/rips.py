"""Vietoris-Rips persistence of a point cloud: H0 exact on all points, H1 and up through GUDHI."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count, as_indices, as_number
from toposcope.homology.diagram import Diagram, sorted_pairs
from toposcope.homology.memory import check_fits
from toposcope.homology.point_cloud import Cloud, Metric, as_cloud

ENGINE_BYTES = 32
"""For each pair of points: its distance in float64, twice, and the edges the engine makes of it (measured)."""


def rips(
    points: ArrayLike | Any,
    *,
    metric: Metric = "euclidean",
    max_dimension: int = 1,
    max_points: int = 2000,
    landmarks: ArrayLike | None = None,
    threshold: float = np.inf,
) -> list[Diagram]:
    """Return the Vietoris-Rips persistence diagrams of a point cloud, one per dimension.

    An edge enters the filtration at its length. Coefficients are in the field of two elements.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d), or (n, n) distances
        One point a row, any floating-point dtype; computed in float64. Of a tensor on a GPU, the
        Euclidean H0 is computed there. Or what `toposcope.homology.point_cloud.with_distances` returned: then all
        dimensions are of the distances it holds.
    metric : "euclidean", "cosine" or "precomputed"
        ``"cosine"`` is 1 - cos of the angle at the origin. ``"precomputed"`` takes a matrix of distances.
    max_dimension : int
        Highest homology dimension, 0 or more.
    max_points : int
        Dimensions 1 and up use all points if n is at most this, else that many farthest-point landmarks; their
        diagrams then carry ``cover_radius``. H0 always uses all points.
    landmarks : array-like of int, optional
        Use these points for dimensions 1 and up, whatever `max_points`: for example a beginning of the order that
        `farthest_points` returned for this cloud or a like one.
    threshold : float
        Filtration cap, inclusive. What is alive at the cap is counted in ``n_truncated``.

    Returns
    -------
    list of Diagram
        Index k holds dimension k. H0 has n - 1 finite points (duplicates give bars of length zero) less the truncated.
        ``engine`` tells which algorithm ran.

    Raises
    ------
    ToposcopeError
        If the points are not a finite floating-point matrix or do not fit the metric, an option is out of range, or the
        distances would not fit in memory.

    Notes
    -----
    H0: O(n^2 d) time, O(nd) memory, never n x n; see `toposcope.kernels.euclidean_tree`. H1: O(n^2) memory at least,
    worst case O(n^6) time; dimensions above it may take more memory than is reckoned with before the run. See METHODS
    3. Lengths are those of float64 coordinate differences; one below 1e-154 of the largest coordinate counts as zero.
    """
    max_dimension = as_count(max_dimension, "max_dimension", 0)
    max_points = as_count(max_points, "max_points", 1)
    threshold = as_number(threshold, "threshold", 0)
    cloud = as_cloud(points, metric, "points")
    chosen = None if landmarks is None else as_indices(landmarks, "landmarks", cloud.shape[0])
    if max_dimension > 0:
        n = min(cloud.shape[0], max_points) if chosen is None else len(chosen)
        check_fits(
            ENGINE_BYTES * n * n,
            f"points: dimensions 1 and up of {n} points",
            "lower max_points for landmarks, or max_dimension to 0 for H0 alone",
        )
    diagrams = [_connected_components(cloud, threshold)]
    if max_dimension > 0:
        diagrams += _higher(cloud, max_dimension, max_points, chosen, threshold)
    return diagrams


def farthest_points(
    points: ArrayLike | Any, count: int, *, metric: Metric = "euclidean"
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
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


def _connected_components(cloud: Cloud, threshold: float) -> Diagram:
    lengths, engine = cloud.tree()
    deaths = lengths if threshold == np.inf else lengths[lengths <= threshold]
    pairs = np.zeros((len(deaths), 2))
    pairs[:, 1] = deaths
    return Diagram(
        pairs,
        dimension=0,
        n_essential=1,
        n_truncated=len(lengths) - len(deaths),
        engine=engine,
    )


def _higher(
    cloud: Cloud, max_dimension: int, max_points: int, chosen: NDArray[np.int64] | None, threshold: float
) -> list[Diagram]:
    from gudhi.sklearn import RipsPersistence

    everything = cloud.shape[0]
    cover_radius = 0.0
    if chosen is not None:
        cover_radius = cloud.cover_radius(chosen)
    elif everything > max_points:
        chosen, radii = cloud.landmarks(max_points)
        cover_radius = float(radii[-1])
    distances = cloud.distances(np.arange(everything) if chosen is None else chosen)
    dimensions = list(range(1, max_dimension + 1))
    engine = RipsPersistence(
        homology_dimensions=dimensions,
        threshold=threshold,
        input_type="full distance matrix",
        homology_coeff_field=2,
        n_jobs=1,
    )
    found = engine.fit_transform([distances])[0]
    return [
        replace(_finite_part(np.asarray(bars, dtype=np.float64).reshape(-1, 2), k), cover_radius=cover_radius)
        for k, bars in zip(dimensions, found, strict=True)
    ]


def _finite_part(bars: NDArray[np.float64], dimension: int) -> Diagram:
    finite = np.isfinite(bars[:, 1])
    return Diagram(sorted_pairs(bars[finite]), dimension, n_truncated=int((~finite).sum()), engine="gudhi")
