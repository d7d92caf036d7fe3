"""Rank correlations and partial rank correlations of many features with one target."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gamma
from scipy.stats import rankdata
from scipy.stats import t as student

from toposcope.analysis.dependence import effective_size
from toposcope.typing import Matrix, Vector

MIN_RESIDUAL_SHARE = 1e-9
"""If the residual ranks are below this share of the ranks, the series is a function of the controls."""


MAX_PAIRED = 16
"""Values up to which ranks are found by comparing all pairs."""


class Correlations(NamedTuple):
    """Correlation and two-sided p of each feature, shape (f,); NaN where not defined."""

    rho: Vector
    p: Vector


def ranks(values: Matrix) -> Matrix:
    """Return mid-ranks along the last axis, centred on 0."""
    ranked = _by_pairs(values) if values.shape[-1] <= MAX_PAIRED else rankdata(values, axis=-1)
    return np.asarray(ranked - (values.shape[-1] + 1) / 2)


def _by_pairs(values: Matrix) -> Matrix:
    """Return mid-ranks from 1 by comparing all pairs: of short series, sooner than they are sorted."""
    values = np.asarray(values)
    one, other = values[..., :, None], values[..., None, :]
    ranked: Matrix = (other < one).sum(axis=-1) + ((other == one).sum(axis=-1) + 1) / 2
    ranked[np.isnan(values).any(axis=-1)] = np.nan
    return ranked


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
    p[defined] = 2 * student.sf(statistic, freedom[defined])
    return p


def dependent_p(rho: Vector, n: Vector) -> Vector:
    """Return the two-sided p of rank correlations of dependent checkpoints.

    Student's with n - 2 degrees of freedom, but at least 2 / n!: of all orders of n independent checkpoints only two
    are perfect, so that no lower p can be reached (two series that rise have a correlation of 1, whatever they are).

    Parameters
    ----------
    rho : ndarray, shape (f,)
    n : ndarray, shape (f,)
        Effective number of checkpoints (`effective_size`), less the number of controls. NaN at 2 and below.
    """
    lowest = np.minimum(1.0, 2 / gamma(np.maximum(n, 1) + 1))
    return np.asarray(np.maximum(two_sided(rho, n - 2), lowest))


def partial(x: Matrix, y: Vector, controls: Matrix) -> Correlations:
    """Correlate the residuals of the ranks of x and y after linear regression of both on the ranks of the controls.

    p is `dependent_p` of the effective number of checkpoints of the residuals, less the rank of the controls.

    Parameters
    ----------
    x : ndarray, shape (f, n)
        Centred ranks (`ranks`).
    y : ndarray, shape (n,)
        Centred ranks.
    controls : ndarray, shape (k, n)
        Centred ranks.

    Returns
    -------
    Correlations
        NaN where the controls determine the feature or the target.
    """
    basis = _basis(controls)
    left, target = x - (x @ basis) @ basis.T, y - basis @ (basis.T @ y)
    defined = is_free(x, controls) & is_free(y[None], controls)
    rho, p = np.full(len(x), np.nan), np.full(len(x), np.nan)
    if defined.any():
        rho[defined] = correlate(left[defined], target)
        p[defined] = dependent_p(rho[defined], effective_size(left[defined], target) - basis.shape[1])
    return Correlations(rho, p)


def is_free(series: Matrix, controls: Matrix) -> NDArray[np.bool_]:
    """Return for each row, shape (f, n), of centred ranks whether it is more than a linear function of the controls."""
    basis = _basis(controls)
    left = series - (series @ basis) @ basis.T
    return np.asarray(np.linalg.norm(left, axis=1) > MIN_RESIDUAL_SHARE * np.linalg.norm(series, axis=1))


def _basis(controls: Matrix) -> Matrix:
    """Return an orthonormal basis of the controls, shape (n, rank)."""
    directions, sizes, _ = np.linalg.svd(controls.T, full_matrices=False)
    return np.asarray(directions[:, sizes > MIN_RESIDUAL_SHARE * max(float(sizes.max(initial=0.0)), 1e-300)])
