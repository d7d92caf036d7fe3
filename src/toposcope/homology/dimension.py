"""Dimension of a set of points: from two nearest neighbours, and from the sums of its H0 bars."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError, warn_caller
from toposcope.homology.arrays import as_count, as_float_matrix, as_number
from toposcope.homology.point_cloud import Cloud, Directions, Distances, Euclidean, Metric, as_cloud, as_distances
from toposcope.homology.rips import rips
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix, Vector

N_SIZES = 8  # subset sizes
MIN_POINTS = 50  # with fewer, default sizes are not apart enough for a slope
MAX_EQUAL_CHORD = 2.0**-50  # chord of the unit sphere that rounding may leave between equal directions


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
    distinct = ~np.tril(matrix <= same, -1).any(axis=1)
    if not distinct.all():
        matrix = matrix[np.ix_(distinct, distinct)]
    return two_least(matrix)


def two_least(distances: Matrix) -> Matrix:
    """Return the two least entries of each row off the diagonal, infinite where there are none; shape (n, 2)."""
    n = len(distances)
    result = np.full((n, 2), np.inf)
    for begin in range(0, n if n > 1 else 0, 256):  # no second copy of the matrix
        rows = distances[begin : begin + 256].copy()
        np.fill_diagonal(rows[:, begin:], np.inf)
        result[begin : begin + 256] = np.partition(rows, 1, axis=1)[:, :2]
    return result


def _two_least_squares(points: Matrix, same: float) -> Matrix:
    """Return the two least squared distances of each point that has no earlier one at a square of at most `same`."""
    from toposcope.kernels.pairwise import first_occurrences

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
    from toposcope.kernels.boruvka import N_LISTED, neighbour_searches

    n = len(points)
    indices, squares = np.empty((n, N_LISTED), np.int32), np.empty((n, N_LISTED))
    undecided, apart = np.arange(n), np.arange(n, dtype=np.int32)  # every point a component of its own
    for search in neighbour_searches(points):
        if len(undecided):
            lists = search(undecided, apart)
            indices[undecided], squares[undecided] = lists.indices, lists.squares
            undecided = undecided[lists.squares[:, 1] > lists.beyond]
    return indices, squares


@dataclass(frozen=True)
class DimensionEstimate:
    """Dimension estimated with one alpha.

    Attributes
    ----------
    alpha : float
        Power of the lifetimes.
    dimension : float
        alpha / (1 - slope); infinite if the slope is 1 or more: the sums grow at least as fast as the number of
        points, which they do for no finite dimension.
    interval : (float, float)
        95% interval of ``dimension``; an end may be infinite. It covers the choice of the random subsets, and nothing
        else: not the bias at finite sizes (the same in every draw), and not the choice of the points themselves. More
        draws make it arbitrarily narrow, around a value as biased as before.
    slope : float
        Slope of the mean of log E_alpha against log n, by least squares.
    r_squared : float
        Share of the variance of those means that the line explains; nan if they are all equal. Near slope 0 (alpha
        near the dimension) it is low for a good line too.
    alpha_too_large : bool
        True if alpha is not below ``dimension``: the theory does not cover the estimate.
    standard_error : float
        Of ``dimension``, over the random subsets: to first order, from that of the slope. Infinite if it is.
    """

    alpha: float
    dimension: float
    interval: tuple[float, float]
    slope: float
    r_squared: float
    alpha_too_large: bool
    standard_error: float


@dataclass(frozen=True, eq=False)
class PHDimension:
    """Persistent-homology dimension for several alphas, from the same random subsets.

    Attributes
    ----------
    estimates : tuple of DimensionEstimate
        One for each alpha, in the given order; the first is the primary one.
    sizes : ndarray, shape (s,), int64
        Subset sizes, ascending.
    log_sums : ndarray, shape (s, k), float64
        Mean over draws of the natural logarithm of E_alpha, a column for each alpha: what the lines are fitted to.
    n_points : int
    n_draws : int
        Subsets drawn at every size.
    """

    estimates: tuple[DimensionEstimate, ...]
    sizes: NDArray[np.int64]
    log_sums: Matrix
    n_points: int
    n_draws: int

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"PHDimension({self.dimension:.4g}, interval=({low:.4g}, {high:.4g}), n_points={self.n_points}, "
            f"n_draws={self.n_draws})"
        )

    @property
    def dimension(self) -> float:
        """The dimension of the primary (first) alpha."""
        return self.estimates[0].dimension

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the primary alpha; see `DimensionEstimate` for what it covers."""
        return self.estimates[0].interval


def ph_dimension(
    points: ArrayLike | Any,
    *,
    metric: Literal["euclidean", "precomputed"] = "euclidean",
    alpha: float | Sequence[float] = (1.0, 0.75, 1.25),
    sizes: Sequence[int] | None = None,
    n_draws: int = 20,
    seed: int = 0,
) -> PHDimension:
    """Estimate the persistent-homology dimension of a set of points, in whatever order they come.

    E_alpha(n) is the sum of (finite H0 lifetime)^alpha over n points drawn without replacement: over the edges of their
    Euclidean minimum spanning tree. If log E_alpha against log n has slope m, the dimension is alpha / (1 - m).

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d)
        One point a row, such as the weights at one step of a run; any floating-point dtype, computed in float64.
    metric : "euclidean" or "precomputed"
        ``"precomputed"`` takes the (n, n) distances of the points instead.
    alpha : float or sequence of float
        Powers, above 0. The first is the primary one: 1 by default, as in the paper.
    sizes : sequence of int, optional
        Subset sizes: at least 3 different ones, of 2 to n points. By default 8, from a quarter of the largest to the
        largest, evenly spaced in their logarithm. The largest is 4 n / 5 up to n = 125, then 100, n / 2 from n = 200,
        1,000 from n = 2,000, and n / 4 from n = 4,000.
    n_draws : int
        Subsets drawn at every size, at least 2. The same subsets serve every alpha.
    seed : int
        The draws at one size depend on the seed, the size and n alone.

    Raises
    ------
    ToposcopeError
        If the points are not a finite floating-point matrix, are fewer than 50 (without `sizes`), or are all equal (or
        those of one subset are: E is then 0 and has no logarithm); or if an option is out of range.

    Warns
    -----
    UserWarning
        Once a call, if some alpha is not below the dimension it found (the theory needs alpha < dimension), or if a
        dimension is infinite.

    Notes
    -----
    Cost: the trees, O(n_draws d sum(sizes^2)) time, O(nd) memory. Source: Birdal et al. 2021, "Intrinsic dimension,
    persistent homology and generalization in neural networks", Algorithm 1; Schweinhart 2020 for alpha other than 1.
    Small subsets are mostly boundary, which biases every estimate. Large parts of a regular set are not like random
    points (of equally spaced ones the gaps are geometric; only those of a small part are nearly exponential), which
    biases every alpha but 1 on a line, and alpha = 1 too on a random walk. The default sizes balance the two.
    """
    alphas = _as_alphas(alpha)
    n_draws = as_count(n_draws, "n_draws", 2)
    seed = as_count(seed, "seed", 0)
    if metric not in ("euclidean", "precomputed"):
        raise ToposcopeError(f"metric: expected 'euclidean' or 'precomputed', got {metric!r}")
    given = metric == "precomputed"
    cloud = as_distances(points, "distances") if given else as_float_matrix(points, "points").astype(np.float64)
    chosen = _default_sizes(cloud.shape) if sizes is None else _as_sizes(sizes, cloud.shape)
    if not cloud.any() if given else (cloud == cloud[0]).all():
        raise ToposcopeError(f"points: all {len(cloud)} points are equal, shape {cloud.shape}; they have no dimension")
    logs = np.empty((len(alphas), len(chosen), n_draws))
    for i, size in enumerate(chosen):
        # A stream for each size: asking for one size more changes no draw of the others.
        generator = np.random.default_rng(derive_seed(seed, "ph_dimension", int(size)))
        for k in range(n_draws):
            drawn = generator.choice(len(cloud), int(size), replace=False)
            subset = cloud[np.ix_(drawn, drawn)] if given else cloud[drawn]
            lifetimes = rips(subset, metric=metric, max_dimension=0)[0].lifetimes
            logs[:, i, k] = _log_power_sums(lifetimes, alphas, cloud.shape)
    estimates = tuple(_estimate(a, np.log(chosen), logs[j]) for j, a in enumerate(alphas))
    if message := _warning(estimates):
        warn_caller(message)
    return PHDimension(estimates, chosen, logs.mean(axis=2).T.copy(), len(cloud), n_draws)


def _as_alphas(alpha: Any) -> list[float]:
    values = list(alpha) if isinstance(alpha, Iterable) and not isinstance(alpha, str) else [alpha]
    numbers = [as_number(value, "alpha", 0) for value in values]
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise ToposcopeError(f"alpha: expected one or more finite numbers above 0, got {alpha!r}")
    return numbers


def _default_sizes(shape: tuple[int, ...]) -> NDArray[np.int64]:
    n = shape[0]
    if n < MIN_POINTS:
        raise ToposcopeError(
            f"points: expected at least {MIN_POINTS} points, got shape {shape}; fewer need `sizes` of their own"
        )
    largest = max(min(n // 2, max(1000, n // 4)), min(4 * n // 5, 100))
    smallest = largest // 4
    return np.unique(np.geomspace(smallest, largest, N_SIZES).round().astype(np.int64))


def _as_sizes(sizes: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    if not isinstance(sizes, Iterable):
        raise ToposcopeError(f"sizes: expected a sequence of whole numbers, got {sizes!r}")
    counts = np.unique(np.array([as_count(size, "sizes", 2) for size in sizes], dtype=np.int64))
    if len(counts) < 3 or counts[-1] > shape[0]:
        raise ToposcopeError(
            f"sizes: expected at least 3 different sizes, none above the number of points, {shape[0]}, "
            f"got {counts.tolist()}"
        )
    return counts


def _log_power_sums(lifetimes: Vector, alphas: list[float], shape: tuple[int, ...]) -> list[float]:
    """Logarithm of sum(l^alpha) for every alpha, in units of the longest bar so that no power leaves the range."""
    longest = lifetimes.max()
    if longest == 0:
        raise ToposcopeError(
            f"points: a random subset of {len(lifetimes) + 1} holds equal points only, shape {shape}; "
            "remove the duplicates or take larger sizes"
        )
    shares = lifetimes / longest
    return [float(alpha * np.log(longest) + np.log((shares**alpha).sum())) for alpha in alphas]


def _estimate(alpha: float, log_sizes: Vector, logs: Matrix) -> DimensionEstimate:
    """Fit one line to the means over draws; `logs` has shape (sizes, draws)."""
    from scipy.special import stdtrit

    means = logs.mean(axis=1)
    offsets = log_sizes - log_sizes.mean()
    weights = offsets / (offsets**2).sum()
    slope = float(weights @ means)
    residuals = means - means.mean() - slope * offsets
    scatter = float(((means - means.mean()) ** 2).sum())
    # The slope is a weighted sum of independent means, each with a variance of its own: Welch and Satterthwaite.
    n_draws = logs.shape[1]
    variances = weights**2 * logs.var(axis=1, ddof=1) / n_draws
    total = float(variances.sum())
    half = 0.0
    if total > 0:
        shares = variances / total
        half = float(stdtrit((n_draws - 1) / (shares**2).sum(), 0.975)) * total**0.5
    dimension = _dimension(alpha, slope)
    return DimensionEstimate(
        alpha=alpha,
        dimension=dimension,
        interval=(_dimension(alpha, slope - half), _dimension(alpha, slope + half)),
        slope=slope,
        r_squared=1 - float((residuals**2).sum()) / scatter if scatter > 0 else float("nan"),
        alpha_too_large=not alpha < dimension,
        standard_error=alpha / (1 - slope) ** 2 * total**0.5 if slope < 1 else float("inf"),
    )


def _dimension(alpha: float, slope: float) -> float:
    # It grows with the slope, so an interval of slopes is one of dimensions.
    return alpha / (1 - slope) if slope < 1 else float("inf")


def _warning(estimates: Sequence[DimensionEstimate]) -> str:
    """Return one line about estimates that the theory does not cover; empty if there are none."""
    large = [f"{e.alpha:g} (dimension {e.dimension:.3g})" for e in estimates if e.alpha_too_large]
    infinite = [f"{e.alpha:g}" for e in estimates if e.dimension == float("inf")]
    parts = []
    if large:
        parts.append(f"the theory needs alpha below the dimension, which does not hold for alpha = {', '.join(large)}")
    if infinite:
        parts.append(f"the slope is 1 or more, and no dimension finite, for alpha = {', '.join(infinite)}")
    return "; ".join(parts)
