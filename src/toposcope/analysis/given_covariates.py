"""What the covariates of a run leave of its series, and how that is correlated (docs/methods/association.md)."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from toposcope.analysis.ranks import (
    Correlations,
    correlate,
    dependent_p,
    effective_size,
    orthonormal_basis,
    ranks,
    residuals,
)
from toposcope.analysis.smooth_trend import MAX_NOISE_CORRELATION, ColouredNoise
from toposcope.typing import Matrix, Vector

STEP, RATE, PROGRESS, NORM = "step", "learning_rate", "cumulative_learning_rate", "weight_norm"
LAG, ITSELF = "lag", "itself"
MAX_DEGREE = 8  # of the polynomials in the logarithms of step and progress
LAGS = (4.0, 1.5, 12.0)  # checkpoints over which a series may follow the learning rate
# The most necessary terms first, since few checkpoints allow few. Chosen on made-up runs with white and AR(1) noise
# (tests/support/synthetic_runs.py); tried on others with more restarts and noise of twelve further kinds.
TERMS = (
    *((STEP, 0), (STEP, 1), (PROGRESS, 1), (RATE, 1), (PROGRESS, 2), (STEP, 2), (PROGRESS, 3), (LAG, 0), (NORM, 1)),
    *((ITSELF, 0), (ITSELF, 1), (LAG, 1), (RATE, 2), (STEP, 3), (LAG, 2), (RATE, 3)),
    *chain.from_iterable(((PROGRESS, degree), (STEP, degree)) for degree in range(4, MAX_DEGREE + 1)),
)
MAX_SHARE, USUAL_SHARE, MIN_TERMS = 0.4, 1 / 3, 14  # terms per checkpoint: of few, of many, and where the first ends
MAX_LAG_SHARE = 5  # lags up to a fifth of the checkpoints count for the effective sample size (Pyper & Peterman 1998)


def covariate_basis(steps: NDArray[np.int64], covariates: Mapping[str, Vector], scale: Vector | None = None) -> Matrix:
    """Return an orthonormal basis, shape (n, k), of what covariates may explain of a series.

    Step and progress, which is the sum of the learning rates, and polynomials in their logarithms; the rate, its
    square and cube, exponential means of it, and the weight norm. So the rate that restarts, dips or decays, and what
    follows it late, is a covariate; of `TERMS` there are as many as the checkpoints allow.

    Parameters
    ----------
    steps : ndarray, shape (n,)
    covariates : mapping of ndarray, shape (n,)
        By name; those that are unknown somewhere, or constant, are left out.
    scale : ndarray, shape (n,), optional
        A covariate of a feature's own, with its square; NaN of a feature without one.
    """
    n = len(steps)
    known = {name: values for name, values in covariates.items() if np.isfinite(values).all() and np.ptp(values) > 0}
    if n < 2:
        return np.ones((n, 1))
    columns = {STEP: _powers(np.log1p((steps - steps[0]) / (steps[1] - steps[0])), MAX_DEGREE)}
    if PROGRESS in known:
        since = known[PROGRESS] - known[PROGRESS][0]
        columns[PROGRESS] = _powers(np.log1p((n - 1) * since / np.ptp(since)), MAX_DEGREE)
    if RATE in known:
        columns[RATE] = _powers(known[RATE], 3)
        columns[LAG] = np.array([_exponential_mean(known[RATE], lag) for lag in LAGS])
    if NORM in known:
        columns[NORM] = _powers(known[NORM], 1)
    columns[ITSELF] = np.array([known[name] for name in (STEP, PROGRESS) if name in known])
    terms = [columns[name][degree] for name, degree in TERMS if name in columns and degree < len(columns[name])]
    terms = terms[: max(1, min(int(MAX_SHARE * n), max(MIN_TERMS, int(USUAL_SHARE * n))))]
    if scale is not None and np.ptp(scale) > 0:  # not of an unknown one
        terms += [*_powers(scale, 2)[1:]]
    return union_basis(np.array(terms).T)


def _powers(values: Vector, degree: int) -> Matrix:
    """Return the Chebyshev polynomials of values that are scaled to [-1, 1], shape (degree + 1, n)."""
    return np.asarray(chebvander(2 * (values - values.min()) / np.ptp(values) - 1, degree).T)


def _exponential_mean(values: Vector, checkpoints: float) -> Vector:
    """Return the mean of the values before each checkpoint that forgets over so many of them."""
    share, mean = 1 - np.exp(-1 / checkpoints), np.empty(len(values))
    mean[0] = values[0]
    for i in range(1, len(values)):
        mean[i] = mean[i - 1] + share * (values[i] - mean[i - 1])
    return mean


def union_basis(columns: Matrix) -> Matrix:
    """Return an orthonormal basis of columns, whatever their sizes."""
    return _union_basis(columns.tobytes(), columns.shape)


@lru_cache(maxsize=32)  # every group of layers and every target of a run is compared with the same other runs
def _union_basis(content: bytes, shape: tuple[int, int]) -> Matrix:
    columns = np.frombuffer(content).reshape(shape)
    sizes = np.linalg.norm(columns, axis=0)
    basis = orthonormal_basis((columns[:, sizes > 0] / sizes[sizes > 0]).T)
    basis.setflags(write=False)
    return basis


def noise_given(loss: Vector, basis: Matrix) -> ColouredNoise:
    """Return the noise of what a basis leaves of a loss, by which its checkpoints depend on each other."""
    return ColouredNoise.estimate(loss - basis @ (basis.T @ loss), basis.shape[1], lowest=-MAX_NOISE_CORRELATION)


def left_ranks(series: Matrix, basis: Matrix, noise: ColouredNoise) -> Matrix:
    """Return the centred ranks, where the noise is white, of what a basis leaves; 0 where that is rounding."""
    return ranks(noise.whiten(residuals(series, basis).T).T)


def correlations_given(features: Matrix, loss: Vector, basis: Matrix) -> Correlations:
    """Correlate what a basis leaves of each feature, shape (f, n), with what it leaves of the loss.

    A feature of which nothing is left has a rho of 0 and a p of 1; NaN where nothing is left of the loss, and a p of
    NaN without a degree of freedom.
    """
    noise = noise_given(loss, basis)
    x, y = left_ranks(features, basis, noise), left_ranks(loss[None], basis, noise)[0]
    n = len(loss)
    if not y.any() or n - basis.shape[1] < 2:
        return Correlations(*np.full((2, len(features)), np.nan))
    rho, p = np.zeros(len(features)), np.ones(len(features))
    left = x.any(axis=1)
    rho[left] = correlate(x[left], y)
    size = effective_size(x[left], y, max(1, n // MAX_LAG_SHARE))
    p[left] = dependent_p(rho[left], size - (basis.shape[1] - 1))
    return Correlations(rho, p)
