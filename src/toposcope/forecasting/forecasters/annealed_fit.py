"""L0 + A x^-a - c G fitted robustly: a is searched, L0, A and c are solved for."""

import numpy as np

from toposcope.forecasting.forecasters.variable_projection import EXPONENTS, HUBER, NORMAL
from toposcope.typing import Vector

ROUNDS = 4
LEAST = 1e-9
CERTAIN = 1e9
"""Scale of the residuals over the spread of c, from which c is what the prior says."""


def fit_coefficient(
    x: Vector, annealing: Vector, y: Vector, weight: Vector, prior: tuple[float, float] | None = None
) -> float | None:
    """Return c by least squares for each exponent, reweighted by Huber's function; at least 0.

    Parameters
    ----------
    x, annealing, y, weight : ndarray, shape (n,)
        Progress, positive and ascending; G, the loss, and how much each point counts.
    prior : tuple of float, optional
        Centre and spread of c: one more observation, whose noise is the spread where that of the points is the scale of
        their residuals.

    Returns
    -------
    float or None
        None with a prior, if nothing fits with L0 and A at least 0. Without one A is then 0.
    """
    unit = float(np.abs(y).mean())
    found = _coefficient(x, annealing, y / unit, weight, prior and (prior[0] / unit, prior[1] / unit))
    return None if found is None else found * unit


def _coefficient(
    x: Vector, annealing: Vector, y: Vector, weight: Vector, prior: tuple[float, float] | None
) -> float | None:
    z = (x / x[-1]) ** -EXPONENTS[:, None]
    columns = np.stack([np.ones_like(z), z, np.broadcast_to(-annealing, z.shape)], axis=2)
    robust, scale = np.broadcast_to(weight, z.shape), np.zeros(len(z))
    for _ in range(ROUNDS):
        normal = np.einsum("kni,kn,knj->kij", columns, robust, columns) + LEAST**1.5 * np.eye(3)
        right = np.einsum("kni,kn,n->ki", columns, robust, y)
        if prior:
            strength = np.minimum(scale / prior[1], CERTAIN) ** 2
            normal[:, 2, 2] += strength
            right[:, 2] += strength * prior[0]
        solved = np.linalg.solve(normal, right[:, :, None])[:, :, 0]
        size = np.abs(y - np.einsum("kni,ki->kn", columns, solved))
        scale = NORMAL * np.median(size, axis=1) + LEAST
        robust = weight * np.minimum(1, HUBER * scale[:, None] / np.maximum(size, LEAST))
    sound = (solved[:, :2] >= 0).all(axis=1)
    if sound.any():
        misfit = (robust * size**2).sum(axis=1)
        if prior:
            misfit += ((solved[:, 2] - prior[0]) * np.minimum(scale / prior[1], CERTAIN)) ** 2
        return max(float(solved[np.where(sound, misfit, np.inf).argmin(), 2]), 0.0)
    if prior:
        return None
    flat = np.stack([np.ones(len(x)), -annealing], axis=1) * np.sqrt(weight)[:, None]
    return max(float(np.linalg.lstsq(flat, y * np.sqrt(weight), rcond=None)[0][1]), 0.0)
