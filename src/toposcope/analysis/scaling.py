"""Power laws of final values in the number of parameters (METHODS 10, first line)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
FEW = 6
"""Below this many sizes no two-sided p-value under .05 is possible by permutation, and none is given."""


@dataclass(frozen=True)
class PowerLaw:
    """f(N) = factor N^exponent, fitted by least squares of log f on log N.

    Attributes
    ----------
    n, n_sizes : int
        Number of runs, and of different sizes among them.
    r_squared : float
        Of log f.
    low, high : float
        95% percentile interval of the exponent over resampled runs; NaN below 4 runs.
    """

    n: int
    n_sizes: int
    factor: float
    exponent: float
    r_squared: float
    low: float
    high: float


def power_law(n_parameters: NDArray[np.float64], values: NDArray[np.float64], seed: int) -> PowerLaw | None:
    """Fit a power law.

    Returns
    -------
    PowerLaw or None
        None with fewer than 3 different sizes, or where a value is not above 0.
    """
    if len(np.unique(n_parameters)) < 3 or not (values > 0).all():
        return None
    x, y = np.log(n_parameters), np.log(values)
    exponent, intercept = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    residual = float(((y - intercept - exponent * x) ** 2).sum())
    r_squared = 1 - residual / spread if spread > 0 else np.nan
    low, high = _interval(x, y, seed) if len(x) >= 4 else (np.nan, np.nan)
    return PowerLaw(len(x), len(np.unique(x)), float(np.exp(intercept)), float(exponent), r_squared, low, high)


def _interval(x: NDArray[np.float64], y: NDArray[np.float64], seed: int) -> tuple[float, float]:
    draws = np.random.default_rng(seed).integers(0, len(x), (RESAMPLES, len(x)))
    a, b = x[draws], y[draws]
    a = a - a.mean(axis=1, keepdims=True)
    spread = (a**2).sum(axis=1)
    usable = spread > 0
    low, high = np.percentile((a * b).sum(axis=1)[usable] / spread[usable], [2.5, 97.5])
    return float(low), float(high)
