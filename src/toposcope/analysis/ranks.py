"""Rank correlations and partial rank correlations of many features with one target."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gamma, stdtr

from toposcope.typing import Indices, Matrix, Vector


def autocorrelation(series: Matrix) -> Matrix:
    """Return the autocorrelation of each row at every lag."""
    centred = series - series.mean(axis=-1, keepdims=True)
    n = centred.shape[-1]
    spectrum = np.fft.rfft(centred, 2 * n)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), 2 * n)[..., :n]
    return np.asarray(covariance / covariance[..., :1])


def effective_size(x: Matrix, y: Matrix, max_lag: int | None = None) -> Vector:
    """Return the independent pairs that x and y are worth, 2 to n (Bartlett 1935; Pyper & Peterman 1998, eq. 1)."""
    n = x.shape[-1]
    lags = np.arange(1, n if max_lag is None else max_lag + 1)
    dependence = (autocorrelation(x)[..., lags] * autocorrelation(y)[..., lags] * (1 - lags / n)).sum(axis=-1)
    return np.asarray(np.clip(n / np.maximum(1 + 2 * dependence, 1 / n), 2, n))


def block_length(series: Matrix) -> NDArray[np.int64]:
    """Return the length of blocks by row, sqrt(n) to n / 3 (Politis & White 2004; Patton, Politis & White 2009)."""
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
    places = rng.integers(0, n - length + 1, (resamples, -(-n // length)))[:, :, None] + np.arange(length)
    return np.ascontiguousarray(places.reshape(resamples, -1)[:, :n])


def single_draws(n: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Draw resamples of n places one by one, as if they were independent, shape (resamples, n)."""
    return np.random.default_rng(seed).integers(0, n, (resamples, n))


MIN_RESIDUAL_SHARE = 1e-9
"""If the residual ranks are below this share of the ranks, the series is a function of the controls."""


MAX_PAIRED = 16  # values up to which ranks are found by comparing all pairs


class Correlations(NamedTuple):
    """Correlation and two-sided p of each feature, shape (f,); NaN where not defined."""

    rho: Vector
    p: Vector


def ranks(values: Matrix) -> Matrix:
    """Return mid-ranks along the last axis, centred on 0; all NaN for a series with NaN."""
    ranked = _by_pairs(values) if values.shape[-1] <= MAX_PAIRED else mid_ranks(values)
    ranked[np.isnan(values).any(axis=-1)] = np.nan
    return np.asarray(ranked - (values.shape[-1] + 1) / 2)


def _by_pairs(values: Matrix) -> Matrix:
    """Return mid-ranks from 1 by comparing all pairs: of short series, sooner than they are sorted."""
    one, other = values[..., :, None], values[..., None, :]
    return np.asarray((other < one).sum(axis=-1) + ((other == one).sum(axis=-1) + 1) / 2)


def mid_ranks(values: Matrix) -> Matrix:
    """Return mid-ranks from 1 along the last axis; NaN is not ranked, and remains NaN.

    As `scipy.stats.rankdata`, which takes several times as long on short series, and half a second to import.
    """
    n = values.shape[-1]
    order, first = _sorted(values)
    starts = np.flatnonzero(first)
    sizes = np.diff(starts, append=first.size)
    by_order = np.repeat(starts % max(n, 1) + (sizes + 1) / 2, sizes).reshape(first.shape)
    ranked = np.empty(values.shape)
    np.put_along_axis(ranked, order, by_order, axis=-1)
    ranked[np.isnan(values)] = np.nan
    return ranked


def dense_ranks(values: Matrix) -> Indices:
    """Return dense ranks from 0 along the last axis: equal values share one."""
    order, first = _sorted(values)
    ranked = np.empty(values.shape, np.int64)
    np.put_along_axis(ranked, order, first.cumsum(axis=-1) - 1, axis=-1)
    return ranked


def _sorted(values: Matrix) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the order of values along the last axis, and where in it a value is not that before it."""
    order = np.argsort(values, axis=-1)
    in_order = np.take_along_axis(values, order, axis=-1)
    first = np.ones(values.shape, dtype=bool)
    np.not_equal(in_order[..., 1:], in_order[..., :-1], out=first[..., 1:])
    return order, first


def correlate(x: Matrix, y: Vector) -> Vector:
    """Return the correlation of each row of x with y, both centred; NaN where one of them is constant."""
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y)
    return np.asarray(np.clip(np.divide(x @ y, norms, out=np.full(len(x), np.nan), where=norms > 0), -1, 1))


def two_sided(rho: Vector, freedom: Vector) -> Vector:
    """Return Student's two-sided p of correlations; NaN without a degree of freedom."""
    p = np.full(np.broadcast(rho, freedom).shape, np.nan)
    rho, freedom = np.broadcast_arrays(rho, freedom)
    defined = np.isfinite(rho) & (freedom > 0)
    statistic = np.abs(rho[defined]) * np.sqrt(freedom[defined] / np.maximum(1 - rho[defined] ** 2, 1e-300))
    p[defined] = 2 * stdtr(freedom[defined], -statistic)
    return p


def dependent_p(rho: Vector, n: Vector) -> Vector:
    """Return Student's two-sided p of rank correlations of dependent checkpoints, at least 2 / n!, the lowest."""
    lowest = np.minimum(1.0, 2 / gamma(np.maximum(n, 1) + 1))
    return np.asarray(np.maximum(two_sided(rho, n - 2), lowest))


def partial(x: Matrix, y: Vector, controls: Matrix) -> Correlations:
    """Correlate residuals of ranks regressed on those of controls; p by their effective number less the controls."""
    basis = orthonormal_basis(controls)
    left, target = residuals(x, basis), residuals(y[None], basis)[0]
    defined = left.any(axis=1) & target.any()
    rho, p = np.where(defined, correlate(left, target), np.nan), np.full(len(x), np.nan)
    defined &= np.isfinite(rho)
    if defined.any():
        p[defined] = dependent_p(rho[defined], effective_size(left[defined], target) - basis.shape[1])
    return Correlations(rho, p)


def residuals(series: Matrix, basis: Matrix) -> Matrix:
    """Return what an orthonormal basis leaves of each row, shape (f, n); 0 where that is rounding of its values."""
    left = series - (series @ basis) @ basis.T
    sizes = np.linalg.norm(series - series.mean(axis=1, keepdims=True), axis=1)
    return np.where((np.linalg.norm(left, axis=1) > MIN_RESIDUAL_SHARE * sizes)[:, None], left, 0.0)


def orthonormal_basis(controls: Matrix) -> Matrix:
    """Return an orthonormal basis of the controls, shape (n, rank)."""
    directions, sizes, _ = np.linalg.svd(controls.T, full_matrices=False)
    return np.asarray(directions[:, sizes > MIN_RESIDUAL_SHARE * max(float(sizes.max(initial=0.0)), 1e-300)])
