"""Trace and spectral density of a symmetric operator by stochastic Lanczos quadrature."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.homology.arrays import as_count, as_number
from toposcope.homology.eigenpairs import Eigenpairs, Operator, checked_product, outside
from toposcope.typing import Matrix, Vector

MAX_BASIS_BYTES = 1 << 32  # of the vectors of a start; beyond, only two are kept


@dataclass(frozen=True)
class SpectralDensity:
    """A spectral measure: eigenvalues that are known, and of the rest a mean over random starts of points with weights.

    Attributes
    ----------
    dimension : int
        n.
    known : ndarray, shape (k,), float64
    nodes : ndarray, shape (draws, steps), float64
        Ritz values of each start.
    weights : ndarray, shape (draws, steps), float64
        Those of a start sum to 1; all moments up to 2 steps - 1 of its measure are exact.
    coarse_nodes, coarse_weights : ndarray, shape (draws, half of the steps)
        The same after half of the steps.
    """

    dimension: int
    known: Vector
    nodes: Matrix
    weights: Matrix
    coarse_nodes: Matrix
    coarse_weights: Matrix

    def trace(self) -> tuple[float, float]:
        """Return the trace, and the standard error of its random part."""
        rest = (self.dimension - len(self.known)) * (self.weights * self.nodes).sum(axis=1)
        return float(self.known.sum() + rest.mean()), float(np.std(rest, ddof=1)) / len(rest) ** 0.5

    def share(self, low: float, high: float) -> tuple[float, float]:
        """Return the share of eigenvalues in (low, high], and its error.

        The error is the root of the sum of two squares: of the standard error over starts, and of the change from half
        of the steps to all.
        """
        low, high = as_number(low, "low", -np.inf), as_number(high, "high", -np.inf)
        rest = 1 - len(self.known) / self.dimension
        shares = rest * _masses(self.nodes, self.weights, low, high)
        coarse = rest * _masses(self.coarse_nodes, self.coarse_weights, low, high)
        random = float(np.std(shares, ddof=1)) / len(shares) ** 0.5
        share = ((self.known > low) & (self.known <= high)).sum() / self.dimension + shares.mean()
        return float(share), float(np.hypot(random, shares.mean() - coarse.mean()))


def spectral_density(
    product: Operator,
    dimension: int,
    draws: int,
    steps: int,
    rng: np.random.Generator,
    dtype: type[np.float32 | np.float64] = np.float64,
    known: Eigenpairs | None = None,
) -> SpectralDensity:
    """Estimate trace and spectral density by stochastic Lanczos quadrature, outside the eigenvectors that are known.

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
    known : Eigenpairs, optional
        Eigenvalues that need no estimate: starts are orthogonal to their vectors, and neither the trace nor a share has
        an error for them (the splitting of Hutch++, Meyer, Musco, Musco & Woodruff 2021).

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
    >>> round(found.share(4, 10)[0], 1), round(found.trace()[0])
    (1.0, 33)
    """
    dimension, draws, steps = (
        as_count(dimension, "dimension", 1),
        as_count(draws, "draws", 2),
        as_count(steps, "steps", 2),
    )
    values = np.empty(0) if known is None else known.values
    vectors = np.empty((0, dimension), dtype) if known is None else known.vectors
    steps = min(steps, max(1, dimension - len(values)))
    fine, coarse = [], []
    for _ in range(draws if len(values) < dimension else 0):
        start = outside(vectors, rng.standard_normal(dimension).astype(dtype))
        tridiagonal = _tridiagonal(product, start / np.linalg.norm(start), steps, vectors)
        fine.append(_quadrature(tridiagonal))
        coarse.append(_quadrature(tridiagonal[: max(1, steps // 2), : max(1, steps // 2)]))
    if not fine:
        fine = coarse = [(np.zeros(1), np.zeros(1))] * draws
    parts = [np.array(part) for quadratures in (fine, coarse) for part in zip(*quadratures, strict=True)]
    return SpectralDensity(dimension, values, *parts)


def rows_kept(dimension: int, steps: int, itemsize: int) -> int:
    """Return how many vectors of a start are held in memory."""
    return steps if steps * itemsize * dimension <= MAX_BASIS_BYTES else 2


def _tridiagonal(product: Operator, start: NDArray[Any], steps: int, vectors: NDArray[Any]) -> Matrix:
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
            image = outside(vectors, image - (kept @ image) @ kept)
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
