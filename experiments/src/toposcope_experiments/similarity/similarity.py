"""How alike two representations of the same objects are: linear CKA, Procrustes, representation topology divergence."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.extend import (
    Diagram,
    Matrix,
    Metric,
    ToposcopeError,
    Vector,
    as_cloud,
    as_count,
    as_distances,
    as_scaled_matrix,
    check_loops_fit,
    derive_seed,
    loop_diagram,
)


def linear_cka(X: ArrayLike | Any, Y: ArrayLike | Any) -> float:
    """Return the linear centred kernel alignment of two representations of the same objects.

    With the columns of X and Y centred, ||X'Y||_F^2 / (||X'X||_F ||Y'Y||_F).

    Parameters
    ----------
    X, Y : array-like or torch.Tensor, shapes (n, d) and (n, e)
        Row i of both is the same object. Any floating-point dtype; computed in float64.

    Returns
    -------
    float
        In [0, 1]: 1 if a rotation (or reflection) and a scale take one to the other.

    Raises
    ------
    ToposcopeError
        If an argument is not a finite floating-point matrix, the two differ in n, or all points of one are equal.

    Notes
    -----
    Source: Kornblith, Norouzi, Lee & Hinton 2019, arXiv:1905.00414, Eq. 4 with linear kernels, section 3. With
    d + e <= n the products are those of features, O(n (d + e)^2) time and O((d + e)^2) memory next to the points; else
    those of objects, O(n^2 (d + e)) and O(n^2). The bias of few objects is not removed: unrelated Gaussian points come
    to about (d e / ((n + d) (n + e)))^(1/2), not to 0. The number of threads of BLAS changes last digits: up to 3e-15.
    """
    x, y = _two_centred(X, Y)
    if x.shape[1] + y.shape[1] <= len(x):
        both = _size(x.T @ y)
        alone = _size(x.T @ x) * _size(y.T @ y)
        return min(1.0, both**2 / alone)
    K, L = x @ x.T, y @ y.T
    return max(0.0, min(1.0, float(np.vdot(K, L)) / (_size(K) * _size(L))))


def procrustes(X: ArrayLike | Any, Y: ArrayLike | Any) -> float:
    """Return the distance of two representations of the same objects, after the best shift, scale and rotation.

    With X and Y centred and divided by their Frobenius norms, min ||X - YQ||_F over orthogonal Q, which is
    sqrt(2 - 2 ||X'Y||_*), * for the sum of singular values. The narrower is padded with columns of zeros.

    Parameters
    ----------
    X, Y : array-like or torch.Tensor, shapes (n, d) and (n, e)
        Row i of both is the same object. Any floating-point dtype; computed in float64.

    Returns
    -------
    float
        In [0, sqrt(2)]. A metric: symmetric, 0 only if a shift, a scale and a rotation or reflection take one to the
        other, and the triangle inequality holds.

    Raises
    ------
    ToposcopeError
        As of `linear_cka`.

    Notes
    -----
    Source: Schoenemann 1966, Psychometrika 31:1-10; as a metric of shapes Williams, Kunz, Kornblith & Linderman 2021,
    arXiv:2110.14739, section 2.1. The disparity of ``scipy.spatial.procrustes``, which scales Y once more, is
    1 - ||X'Y||_*^2. O(n d e + (d + e) min(d, e)^2) time; of representations wider than n, d and e are n, after
    O(n^2 (d + e)). The distance of equal ones is 0 up to about 1e-8, as its square is up to rounding. The number of
    threads of BLAS changes last digits: of 2 - 2 ||X'Y||_* up to about 1e-14.
    """
    x, y = (_narrowed(points) for points in _two_centred(X, Y))
    nuclear = float(np.linalg.svd(x.T @ y, compute_uv=False).sum())
    return math.sqrt(max(0.0, 2 - 2 * nuclear))


def _two_centred(X: ArrayLike | Any, Y: ArrayLike | Any) -> tuple[Matrix, Matrix]:
    """Return both centred, with Frobenius norm 1."""
    x, y = _centred(X, "X"), _centred(Y, "Y")
    if len(x) != len(y):
        raise ToposcopeError(
            f"Y: expected as many points as X, shape {x.shape}, got shape {y.shape}; row i of both is the same object"
        )
    return x, y


def _centred(values: ArrayLike | Any, name: str) -> Matrix:
    points, _ = as_scaled_matrix(values, name)
    if (points == points[0]).all():
        raise ToposcopeError(f"{name}: all {len(points)} points are equal, shape {points.shape}; they have no shape")
    points -= points.mean(axis=0)
    points -= points.mean(axis=0)  # what rounding left of it
    points /= np.abs(points).max()  # squares of close points far from the origin would underflow
    points /= np.linalg.norm(points)
    return points


def _narrowed(points: Matrix) -> Matrix:
    """Return points of no more dimensions than there are points, with the same products between them."""
    n, d = points.shape
    if d <= n:
        return points
    triangle: Matrix = np.asarray(np.linalg.qr(points.T, mode="r"))
    return triangle.T


def _size(matrix: Matrix) -> float:
    return float(np.linalg.norm(matrix))


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
        with np.errstate(over="ignore", invalid="ignore"):  # beyond the range a number is infinite, and says so
            pairs = zip(clouds, names, strict=True)
            w, v = (_in_units(cloud.distances(batch), normalize, name, cloud.shape) for cloud, name in pairs)
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
    The H1 of 2n + 1 vertices: 24 (2n + 1)^2 bytes, near O(n^3 / 8) time, and less
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


def _in_units(distances: Matrix, normalize: bool, name: str, shape: tuple[int, ...]) -> Matrix:
    """Return distances within a batch of points of some shape, divided by their 0.9 quantile if asked."""
    if normalize:
        quantile = float(np.quantile(distances, 0.9))
        if quantile == 0:
            raise ToposcopeError(
                f"{name}: the 0.9 quantile of the distances of {len(distances)} points is 0, shape {shape}: "
                "nearly all are equal; normalize=False keeps the distances as they are"
            )
        distances = distances / quantile
    if not np.isfinite(distances).all():
        raise ToposcopeError(f"{name}: distances are infinite, or beyond float64, shape {shape}")
    return distances
