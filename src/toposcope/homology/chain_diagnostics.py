"""Whether Markov chains agree: split R-hat and effective sample size (Gelman et al. 2013, chapters 11.4 and 11.5)."""

import numpy as np

from toposcope.typing import Matrix, Vector


def split_r_hat(draws: Matrix) -> float:
    """Return the potential scale reduction of chains cut into halves.

    It is 1 where all halves have one mean, and grows with the variance between them over that within.

    Parameters
    ----------
    draws : ndarray, shape (chains, n), float64
        At least 4 draws a chain; of an odd number the first is left out.

    Returns
    -------
    float
        NaN if no half varies and all are equal; infinite if none varies and some differ.
    """
    halves = _halves(draws)
    within, total = _variances(halves)
    if within == 0:
        return float("nan") if total == 0 else float("inf")
    return float(np.sqrt(total / within))


def effective_size(draws: Matrix) -> float:
    """Return the number of independent draws whose mean is as precise as that of these.

    Autocorrelations are summed in pairs as long as the sums are positive, and made monotone (Geyer 1992). A variance
    between the halves of chains counts as autocorrelation, so that chains which disagree have few effective draws.

    Parameters
    ----------
    draws : ndarray, shape (chains, n), float64
        At least 4 draws a chain; of an odd number the first is left out.

    Returns
    -------
    float
        At most the number of draws; NaN if they do not vary.
    """
    halves = _halves(draws)
    within, total = _variances(halves)
    if total == 0:
        return float("nan")
    covariances = np.mean([_autocovariances(half) for half in halves], axis=0)
    correlations = 1 - (within - covariances) / total
    pairs = correlations[: len(correlations) // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs[: int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)]
    time = -1 + 2 * float(np.minimum.accumulate(positive).sum())
    # Of chains that alternate around their mean, the sum may be below that of independent draws.
    return halves.size / max(time, 1.0)


def _halves(draws: Matrix) -> Matrix:
    half = draws.shape[1] // 2
    return draws[:, draws.shape[1] - 2 * half :].reshape(-1, half)


def _variances(halves: Matrix) -> tuple[float, float]:
    """Return the mean variance within halves, and the estimate of the variance of the distribution."""
    n = halves.shape[1]
    within = float(halves.var(axis=1, ddof=1).mean())
    return within, (n - 1) / n * within + float(halves.mean(axis=1).var(ddof=1))


def _autocovariances(chain: Vector) -> Vector:
    """Return the autocovariances at lags 0 to n - 1, with the unbiased variance at lag 0."""
    n = len(chain)
    spectrum = np.fft.rfft(chain - chain.mean(), 2 * n)
    return np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[:n] / (n - 1)
