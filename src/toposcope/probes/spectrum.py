"""Singular values of a matrix read a few rows at a time, and the power law of their squares."""

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.probes.row_blocks import BLOCK_BYTES, Widening
from toposcope.typing import Matrix, Vector

MAX_DIRECT_ENTRIES = 1 << 18
"""Entries of the largest matrix that is decomposed directly; for larger ones it is W'W or WW'."""

MIN_TAIL = 10
"""Eigenvalues a power law needs at least."""

MIN_SPREAD = 1e-6
"""Smallest mean of ln(eigenvalue / smallest of the tail) that counts as a tail; below it is rounding."""


class Spectrum:
    """Singular values of W / unit, from consecutive blocks of its rows.

    With up to `MAX_DIRECT_ENTRIES` entries, by the singular value decomposition, exact to about 1e-16 of the largest.
    Beyond, they are roots of the eigenvalues of W'W or WW', whichever is smaller, summed in float64. Rounding moves
    these by less than u = max(m, n) 2^-52 of the largest, mostly a hundred times less, so a singular value s is known
    to u sigma_1^2 / 2s: for 4096 rows the largest to 5e-13 of itself, one a thousandth of it to 5e-7 of itself. (That
    is the worst where all products have one sign, as in a constant matrix. The bound that no matrix breaks is u times
    the stable rank; roundings that differ in sign stay far below.)

    Singular values (or eigenvalues) of at most u times the largest are noise and set to zero: in large matrices those
    below sqrt(u) sigma_1, which is 1e-6 sigma_1 for 4096 rows.

    Memory: half of the product in float64; for a matrix that is wider than high, also a block and the stored matrix.

    Parameters
    ----------
    shape : (m, n)
    unit : float
        A power of two that keeps squares within the range of float64.
    block : int
        Bytes of a block in float64.
    """

    def __init__(self, shape: tuple[int, ...], unit: float, block: int = BLOCK_BYTES) -> None:
        self._shape = shape
        self._widened = Widening(unit)
        self._block = block
        m, n = shape
        self._direct = m * n <= MAX_DIRECT_ENTRIES
        self._product = None if self._direct or m < n else _Product(n)
        self._stored: list[NDArray[Any]] = []

    def add(self, stored: NDArray[Any], rows: Matrix) -> None:
        """Add the next rows, as stored and as float64 divided by the unit."""
        if self._product is not None:
            self._product.add(rows)
        else:
            self._stored.append(stored)

    def singular_values(self) -> Vector:
        """Return the singular values, descending, once all rows are added."""
        noise = max(self._shape) * np.finfo(np.float64).eps
        if self._direct:
            W = self._widened(*self._stored)
            sigma = np.linalg.svd(W, compute_uv=False).astype(np.float64)
            return np.where(sigma > noise * sigma[0], sigma, 0.0)
        if self._product is None:
            self._product = _Product(self._shape[0])
            for columns in self._columns():
                self._product.add(columns.T)
            self._stored.clear()
        eigenvalues = self._product.eigenvalues()[::-1]
        return np.sqrt(np.where(eigenvalues > noise * eigenvalues[0], eigenvalues, 0.0))

    def _columns(self) -> Iterator[Matrix]:
        m, n = self._shape
        step = max(1, self._block // (8 * m))
        for start in range(0, n, step):
            yield self._widened(*(rows[:, start : start + step] for rows in self._stored))


class _Product:
    """The sum of B'B over matrices B of n columns.

    Only the lower triangle is used. The system provides memory in small pages when they are written to, so the upper
    triangle takes none.
    """

    def __init__(self, n: int) -> None:
        self._sum = np.frombuffer(mmap.mmap(-1, 8 * n * n), np.float64).reshape(n, n, order="F")

    def add(self, B: Matrix) -> None:
        """Add B'B; neither rows nor columns of B are copied."""
        from scipy.linalg.blas import dsyrk

        by_rows = B.flags.c_contiguous
        self._sum = dsyrk(
            1.0, B.T if by_rows else B, trans=not by_rows, beta=1.0, c=self._sum, lower=True, overwrite_c=True
        )

    def eigenvalues(self) -> Vector:
        """Return the eigenvalues, ascending; this overwrites the sum."""
        from scipy.linalg import eigvalsh

        eigenvalues: Vector = eigvalsh(self._sum, lower=True, overwrite_a=True, check_finite=False)
        return eigenvalues


def power_law_exponent(eigenvalues: Vector) -> float | None:
    """Fit a power law to the tail by maximum likelihood; its start has the smallest Kolmogorov-Smirnov distance.

    Clauset, Shalizi & Newman 2009, arXiv:0706.1062, equations 3.1 and 3.9.
    """
    tail = np.sort(eigenvalues[eigenvalues > eigenvalues.max() * 1e-14])[::-1]
    best: tuple[float, float] | None = None
    logs = np.log(tail)
    sums = np.cumsum(logs)
    for k in range(MIN_TAIL, len(tail) + 1):
        excess = sums[k - 1] - k * logs[k - 1]
        # Equal eigenvalues differ only by rounding.
        if excess <= k * MIN_SPREAD:
            continue
        alpha = 1 + k / excess
        survival = np.exp((1 - alpha) * (logs[:k] - logs[k - 1]))
        ranks = np.arange(1, k + 1) / k
        distance = float(np.maximum(np.abs(survival - ranks), np.abs(survival - ranks + 1 / k)).max())
        if best is None or distance < best[0]:
            best = (distance, float(alpha))
    return None if best is None else best[1]
