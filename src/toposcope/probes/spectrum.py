"""Singular values of a matrix that is read a few rows at a time, and the power law of their squares."""

import mmap
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from toposcope.probes.row_blocks import BLOCK, Matrix, Widening

Values = NDArray[np.float64]

DIRECT = 1 << 18
"""Entries of the largest matrix that is decomposed itself; of larger ones it is the product with their transpose."""

LEAST_TAIL = 10
"""Fewest eigenvalues a power law is fitted to."""

LEAST_SPREAD = 1e-6
"""Smallest mean of ln(eigenvalue / beginning of the tail) that is taken for a spread."""


class Spectrum:
    """Singular values of W / unit, from blocks of its rows handed over in turn.

    Up to `DIRECT` entries by the singular value decomposition, exact to about 1e-16 of the largest. Beyond, they are
    roots of the eigenvalues of W'W or WW', whichever is smaller, summed in float64. Rounding moves these eigenvalues
    by less than u = max(m, n) 2^-52 of the largest, mostly a hundred times less, so a singular value s is known to
    u sigma_1^2 / 2s: for 4096 rows the largest to 5e-13 of itself, one of a thousandth of it to 5e-7 of itself. (That
    is the worst where all products have one sign, as in a constant matrix. The bound that no matrix breaks is u times
    the stable rank; roundings that differ in sign stay far below.)

    What is not above u times the largest, of the singular values or of the eigenvalues, is noise and counts as zero:
    in large matrices what is below sqrt(u) sigma_1, 1e-6 sigma_1 for 4096 rows.

    Memory: half of the product in float64, and of a matrix wider than high a block and all of it as stored.

    Parameters
    ----------
    shape : (m, n)
    unit : float
        A power of two. It keeps squares within the range of float64.
    block : int
        Bytes of float64 in hand at a time.
    """

    def __init__(self, shape: tuple[int, ...], unit: float, block: int = BLOCK) -> None:
        self._shape = shape
        self._widened = Widening(unit)
        self._block = block
        m, n = shape
        self._direct = m * n <= DIRECT
        self._product = None if self._direct or m < n else _Product(n)
        self._kept: list[Tensor] = []

    def add(self, stored: Tensor, rows: Matrix) -> None:
        """Take the next rows, as stored and as float64 divided by the unit."""
        if self._product is not None:
            self._product.add(rows)
        else:
            self._kept.append(stored)

    def singular_values(self) -> Values:
        """Return them descending, once all rows were handed over; noise is zero."""
        noise = max(self._shape) * np.finfo(np.float64).eps
        if self._direct:
            W = self._widened(*self._kept)
            sigma = np.linalg.svd(W, compute_uv=False).astype(np.float64)
            return np.where(sigma > noise * sigma[0], sigma, 0.0)
        if self._product is None:
            self._product = _Product(self._shape[0])
            for columns in self._columns():
                self._product.add(columns.T)
            self._kept.clear()
        eigenvalues = self._product.eigenvalues()[::-1]
        return np.sqrt(np.where(eigenvalues > noise * eigenvalues[0], eigenvalues, 0.0))

    def _columns(self) -> Iterator[Matrix]:
        m, n = self._shape
        step = max(1, self._block // (8 * m))
        for start in range(0, n, step):
            yield self._widened(*(rows[:, start : start + step] for rows in self._kept))


class _Product:
    """The sum of B'B over matrices B of n columns.

    Only the lower triangle is ever touched. Its memory comes from the system in small pages, as they are written to,
    so that the upper one takes none.
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

    def eigenvalues(self) -> Values:
        """Return them ascending; the sum is used up."""
        from scipy.linalg import eigvalsh

        found: Values = eigvalsh(self._sum, lower=True, overwrite_a=True, check_finite=False)
        return found


def power_law_exponent(eigenvalues: Values) -> float | None:
    """Fit the tail by maximum likelihood, its beginning chosen by the Kolmogorov-Smirnov distance.

    Clauset, Shalizi & Newman 2009, arXiv:0706.1062, equations 3.1 and 3.9.
    """
    tail = np.sort(eigenvalues[eigenvalues > eigenvalues.max() * 1e-14])[::-1]
    best: tuple[float, float] | None = None
    logs = np.log(tail)
    sums = np.cumsum(logs)
    for k in range(LEAST_TAIL, len(tail) + 1):
        excess = sums[k - 1] - k * logs[k - 1]
        # Equal eigenvalues differ by rounding, which is no tail.
        if excess <= k * LEAST_SPREAD:
            continue
        alpha = 1 + k / excess
        survival = np.exp((1 - alpha) * (logs[:k] - logs[k - 1]))
        ranks = np.arange(1, k + 1) / k
        distance = float(np.maximum(np.abs(survival - ranks), np.abs(survival - ranks + 1 / k)).max())
        if best is None or distance < best[0]:
            best = (distance, float(alpha))
    return None if best is None else best[1]
