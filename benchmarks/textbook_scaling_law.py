"""The fit of a scaling law as it is usually written: SciPy's BFGS from every start of a grid, one after the other."""

from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import huber, logsumexp

Vector = NDArray[np.float64]

DELTA = 1e-3
GRID = tuple(product((0, 5, 10, 15, 20, 25), (0, 5, 10, 15, 20, 25), (-1, -0.5, 0, 0.5, 1), *2 * [(0, 0.5, 1, 1.5, 2)]))
"""ln A, ln B, ln E, alpha and beta of the 4,500 starts of Hoffmann et al. 2022, section 3.3."""


def descend(logs: tuple[Vector, Vector, Vector], start: tuple[float, ...] | Vector) -> tuple[float, Vector]:
    """Return the objective, a mean in units of delta squared, and E, A, B, alpha and beta where a descent ends.

    Parameters
    ----------
    logs : tuple of ndarray, shape (n,)
        ln N, ln D and ln L.
    start : sequence of float
        ln A, ln B, ln E, alpha and beta.
    """
    x, y, z = logs
    flat = np.zeros(len(x))

    def objective(theta: Vector) -> float:
        a, b, e, alpha, beta = theta
        told = logsumexp([a - alpha * x, b - beta * y, e + flat], axis=0)
        return float(huber(DELTA, told - z).mean() / DELTA**2)

    found = minimize(objective, start, method="BFGS")
    a, b, e, alpha, beta = found.x
    with np.errstate(over="ignore"):
        return float(found.fun), np.array([np.exp(e), np.exp(a), np.exp(b), alpha, beta])


def fit(logs: tuple[Vector, Vector, Vector], every: int) -> tuple[Vector, Vector]:
    """Return the best coefficients, and the objectives of all starts; one in `every` of the grid is followed."""
    found = [descend(logs, start) for start in GRID[::every]]
    return min(found, key=lambda pair: pair[0])[1], np.array([objective for objective, _ in found])
