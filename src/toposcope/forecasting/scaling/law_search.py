"""The optimum of a scaling law's objective: the Huber loss of ln L, by Newton's method on many problems at once.

The law is written as a log-sum-exp, ln L = ln(exp(e) + exp(a - alpha x) + exp(b - beta y)), with x = ln N and y = ln D
about their means (Hoffmann et al. 2022, equation 3). All resamples of a bootstrap, or all starts of a grid, are rows of
the same arrays. First and second derivatives are exact.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from toposcope.least_squares import Damping, damped_descent, shortened
from toposcope.typing import Matrix, Vector

DELTA = 1e-3  # residuals of ln L beyond this count linearly (Hoffmann et al. 2022)
TOLERANCE = 1e-13
"""Of the objective: what a Newton step would still gain, relative to it. Looser ones stop at wrong exponents."""
ROUNDING = 1e-22  # an objective, in units of `DELTA` squared, that is all rounding: the residuals are under 1e-14
GRID = np.geomspace(0.03, 2.4, 20)  # exponents of the starts, for each of alpha and beta
MAX_FOLLOWED = 12  # starts that are followed to the end
MAX_EXPONENT = 20.0  # from which there is no way back: a single point is made much of
MAX_ITER_ALL, MAX_ITER_FEW = 100, 1000  # Newton steps of all problems, and of the few that have not converged then
MIN_CURVATURE = 1e-14  # share of the largest; smaller curvatures are rounding errors
BATCH_RESIDUALS = 200_000  # residuals held in memory at once; the work then stays in the cache
MIN_TERM_SHARE = 1e-3  # of the mean loss, of each term of a start
MIN_FLOOR = -16.0  # e of a law whose E is taken for 0: a ten-millionth of the loss


@dataclass(frozen=True, eq=False)
class Problem:
    """Logarithms of points, each about its mean."""

    x: Vector  # shape (n,), as the others; ln N, ln D and ln L less `centre`
    y: Vector
    z: Vector
    centre: tuple[float, float, float]

    @classmethod
    def of(cls, N: Vector, D: Vector, loss: Vector) -> Self:
        """Centre logarithms."""
        logs = [np.log(values) for values in (N, D, loss)]
        x, y, z = (values - values.mean() for values in logs)
        return cls(x, y, z, (float(logs[0].mean()), float(logs[1].mean()), float(logs[2].mean())))

    def coefficients(self, theta: Matrix) -> Matrix:
        """Return E, A, B, alpha and beta of parameters (e, a, b, alpha, beta), shape (k, 5)."""
        e, a, b, alpha, beta = theta.T
        x, y, z = self.centre
        e = np.where(e <= MIN_FLOOR, -np.inf, e)
        with np.errstate(over="ignore"):  # A and B of absurd exponents
            return np.stack([np.exp(e + z), np.exp(a + z + alpha * x), np.exp(b + z + beta * y), alpha, beta], axis=1)


@dataclass(frozen=True, eq=False)
class Descent:
    """Where descents ended."""

    theta: Matrix  # shape (k, 5)
    objective: Vector  # shape (k,); weighted mean of the Huber loss, in units of `DELTA` squared
    converged: NDArray[np.bool_]  # shape (k,); whether less than `TOLERANCE` was left to gain


def descend(problem: Problem, starts: Matrix, weights: Matrix) -> Descent:
    """Follow each start down to its optimum.

    Most converge within a few dozen steps. Those whose E runs towards 0 do so along a bent valley; they are tried at E
    = 0, which is their optimum if the objective rises with E there, and else are given more steps.
    """
    weights = np.broadcast_to(weights, (len(starts), len(problem.x)))
    size = max(1, BATCH_RESIDUALS // len(problem.x))
    parts = [_descend(problem, starts[i : i + size], weights[i : i + size]) for i in range(0, len(starts), size)]
    theta, objective, converged = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Descent(theta, objective / weights.sum(axis=1) / DELTA**2, converged)


def optima(problem: Problem, weights: Vector) -> Descent:
    """Return the optima that the whole grid of starts leads to, the best first; each start's own, equal ones too.

    At each pair of exponents the coefficients E, A and B are linear (variable projection); they come from least squares
    of the relative error, which costs three sums over the points. The objective is computed at all pairs, and followed
    down from those without a better neighbour, then from the next best.
    """
    grid = starts(problem, weights)
    found = values(problem, grid.reshape(-1, 5), weights).reshape(grid.shape[:2])
    ranked = np.lexsort((found.ravel(), ~_lowest_around(found).ravel()))
    descent = descend(problem, grid.reshape(-1, 5)[ranked[:MAX_FOLLOWED]], weights[None])
    order = np.argsort(descent.objective, kind="stable")
    return Descent(descent.theta[order], descent.objective[order], descent.converged[order])


def starts(problem: Problem, weights: Vector) -> NDArray[np.float64]:
    """Return a start for each pair of exponents of `GRID`, shape (20, 20, 5)."""
    k, share = len(GRID), weights / weights.sum()
    inverse = np.exp(-problem.z)  # relative errors: each point is divided by its loss
    terms = np.concatenate([inverse[None], *(np.exp(-np.outer(GRID, of)) * inverse for of in (problem.x, problem.y))])
    size = np.sqrt((terms**2 * share).sum(axis=1))
    terms /= size[:, None]
    gram, right = (terms * share) @ terms.T, (terms * share).sum(axis=1)
    i, j = (index.ravel() for index in np.indices((k, k)))
    chosen = np.stack([np.zeros_like(i), 1 + i, 1 + k + j], axis=1)
    matrices = gram[chosen[:, :, None], chosen[:, None, :]] + 1e-12 * np.eye(3)  # equal terms share their part
    linear = np.maximum(np.linalg.solve(matrices, right[chosen][..., None])[..., 0] / size[chosen], MIN_TERM_SHARE)
    return np.concatenate([np.log(linear), GRID[i, None], GRID[j, None]], axis=1).reshape(k, k, 5)


def values(problem: Problem, theta: Matrix, weights: Vector) -> Vector:
    """Return the weighted sum of the Huber loss at each row, shape (k,)."""
    size = max(1, BATCH_RESIDUALS // len(problem.x))
    parts = (_shares(problem, theta[i : i + size])[2] for i in range(0, len(theta), size))
    return np.concatenate([(weights * _huber(residual)).sum(axis=1) for residual in parts])


def _descend(problem: Problem, starts: Matrix, weights: Matrix) -> tuple[Matrix, Vector, NDArray[np.bool_]]:
    theta, objective, converged = _newton(problem, starts, weights, MAX_ITER_ALL)
    slow = np.flatnonzero(~converged)
    if len(slow):
        floorless = theta[slow].copy()
        floorless[:, 0] = -np.inf
        floorless, lower, done = _newton(problem, floorless, weights[slow], MAX_ITER_FEW)
        right = done & (lower <= objective[slow]) & _rises_with_floor(problem, floorless, weights[slow])
        theta[slow[right]], objective[slow[right]], converged[slow[right]] = floorless[right], lower[right], True
        slow = slow[~right]
        if len(slow):
            theta[slow], objective[slow], converged[slow] = _newton(problem, theta[slow], weights[slow], MAX_ITER_FEW)
    return theta, objective, converged


def _newton(problem: Problem, starts: Matrix, weights: Matrix, steps: int) -> tuple[Matrix, Vector, NDArray[np.bool_]]:
    """Newton's method with a damping of its own for each row; negative curvature is turned round."""
    negligible = ROUNDING * DELTA**2 * weights.sum(axis=1)
    return damped_descent(
        lambda theta, rows: _derivatives(problem, theta, weights[rows]),
        _step,
        starts,
        Damping(10, 8, 1e-16, 1e8),
        steps,
        lambda objective, rows: np.maximum(TOLERANCE * objective, negligible[rows]),
        lambda theta: np.abs(theta[:, 3:]).max(axis=1) >= MAX_EXPONENT,
    )


def _step(gradient: Matrix, hessian: NDArray[np.float64], damping: Vector) -> tuple[Matrix, Vector]:
    """Return the steps, shape (k, 5), and what undamped ones would gain, shape (k,)."""
    curvature, axes = np.linalg.eigh(hessian)
    along = np.einsum("kij,ki->kj", axes, gradient)
    largest = np.abs(curvature).max(axis=1, keepdims=True)
    steep = np.maximum(np.abs(curvature), MIN_CURVATURE * largest) + np.finfo(float).tiny
    step = -np.einsum("kij,kj->ki", axes, along / (steep + damping[:, None] * largest))
    return shortened(step, 1.0), (along**2 / steep).sum(axis=1) / 2


def _shares(problem: Problem, theta: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return the shares of the loss that N and D have, and the residual of ln L, each of shape (k, n)."""
    e, a, b, alpha, beta = (column[:, None] for column in theta.T)
    p = np.exp(a - alpha * problem.x)
    q = np.exp(b - beta * problem.y)
    whole = np.exp(e) + p + q
    p /= whole
    q /= whole
    return p, q, np.log(whole) - problem.z


def _huber(residual: Matrix) -> Matrix:
    size = np.abs(residual)
    least = np.minimum(size, DELTA)
    return np.asarray(least * (size - least / 2))


def _derivatives(problem: Problem, theta: Matrix, weights: Matrix) -> tuple[Vector, Matrix, NDArray[np.float64]]:
    """Return the weighted sum of the Huber loss, its gradient (k, 5) and its second derivatives (k, 5, 5).

    With p0, p and q the shares of E, N and D in the loss, ln L has the gradient (p0, p, q, -p x, -q y) and, in the
    three logarithms of the terms, the second derivatives diag(p0, p, q) - (p0, p, q)(p0, p, q)'.
    """
    p, q, residual = _shares(problem, theta)
    first = weights * np.clip(residual, -DELTA, DELTA)
    second = weights * (np.abs(residual) < DELTA) - first
    rest = 1 - p - q
    rest[np.isneginf(theta[:, 0])] = 0  # not what rounding leaves
    one, x, y = np.ones_like(problem.x), problem.x, problem.y
    of_x, of_y = np.stack([one, x, x**2], axis=1), np.stack([one, y, y**2], axis=1)
    both = np.stack([one, x, y, x * y], axis=1)

    g0, gp, gq = (first * rest).sum(axis=1), (first * p) @ of_x, (first * q) @ of_y
    gradient = np.stack([g0, gp[:, 0], gq[:, 0], -gp[:, 1], -gq[:, 1]], axis=1)
    pp, qq, pq = (second * p * p) @ of_x, (second * q * q) @ of_y, (second * p * q) @ both
    second *= rest
    rr, rp, rq = (second * rest).sum(axis=1), (second * p) @ of_x, (second * q) @ of_y
    upper = (
        (rr + g0, rp[:, 0], rq[:, 0], -rp[:, 1], -rq[:, 1]),
        (pp[:, 0] + gp[:, 0], pq[:, 0], -pp[:, 1] - gp[:, 1], -pq[:, 2]),
        (qq[:, 0] + gq[:, 0], -pq[:, 1], -qq[:, 1] - gq[:, 1]),
        (pp[:, 2] + gp[:, 2], pq[:, 3]),
        (qq[:, 2] + gq[:, 2],),
    )
    hessian = np.empty((len(theta), 5, 5))
    for i, row in enumerate(upper):
        for j, entry in enumerate(row, i):
            hessian[:, i, j] = hessian[:, j, i] = entry
    return (weights * _huber(residual)).sum(axis=1), gradient, hessian


def _rises_with_floor(problem: Problem, theta: Matrix, weights: Matrix) -> NDArray[np.bool_]:
    """Return whether the objective rises when E does from 0."""
    _, a, b, alpha, beta = (column[:, None] for column in theta.T)
    whole = np.exp(a - alpha * problem.x) + np.exp(b - beta * problem.y)
    slope = (weights * np.clip(np.log(whole) - problem.z, -DELTA, DELTA) / whole).sum(axis=1)
    return np.asarray(slope >= 0)


def _lowest_around(found: Matrix) -> NDArray[np.bool_]:
    """Return where no neighbour on the grid, of eight, is lower."""
    padded = np.pad(found, 1, constant_values=np.inf)
    shifts = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    around = [padded[i : i + found.shape[0], j : j + found.shape[1]] for i, j in shifts]
    return np.asarray(found <= np.min(around, axis=0))
