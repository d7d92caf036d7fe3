"""Trace and spectral density of a symmetric operator from its products with random vectors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count, as_number
from toposcope.homology.lanczos import Operator, checked_product, orthonormal_rows
from toposcope.homology.tuning import CHUNK, MAX_BASIS_BYTES
from toposcope.typing import Matrix, Vector


@dataclass(frozen=True)
class TraceEstimate:
    """A trace with the standard error of its random part; 0 where the operator was seen as a whole."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class SpectralDensity:
    """A spectral measure by stochastic Lanczos quadrature: a mean over random starts of points with weights.

    Attributes
    ----------
    nodes : ndarray, shape (draws, steps), float64
        Ritz values of each start.
    weights : ndarray, shape (draws, steps), float64
        Those of a start sum to 1; all moments up to 2 steps - 1 of its measure are exact.
    coarse_nodes, coarse_weights : ndarray, shape (draws, half of the steps)
        The same after half of the steps.
    """

    nodes: Matrix
    weights: Matrix
    coarse_nodes: Matrix
    coarse_weights: Matrix

    def share(self, low: float, high: float) -> tuple[float, float]:
        """Return the share of eigenvalues in (low, high], and its error.

        The error is the root of the sum of two squares: of the standard error over starts, and of the change from half
        of the steps to all.
        """
        low, high = as_number(low, "low", -np.inf), as_number(high, "high", -np.inf)
        shares = _masses(self.nodes, self.weights, low, high)
        coarse = _masses(self.coarse_nodes, self.coarse_weights, low, high)
        random = float(np.std(shares, ddof=1)) / len(shares) ** 0.5
        return float(shares.mean()), float(np.hypot(random, shares.mean() - coarse.mean()))


def _finite(estimates: Vector) -> Vector:
    if not np.isfinite(estimates).all():
        raise ToposcopeError(
            "product: sums of its entries are beyond the range of float64; divide the operator by a number"
        )
    return estimates


def hutch_plus_plus(
    product: Operator, dimension: int, draws: int, rng: np.random.Generator, *, basis: NDArray[Any] | None = None
) -> TraceEstimate:
    """Estimate a trace: exactly on a subspace that holds most of it, by random signs on the rest.

    Meyer, Musco, Musco & Woodruff 2021, "Hutch++: optimal stochastic trace estimation", Algorithm 1.

    Parameters
    ----------
    product : callable
    dimension : int
    draws : int
        At least 2, of the random part; with a sketch there are two more products for each.
    rng : numpy.random.Generator
    basis : ndarray, shape (k, n), optional
        Orthonormal rows of the subspace, chosen without these draws, such as eigenvectors; a sketch of `draws` products
        if not given.

    Raises
    ------
    ToposcopeError
        If a product is not a finite vector, or an estimate is not finite, or a number is out of range.

    Examples
    --------
    >>> A = np.diag([100.0, 5, 0, 0, 0, 0])
    >>> round(hutch_plus_plus(lambda v: A @ v, 6, 4, np.random.default_rng(0)).value, 1)
    105.0
    """
    dimension, draws = as_count(dimension, "dimension", 1), as_count(draws, "draws", 2)
    if basis is None:
        starts = (rng.standard_normal(dimension) for _ in range(min(draws, dimension)))
        basis = orthonormal_rows(np.array([checked_product(product, start) for start in starts]))
    with np.errstate(over="ignore", invalid="ignore"):
        inside = float(_finite(np.array([row @ checked_product(product, row) for row in basis])).sum())
    if len(basis) == dimension:
        return TraceEstimate(inside, 0.0)

    def outside(vector: NDArray[Any]) -> NDArray[Any]:
        # random signs are needed again: their product with the result is the sample
        return _outside(basis, checked_product(product, _outside(basis, vector.copy())))

    signs = (_signs(rng, dimension) for _ in range(draws))
    with np.errstate(over="ignore", invalid="ignore"):
        samples = _finite(np.array([z @ checked_product(outside, z) for z in signs]))
    return TraceEstimate(inside + float(samples.mean()), float(np.std(samples, ddof=1)) / draws**0.5)


def spectral_density(
    product: Operator,
    dimension: int,
    draws: int,
    steps: int,
    rng: np.random.Generator,
    dtype: type[np.float32 | np.float64] = np.float64,
) -> SpectralDensity:
    """Estimate the spectral density by stochastic Lanczos quadrature.

    Each random start gives the Gauss quadrature of its own spectral measure, by Lanczos' algorithm with full
    re-orthogonalisation (Golub & Meurant 2010, section 6.2; Ubaru, Chen & Saad 2017; Ghorbani, Krishnan & Xiao 2019).

    Parameters
    ----------
    product : callable
    dimension : int
    draws : int
        Random starts, at least 2.
    steps : int
        At least 2; fewer where the dimension is smaller.
    rng : numpy.random.Generator
    dtype : float32 or float64
        Of the basis.

    Raises
    ------
    ToposcopeError
        If a product is not a finite vector, or an estimate is not finite, or a number is out of range.

    Notes
    -----
    Memory: `steps` vectors. Where these would take more than 4 GB, only the last two are kept, and new ones are
    orthogonal to these alone. Eigenvalues may then have copies, whose weights add up to that of the original: the
    quadrature remains accurate, with a resolution of fewer steps (Greenbaum 1989, "Behavior of slightly
    perturbed Lanczos and conjugate-gradient recurrences"; Knizhnerman 1996).

    Examples
    --------
    >>> A = np.diag([8.0, 8, 8, 9])
    >>> found = spectral_density(lambda v: A @ v, 4, 500, 3, np.random.default_rng(0))
    >>> round(found.share(4, 10)[0], 1)
    1.0
    """
    dimension, draws, steps = (
        as_count(dimension, "dimension", 1),
        as_count(draws, "draws", 2),
        as_count(steps, "steps", 2),
    )
    steps = min(steps, dimension)
    fine, coarse = [], []
    for _ in range(draws):
        start = rng.standard_normal(dimension)
        start /= np.linalg.norm(start)
        tridiagonal = _tridiagonal(product, start.astype(dtype, copy=False), steps)
        fine.append(_quadrature(tridiagonal))
        coarse.append(_quadrature(tridiagonal[: max(1, steps // 2), : max(1, steps // 2)]))
    nodes, weights = (np.array(part) for part in zip(*fine, strict=True))
    coarse_nodes, coarse_weights = (np.array(part) for part in zip(*coarse, strict=True))
    return SpectralDensity(nodes, weights, coarse_nodes, coarse_weights)


def rows_kept(dimension: int, steps: int, itemsize: int) -> int:
    """Return how many vectors of a start are held in memory."""
    return steps if steps * itemsize * dimension <= MAX_BASIS_BYTES else 2


def _tridiagonal(product: Operator, start: NDArray[Any], steps: int) -> Matrix:
    """Return Lanczos' tridiagonal matrix; zero beyond an invariant subspace, where its first part is exact."""
    dtype = start.dtype
    rows: NDArray[Any] = np.empty((rows_kept(len(start), steps, dtype.itemsize), len(start)), dtype)
    projection = np.zeros((steps, steps))
    rows[0] = start
    for j in range(steps):
        row, kept = rows[j % len(rows)], rows[: j + 1]
        image = checked_product(product, row, dtype)
        projection[j, j] = row @ image
        for _ in range(2):
            image -= (kept @ image) @ kept
        length = float(np.linalg.norm(image))
        if j + 1 == steps or length <= 100 * np.finfo(dtype).eps * np.abs(projection).max():
            break
        image /= length
        rows[(j + 1) % len(rows)] = image
        projection[j, j + 1] = projection[j + 1, j] = length
    return projection


def _quadrature(tridiagonal: Matrix) -> tuple[Vector, Vector]:
    values, vectors = np.linalg.eigh(tridiagonal)
    weights = vectors[0] ** 2
    return values, weights / weights.sum()


def _masses(nodes: Matrix, weights: Matrix, low: float, high: float) -> Vector:
    masses: Vector = np.where((nodes > low) & (nodes <= high), weights, 0.0).sum(axis=1)
    return masses


def _signs(rng: np.random.Generator, n: int) -> Vector:
    signs = rng.integers(0, 2, n, np.int8).astype(np.float64)
    signs *= 2
    signs -= 1
    return signs


def _outside(basis: NDArray[Any], vector: Vector) -> Vector:
    """Subtract from a vector, in place, its part in the space of orthonormal rows; widens some entries at a time."""
    parts = [slice(start, start + CHUNK) for start in range(0, len(vector), CHUNK)]
    coefficients = np.zeros(len(basis))
    for part in parts:
        coefficients += basis[:, part].astype(np.float64) @ vector[part]
    for part in parts:
        vector[part] -= coefficients @ basis[:, part].astype(np.float64)
    return vector
