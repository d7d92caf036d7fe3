"""The smallest correlation that a number of runs would have detected 4 times in 5 (docs/methods/between-runs.md)."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.permutations import MAX_ENUMERATED_ORDERS, orders
from toposcope.analysis.run_permutations import (
    MAX_LAST,
    MIN_FREEDOM,
    TOLERANCE,
    Scale,
    draw_permutations,
    n_orders,
    scores,
)
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix

POWER = 0.8
N_SAMPLES = 2000
N_NULL_SAMPLES = 10
"""Samples whose permutations give the critical value, where there are controls."""
MIN_PERMUTATIONS = 20_000
BISECTIONS = 9
MAX_CORRELATION = 0.9999


def detectable_correlation(strata: Indices, n_terms: int, level: float) -> float:
    """Return the rank correlation that the test across runs detects with probability .8.

    It is that of a feature whose order of the runs is the same at all steps, so that more steps add nothing; feature,
    final loss and controls are normally distributed, and the controls independent of both.

    Parameters
    ----------
    strata : ndarray, shape (n,), int64
        Of the runs.
    n_terms : int
        Of the controls that are regressed out (`control_basis`). With any, both scales must reject, as in the verdict.
    level : float
        Of the test: for the first of m features by Holm's method .05 / m.

    Returns
    -------
    float
        In (0, 1); NaN where these runs allow no p below `level`, or no correlation is detected so often.
    """
    return _detectable(tuple(strata.tolist()), n_terms, level)


@lru_cache(64)
def _detectable(places: tuple[int, ...], n_terms: int, level: float) -> float:
    strata, n = np.array(places, dtype=np.int64), len(places)
    if n - len(np.unique(strata)) - n_terms - 1 < MIN_FREEDOM or level * min(n_orders(strata), MAX_LAST) < 1:
        return math.nan
    rng = np.random.default_rng(derive_seed(SEED, "power", n, n_terms))
    x, noise = rng.standard_normal((2, N_SAMPLES, n))
    controls = rng.standard_normal((N_SAMPLES, n_terms, n))
    scales: tuple[Scale, ...] = ("ranks", "values") if n_terms else ("ranks",)
    critical = {scale: _critical_value(strata, n_terms, level, scale) for scale in scales}
    bases = {scale: _bases(controls, strata, scale) for scale in scales}
    left = {scale: _residuals(x, bases[scale], strata, scale) for scale in scales}

    def power(r: float) -> float:
        y = r * x + math.sqrt(1 - r * r) * noise
        rho = {scale: np.vecdot(left[scale], _residuals(y, bases[scale], strata, scale)) for scale in scales}
        return float(np.all([np.abs(rho[scale]) >= critical[scale] for scale in scales], axis=0).mean())

    low, high = 0.0, MAX_CORRELATION
    if power(high) < POWER:
        return math.nan
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return 6 / math.pi * math.asin(high / 2)  # Spearman's correlation of normal variables with Pearson's


def _critical_value(strata: Indices, n_terms: int, level: float, scale: Scale) -> float:
    """Return the absolute correlation that at most the share `level` of permutations reaches; infinite if none is."""
    n = len(strata)
    count = max(MIN_PERMUTATIONS, math.ceil(20 / level / N_NULL_SAMPLES))
    seed = derive_seed(SEED, "critical value", n, n_terms)
    rng = np.random.default_rng(seed)
    samples = N_NULL_SAMPLES if n_terms else 1  # without controls all samples without ties have the same permutations
    values = []
    if n <= MAX_ENUMERATED_ORDERS and not strata.any():
        permutations = orders(n)
    else:
        permutations = draw_permutations(strata, count * N_NULL_SAMPLES // samples, seed)
    for _ in range(samples):
        x, y = rng.standard_normal((2, 1, n))
        bases = _bases(rng.standard_normal((1, n_terms, n)), strata, scale)
        left, moved = _residuals(x, bases, strata, scale)[0], scores(y[0], strata, scale)[permutations]
        squares = (moved**2).sum(axis=1) - ((moved @ bases[0]) ** 2).sum(axis=1)
        values.append(np.abs(moved @ left) / np.sqrt(np.maximum(squares, 1e-12)))
    pooled = np.sort(np.concatenate(values))[::-1]
    reached = int(level * len(pooled))
    if not reached:
        return math.inf
    # Equal values count together: one that more than the share `level` reaches is no critical value.
    above = pooled[:reached][pooled[:reached] > pooled[reached] + TOLERANCE]
    return float(above[-1]) - TOLERANCE if len(above) else math.inf


def _bases(controls: NDArray[np.float64], strata: Indices, scale: Scale) -> NDArray[np.float64]:
    """Return orthonormal bases of the scores of controls, shape (s, n, k)."""
    return np.asarray(np.linalg.qr(scores(controls, strata, scale).swapaxes(1, 2))[0])


def _residuals(values: Matrix, bases: NDArray[np.float64], strata: Indices, scale: Scale) -> Matrix:
    """Return scores less what the controls explain, each sample of length 1, shape (s, n)."""
    x = scores(values, strata, scale)
    x = x - (bases @ (bases.swapaxes(1, 2) @ x[:, :, None]))[:, :, 0]
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
