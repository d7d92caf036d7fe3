"""L0 + A x^-a fitted robustly: a is searched, L0 and A are solved for (METHODS 9).

Golub & Pereyra 2003, "Separable nonlinear least squares: the variable projection method and its applications".
"""

from dataclasses import dataclass, replace

import numpy as np

from toposcope.typing import Matrix, Vector

EXPONENTS = np.linspace(0.05, 1.5, 59)
FINER = 21
"""Exponents of the finer grid."""
ROUNDS, MOST_ROUNDS = 4, 20
"""Of reweighting; more than 4 only while many outliers keep the scale falling."""
SETTLED = 0.9
"""Share of the scale of the round before from which it has settled."""
HUBER = 1.345
"""Of the residuals' scale: 95% efficient where they are normal."""
LEAST_SCALE = 1e-6
"""Of the mean value; a curve without noise has no scale of its own."""
NORMAL = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


@dataclass(frozen=True)
class PowerLawFit:
    """L0 + A (x / x_n)^-a, with x_n the last of the fitted values.

    Attributes
    ----------
    L0, A, a : float
    last : float
        x_n.
    scale : float
        Of the residuals: their median absolute deviation times 1.4826.
    at_edge : bool
        Whether no exponent within the range fits better than its ends.
    """

    L0: float
    A: float
    a: float
    last: float
    scale: float
    at_edge: bool

    def __call__(self, x: Vector) -> Vector:
        """Return the law's values."""
        values: Vector = self.L0 + self.A * (x / self.last) ** -self.a
        return values

    def told(self) -> dict[str, float]:
        """Return the diagnostics of a forecast: offset, factor at the last point, exponent, residuals' scale."""
        return {"L0": self.L0, "A": self.A, "a": self.a, "residual": self.scale}

    def warnings(self) -> tuple[str, ...]:
        """Return what a reader of the forecast should know of the fit."""
        if self.A <= LEAST_SCALE * self.L0:
            return ("the loss does not fall as in training, it diverges or stands still: the law is a mean of it",)
        if not self.at_edge:
            return ()
        return ("the exponent is at the edge of its range: what was seen does not bend as a power law does",)


def fit_power_law(x: Vector, y: Vector, weight: Vector, exponents: Vector = EXPONENTS) -> PowerLawFit:
    """Fit L0 + A x^-a with L0, A at least 0: least squares for each exponent, reweighted by Huber's function.

    The exponent is searched on a grid, then on a finer one about the best.

    Parameters
    ----------
    x : ndarray, shape (n,)
        Positive, ascending.
    y, weight : ndarray, shape (n,)
    exponents : ndarray, shape (k,)
        Where a is searched, ascending.
    """
    k, coarse = _best(x, y, weight, exponents)
    if k in (0, len(exponents) - 1):
        return replace(coarse, at_edge=len(exponents) > 1)
    return _best(x, y, weight, np.linspace(exponents[k - 1], exponents[k + 1], FINER))[1]


def _best(x: Vector, y: Vector, weight: Vector, exponents: Vector) -> tuple[int, PowerLawFit]:
    """Return which exponent fits best, and its fit."""
    z = np.exp(-exponents[:, None] * np.log(x / x[-1]))
    least = LEAST_SCALE * float(np.abs(y).mean())
    robust = np.broadcast_to(weight, z.shape)
    best = np.inf
    for done in range(1, MOST_ROUNDS + 1):
        L0, A = _nonnegative_lines(z, y, robust)
        size = np.abs(y - L0[:, None] - A[:, None] * z)
        scale = NORMAL * np.median(size, axis=1) + least
        robust = weight * np.minimum(1, HUBER * scale[:, None] / np.maximum(size, least))
        before, best = best, float(scale.min())
        if done >= ROUNDS and best > SETTLED * before:
            break
    within = size <= HUBER * best
    losses = np.where(within, size**2, 2 * HUBER * best * size - (HUBER * best) ** 2)
    k = int((weight * losses).sum(axis=1).argmin())
    return k, PowerLawFit(float(L0[k]), float(A[k]), float(exponents[k]), float(x[-1]), float(scale[k]), at_edge=False)


def _nonnegative_lines(z: Matrix, y: Vector, weight: Matrix) -> tuple[Vector, Vector]:
    """Return the best L0 and A, both at least 0, for each row of z."""
    total = weight.sum(axis=1)
    z_mean, y_mean = (weight * z).sum(axis=1) / total, (weight * y).sum(axis=1) / total
    z_left, y_left = z - z_mean[:, None], y - y_mean[:, None]
    spread = (weight * z_left**2).sum(axis=1)
    slope = (weight * z_left * y_left).sum(axis=1) / np.where(spread > 0, spread, np.inf)
    slope = np.maximum(slope, 0)
    offset = y_mean - slope * z_mean
    through_zero = (weight * z * y).sum(axis=1) / (weight * z**2).sum(axis=1)
    return np.maximum(offset, 0), np.where(offset < 0, through_zero, slope)
