"""Intrinsic dimension from the two nearest neighbours (Facco, d'Errico, Rodriguez and Laio 2017, arXiv:1803.06992).

Where the density is constant as far as the second neighbour, the ratio of the distances of the second and the first
follows a law whose only parameter is the dimension.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_number
from toposcope.homology.point_cloud import Cloud, Directions, Distances, Euclidean, Metric, as_cloud
from toposcope.typing import Matrix, Vector

MAX_EQUAL_CHORD = 2.0**-50
"""Chord of the unit sphere that rounding may leave between equal directions."""


@dataclass(frozen=True)
class TwoNN:
    """Intrinsic dimension estimated from two nearest neighbours.

    Attributes
    ----------
    dimension : float
        nan of fewer than 3 distinct points; infinite if every point is as far from its second neighbour as from its
        first.
    n_points : int
        Distinct points, those it is taken from.
    n_duplicates : int
        Points left out since an earlier one is at distance 0.
    """

    dimension: float
    n_points: int
    n_duplicates: int


def two_nn(points: ArrayLike | Any, *, discard: float = 0.1, metric: Metric = "euclidean") -> TwoNN:
    """Estimate the intrinsic dimension of a cloud from each point's two nearest neighbours.

    With mu the ratio of the distances of the second and the first, and F its empirical distribution (i / n at the i-th
    smallest), it is the slope of the line through the origin that is fitted to -ln(1 - F) against ln mu.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d)
        Any floating-point dtype; distances are from coordinate differences in float64. With ``"precomputed"``, the
        (n, n) distances. Or what `toposcope.homology.point_cloud.with_distances` returned.
    discard : float
        Share of the points, those of largest mu, that is left out of the fit: in [0, 1). The last one always is, as
        its 1 - F is 0.
    metric : "euclidean", "cosine" or "precomputed"
        With ``"cosine"``, the dimension of the set of directions, by their chords: 1 - cos is half the square of a
        chord, and would halve it. For precomputed cosine distances, pass their square roots.

    Returns
    -------
    TwoNN

    Raises
    ------
    ToposcopeError
        If the points do not fit the metric, or an option is out of range.

    Notes
    -----
    O(n^2 d) time, O(nd) memory and a block of distances; of precomputed ones O(n^2) time. Source: Facco et al. 2017,
    "Estimating the intrinsic dimension of datasets by a minimal neighborhood information", Sci. Rep. 7:12140, the
    algorithm of its Methods and its advice to discard a tenth.
    """
    discard = as_number(discard, "discard", 0)
    if not discard < 1:
        raise ToposcopeError(f"discard: expected a share of at least 0 and below 1, got {discard!r}")
    ratios, n_duplicates = _log_ratios(as_cloud(points, metric, "points"))
    if len(ratios) > 2 and (n_infinite := np.count_nonzero(~np.isfinite(ratios))):
        raise ToposcopeError(
            f"points: {n_infinite} of {len(ratios)} points have no second one at a finite distance; leave them out"
        )
    return TwoNN(_slope(ratios, discard), len(ratios), n_duplicates)


def _slope(ratios: Vector, discard: float) -> float:
    """Fit -ln(1 - F) = dimension * ln mu by least squares."""
    n = len(ratios)
    if n < 3:
        return math.nan
    n_fitted = min(n - 1, max(1, round(n * (1 - discard))))
    x, y = np.sort(ratios)[:n_fitted], -np.log1p(-np.arange(1, n_fitted + 1) / n)
    return float(x @ y / (x @ x)) if x.any() else math.inf


def _log_ratios(cloud: Cloud) -> tuple[Vector, int]:
    """Return ln mu of each distinct point, and how many were not distinct."""
    if isinstance(cloud, Distances):
        if cloud.metric == "cosine":
            nearest, power = _two_least(cloud.matrix, MAX_EQUAL_CHORD**2 / 2), 2  # half the squares of chords
        else:
            nearest, power = _two_least(cloud.matrix), 1
    elif isinstance(cloud, Directions):
        nearest, power = _two_least_squares(cloud.sphere.points, MAX_EQUAL_CHORD**2), 2
    else:
        nearest, power = _two_least_squares(cast(Euclidean, cloud).points, 0.0), 2
    with np.errstate(invalid="ignore"):  # of one point, which has no neighbour
        logs = np.log(nearest)
        return (logs[:, 1] - logs[:, 0]) / power, cloud.shape[0] - len(nearest)


def _two_least(matrix: Matrix, same: float = 0.0) -> Matrix:
    """Return the two least distances of each point that has no earlier one at a distance of at most `same`."""
    from toposcope.kernels.pairwise import two_least

    distinct = ~np.tril(matrix <= same, -1).any(axis=1)
    if not distinct.all():
        matrix = matrix[np.ix_(distinct, distinct)]
    return two_least(matrix)


def _two_least_squares(points: Matrix, same: float) -> Matrix:
    """Return the two least squared distances of each point that has no earlier one at a square of at most `same`."""
    from toposcope.kernels.duplicates import first_occurrences

    points = points[first_occurrences(points)]
    while True:
        indices, squares = _neighbours(points)
        # Of many points in one place not all list the first, but the last lists an earlier one.
        repeats = ((squares <= same) & (indices < np.arange(len(points))[:, None])).any(axis=1)
        if not repeats.any():
            return squares[:, :2]
        points = points[~repeats]


def _neighbours(points: Matrix) -> tuple[NDArray[np.int32], Matrix]:
    """List the nearest points of each, and their squared distances; the first two are certain, absent ones infinite."""
    from toposcope.kernels.euclidean_tree import neighbour_searches
    from toposcope.kernels.neighbour_search import N_LISTED

    n = len(points)
    indices, squares = np.empty((n, N_LISTED), np.int32), np.empty((n, N_LISTED))
    undecided, apart = np.arange(n), np.arange(n, dtype=np.int32)  # every point a component of its own
    for search in neighbour_searches(points):
        if len(undecided):
            lists = search(undecided, apart)
            indices[undecided], squares[undecided] = lists.indices, lists.squares
            undecided = undecided[lists.squares[:, 1] > lists.beyond]
    return indices, squares
