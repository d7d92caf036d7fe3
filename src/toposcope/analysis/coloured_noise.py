"""Noise of a training trajectory: correlated from one checkpoint to the next, and louder early than late."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from toposcope.typing import Vector

MAX_CORRELATION = 0.95
"""Higher correlations cannot be distinguished from a trend."""


@dataclass(frozen=True, eq=False)
class ColouredNoise:
    """Autoregressive noise of order 1 whose innovations grow or fall exponentially over training.

    Attributes
    ----------
    correlation : float
        Of neighbouring checkpoints, in [0, 0.95].
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
    def estimate(cls, residuals: Vector, n_parameters: int) -> Self:
        """Estimate both from what a regression leaves.

        The lag-1 autocorrelation is corrected for the bias of residuals, (p + (p + 2) r) / n with p parameters
        (Tjøstheim and Paulsen 1983; Kendall's for p = 1); the scale is the regression of log |innovation| on the
        checkpoint's number (Harvey 1976, multiplicative heteroscedasticity).

        Parameters
        ----------
        residuals : ndarray, shape (n,)
        n_parameters : int
            Of the regression.
        """
        n = len(residuals)
        size = np.abs(residuals)
        if not size.max() > 0:
            return cls.white(n)
        scale = _loudness(size)
        even = residuals / scale
        lagged = float((even[1:] * even[:-1]).sum() / (even**2).sum())
        unbiased = (lagged + n_parameters / n) / max(1 - (n_parameters + 2) / n, 1 / n)
        correlation = float(np.clip(unbiased, 0, MAX_CORRELATION))
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
    loudness: Vector = np.exp(slope * (number - number.mean()))
    return loudness
