"""Comparing correlations: of two features with one target, and of independent runs (METHODS 6, last paragraph)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from toposcope.analysis.association import RESAMPLES
from toposcope.analysis.dependence import block_draws, block_length
from toposcope.analysis.ranks import correlate, ranks
from toposcope.kernels.resampled_ranks import resampled_spearman

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Comparison(NamedTuple):
    """Difference of two correlations, its 95% interval where there is one, and a two-sided p."""

    difference: float
    low: float
    high: float
    p: float


def williams(with_first: float, with_second: float, between: float, n: int) -> Comparison:
    """Compare the strengths of two correlations that share a target, by Williams' test (Steiger 1980, eq. 7).

    Parameters
    ----------
    with_first, with_second : float
        Correlations of two features with the target; their absolute values are compared.
    between : float
        Correlation of the two features.
    n : int
        Checkpoints, taken for independent.
    """
    first, second = abs(with_first), abs(with_second)
    between *= np.sign(with_first) * np.sign(with_second)
    if n < 4:
        return Comparison(first - second, np.nan, np.nan, np.nan)
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    mean = (first + second) / 2
    spread = 2 * (n - 1) / (n - 3) * determinant + mean**2 * (1 - between) ** 3
    if spread <= 1e-12:  # one is a function of the other
        return Comparison(first - second, np.nan, np.nan, np.nan)
    statistic = (first - second) * np.sqrt((n - 1) * (1 + between) / spread)
    return Comparison(first - second, np.nan, np.nan, float(2 * student.sf(abs(statistic), n - 3)))


def by_blocks(first: Vector, second: Vector, target: Vector, seed: int) -> Comparison:
    """Compare the strengths of two Spearman correlations that share a target, by a moving-block bootstrap.

    Parameters
    ----------
    first, second, target : ndarray, shape (n,)
        All known, none constant.
    seed : int

    Returns
    -------
    Comparison
        Of the absolute rho; the interval is of percentiles, p twice the smaller share of resamples on one side of 0.
    """
    values = ranks(np.array([first, second, target]))
    draws = block_draws(len(target), int(block_length(values).max()), RESAMPLES, seed)
    groups = np.array([np.unique(row, return_inverse=True)[1] for row in values], dtype=np.int64)
    resampled = np.abs(resampled_spearman(groups[:2], groups[2], draws))
    difference = (resampled[0] - resampled[1])[np.isfinite(resampled).all(axis=0)]
    observed = np.abs(correlate(values[:2], values[2]))
    if not len(difference):
        return Comparison(float(observed[0] - observed[1]), np.nan, np.nan, np.nan)
    low, high = np.percentile(difference, [2.5, 97.5])
    side = min((difference <= 0).mean(), (difference >= 0).mean())
    return Comparison(float(observed[0] - observed[1]), float(low), float(high), float(min(1.0, 2 * side)))


def fisher_z(first: float, n_first: float, second: float, n_second: float) -> Comparison:
    """Compare the correlations of two independent runs by Fisher's z.

    Parameters
    ----------
    first, second : float
        Spearman correlations.
    n_first, n_second : float
        Effective numbers of checkpoints, above 3 (`toposcope.analysis.dependence.effective_size`).

    Returns
    -------
    Comparison
        Of second - first; variances are 1.06 / (n - 3) for ranks (Fieller, Hartley & Pearson 1957). The interval is of
        the difference of z, p NaN where an n is 3 or less or a correlation is 1.
    """
    difference = second - first
    if min(n_first, n_second) <= 3 or max(abs(first), abs(second)) >= 1:
        return Comparison(difference, np.nan, np.nan, np.nan)
    z = np.arctanh(second) - np.arctanh(first)
    error = np.sqrt(1.06 / (n_first - 3) + 1.06 / (n_second - 3))
    reach = norm.ppf(0.975) * error
    return Comparison(difference, float(z - reach), float(z + reach), float(2 * norm.sf(abs(z) / error)))
