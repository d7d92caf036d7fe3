"""Vietoris-Rips persistence of a point cloud: H0 exact on all points, H1 and up through GUDHI."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count, as_float_matrix, as_number
from toposcope.homology.diagram import Diagram, sorted_pairs

Points = NDArray[np.float64]


def rips(
    points: ArrayLike | Any,
    *,
    max_dimension: int = 1,
    max_points: int = 2000,
    threshold: float = np.inf,
) -> list[Diagram]:
    """Return the Vietoris-Rips persistence diagrams of a Euclidean point cloud, one per dimension.

    An edge enters the filtration at its length. Coefficients are in the field of two elements.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d)
        One point a row, any floating-point dtype; computed in float64.
    max_dimension : int
        Highest homology dimension, 0 or more.
    max_points : int
        Dimensions 1 and up use all points if n is at most this, else that many farthest-point landmarks; their
        diagrams then carry ``cover_radius``. H0 always uses all points.
    threshold : float
        Filtration cap, inclusive. What is alive at the cap is counted in ``n_truncated``.

    Returns
    -------
    list of Diagram
        Index k holds dimension k. H0 has n - 1 finite points (duplicates give bars of length zero) less the truncated.

    Raises
    ------
    ToposcopeError
        If the cloud is not a finite floating-point matrix, or an option is out of range.

    Notes
    -----
    H0: O(n^2 d) time, O(nd) memory. H1: O(n^2) memory, worst case O(n^6) time. See METHODS 3. Lengths are those of
    float64 arithmetic; one below 1e-154 of the largest coordinate counts as zero.
    """
    max_dimension = as_count(max_dimension, "max_dimension", 0)
    max_points = as_count(max_points, "max_points", 1)
    threshold = as_number(threshold, "threshold", 0)
    cloud = as_float_matrix(points, "points").astype(np.float64)
    # A power of two changes no digit of the result, and keeps the squares of all but vanishing differences in range.
    exponent = int(np.frexp(np.abs(cloud).max())[1])
    unit = np.ldexp(cloud, -exponent)
    with np.errstate(over="ignore"):  # a cap beyond the range caps nothing
        cap = float(np.ldexp(threshold, -exponent))
    diagrams = [_connected_components(unit, cap)]
    if max_dimension > 0:
        diagrams += _higher(unit, max_dimension, max_points, cap)
    return [_rescaled(diagram, exponent) for diagram in diagrams]


def farthest_points(points: Points, count: int) -> tuple[NDArray[np.int64], float]:
    """Choose landmarks greedily, each the farthest from those before it, starting farthest from the centroid.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64
    count : int
        How many, at most n.

    Returns
    -------
    indices : ndarray, shape (count,), int64
    cover_radius : float
        Every point is within this distance of a landmark.
    """
    count = as_count(count, "count", 1)
    if count > len(points):
        raise ToposcopeError(f"count: expected at most the number of points, {len(points)}, got {count}")
    indices = np.empty(count, np.int64)
    indices[0] = np.argmax(np.linalg.norm(points - points.mean(axis=0), axis=1))
    distance = np.linalg.norm(points - points[indices[0]], axis=1)
    for k in range(1, count):
        indices[k] = np.argmax(distance)
        np.minimum(distance, np.linalg.norm(points - points[indices[k]], axis=1), out=distance)
    return indices, float(distance.max())


def _connected_components(points: Points, threshold: float) -> Diagram:
    from toposcope.kernels.euclidean_tree import euclidean_tree_lengths

    lengths = np.sort(euclidean_tree_lengths(np.ascontiguousarray(points)))
    deaths = lengths[lengths <= threshold]
    return Diagram(
        np.column_stack([np.zeros_like(deaths), deaths]),
        dimension=0,
        n_essential=1,
        n_truncated=len(lengths) - len(deaths),
    )


def _higher(points: Points, max_dimension: int, max_points: int, threshold: float) -> list[Diagram]:
    from gudhi.sklearn import RipsPersistence
    from scipy.spatial.distance import pdist, squareform

    cover_radius = 0.0
    if len(points) > max_points:
        landmarks, cover_radius = farthest_points(points, max_points)
        points = points[landmarks]
    dimensions = list(range(1, max_dimension + 1))
    engine = RipsPersistence(
        homology_dimensions=dimensions,
        threshold=threshold,
        input_type="full distance matrix",
        homology_coeff_field=2,
        n_jobs=1,
    )
    bars = engine.fit_transform([squareform(pdist(points))])[0]
    return [
        _finite_part(np.asarray(b, dtype=np.float64).reshape(-1, 2), k, cover_radius)
        for k, b in zip(dimensions, bars, strict=True)
    ]


def _finite_part(bars: NDArray[np.float64], dimension: int, cover_radius: float) -> Diagram:
    finite = np.isfinite(bars[:, 1])
    return Diagram(sorted_pairs(bars[finite]), dimension, n_truncated=int((~finite).sum()), cover_radius=cover_radius)


def _rescaled(diagram: Diagram, exponent: int) -> Diagram:
    with np.errstate(over="ignore"):
        pairs = np.ldexp(diagram.pairs, exponent)
    if not np.isfinite(pairs).all():
        raise ToposcopeError("points: distances are beyond the range of float64; divide the points by a constant")
    return Diagram(
        pairs,
        diagram.dimension,
        diagram.n_essential,
        diagram.n_truncated,
        float(np.ldexp(diagram.cover_radius, exponent)),
    )
