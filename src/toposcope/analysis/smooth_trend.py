"""Smooth curves that a training trajectory may follow, and the gain of a break in them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from toposcope.typing import Vector

# Smooth trends and breaks in them: chosen on 13 kinds of smooth curves (docs/methods/phases.md)
MAX_NOISE_CORRELATION = 0.95  # of neighbouring checkpoints; more cannot be distinguished from a trend
MAX_TREND_DEGREE, TIME_SCALES = 6, 7  # of polynomials in log(1 + t / scale), from the first interval to the whole run
MAX_WIDTHS_PER_RUN = 17  # of a sigmoid, which rises from 10% to 90% in 4.4 widths: a quarter of the checkpoints
BREAK_MARGIN, MAX_BREAKS = 3, 6  # checkpoints on either side of a break, and breaks in a trajectory


@dataclass(frozen=True, eq=False)
class ColouredNoise:
    """Autoregressive noise of order 1 whose innovations grow or fall exponentially over training.

    Attributes
    ----------
    correlation : float
        Of neighbouring checkpoints, in [-0.95, 0.95].
    scale : ndarray, shape (n,)
        Standard deviation of the innovations, up to a common factor.
    """

    correlation: float
    scale: Vector

    @classmethod
    def white(cls, n: int) -> Self:
        """Return noise without correlation, equally loud everywhere."""
        return cls(0.0, np.ones(n))

    @classmethod
    def estimate(cls, residuals: Vector, n_parameters: int, lowest: float = 0.0) -> Self:
        """Estimate both from what a regression leaves.

        The lag-1 autocorrelation is corrected for the bias of residuals, (p + (p + 2) r) / n with p parameters
        (Tjøstheim and Paulsen 1983; Kendall's for p = 1); the scale is the regression of log |innovation| on the
        checkpoint's number (Harvey 1976, multiplicative heteroscedasticity).

        Parameters
        ----------
        residuals : ndarray, shape (n,)
        n_parameters : int
            Of the regression.
        lowest : float
            Correlation of neighbouring checkpoints.
        """
        n = len(residuals)
        size = np.abs(residuals)
        if not size.max() > 0:
            return cls.white(n)
        scale = _loudness(size)
        even = residuals / scale
        lagged = float((even[1:] * even[:-1]).sum() / (even**2).sum())
        unbiased = (lagged + n_parameters / n) / max(1 - (n_parameters + 2) / n, 1 / n)
        correlation = float(np.clip(unbiased, lowest, MAX_NOISE_CORRELATION))
        return cls(correlation, _loudness(np.abs(residuals[1:] - correlation * residuals[:-1]), n))

    def whiten(self, columns: Vector) -> Vector:
        """Return columns, shape (..., n, m), in coordinates where this noise is white and equally loud."""
        white = columns.copy()
        white[..., 1:, :] -= self.correlation * columns[..., :-1, :]
        white[..., 0, :] *= np.sqrt(1 - self.correlation**2)
        return white / self.scale[:, None]

    def colour(self, innovations: Vector) -> Vector:
        """Return noise, shape (n, m), of white innovations: the inverse of `whiten`."""
        noise = innovations * self.scale[:, None]
        noise[0] /= np.sqrt(1 - self.correlation**2)
        for i in range(1, len(noise)):
            noise[i] += self.correlation * noise[i - 1]
        return noise


def _loudness(size: Vector, n: int | None = None) -> Vector:
    """Return the exponential trend of absolute values, geometric mean 1, at the last n of 0, ..., n - 1."""
    n = n or len(size)
    number = np.arange(n) / n
    # a residual that happens to be 0 must not weigh infinitely
    logs = np.log(np.maximum(size, 1e-3 * size.mean() + np.finfo(float).tiny))
    slope = np.polyfit(number[n - len(size) :], logs, 1)[0]
    return np.asarray(np.exp(slope * (number - number.mean())))


PER_BREAK = 4
"""Parameters of a break in the BIC: its place, a jump, a change of slope; and one for the search over places."""
ROUNDING = 1e-13  # share of a sum of squares below which its parts are rounding


@dataclass(frozen=True, eq=False)
class Trends:
    """Families of smooth curves, each a linear space, in coordinates where the noise is white."""

    bases: Vector  # shape (k, n, d); orthonormal columns; zero beyond a family's own
    parameters: Vector  # shape (k,); of each family, in the BIC
    breaks: Vector  # shape (2, n, n); column c of each: the jump and the change of slope at checkpoint c

    def choose(self, series: Vector) -> NDArray[np.int64]:
        """Return the family of least BIC for each of the series, shape (n, m)."""
        total = (series**2).sum(axis=0)
        inside = (np.matmul(self.bases.transpose(0, 2, 1), series) ** 2).sum(axis=1)
        return self._least_bic(total - inside, total)

    def choose_with(self, values: Vector, breaks: list[int]) -> int:
        """Return the family of least BIC for a series, shape (n,), that also has breaks."""
        columns = np.column_stack([values[:, None], *self.breaks[:, :, breaks]])
        left = columns - self.bases @ (self.bases.transpose(0, 2, 1) @ columns)
        y, x = left[:, :, :1], left[:, :, 1:]
        y = y - x @ (np.linalg.pinv(x) @ y)
        return int(self._least_bic((y**2).sum(axis=1), (values**2).sum(keepdims=True))[0])

    def _least_bic(self, squares: Vector, total: Vector) -> NDArray[np.int64]:
        n = self.bases.shape[1]
        squares = np.maximum(squares, ROUNDING * total + np.finfo(float).tiny)
        return np.asarray((n * np.log(squares) + np.log(n) * self.parameters[:, None]).argmin(axis=0))

    def with_breaks(self, family: int, breaks: list[int]) -> Vector:
        """Return an orthonormal basis, shape (n, d), of a family and breaks."""
        basis: Vector = self.bases[family]
        for c in breaks:
            for column in self.breaks[:, :, c]:
                basis = np.column_stack([basis, _outside(basis, column[:, None])])
        return basis

    def gains(self, basis: Vector, series: Vector) -> Vector:
        """Return by how much a break at each checkpoint would lessen the squared residuals of each series."""
        jump, hinge = (_outside(basis, columns) for columns in self.breaks)
        hinge = _unit(hinge - jump * (jump * hinge).sum(axis=0), 1e-6)
        gain: Vector = (jump.T @ series) ** 2 + (hinge.T @ series) ** 2
        gain[:BREAK_MARGIN] = 0
        gain[len(gain) - BREAK_MARGIN + 1 :] = 0
        return gain

    def find_breaks(self, values: Vector) -> tuple[int, list[int]]:
        """Add breaks to a smooth curve while the BIC falls, the one that gains most first."""
        n = len(values)
        breaks: list[int] = []
        family = int(self.choose(values[:, None])[0])
        while len(breaks) < min(MAX_BREAKS, n // 8):
            basis = self.with_breaks(family, breaks)
            left = squares_outside(basis, values[:, None])[0]
            gain = self.gains(basis, values[:, None])[:, 0]
            for c in breaks:
                gain[max(0, c - BREAK_MARGIN + 1) : c + BREAK_MARGIN] = 0
            place = int(gain.argmax())
            rest = max(left - gain[place], ROUNDING * (values**2).sum())
            if not left > 0 or n * np.log(left / rest) < PER_BREAK * np.log(n):
                break
            breaks.append(place)
            family = self.choose_with(values, breaks)
        return family, breaks


def trends(times: Vector, noise: ColouredNoise) -> Trends:
    """Return the smooth curves over given times: polynomials, relaxations and sigmoids (docs/methods/phases.md)."""
    columns, members = _families(times.tobytes())
    basis, _ = np.linalg.qr(noise.whiten(columns))
    family, size, parameters = members.T
    own = np.arange(basis.shape[2]) < size[:, None, None]
    index = np.arange(len(times))
    jump = (index[:, None] >= index).astype(np.float64)
    hinge = np.maximum(times[:, None] - times, 0.0)
    breaks = noise.whiten(np.stack([jump, hinge]))
    return Trends(basis[family] * own, parameters.astype(np.float64), breaks)


def squares_outside(basis: Vector, series: Vector) -> Vector:
    """Return the sum of squares, shape (m,), that an orthonormal basis leaves of each series, shape (n, m)."""
    return np.asarray(((series - basis @ (basis.T @ series)) ** 2).sum(axis=0))


@lru_cache(maxsize=64)
def _families(times: bytes) -> tuple[Vector, NDArray[np.int64]]:
    """Return columns, shape (families, n, d), and of each member its family, columns used and parameters."""
    t = np.frombuffer(times)
    n = len(t)
    degree = max(1, min(MAX_TREND_DEGREE, n // 4))
    columns: list[Vector] = []
    members = [(0, 1, 1)]
    for scale in np.geomspace(t[1], 1, TIME_SCALES):
        u = np.log1p(t / scale)
        members += [(len(columns), d + 1, d + 2) for d in range(1, degree + 1)]
        columns.append(np.polynomial.chebyshev.chebvander(2 * u / u[-1] - 1, degree))
    if n >= MAX_WIDTHS_PER_RUN:  # with fewer checkpoints these cannot be distinguished from the polynomials
        for scale in np.geomspace(t[1], 1, 2 * TIME_SCALES):
            e = np.exp(-t / scale)
            members += [(len(columns), 3, 3), (len(columns), 4, 4)]
            columns.append(np.column_stack([np.ones(n), e, e * t, t]))
        for sigmoid in _sigmoids(n):
            members.append((len(columns), 5, 5))
            columns.append(np.column_stack([np.ones(n), t, sigmoid]))
    padded = np.zeros((len(columns), n, max(c.shape[1] for c in columns)))
    for i, c in enumerate(columns):
        padded[i, :, : c.shape[1]] = c
    return padded, np.array(members)


def _sigmoids(n: int) -> list[Vector]:
    found = []
    for width in n / MAX_WIDTHS_PER_RUN * np.array([1.0, 2.0, 4.0]):
        for centre in np.arange(width, n - width, width):
            z = (np.arange(n) - centre) / width
            s = 1 / (1 + np.exp(-z))
            found.append(np.column_stack([s, s * (1 - s), z * s * (1 - s)]))
    return found


def _outside(basis: Vector, columns: Vector) -> Vector:
    """Return the unit columns of what lies outside an orthonormal basis; zero where nothing does."""
    columns = _unit(columns, 0.0)
    columns = _unit(columns - basis @ (basis.T @ columns), 1e-6)
    return columns - basis @ (basis.T @ columns)


def _unit(columns: Vector, least: float) -> Vector:
    length = np.sqrt((columns**2).sum(axis=0))
    return np.where(length > least, columns / np.maximum(length, np.finfo(float).tiny), 0.0)
