"""Comparing correlations: of two features with one target, and of independent runs (METHODS 6, last paragraph)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from toposcope.analysis.association import RESAMPLES, dense
from toposcope.analysis.dependence import block_draws, block_length
from toposcope.analysis.ranks import correlate, ranks
from toposcope.kernels.resampled_ranks import resampled_spearman
from toposcope.seeds import derive_seed

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


def against_step(features: Matrix, step: Vector, target: Vector, seed: int) -> list[tuple[Comparison, Comparison]]:
    """Ask of features whether they correlate with a target more strongly than the step does.

    Parameters
    ----------
    features : ndarray, shape (f, n)
        All known, none constant.
    step, target : ndarray, shape (n,)
    seed : int

    Returns
    -------
    list of (Comparison, Comparison)
        By Williams' test, and by a moving-block bootstrap: its interval is of percentiles, its p twice the smaller
        share of resamples on one side of 0.
    """
    x, s, y = ranks(features), ranks(step), ranks(target)
    own, of_step, between = correlate(x, y), float(correlate(s[None], y)[0]), correlate(x, s)
    lengths = np.maximum(block_length(x), block_length(np.array([s, y])).max())
    groups, target_groups = dense(np.vstack([features, step])), dense(target)
    resampled = np.empty((len(features), RESAMPLES))
    for length in np.unique(lengths):
        alike = np.flatnonzero(lengths == length)
        draws = block_draws(len(y), int(length), RESAMPLES, derive_seed(seed, "blocks", int(length)))
        strengths = np.abs(resampled_spearman(groups[[*alike, len(features)]], target_groups, draws))
        resampled[alike] = strengths[:-1] - strengths[-1]
    found = zip(own, between, resampled, strict=True)
    return [(williams(r, of_step, b, len(y)), _percentile(abs(r) - abs(of_step), d)) for r, b, d in found]


def _percentile(observed: float, resampled: Vector) -> Comparison:
    told = resampled[np.isfinite(resampled)]
    if not len(told):
        return Comparison(observed, np.nan, np.nan, np.nan)
    low, high = np.percentile(told, [2.5, 97.5])
    side = min((told <= 0).mean(), (told >= 0).mean())
    return Comparison(observed, float(low), float(high), float(min(1.0, 2 * side)))


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
