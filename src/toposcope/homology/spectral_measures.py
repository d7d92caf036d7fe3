"""How many directions a cloud of hidden states fills, and how far it reaches in them.

Formulas and sources: ``docs/methods/spectral-measures.md``.
"""

import math
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import MAX_NORMAL_EXPONENT, as_array, as_count, not_finite
from toposcope.typing import Matrix, Vector

MAX_DIRECT_ENTRIES = 1 << 18  # of points whose singular values are taken from themselves, not from their scatter
EPS = 2.0**-52
MIN_EXPONENT = -1074  # exponent of the smallest number of float64
MIN_DECAY_SHARE = 1e-6
"""Share of the largest singular value; values not above it are left out of the decay, streamed or not."""

MIN_NORM = 2.0**-500  # norms below this are measured in a unit of their own: their squares may underflow


@dataclass(frozen=True)
class SpectralMeasures:
    """Spectrum and position of a cloud of points; nan where a measure is undefined.

    sigma are the singular values of the centred points, lambda = sigma^2 / (n - 1) the eigenvalues of their covariance.

    Attributes
    ----------
    rankme : float
        exp of the entropy of sigma / sum sigma (Garrido et al. 2023, Eq. 1, without its epsilon, and of centred
        points). It is the effective rank of Roy & Vetterli 2007.
    effective_rank : float
        exp of the entropy of lambda / sum lambda: the published study's name for it. (Roy & Vetterli's is that of
        sigma.)
    participation_ratio : float
        (sum lambda)^2 / sum lambda^2.
    eigenspectrum_decay : float
        Minus the slope of ln lambda_i against ln i over the first half of the eigenvalues above 1e-12 lambda_1 (sigma
        above 1e-6 sigma_1: states in float32 carry no more), at least two, by least squares with weights 1 / i
        (Stringer et al. 2019), so that every octave counts alike.
    stable_rank : float
        sum lambda / lambda_1.
    top_eigenvalue : float
        lambda_1. 0 of equal points.
    anisotropy : float
        Mean cosine of all pairs of two points, as seen from the origin (Ethayarajh 2019), exact; zero vectors, which
        have no direction, are left out.
    mean_norm : float
        Mean distance from the origin.
    rms_radius : float
        Root mean square distance from the centroid.
    n_points : int
    n_zero : int
        Zero vectors.
    """

    rankme: float
    effective_rank: float
    participation_ratio: float
    eigenspectrum_decay: float
    stable_rank: float
    top_eigenvalue: float
    anisotropy: float
    mean_norm: float
    rms_radius: float
    n_points: int
    n_zero: int


class Moments:
    """Mean and scatter of points that arrive in blocks, in O(d^2) memory whatever their number.

    Rows are gathered in a buffer of max(d, 2^18 / d) of them, so that how they come in blocks does not change a digit.
    As long as all fit, the centred rows themselves are decomposed, exact to about 1e-16 of the largest singular value:
    of few texts in many dimensions nothing is lost. Beyond, each full buffer is centred about its own mean and adds its
    product to the scatter (Chan, Golub & LeVeque 1983), so nothing cancels however far from the origin the cloud is.
    Singular values are then roots of eigenvalues of the scatter, which rounding moves by less than about
    u = (d + rows of the buffer + number of buffers) 2^-52 of the largest, mostly a hundred times less: a singular value
    s is known to u sigma_1^2 / 2s. What is not above u lambda_1 is noise and counts as zero: for a million points in
    512 dimensions what is below 1e-6 sigma_1. So RankMe, which counts small sigma most, is known to about 1e-5 where
    a spectrum is steeper than six decades.

    Parameters
    ----------
    dimension : int
        d, at least 1.

    Notes
    -----
    O(n d^2) time, half a product X'X; at the end O(d^3) for the eigenvalues. All sums are in float64, in units of a
    power of two that follows the largest entry, so no square leaves its range.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension: int = as_count(dimension, "dimension", 1)
        d = self.dimension
        self._exponent = MIN_EXPONENT
        self._first: Matrix | None = None
        self._varied = False
        # Rows not yet in the sums. Everything below is in units of two to the exponent.
        self._height = max(d, MAX_DIRECT_ENTRIES // d)
        self._buffer = np.empty((self._height, d))
        self._n_buffered = 0
        # Sums over rows that are no longer stored. Means are about an origin near them, where they lose no digits.
        self._n_summed = 0
        self._origin = np.zeros(d)
        self._mean = np.zeros(d)
        self._scatter: Matrix | None = None  # its lower triangle
        self._sum_of_norms = 0.0
        self._sum_of_units = np.zeros(d)
        self._n_zero = 0

    def __repr__(self) -> str:
        return f"Moments(dimension={self.dimension}, n_points={self.n_points})"

    @property
    def n_points(self) -> int:
        """Rows taken so far."""
        return self._n_summed + self._n_buffered

    def add(self, points: ArrayLike | Any, *, name: str = "points") -> None:
        """Take the next rows.

        Parameters
        ----------
        points : array-like or torch.Tensor, shape (k, d)
            Any floating-point dtype, any k, 0 included. They are widened to float64 a buffer at a time.
        name : str
            How messages call the block.

        Raises
        ------
        ToposcopeError
            If they are no floating-point rows of d entries, or hold NaN or infinities; then none of them was taken.
        """
        rows = _as_rows(points, self.dimension, name)
        self._fit_unit(_largest(rows, self._height, name))
        while len(rows):
            if self._n_buffered == self._height:
                self._sum_up(self._buffer)
                self._n_buffered = 0
            taken = rows[: self._height - self._n_buffered]
            self._keep(taken)
            rows = rows[len(taken) :]

    def measures(self, *, centred: bool = True) -> SpectralMeasures:
        """Return the measures of all rows so far; more may be added afterwards.

        Parameters
        ----------
        centred : bool
            If false, the points are taken as they are: sigma are their own singular values, lambda = sigma^2 / n, and
            ``rms_radius`` is the root mean square distance from the origin.
        """
        final = copy(self)
        final._buffer = self._buffer[: self._n_buffered].copy()
        final._scatter = None if self._scatter is None else self._scatter.copy(order="F")
        return final._final_measures(centred)

    def _final_measures(self, centred: bool) -> SpectralMeasures:
        """Return the measures; rows and sums are used up."""
        n, rows = self.n_points, self._buffer[: self._n_buffered]
        if self._scatter is None:
            self._add_norms(rows)
            sigma, total = _singular_values(rows, centred)
        else:
            self._sum_up(rows)
            sigma, total = self._roots_of_eigenvalues(centred)
        if centred and not self._varied:  # rounding would leave a spectrum
            sigma, total = np.zeros(1), 0.0
        weight = n - 1 if centred else n
        with np.errstate(over="ignore"):  # beyond the range it is infinite, and says so
            return SpectralMeasures(
                **measures_of_singular_values(sigma),
                top_eigenvalue=float(np.ldexp(sigma[0] ** 2 / weight, 2 * self._exponent)) if weight > 0 else math.nan,
                anisotropy=_mean_cosine(self._sum_of_units, n - self._n_zero),
                mean_norm=float(np.ldexp(self._sum_of_norms / n, self._exponent)) if n else math.nan,
                rms_radius=float(np.ldexp(math.sqrt(total / n), self._exponent)) if n else math.nan,
                n_points=n,
                n_zero=self._n_zero,
            )

    def _fit_unit(self, largest: float) -> None:
        """Enlarge the unit until no entry is above one; a power of two changes no digit of what is there."""
        shift = self._exponent - (math.frexp(largest)[1] if largest else MIN_EXPONENT)
        if shift >= 0:
            return
        self._exponent -= shift
        for values in (self._buffer[: self._n_buffered], self._origin, self._mean):
            np.ldexp(values, shift, out=values)
        if self._scatter is not None:
            np.ldexp(self._scatter, 2 * shift, out=self._scatter)
        self._sum_of_norms = math.ldexp(self._sum_of_norms, shift)

    def _keep(self, rows: NDArray[Any]) -> None:
        """Copy rows into the buffer."""
        if self._first is None:
            self._first = rows[0].copy()
        self._varied = self._varied or bool((rows != self._first).any())
        place = self._buffer[self._n_buffered : self._n_buffered + len(rows)]
        if abs(self._exponent) < MAX_NORMAL_EXPONENT:
            np.multiply(rows, 2.0**-self._exponent, out=place, dtype=np.float64)
        else:
            np.ldexp(rows.astype(np.float64), -self._exponent, out=place)
        self._n_buffered += len(rows)

    def _sum_up(self, rows: Matrix) -> None:
        """Add rows to all sums; they are used up."""
        self._add_norms(rows)
        self._add_scatter(rows)

    def _add_norms(self, rows: Matrix) -> None:
        """Add norms and unit vectors."""
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        small = norms < MIN_NORM
        inverse = np.divide(1, norms, out=np.zeros_like(norms), where=~small)
        self._sum_of_units = self._sum_of_units + inverse @ rows
        if small.any():
            sizes = np.abs(rows[small]).max(axis=1)
            shapes = rows[small][sizes > 0] / sizes[sizes > 0, None]
            lengths = np.linalg.norm(shapes, axis=1)
            self._sum_of_units += (1 / lengths) @ shapes
            norms[small] = 0
            norms[np.flatnonzero(small)[sizes > 0]] = sizes[sizes > 0] * lengths
            self._n_zero += int((sizes == 0).sum())
        self._sum_of_norms += float(norms.sum())

    def _add_scatter(self, rows: Matrix) -> None:
        """Add the scatter of rows about their mean, and that of their mean about the others'."""
        from scipy.linalg.blas import dsyr, dsyrk

        d, n, k = self.dimension, self._n_summed, len(rows)
        centre = rows.mean(axis=0)
        rows -= centre
        left = rows.mean(axis=0)  # what rounding left of it
        if self._scatter is None:
            self._scatter, self._origin = np.zeros((d, d), order="F"), centre
        between = centre - self._origin + left - self._mean
        scatter = dsyrk(1.0, rows.T, beta=1.0, c=self._scatter, lower=True, overwrite_c=True)
        scatter = dsyr(-k, left, a=scatter, lower=True, overwrite_a=True)
        self._scatter = dsyr(k * n / (n + k), between, a=scatter, lower=True, overwrite_a=True)
        self._mean = self._mean + between * (k / (n + k))
        self._n_summed = n + k

    def _roots_of_eigenvalues(self, centred: bool) -> tuple[Vector, float]:
        """Return the singular values, and the sum of their squares; the scatter is used up."""
        from scipy.linalg import eigvalsh
        from scipy.linalg.blas import dsyr

        n, scatter = self._n_summed, cast(Matrix, self._scatter)
        if not centred:
            scatter = dsyr(n, self._origin + self._mean, a=scatter, lower=True, overwrite_a=True)
        total = float(np.trace(scatter))
        eigenvalues = eigvalsh(scatter, lower=True, overwrite_a=True, check_finite=False)[::-1]
        noise = (self.dimension + self._height + n / self._height) * EPS * eigenvalues[0]
        return np.sqrt(np.where(eigenvalues > noise, eigenvalues, 0.0)), total


def spectral_measures(points: ArrayLike | Any, *, centred: bool = True) -> SpectralMeasures:
    """Return the measures of one array.

    Parameters
    ----------
    points : array-like or torch.Tensor, shape (n, d)
        Any floating-point dtype.
    centred : bool
        If false, the spectral measures and ``rms_radius`` are about the origin in place of the centroid, so that
        ``rankme`` of the unit matrix is n (see `Moments.measures`).

    Raises
    ------
    ToposcopeError
        If the points are not a finite floating-point matrix, or have no columns.

    Notes
    -----
    As of `Moments`, with its accuracy. BLAS adds in an order that depends on its number of threads, which changes last
    digits: of RankMe up to 1e-13, relatively, of the rest up to 4e-15 (measured with 1 to 4 threads).
    """
    array = as_array(points, "points")
    if array.ndim != 2 or 0 in array.shape:
        raise ToposcopeError(f"points: expected a matrix with a point a row, got shape {array.shape}")
    moments = Moments(array.shape[1])
    moments.add(array)
    return moments._final_measures(centred)


def measures_of_singular_values(sigma: ArrayLike | Any) -> dict[str, float]:
    """Return the measures that do not depend on the scale, from singular values in any order.

    Parameters
    ----------
    sigma : array-like, shape (k,)
        Finite, not negative. Eigenvalues of a covariance are their squares. Zeros do not matter.

    Returns
    -------
    dict
        ``rankme``, ``effective_rank``, ``participation_ratio``, ``eigenspectrum_decay`` and ``stable_rank``, defined in
        `SpectralMeasures`; nan if no value is above zero.

    Raises
    ------
    ToposcopeError
        If they are not such numbers.
    """
    values = as_array(sigma, "sigma")
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise ToposcopeError(f"sigma: expected a list of numbers, got {values.dtype} of shape {values.shape}")
    values = values.astype(np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ToposcopeError("sigma: expected finite numbers of at least 0, got others among them")
    values = np.sort(values[values > 0])[::-1]
    if not len(values):
        return dict.fromkeys(_SCALE_FREE, math.nan)
    values = values / values[0]
    squares = values**2
    measures = (
        _entropy_rank(values),
        _entropy_rank(squares),
        float(squares.sum() ** 2 / (squares**2).sum()),
        _decay(values),
        float(squares.sum()),
    )
    return dict(zip(_SCALE_FREE, measures, strict=True))


_SCALE_FREE = ("rankme", "effective_rank", "participation_ratio", "eigenspectrum_decay", "stable_rank")


def _entropy_rank(values: Vector) -> float:
    shares = values / values.sum()
    shares = shares[shares > 0]  # a square may underflow; its p ln p is 0
    return math.exp(-float((shares * np.log(shares)).sum()))


def _decay(values: Vector) -> float:
    """Return minus the weighted slope of ln(value^2) against ln(rank), over the first half; values descend."""
    half = int((values > MIN_DECAY_SHARE * values[0]).sum()) // 2
    if half < 2:
        return math.nan
    ranks = np.arange(1, half + 1)
    weights = 1 / ranks
    x, y = np.log(ranks), 2 * np.log(values[:half])
    x = x - np.average(x, weights=weights)
    return float((0 - (weights * x * y).sum()) / (weights * x * x).sum())


def _mean_cosine(sum_of_units: Vector, count: int) -> float:
    """Return the mean cosine of all pairs of `count` unit vectors: |sum|^2 is the sum over pairs, twice, and count."""
    if count < 2:
        return math.nan
    mean = (float(sum_of_units @ sum_of_units) - count) / (count * (count - 1))
    return min(1.0, mean)  # rounding may leave it a little above


def _singular_values(rows: Matrix, centred: bool) -> tuple[Vector, float]:
    """Return the singular values, descending, noise as zero, and the sum of their squares; rows are used up."""
    if not len(rows):
        return np.zeros(1), 0.0
    if centred:
        rows -= rows.mean(axis=0)
        rows -= rows.mean(axis=0)  # what rounding left of it
    sigma = np.linalg.svd(rows, compute_uv=False)
    return np.where(sigma > max(rows.shape) * EPS * sigma[0], sigma, 0.0), float(sigma @ sigma)


def _as_rows(points: ArrayLike | Any, dimension: int, name: str) -> NDArray[Any]:
    rows = as_array(points, name)
    if rows.ndim != 2 or rows.shape[1] != dimension or rows.dtype.kind != "f":
        raise ToposcopeError(
            f"{name}: expected floating-point rows of {dimension} entries, got {rows.dtype} of shape {rows.shape}"
        )
    if rows.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # infinite in float64
            rows = rows.astype(np.float64)
    return rows


def _largest(rows: NDArray[Any], step: int, name: str) -> float:
    """Return the largest magnitude, or refuse what is not finite."""
    parts = [rows[start : start + step] for start in range(0, len(rows), step)]
    largest = np.array([[-float(part.min()), float(part.max())] for part in parts]).max(initial=0.0)  # NaN if one is
    if not math.isfinite(largest):
        count = sum(int(np.count_nonzero(~np.isfinite(part))) for part in parts)
        raise not_finite(name, count, rows.size, rows.shape)
    return float(largest)
