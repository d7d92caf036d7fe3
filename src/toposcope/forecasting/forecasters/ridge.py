"""Robust ridge regression, with its strength and its errors from leaving groups out."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecasters.power_law_fit import HUBER, NORMAL
from toposcope.typing import Matrix, Vector

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, np.inf)
"""Candidates, weakest first; with an infinite one the fit is a constant."""
ROUNDS = 4
MAX_FOLDS = 10
MAX_DEVIATIONS = 3.0
"""Standard deviations; features further out are clipped."""
LEVERAGE_FACTOR = 5.0
MIN_STRENGTH = 3.0
MAX_COUNTED_ERROR = 0.05
"""In choosing the strength, an error that is larger counts as this."""


@dataclass(frozen=True)
class RidgeFit:
    """A fitted ridge.

    Attributes
    ----------
    centre, scale, slopes : ndarray, shape (p,)
        Of the features; slopes of the standardised ones.
    offset : float
    low, high : float
        Smallest and largest target it was fitted to; predictions are clipped to them.
    strength : float
    held_out : ndarray, shape (n,)
        Prediction for each row, from the folds that it is not in.
    spread : ndarray, shape (p, p)
        Inverse of the standardised features' products, with the weakest ridge.
    """

    centre: Vector
    scale: Vector
    slopes: Vector
    offset: float
    low: float
    high: float
    strength: float
    held_out: Vector
    spread: Matrix

    def __call__(self, features: Matrix) -> Vector:
        """Return the predictions for rows of features, shape (m,)."""
        return np.clip(self.offset + self._z(features) @ self.slopes, self.low, self.high)

    def reach(self, features: Matrix) -> Vector:
        """Return how much larger an error is to be expected for rows far from those fitted, shape (m,), at least 1.

        sqrt(1 + 5 leverage): a row like many of those fitted has leverage near 0, one unlike all of them near 1. The
        standard error of a prediction has 1 in place of 5; sizes that are left out differ by more than chance.
        """
        z = self._z(features)
        reach: Vector = np.sqrt(1 + LEVERAGE_FACTOR * np.einsum("mi,ij,mj->m", z, self.spread, z))
        return reach

    def _z(self, features: Matrix) -> Matrix:
        return np.clip((features - self.centre) / self.scale, -MAX_DEVIATIONS, MAX_DEVIATIONS)


def fit_ridge(features: Matrix, target: Vector, groups: Sequence[Hashable]) -> RidgeFit:
    """Fit a robust ridge whose strength errs least on groups that are left out.

    Parameters
    ----------
    features : ndarray, shape (n, p)
    target : ndarray, shape (n,)
    groups : sequence, length n
        Rows of a group are left out together; at least two groups. More than 10 are gathered into 10 folds.
    """
    names = sorted(set(groups), key=str)
    fold_of = {name: i % MAX_FOLDS for i, name in enumerate(names)}
    folds = np.array([fold_of[group] for group in groups])
    held_out = _held_out(features, target, folds)
    losses = np.minimum(np.abs(held_out - target), MAX_COUNTED_ERROR).mean(axis=1)
    best = int(losses.argmin())
    whole = _fit(_standard(features), target, STRENGTHS[best])
    z = (features - whole[0]) / whole[1]
    spread = np.asarray(np.linalg.inv(z.T @ z + MIN_STRENGTH * np.eye(z.shape[1])), dtype=np.float64)
    return RidgeFit(*whole, STRENGTHS[best], held_out[best], spread)


class _Standard(NamedTuple):
    """Standardised features, and how they were."""

    centre: Vector
    scale: Vector
    z: Matrix


def _held_out(features: Matrix, target: Vector, folds: NDArray[np.int64]) -> Matrix:
    """Return the prediction for each row from the folds it is not in, by strength, shape (n_strengths, n)."""
    answers = np.empty((len(STRENGTHS), len(target)))
    for fold in np.unique(folds):
        out = folds == fold
        standard = _standard(features[~out])
        for i, strength in enumerate(STRENGTHS):
            fit = RidgeFit(*_fit(standard, target[~out], strength), strength, np.empty(0), np.empty((0, 0)))
            answers[i, out] = fit(features[out])
    return answers


def _standard(features: Matrix) -> _Standard:
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 1e-9 * (1 + np.abs(centre)), scale, np.inf)
    return _Standard(centre, scale, (features - centre) / scale)


def _fit(standard: _Standard, target: Vector, strength: float) -> tuple[Vector, Vector, Vector, float, float, float]:
    centre, scale, z = standard
    middle = _median(target)
    slopes, offset = np.zeros(z.shape[1]), middle
    weight = np.ones(len(target))
    penalty = strength * np.eye(z.shape[1]) if np.isfinite(strength) else None
    for _ in range(ROUNDS):
        total = weight.sum()
        mean = weight @ z / total
        level = float(weight @ target) / total
        if penalty is not None:
            left = z - mean
            weighted = (left * weight[:, None]).T
            slopes = np.linalg.solve(weighted @ left + penalty, weighted @ (target - level))
        offset = level - float(mean @ slopes)
        size = np.abs(target - offset - z @ slopes)
        spread = NORMAL * _median(size) + 1e-9
        weight = np.minimum(1, HUBER * spread / np.maximum(size, 1e-12))
    return centre, scale, slopes, offset, float(target.min()), float(target.max())


def _median(values: Vector) -> float:
    """Return the median; NumPy's own takes most of the time of a fit."""
    ordered = np.sort(values)
    return float((ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2)
