"""Minima of many small problems at once by damped steps; sums of squares with exact derivatives."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.typing import Indices, Matrix, Vector

Residuals = Callable[[NDArray[np.complex128], NDArray[np.int64]], NDArray[np.complex128]]
"""Called with parameters, shape (b, p), and the numbers of their problems, shape (b,); returns residuals, (b, n)."""
Derivatives = tuple[Vector, NDArray[np.float64], NDArray[np.float64]]
"""Objectives, shape (b,), and two arrays of derivatives that a step follows from, shapes (b, ...)."""

COMPLEX_STEP = 1e-30
"""In the imaginary direction: the derivative then has no error but rounding (Squire and Trapp 1998)."""
TOLERANCE = 1e-6
"""What an undamped step would still gain of the sum of squares, whose terms are in units of their standard errors."""
MAX_STEPS = 100
AT_ONCE = 100_000  # residuals held in memory together, for each parameter
FIRST_DAMPING = 1e-3


class Damping(NamedTuple):
    """By what the damping is divided after a better step and multiplied after a worse one, and its range."""

    easing: float
    hardening: float
    least: float
    most: float


def damped_descent(
    evaluate: Callable[[Matrix, Indices], Derivatives],
    step: Callable[[NDArray[np.float64], NDArray[np.float64], Vector], tuple[Matrix, Vector]],
    starts: Matrix,
    damping: Damping,
    steps: int,
    tolerance: Callable[[Vector, Indices], Vector | float],
    is_lost: Callable[[Matrix], NDArray[np.bool_]] | None = None,
) -> tuple[Matrix, Vector, NDArray[np.bool_]]:
    """Follow each start down with a damping of its own; return parameters, objectives and whether each converged."""
    theta = starts.astype(np.float64)
    objective, first, second = evaluate(theta, np.arange(len(theta)))
    objective[~np.isfinite(objective)] = np.inf
    level, converged = np.full(len(theta), FIRST_DAMPING), np.zeros(len(theta), dtype=bool)
    live = np.flatnonzero(np.isfinite(objective))
    for _ in range(steps):
        if not len(live):
            break
        taken_step, gain = step(first[live], second[live], level[live])
        tried = theta[live] + taken_step
        found, tried_first, tried_second = evaluate(tried, live)
        better = found <= objective[live]
        taken = live[better]
        theta[taken], objective[taken] = tried[better], found[better]
        first[taken], second[taken] = tried_first[better], tried_second[better]
        level[live] = np.where(
            better, np.maximum(level[live] / damping.easing, damping.least), level[live] * damping.hardening
        )
        # Where no step lowers the objective any more, rounding is all that is left of it.
        done = (better & (gain <= tolerance(objective[live], live))) | (level[live] > damping.most)
        converged[live[done]] = True
        live = live[~done]
        if is_lost is not None:
            live = live[~is_lost(theta[live])]
    return theta, objective, converged


def shortened(step: Matrix, longest: float) -> Matrix:
    """Return steps none of whose parts is longer than so much."""
    largest = np.abs(step).max(axis=1, keepdims=True)
    return np.asarray(step * np.minimum(1, longest / np.maximum(largest, longest)))


def least_squares(residuals: Residuals, starts: Matrix, *, longest: float = 1.0) -> tuple[Matrix, Vector]:
    """Follow each start to a minimum of its sum of squares, by Levenberg and Marquardt's method."""
    size = max(1, AT_ONCE // residuals(starts[:1].astype(np.complex128), np.arange(1)).shape[1])
    numbers, parts = np.arange(len(starts)), []
    for i in range(0, len(starts), size):
        part = numbers[i : i + size]

        def evaluate(theta: Matrix, rows: Indices, part: Indices = part) -> Derivatives:
            return _linearised(residuals, theta, part[rows])

        def step(values: Matrix, jacobian: NDArray[np.float64], damping: Vector) -> tuple[Matrix, Vector]:
            return _step(values, jacobian, damping, longest)

        damping = Damping(5, 4, 1e-12, 1e10)
        parts.append(damped_descent(evaluate, step, starts[part], damping, MAX_STEPS, lambda _, rows: TOLERANCE))
    return np.concatenate([theta for theta, *_ in parts]), np.concatenate([squares for _, squares, _ in parts])


def _linearised(residuals: Residuals, theta: Matrix, problems: NDArray[np.int64]) -> Derivatives:
    """Return sums of squares, residuals, shape (b, n), and their derivatives, shape (b, n, p)."""
    with np.errstate(all="ignore"):  # what is not finite is not taken
        columns = []
        for j in range(theta.shape[1]):
            shifted = theta.astype(np.complex128)
            shifted[:, j] += 1j * COMPLEX_STEP
            found = residuals(shifted, problems)
            columns.append(found.imag / COMPLEX_STEP)
        values = found.real
        return (values**2).sum(axis=1), values, np.stack(columns, axis=-1)


def _step(values: Matrix, jacobian: NDArray[np.float64], damping: Vector, longest: float) -> tuple[Matrix, Vector]:
    """Return the steps, shape (b, p), and what undamped ones would gain, shape (b,)."""
    gram = np.einsum("bni,bnj->bij", jacobian, jacobian)
    gradient = np.einsum("bni,bn->bi", jacobian, values)
    scale = np.einsum("bii->bi", gram)
    floor = 1e-12 * scale.max(axis=1, keepdims=True) + np.finfo(float).tiny
    diagonal = np.maximum(scale, floor)[:, :, None] * np.eye(gradient.shape[1])
    damped = np.linalg.solve(gram + damping[:, None, None] * diagonal, -gradient[..., None])[..., 0]
    free = np.linalg.solve(gram + 1e-12 * diagonal, gradient[..., None])[..., 0]
    return shortened(damped, longest), np.abs((gradient * free).sum(axis=1))
