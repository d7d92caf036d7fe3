"""Extreme eigenvalues of a symmetric operator that is known only by its products with vectors.

Lanczos' algorithm loses the orthogonality of its basis as soon as an eigenvalue converges, and then finds copies of it
(Paige 1971). Here every new vector is made orthogonal to all others, twice, so that there are none; the basis is
restarted with its best vectors when it is full (Wu & Simon 2000, "Thick-restart Lanczos"). One start finds one copy of
a multiple eigenvalue: so what has converged is locked, and a second random start looks for what was missed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array, as_count, as_number
from toposcope.homology.tuning import (
    BREAKDOWN,
    CHECK_EVERY,
    CHUNK,
    MAX_BASIS_BYTES,
    MAX_STEPS,
    MIN_STEPS,
    MISS_PROBABILITY,
    SPARE,
)
from toposcope.typing import Matrix, Vector

Rows = NDArray[np.float32] | NDArray[np.float64]
Operator = Callable[[NDArray[Any]], NDArray[Any]]
"""Takes a vector, shape (n,), float32 or float64; returns its product with a symmetric matrix."""


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
        How many of the first have converged and come, by what the second start found, without a gap.
    """

    values: Vector
    residuals: Vector
    vectors: NDArray[Any]
    n_reliable: int


@dataclass(frozen=True)
class Extremes:
    """Both ends of a spectrum.

    Attributes
    ----------
    largest, smallest : Eigenpairs
        Descending and ascending, by sign.
    products : int
        Products with the operator.
    vectors : ndarray, shape (m, n)
        Orthonormal rows: those of both ends, and the few between them that were computed too.
    """

    largest: Eigenpairs
    smallest: Eigenpairs
    products: int
    vectors: NDArray[Any]


def extreme_eigenpairs(
    product: Operator,
    dimension: int,
    n_largest: int,
    n_smallest: int = 1,
    *,
    tolerance: float = 1e-3,
    max_steps: int = 400,
    rng: np.random.Generator,
    dtype: type[np.float32 | np.float64] = np.float64,
) -> Extremes:
    """Find the largest and the smallest eigenvalues of a symmetric operator, each with its residual.

    Parameters
    ----------
    product : callable
    dimension : int
        n.
    n_largest, n_smallest : int
        How many; fewer if the dimension, or the number of steps, is smaller.
    tolerance : float
        A pair has converged if its residual is at most this share of the largest absolute eigenvalue.
    max_steps : int
        Products that the basis may take; one more is made for each pair, for its residual.
    rng : numpy.random.Generator
        Draws the starts.
    dtype : float32 or float64
        Of the basis.

    Raises
    ------
    ToposcopeError
        If a product is not finite, or a number is out of range.

    Notes
    -----
    The second start is of the operator without what was locked. After j steps from a random start, the largest Ritz
    value is below the largest eigenvalue by more than a share e of the range with probability at most
    1.648 sqrt(n) exp(-(2j - 1) sqrt(e)) (Kuczynski & Wozniakowski 1992, "Estimating the largest eigenvalue by the
    power and Lanczos algorithms with a random start", Theorem 4.2). Pairs that are not beyond that bound are not
    reliable: one between them may have been missed. Only the outermost pair needs none of this.

    Memory: `basis_size` vectors, n_largest + n_smallest + 66, and fewer where these would take more than 4 GB. Time:
    the products, and O(n) for each vector of the basis and step.

    Examples
    --------
    >>> A = np.array([[4.0, 1, 0], [1, 3, 2], [0, 2, -1]])
    >>> found = extreme_eigenpairs(lambda v: A @ v, 3, n_largest=2, rng=np.random.default_rng(0))
    >>> found.largest.values.round(8), found.smallest.values.round(8)
    (array([4.85410197, 3.        ]), array([-1.85410197]))
    """
    n_largest, n_smallest = as_count(n_largest, "n_largest", 0), as_count(n_smallest, "n_smallest", 0)
    as_count(n_largest + n_smallest, "n_largest + n_smallest", 1)
    dimension, max_steps = as_count(dimension, "dimension", 1), as_count(max_steps, "max_steps", 1)
    tolerance = as_number(tolerance, "tolerance", 0)
    search = _Search(product, dimension, (n_largest, n_smallest), tolerance, max_steps, rng, dtype)
    search.run()
    return search.extremes()


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


def basis_size(
    dimension: int, n_largest: int, n_smallest: int = 1, dtype: type[np.float32 | np.float64] = np.float64
) -> int:
    """Return how many vectors `extreme_eigenpairs` holds in memory at most, by its arguments."""
    wanted = sum(min(_with_spares(count), dimension) for count in (n_largest, n_smallest))
    affordable = MAX_BASIS_BYTES // (np.dtype(dtype).itemsize * dimension) - wanted
    return min(dimension, wanted + min(MAX_STEPS, max(MIN_STEPS, affordable)))


def _with_spares(count: int) -> int:
    return count + SPARE * (count > 1)


class _Search:
    """A basis, the projection of the operator on it, and what has been found out about what lies outside."""

    def __init__(
        self,
        product: Operator,
        n: int,
        wanted: tuple[int, int],
        tolerance: float,
        max_steps: int,
        rng: np.random.Generator,
        dtype: type[np.float32 | np.float64],
    ) -> None:
        self.operator, self.n, self.tolerance, self.rng = product, n, tolerance, rng
        self.reported = (min(wanted[0], n), min(wanted[1], n))
        self.wanted = (min(_with_spares(wanted[0]), n), min(_with_spares(wanted[1]), n))
        self.steps_left, self.products = max_steps, 0
        capacity = basis_size(n, *wanted, dtype)
        self.rows: NDArray[Any] = np.empty((capacity, n), dtype)
        self.projection: Matrix = np.zeros((capacity, capacity))
        self.size = self.n_locked = 0
        self.bounds = (math.inf, -math.inf)
        """Above the first and below the second, nothing was missed."""

    # The course of the search

    def run(self) -> None:
        """Extend the basis until what is wanted has converged and nothing beyond it was missed."""
        start = self._random()
        while True:
            start, residual = self._extend(start)
            if self.size == self.n:
                self.bounds = (-math.inf, math.inf)
                return
            converged = self._converged(residual)
            if converged and self.n_locked and not self._has_new():
                self._bound(residual)
                return
            self.bounds = (math.inf, -math.inf)
            if self.steps_left == 0 or (converged and max(self.wanted) == 1):  # copies change neither end
                return
            if residual and not converged:
                self._restart(self._kept())
            else:
                self._restart(self._chosen())
                self.n_locked, start = self.size, self._random()

    def _extend(self, start: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """Add rows until the basis is full or there is something to decide; return the next row and the residual."""
        vector, first = start, self.size
        while True:
            residual = self._add(vector)
            length = float(np.linalg.norm(residual))
            scale = float(np.abs(self.projection[: self.size, : self.size]).max())
            if length <= BREAKDOWN * np.finfo(self.rows.dtype).eps * scale:
                length = 0.0  # an invariant subspace
            vector = residual / length if length else residual
            if self.size == len(self.rows) or self.steps_left == 0:
                return vector, length
            if len(self.rows) == self.n:  # there is room for all: nothing to decide
                vector = vector if length else self._random()
                continue
            if not length:
                return vector, length
            looks = (self.size - first) % CHECK_EVERY == 0 and self._converged(length)
            if looks and (not self.n_locked or (not self._has_new() and self._bound(length))):
                return vector, length

    def _converged(self, residual: float) -> bool:
        """Return whether all that is wanted is in the basis, to a tenth of the tolerance: a new start loses some."""
        if self.size < min(sum(self.wanted), self.n):
            return False
        values, vectors = self._ritz()
        limit = max(self.tolerance / 10, BREAKDOWN * np.finfo(self.rows.dtype).eps) * np.abs(values).max()
        return bool((residual * np.abs(vectors[-1, self._chosen()]) <= limit).all())

    def _has_new(self) -> bool:
        """Return whether the second start found eigenvalues beyond the last that was locked, at either end."""
        values, rest, limit = self._rest()
        return bool(
            (self.wanted[0] and rest[-1] > values[-self.wanted[0]] + limit)
            or (self.wanted[1] and rest[0] < values[self.wanted[1] - 1] - limit)
        )

    def _bound(self, residual: float) -> bool:
        """Bound what the second start may have missed; return whether that is within all that is wanted."""
        values, rest, limit = self._rest()
        steps = self.size - self.n_locked
        share = (math.log(1.648 * math.sqrt(self.n) / MISS_PROBABILITY) / (2 * steps - 1)) ** 2 if residual else 0.0
        if share >= 1:
            self.bounds = (math.inf, -math.inf)
            return False
        # the range is that of the operator without what was locked, which ends where the bound says
        lowest, highest, times = float(rest[0]), float(rest[-1]), share / (1 - share)
        above = highest + times * (highest - float(values[0]))
        self.bounds = (above, lowest - times * (above - lowest))
        n_largest, n_smallest = self.reported
        return bool(
            (not n_largest or values[-n_largest] >= self.bounds[0] - limit)
            and (not n_smallest or values[n_smallest - 1] <= self.bounds[1] + limit)
        )

    def _rest(self) -> tuple[Vector, Vector, float]:
        """Return all Ritz values, those of the second start alone, and the tolerance."""
        values, _ = self._ritz()
        rest = self.projection[self.n_locked : self.size, self.n_locked : self.size]
        alone = np.asarray(np.linalg.eigvalsh(rest), np.float64)
        return values, alone, self.tolerance * float(np.abs(values).max())

    # Linear algebra

    def _add(self, vector: NDArray[Any]) -> NDArray[Any]:
        """Add a row and its column of the projection; return the part of its product outside the basis."""
        rows = self.rows
        rows[self.size] = vector
        self.size += 1
        self.steps_left -= 1
        residual = self._product(rows[self.size - 1])
        coefficients = np.zeros(self.size)
        for _ in range(2):  # once leaves roundings of the product; "twice is enough" (Parlett 1998, section 6.9)
            part = rows[: self.size] @ residual
            residual -= part @ rows[: self.size]
            coefficients += part
        self.projection[: self.size, self.size - 1] = self.projection[self.size - 1, : self.size] = coefficients
        return residual

    def _product(self, vector: NDArray[Any]) -> NDArray[Any]:
        self.products += 1
        return checked_product(self.operator, vector, self.rows.dtype)

    def _random(self) -> NDArray[Any]:
        """Draw a direction outside the basis, uniformly."""
        vector = self.rng.standard_normal(self.n).astype(self.rows.dtype)
        for _ in range(2):
            vector /= np.linalg.norm(vector)
            vector -= (self.rows[: self.size] @ vector) @ self.rows[: self.size]
        return np.asarray(vector / np.linalg.norm(vector))

    def _ritz(self) -> tuple[Vector, Matrix]:
        """Return Ritz values, ascending, and their vectors in the basis, as columns."""
        values, vectors = np.linalg.eigh(self.projection[: self.size, : self.size])
        return values, vectors

    def _chosen(self) -> NDArray[np.int64]:
        """Return the places of the wanted Ritz values, ascending."""
        return _both_ends(self.size, *self.wanted)

    def _kept(self) -> NDArray[np.int64]:
        """Return the places of those that the next basis begins with: more than are wanted, as neighbours help."""
        room = (len(self.rows) - sum(self.wanted)) // 4
        return _both_ends(self.size, *(count + room * (count > 0) for count in self.wanted))

    def _restart(self, places: NDArray[np.int64]) -> None:
        """Replace the basis by some of its Ritz vectors."""
        values, vectors = self._ritz()
        self._combine(vectors[:, places], into=self.rows)
        self.size, self.n_locked = len(places), 0
        self.projection[:] = 0.0
        self.projection[np.arange(self.size), np.arange(self.size)] = values[places]

    def _combine(self, vectors: Matrix, into: NDArray[Any]) -> None:
        """Write combinations of rows of the basis, one for each column of coefficients; also over the rows."""
        coefficients = vectors.T.astype(self.rows.dtype)
        for start in range(0, self.n, CHUNK):
            part = slice(start, start + CHUNK)
            into[: len(coefficients), part] = coefficients @ self.rows[: self.size, part]

    # The result

    def extremes(self) -> Extremes:
        """Compute the wanted pairs and their residuals, each from a product of its own."""
        chosen = self._chosen()
        self._combine(self._ritz()[1][:, chosen], into=self.rows)
        # frees the rest, which is most of the memory
        self.rows.resize((len(chosen), self.n), refcheck=False)
        values, residuals = np.empty(len(chosen)), np.empty(len(chosen))
        for i, vector in enumerate(self.rows):
            image = self._product(vector).astype(np.float64)
            wide = vector.astype(np.float64) / np.linalg.norm(vector.astype(np.float64))
            values[i] = wide @ image
            residuals[i] = np.linalg.norm(image - values[i] * wide)
        limit = self.tolerance * float(np.abs(values).max())
        descending = np.argsort(-values, kind="stable")
        values, residuals, vectors = values[descending], residuals[descending], self.rows[descending]
        ends = []
        for count, sign, bound in zip(self.reported, (-1, 1), self.bounds, strict=True):
            end = slice(count) if sign < 0 else slice(None, -count - 1, -1)  # views, outermost first
            certain = sign * values[end] <= sign * bound + limit
            certain[:1] = True
            good = (residuals[end] <= limit) & certain
            n_reliable = int(np.cumprod(good).sum())
            ends.append(Eigenpairs(values[end], residuals[end], vectors[end], n_reliable))
        return Extremes(ends[0], ends[1], self.products, vectors)


def _both_ends(size: int, n_largest: int, n_smallest: int) -> NDArray[np.int64]:
    n_smallest = min(n_smallest, size)
    return np.concatenate([np.arange(n_smallest), np.arange(max(n_smallest, size - n_largest), size)])


def orthonormal_rows(vectors: NDArray[Any]) -> NDArray[Any]:
    """Return an orthonormal basis of the space that some rows span, without directions that are rounding."""
    basis, sigma, _ = np.linalg.svd(vectors.T, full_matrices=False)
    kept: NDArray[Any] = basis[:, sigma > len(sigma) * np.finfo(sigma.dtype).eps * 10 * max(sigma.max(), 0.0)].T
    return kept
