"""Minima of many small problems at once, by damped steps within bounds; Huber's weights of residuals."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.typing import Indices, Matrix, Vector

Tensor = NDArray[np.float64]
Residuals = Callable[[NDArray[np.complex128], Indices], NDArray[np.complex128]]
"""Called with parameters, shape (b, p), and the numbers of their problems, shape (b,); returns residuals, (b, n)."""
Linearised = Callable[[Matrix, Indices], tuple[Matrix, Tensor]]
"""Called likewise; returns residuals, shape (b, n), and their derivatives, shape (b, n, p)."""
Bounds = tuple[Vector | float, Vector | float]
Derivatives = tuple[Vector, Tensor, Tensor]
"""Objectives, shape (b,), and two arrays of derivatives that a step follows from, shapes (b, ...)."""

HUBER = 1.345  # residuals beyond so many scales count less: 95% efficient where they are normal (Huber 1964)
NORMAL = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
COMPLEX_STEP = 1e-30  # along the imaginary axis: the derivative is exact but for rounding (Squire and Trapp 1998)
TOLERANCE = 1e-6
"""What an undamped step would still gain of the sum of squares, whose terms are in units of their standard errors."""
BATCH_RESIDUALS = 100_000  # residuals held in memory at once, for each parameter
FIRST_DAMPING = 1e-3


def huber_weights(size: Tensor, limit: ArrayLike, least: float) -> Tensor:
    """Return the weights of residuals of such sizes: 1 up to the limit, then falling as 1 / size."""
    weights = np.maximum(size, least)
    return np.asarray(np.minimum(1, np.divide(limit, weights, out=weights), out=weights))


class Damping(NamedTuple):
    """By what the damping is divided after a better step and multiplied after a worse one, and its range."""

    easing: float
    hardening: float
    least: float
    most: float


def damped_descent(
    evaluate: Callable[[Matrix, Indices], Derivatives],
    step: Callable[[Tensor, Tensor, Vector], tuple[Matrix, Vector]],
    starts: Matrix,
    damping: Damping,
    steps: int,
    tolerance: Callable[[Vector, Indices], Vector | float],
    is_lost: Callable[[Matrix], NDArray[np.bool_]] | None = None,
    bounds: Bounds = (-np.inf, np.inf),
) -> tuple[Matrix, Vector, NDArray[np.bool_]]:
    """Follow each start down with a damping of its own; return parameters, objectives and whether each converged."""
    theta = np.clip(starts.astype(np.float64), *bounds)
    objective, first, second = evaluate(theta, np.arange(len(theta)))
    objective[~np.isfinite(objective)] = np.inf
    level, converged = np.full(len(theta), FIRST_DAMPING), np.zeros(len(theta), dtype=bool)
    live = np.flatnonzero(np.isfinite(objective))
    for _ in range(steps):
        if not len(live):
            break
        taken_step, gain = step(first[live], second[live], level[live])
        tried = np.clip(theta[live] + taken_step, *bounds)
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
    return np.asarray(step * np.minimum(1, longest / np.maximum(np.abs(step).max(axis=1, keepdims=True), longest)))


def least_squares(
    linearised: Linearised,
    starts: Matrix,
    *,
    bounds: Bounds = (-np.inf, np.inf),
    tolerance: float = TOLERANCE,
    relative: float = 0.0,
    steps: int = 100,
) -> tuple[Matrix, Vector]:
    """Follow each start to a minimum of its sum of squares, by Levenberg and Marquardt's method; return both.

    A start is done once an undamped step gains no more than the tolerance, or than this share of its sum of squares.
    """
    size = max(1, BATCH_RESIDUALS // linearised(np.clip(starts[:1], *bounds), np.arange(1))[0].shape[1])
    low, high = bounds
    numbers, parts = np.arange(len(starts)), []
    for i in range(0, len(starts), size):
        part = numbers[i : i + size]

        def evaluate(theta: Matrix, rows: Indices, part: Indices = part) -> Derivatives:
            with np.errstate(all="ignore"):  # what is not finite is not taken
                values, jacobian = linearised(theta, part[rows])
                uphill = np.einsum("bni,bn->bi", jacobian, values)
                held = ((theta <= low) & (uphill > 0)) | ((theta >= high) & (uphill < 0))
                jacobian = np.where(held[:, None], 0.0, jacobian)
                return (values**2).sum(axis=1), values, jacobian

        parts.append(
            damped_descent(
                evaluate, _step, starts[part], Damping(5, 4, 1e-12, 1e10), steps,
                lambda squares, _: np.maximum(tolerance, relative * squares), bounds=bounds,
            )
        )  # fmt: skip
    return np.concatenate([theta for theta, *_ in parts]), np.concatenate([squares for _, squares, _ in parts])


def complex_step(residuals: Residuals) -> Linearised:
    """Return residuals with their exact derivatives, of a function that is analytic."""

    def linearised(theta: Matrix, problems: Indices) -> tuple[Matrix, Tensor]:
        with np.errstate(all="ignore"):
            shifts = 1j * COMPLEX_STEP * np.eye(theta.shape[1])
            columns = [residuals(theta + shift, problems) for shift in shifts]
        return columns[-1].real, np.stack([column.imag / COMPLEX_STEP for column in columns], axis=-1)

    return linearised


def _step(values: Matrix, jacobian: Tensor, damping: Vector) -> tuple[Matrix, Vector]:
    """Return the steps, shape (b, p), none of a part longer than 1, and what undamped ones would gain, shape (b,)."""
    gram = np.einsum("bni,bnj->bij", jacobian, jacobian)
    gradient = np.einsum("bni,bn->bi", jacobian, values)
    scale = np.einsum("bii->bi", gram)
    floor = 1e-12 * scale.max(axis=1, keepdims=True) + np.finfo(float).tiny
    diagonal = np.maximum(scale, floor)[:, :, None] * np.eye(gradient.shape[1])
    damped = np.linalg.solve(gram + damping[:, None, None] * diagonal, -gradient[..., None])[..., 0]
    free = np.linalg.solve(gram + 1e-12 * diagonal, gradient[..., None])[..., 0]
    return shortened(damped, 1.0), np.abs((gradient * free).sum(axis=1))
