"""Extreme eigenvalues of a symmetric operator that is known only by its products with vectors.

ARPACK finds them (`scipy.sparse.linalg.eigsh`). What it leaves open is added here: a residual for each pair from a
product of its own, and a second search, outside the pairs found, for the copies of a multiple eigenvalue that a search
from one start may miss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array, as_count, as_number
from toposcope.typing import Vector

Operator = Callable[[NDArray[Any]], NDArray[Any]]
"""Takes a vector, shape (n,), float32 or float64; returns its product with a symmetric matrix."""
SPARE = 10  # vectors of the basis besides those wanted: with fewer a search takes longer, with more memory
N_POWERS = 8  # products of the power method: its norm is a scale, and may be some ten percent too small


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues at one end of a spectrum, the outermost first.

    Attributes
    ----------
    values : ndarray, shape (k,), float64
        Rayleigh quotients of `vectors`.
    residuals : ndarray, shape (k,), float64
        Norms of Hv - value v, computed from a product of their own: each interval value +- residual holds an
        eigenvalue.
    vectors : ndarray, shape (k, n)
        Orthonormal, so that no two pairs stand for one eigenvalue.
    n_reliable : int
        How many of the first have converged and come, by what the second search found, without a gap.
    """

    values: Vector
    residuals: Vector
    vectors: NDArray[Any]
    n_reliable: int


def extreme_eigenpairs(
    product: Operator,
    dimension: int,
    n_largest: int,
    n_smallest: int = 1,
    *,
    tolerance: float = 1e-3,
    max_products: int = 400,
    rng: np.random.Generator,
    dtype: type[np.float32 | np.float64] = np.float64,
) -> tuple[Eigenpairs, Eigenpairs]:
    """Find the largest and the smallest eigenvalues of a symmetric operator, by sign, each with its residual.

    Parameters
    ----------
    product : callable
    dimension : int
        n.
    n_largest, n_smallest : int
        How many; fewer if the dimension is smaller, or fewer converge.
    tolerance : float
        A pair has converged if its residual is at most this share of the largest absolute eigenvalue.
    max_products : int
        About how many products the search of one end may take.
    rng : numpy.random.Generator
        Draws the starts.
    dtype : float32 or float64
        Of the vectors.

    Raises
    ------
    ToposcopeError
        If a product is not finite, or a number is out of range.

    Notes
    -----
    Memory: `vectors_held` vectors, and those that are returned.

    Examples
    --------
    >>> A = np.array([[4.0, 1, 0], [1, 3, 2], [0, 2, -1]])
    >>> largest, smallest = extreme_eigenpairs(lambda v: A @ v, 3, n_largest=2, rng=np.random.default_rng(0))
    >>> largest.values.round(8), smallest.values.round(8)
    (array([4.85410197, 3.        ]), array([-1.85410197]))
    """
    n_largest, n_smallest = as_count(n_largest, "n_largest", 0), as_count(n_smallest, "n_smallest", 0)
    as_count(n_largest + n_smallest, "n_largest + n_smallest", 1)
    n, max_products = as_count(dimension, "dimension", 1), as_count(max_products, "max_products", 1)
    tolerance = as_number(tolerance, "tolerance", 0)
    image = partial(checked_product, product, dtype=dtype)
    search = _by_dense_matrix if n <= basis_size(n, max(n_largest, n_smallest)) else _by_arpack
    scale = _norm(image, rng.standard_normal(n).astype(dtype))
    ends = []
    for sign, count in ((1, n_largest), (-1, n_smallest)):
        if not count:
            ends.append(Eigenpairs(np.empty(0), np.empty(0), np.empty((0, n), dtype), 0))
            continue
        vectors, beyond = search(
            image, np.empty((0, n), dtype), sign, min(count, n), scale, tolerance, max_products, rng
        )
        ends.append(_checked(image, vectors, sign, beyond, tolerance, scale))
    return ends[0], ends[1]


def checked_product(product: Operator, vector: NDArray[Any], dtype: Any = np.float64) -> NDArray[Any]:
    """Return a copy of the product with a vector in a dtype, if it is a finite vector of the same length."""
    values = as_array(product(vector), "product")
    if values.shape != vector.shape or values.dtype.kind not in "fiu":
        raise ToposcopeError(
            f"product: expected real numbers of shape {vector.shape}, got {values.dtype} of shape {values.shape}"
        )
    with np.errstate(over="ignore"):
        image = np.array(values, dtype)
    if not np.isfinite(image).all():
        count = int((~np.isfinite(image)).sum())
        raise ToposcopeError(
            f"product: {count} of {len(image)} entries are not finite in {image.dtype}; the operator is out of range"
        )
    return image


def basis_size(dimension: int, count: int) -> int:
    """Return how many vectors the search for `count` eigenvalues works with."""
    return min(dimension, count + SPARE)


def vectors_held(dimension: int, count: int) -> int:
    """Return how many vectors are in memory at most: the basis, ARPACK's copy of those wanted, and a few."""
    return basis_size(dimension, count) + count + 6


def outside(vectors: NDArray[Any], vector: NDArray[Any]) -> NDArray[Any]:
    """Return a vector without its part in the space of orthonormal rows."""
    part = (vectors @ vector) @ vectors
    return np.asarray(np.subtract(vector, part, out=part))


def _norm(image: Operator, vector: NDArray[Any]) -> float:
    """Return about the largest absolute eigenvalue, never more, by the power method; 1 for the zero matrix."""
    for _ in range(N_POWERS):
        vector = image(vector / (_length(vector) or 1))
    return _length(vector) or 1.0


def _length(vector: NDArray[Any]) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def _by_dense_matrix(
    image: Operator, found: NDArray[Any], sign: int, count: int, *_: Any
) -> tuple[NDArray[Any], float]:
    """Return the outermost eigenvectors, as rows, of a matrix that is small enough to be written down."""
    matrix = np.array([image(row) for row in np.eye(found.shape[1], dtype=found.dtype)])
    vectors: NDArray[Any] = np.linalg.eigh(sign * (matrix + matrix.T) / 2)[1]
    return vectors.T[::-1][:count], -np.inf


def _by_arpack(
    image: Operator,
    found: NDArray[Any],
    sign: int,
    count: int,
    scale: float,
    tolerance: float,
    max_products: int,
    rng: np.random.Generator,
) -> tuple[NDArray[Any], float]:
    """Return the outermost eigenvectors, as rows, and the outermost value that was found besides them."""
    n: int = found.shape[1]
    dtype = found.dtype
    shift = 2  # of H / scale, so that all that is wanted is of a size to which ARPACK's relative tolerance refers

    def shifted(vector: NDArray[Any]) -> NDArray[Any]:
        vector = outside(found, vector.ravel())
        result = image(vector)
        result /= sign * scale
        result += np.multiply(vector, shift, out=vector)
        return outside(found, result)

    def search(k: int) -> tuple[Any, Any]:
        operator = LinearOperator((n, n), matvec=shifted, dtype=dtype)
        basis = basis_size(n, k)
        limits = {"maxiter": max(1, max_products // (basis - k)), "ncv": basis}
        start = rng.standard_normal(n).astype(dtype)
        for share in (0.1, 1 / 3):  # of many eigenvalues near the end, none may reach the first
            try:
                values, vectors = eigsh(operator, k, which="LA", v0=start, rng=rng, tol=share * tolerance, **limits)
            except ArpackNoConvergence as error:
                values, vectors = error.eigenvalues, error.eigenvectors  # those that have
            if len(values):
                break
        return scale * (np.asarray(values, np.float64) - shift), vectors.T

    values, found = search(count)
    while True:
        missed, vector = search(1)
        if not len(missed):
            return found, np.inf
        if len(values) == count and missed[0] <= values.min() + tolerance * scale:
            return found, float(missed[0])
        order = np.argsort(-np.append(values, missed), kind="stable")[:count]
        values, found = np.append(values, missed)[order], np.concatenate([found, vector])[order]


def _checked(
    image: Operator, vectors: NDArray[Any], sign: int, beyond: float, tolerance: float, scale: float
) -> Eigenpairs:
    """Return pairs with their residuals, the outermost first."""
    values, residuals = np.empty(len(vectors)), np.empty(len(vectors))
    for i, vector in enumerate(vectors):
        wide = vector.astype(np.float64) / _length(vector)
        product = image(vector).astype(np.float64)
        values[i] = wide @ product
        residuals[i] = np.linalg.norm(product - values[i] * wide)
    order = np.argsort(-sign * values, kind="stable")
    values, residuals, vectors, limit = values[order], residuals[order], vectors[order], tolerance * scale
    good = (residuals <= limit) & ((sign * values >= beyond - limit) | (np.arange(len(values)) == 0))
    return Eigenpairs(values, residuals, vectors, int(np.cumprod(good).sum()))
