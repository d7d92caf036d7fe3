"""Representation topology divergence (Barannikov, Trofimov, Balabin and Burnaev 2022, arXiv:2201.00058), exact.

It compares two representations of the same points: not where a point is, but which points hold together, and at
what distance.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count
from toposcope.homology.diagram import Diagram
from toposcope.homology.loops import check_loops_fit, loop_diagram
from toposcope.homology.point_cloud import Cloud, Metric, as_cloud, as_distances
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector


@dataclass(frozen=True, eq=False)
class TopologyDivergence:
    """Divergence of two representations, over batches of points.

    Attributes
    ----------
    value : float
        Mean over batches of (forward + backward) / 2; 0 if all distances agree.
    spread : float
        Standard deviation of that over batches (n_batches - 1 in the denominator): how much the choice of points
        matters. 0 if the one batch is all points, nan if it is one batch of a larger set.
    forward : ndarray, shape (n_batches,), float64
        RTD_1(first, second): what is apart, or hollow, in the first and joined, or filled, in the second.
    backward : ndarray, shape (n_batches,), float64
        RTD_1(second, first).
    n_batches : int
        Batches computed: 1 if all points fit into one.
    batch_size : int
        Points in a batch.
    """

    value: float
    spread: float
    forward: Vector
    backward: Vector
    n_batches: int
    batch_size: int

    def __repr__(self) -> str:
        return (
            f"TopologyDivergence(value={self.value:.4g}, spread={self.spread:.4g}, n_batches={self.n_batches}, "
            f"batch_size={self.batch_size})"
        )


def rtd(
    first: ArrayLike | Any,
    second: ArrayLike | Any,
    *,
    metric: Metric = "euclidean",
    normalize: bool = True,
    batch_size: int = 500,
    n_batches: int = 10,
    seed: int = 0,
) -> TopologyDivergence:
    """Return the representation topology divergence of two representations of the same points.

    Parameters
    ----------
    first, second : array-like or torch.Tensor, shapes (n, d) and (n, e)
        Row i of both is the same object. Any floating-point dtype; computed in float64. With ``"precomputed"``, the
        (n, n) distances.
    metric : "euclidean", "cosine" or "precomputed"
        Distances need not obey the triangle inequality, but are symmetric, non-negative, and 0 on the diagonal.
    normalize : bool
        Divide the distances of each representation by their 0.9 quantile, in every batch: over all entries of its
        matrix, the diagonal included, as the authors' code does.
    batch_size : int
        Points in a batch, at least 2. If n is at most this, the one batch is all points, and nothing is random.
    n_batches : int
        Random batches, drawn without replacement within a batch, if n is larger.
    seed : int
        Batch k depends on the seed, k, n and `batch_size` alone.

    Returns
    -------
    TopologyDivergence

    Raises
    ------
    ToposcopeError
        If an argument is not a finite floating-point matrix (or not one of distances), if the two differ in n, if n is
        below 2, if the 0.9 quantile of a batch is 0 (nearly all its points are equal), or if an option is out of range.

    Notes
    -----
    Each direction of each batch is the H1 of 2 b + 1 vertices for b points; see `cross_barcode`. Sums of lengths, so
    values grow with the batch: compare only values of one `batch_size`.
    """
    batch_size = as_count(batch_size, "batch_size", 2)
    n_batches = as_count(n_batches, "n_batches", 1)
    seed = as_count(seed, "seed", 0)
    names = ("first", "second")
    clouds = (as_cloud(first, metric, "first"), as_cloud(second, metric, "second"))
    n = _same_points(clouds[0].shape, clouds[1].shape, names)
    if n < 2:
        raise ToposcopeError(f"first: expected at least 2 points, got shape {clouds[0].shape}")
    everything = n <= batch_size
    directions = np.empty((1 if everything else n_batches, 2))
    for k in range(len(directions)):
        # A stream for each batch: asking for one more changes none of the others.
        generator = np.random.default_rng(derive_seed(seed, "rtd", k))
        batch = np.arange(n) if everything else generator.choice(n, batch_size, replace=False)
        w, v = (_batch_distances(cloud, batch, normalize, name) for cloud, name in zip(clouds, names, strict=True))
        with np.errstate(over="ignore"):  # beyond the range the sum is infinite, and says so
            directions[k] = _cross_bars(w, v).lifetimes.sum(), _cross_bars(v, w).lifetimes.sum()
    values = directions.mean(axis=1)
    return TopologyDivergence(
        value=float(values.mean()),
        spread=0.0 if everything else float(values.std(ddof=1)) if n_batches > 1 else float("nan"),
        forward=directions[:, 0].copy(),
        backward=directions[:, 1].copy(),
        n_batches=len(directions),
        batch_size=min(n, batch_size),
    )


def cross_barcode(first_distances: ArrayLike | Any, second_distances: ArrayLike | Any) -> Diagram:
    """Return the R-Cross-Barcode of dimension 1 of two matrices of distances between the same points.

    At a threshold, let R(w) be the Vietoris-Rips complex of the first distances w, and R(min) that of the entrywise
    minimum of both, which contains it. The barcode is that of the relative homology H1(R(min), R(w)): its bars are
    clusters of the first that the second joins earlier, and loops made by the second's short distances that the
    first's do not make. The sum of its lengths is RTD_1(first, second). It is not symmetric.

    Parameters
    ----------
    first_distances, second_distances : array-like or torch.Tensor, shape (n, n)
        Symmetric, non-negative, finite, 0 on the diagonal; any floating-point dtype, read as float64. They are not
        normalized here.

    Returns
    -------
    Diagram
        Dimension 1, positive lengths only. Nothing is essential: at the largest distance of the first, both complexes
        are full simplices. No bar is longer than the largest excess of the first distances over the second.

    Raises
    ------
    ToposcopeError
        If an argument is not a matrix of distances, or their shapes differ.

    Notes
    -----
    The H1 of 2n + 1 vertices by `toposcope.homology.loops`: 24 (2n + 1)^2 bytes, near O(n^3 / 8) time, and less
    where the bars end early.
    """
    w = as_distances(first_distances, "first_distances")
    v = as_distances(second_distances, "second_distances")
    _same_points(w.shape, v.shape, ("first_distances", "second_distances"))
    return _cross_bars(w, v)


def _cross_bars(w: Matrix, v: Matrix) -> Diagram:
    """Compute the barcode on 2n + 1 vertices: the points with w (A'), the points with min(w, v) (A), and a cone point.

    A'_i is at 0 from A_i, and at w_ij from A_j for j < i only, so that the complex is a cylinder of the inclusion of
    R(w) in R(min); the cone point, at 0 from all of A', closes the end that is R(w).
    """
    n = len(w)
    check_loops_fit(2 * n + 1, f"divergence of {n} points in a batch", "lower batch_size, or take fewer points")
    matrix = np.full((2 * n + 1, 2 * n + 1), np.inf)
    matrix[:n, :n] = w
    matrix[n:-1, n:-1] = np.minimum(w, v)
    half = np.where(np.tri(n, k=-1, dtype=bool), np.inf, w)  # w_+: below the diagonal, infinite
    matrix[n:-1, :n] = half
    matrix[:n, n:-1] = half.T
    matrix[-1, :n] = matrix[:n, -1] = matrix[-1, -1] = 0
    # The row of the last point of A' is all finite. From its largest entry on, the complex is a cone: the filtration
    # ends there, every bar has ended, and no infinite edge has entered.
    return loop_diagram(matrix)


def _same_points(first: tuple[int, ...], second: tuple[int, ...], names: tuple[str, str]) -> int:
    """Return the number of points of both shapes."""
    if first[0] != second[0]:
        raise ToposcopeError(
            f"{names[1]}: expected as many points as {names[0]}, shape {first}, got shape {second}; row i of both is "
            "the same object"
        )
    return first[0]


def _batch_distances(cloud: Cloud, batch: Indices, normalize: bool, name: str) -> Matrix:
    """Distances within a batch, divided by their 0.9 quantile if asked."""
    distances = cloud.distances(batch)
    with np.errstate(over="ignore", invalid="ignore"):
        if normalize:
            quantile = float(np.quantile(distances, 0.9))
            if quantile == 0:
                raise ToposcopeError(
                    f"{name}: the 0.9 quantile of the distances of {len(batch)} points is 0, shape {cloud.shape}: "
                    "nearly all are equal; normalize=False keeps the distances as they are"
                )
            distances = distances / quantile
    if not np.isfinite(distances).all():
        raise ToposcopeError(f"{name}: distances are infinite, or beyond float64, shape {cloud.shape}")
    return distances
