"""Dependence between the checkpoints of a run: autocorrelation, effective sample size, blocks for the bootstrap."""

import numpy as np
from numpy.typing import NDArray

from toposcope.typing import Matrix, Vector


def autocorrelation(series: Matrix) -> Matrix:
    """Return the autocorrelation of each row at every lag.

    Parameters
    ----------
    series : ndarray, shape (..., n)
        None of the rows constant.

    Returns
    -------
    ndarray, shape (..., n), float64
        Lag 0, which is 1, to lag n - 1; sums over n, as usual, so that it is positive semidefinite.
    """
    centred = series - series.mean(axis=-1, keepdims=True)
    n = centred.shape[-1]
    spectrum = np.fft.rfft(centred, 2 * n)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), 2 * n)[..., :n]
    return np.asarray(covariance / covariance[..., :1])


def effective_size(x: Matrix, y: Matrix) -> Vector:
    """Return how many independent pairs would give a correlation of x and y the same variance.

    n / (1 + 2 sum_k (1 - k / n) r_x(k) r_y(k)) over all lags (Bartlett 1935; Pyper & Peterman 1998, eq. 1), within
    [2, n].

    Parameters
    ----------
    x, y : ndarray, shape (..., n)
        Broadcast against each other; no row constant.
    """
    n = x.shape[-1]
    lags = np.arange(1, n)
    weights = 1 - lags / n
    dependence = (autocorrelation(x)[..., 1:] * autocorrelation(y)[..., 1:] * weights).sum(axis=-1)
    return np.asarray(np.clip(n / np.maximum(1 + 2 * dependence, 1 / n), 2, n))


def block_length(series: Matrix) -> NDArray[np.int64]:
    """Return the length of blocks for resampling each row, at least sqrt(n).

    The automatic rule of Politis & White 2004 with the correction of Patton, Politis & White 2009, for the circular
    (and moving) block bootstrap, rounded up and clipped to between sqrt(n) and n / 3.

    Parameters
    ----------
    series : ndarray, shape (f, n)
        None of the rows constant.
    """
    n = series.shape[-1]
    shortest, longest = int(np.ceil(np.sqrt(n))), max(int(np.ceil(np.sqrt(n))), n // 3)
    lengths = [_politis_white(row, rho) for row, rho in zip(series, autocorrelation(series), strict=True)]
    return np.asarray(np.clip(np.ceil(lengths), shortest, longest), dtype=np.int64)


def _politis_white(series: Vector, rho: Vector) -> float:
    """Return the optimal length; infinite where the spectral density at 0 is estimated as 0."""
    n = len(series)
    window = max(5, int(np.ceil(np.log10(n))))
    furthest = min(n - 1, int(np.ceil(np.sqrt(n))) + window)
    large = np.abs(rho[1 : furthest + 1]) >= 2 * np.sqrt(np.log10(n) / n)
    # The first lag after which `window` autocorrelations in a row are negligible; else the last that is not.
    quiet = [k for k in range(len(large)) if not large[k : k + window].any()]
    last = quiet[0] if quiet else int(np.flatnonzero(large)[-1]) + 1
    bandwidth = min(2 * max(last, 1), furthest)
    lags = np.arange(1, bandwidth + 1)
    flat_top = np.minimum(1, 2 * (1 - lags / bandwidth))
    slope = 2 * (flat_top * lags * rho[1 : bandwidth + 1]).sum()
    density = 1 + 2 * (flat_top * rho[1 : bandwidth + 1]).sum()
    if density <= 0:
        return np.inf
    return float((2 * slope**2 / (4 / 3 * density**2)) ** (1 / 3) * n ** (1 / 3))


def block_draws(n: int, length: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Draw resamples of n places made of blocks of neighbours (moving blocks: Künsch 1989), shape (resamples, n)."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, n - length + 1, (resamples, -(-n // length)))
    places = starts[:, :, None] + np.arange(length)
    return np.ascontiguousarray(places.reshape(resamples, -1)[:, :n])


def single_draws(n: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Draw resamples of n places one by one, as if they were independent, shape (resamples, n)."""
    return np.random.default_rng(seed).integers(0, n, (resamples, n))
