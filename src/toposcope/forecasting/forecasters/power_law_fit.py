"""The late part of a log, and robust fits of L0 + A x^-a and L0 + A x^-a - c G: a is searched, the rest solved for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecaster import RefusedError
from toposcope.least_squares import HUBER, NORMAL, Tensor, huber_weights
from toposcope.logs import Run
from toposcope.logs.caching import cached
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Indices, Matrix, Vector

# Chosen on three collections of published language models (`mpl`, `schaipp`, `xlstm_llama`): docs/forecasters.md.
MAX_SPIKE = 5.0  # times the median of the window; a larger loss counts as this

MIN_POINTS = 5  # points that a law is fitted to
MAX_BINS = 200
BATCH_POINTS = 1 << 14  # points times exponents that are fitted together: they stay in the processor's cache
EXPONENTS = np.linspace(0.05, 1.5, 59)
N_FINER_EXPONENTS = 21
MIN_ROUNDS, MAX_ROUNDS = 4, 20  # of reweighting; more than 4 only while many outliers keep the scale falling
SETTLED_RATIO = 0.9  # the scale has settled if it is at least this share of that of the round before
MIN_SCALE = 1e-6  # share of the mean value; a curve without noise has no scale of its own
MIN_RELATIVE_SCALE = 1e-9  # of the fit with annealing, whose values are divided by their mean
MAX_PRIOR_STRENGTH = 1e9  # scale of the residuals over the spread of c, from which c is what the prior says

Points = tuple[Vector, Vector, Vector]
"""x, y and their weights, shape (n,) each."""


@dataclass(frozen=True, eq=False)
class Window:
    """The late part of what was seen."""

    steps: NDArray[np.int64]  # shape (n,)
    loss: Vector  # shape (n,)
    weight: Vector  # shape (n,); number of logged steps that a point is the mean of, over the mean of that number


def window(log: Run, schedule: Schedule, share: float) -> Window:
    """Return the late share of what was seen, at least 5 points; more than 200 as means over 200 bins of steps.

    Parameters
    ----------
    log : Run
    schedule : Schedule
    share : float
        Of the steps until the last one seen, in (0, 1].

    Raises
    ------
    RefusedError
        If fewer than 5 points were seen after step 0.
    """
    return cached(log, schedule, ("window", share), lambda: _window(log, share))


def _window(log: Run, share: float) -> Window:
    start = int(np.searchsorted(log.steps, 1))
    n = len(log.steps) - start
    if n < MIN_POINTS:
        raise RefusedError(f"{n} logged steps so far; a law needs at least {MIN_POINTS}")
    first = int(np.searchsorted(log.steps, (1 - share) * log.steps[-1]))
    first = max(start, min(first, len(log.steps) - MIN_POINTS))
    steps, loss = log.steps[first:], log.loss[first:]
    # the mean over a bin, unlike the fit, is not robust
    loss = np.minimum(loss, MAX_SPIKE * np.median(loss))
    if len(steps) <= MAX_BINS:
        return Window(steps, loss, np.ones(len(steps)))
    bins = np.searchsorted(np.linspace(steps[0], steps[-1] + 1, MAX_BINS + 1), steps, side="right") - 1
    count = np.bincount(bins, minlength=MAX_BINS)
    filled = count > 0

    def means(values: Vector) -> Vector:
        return np.asarray(np.bincount(bins, values, minlength=MAX_BINS)[filled] / count[filled])

    weight = count[filled] / count[filled].mean()
    return Window(means(steps.astype(np.float64)).round().astype(np.int64), means(loss), weight)


@dataclass(frozen=True)
class PowerLawFit:
    """L0 + A (x / x_n)^-a, with x_n the last of the fitted values."""

    L0: float
    A: float
    a: float
    last: float  # x_n
    scale: float  # of the residuals: their median absolute deviation times 1.4826
    at_edge: bool  # whether no exponent within the range fits better than its ends

    def __call__(self, x: Vector) -> Vector:
        """Return the law's values."""
        values: Vector = self.L0 + self.A * (x / self.last) ** -self.a
        return values

    def diagnostics(self) -> dict[str, float]:
        """Return the offset, the factor at the last point, the exponent and the residuals' scale, by name."""
        return {"L0": self.L0, "A": self.A, "a": self.a, "residual": self.scale}

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings that belong to a forecast by this fit, a sentence each."""
        if self.A <= MIN_SCALE * self.L0:
            return ("the loss does not fall as in training, it diverges or stands still: the law is its mean",)
        if not self.at_edge:
            return ()
        return ("the exponent is at the edge of its range: no curvature consistent with a power law so far",)


def fit_power_laws(problems: Sequence[Points], exponents: Vector = EXPONENTS) -> list[PowerLawFit]:
    """Fit L0 + A x^-a with L0, A at least 0 to each: least squares for each exponent, reweighted by Huber's function.

    The exponent is searched on a grid, then on a finer one about the best. Problems of one length are fitted together;
    a fit does not depend on the others.
    """
    fits: dict[int, PowerLawFit] = {}
    by_length: dict[int, list[int]] = {}
    for i, (x, *_) in enumerate(problems):
        by_length.setdefault(len(x), []).append(i)
    for n, alike in by_length.items():
        size = max(1, BATCH_POINTS // (n * len(exponents)))
        for part in (alike[start : start + size] for start in range(0, len(alike), size)):
            x, y, weight = (np.stack(column) for column in zip(*(problems[i] for i in part), strict=True))
            k, found = _best_exponents(x, y, weight, np.broadcast_to(exponents, (len(part), len(exponents))))
            inner = np.flatnonzero((k > 0) & (k < len(exponents) - 1)).tolist()
            if inner:
                around = k[inner]
                finer = np.linspace(exponents[around - 1], exponents[around + 1], N_FINER_EXPONENTS, axis=1)
                found[inner] = _best_exponents(x[inner], y[inner], weight[inner], finer)[1]
            for j, (i, (L0, A, a, last, scale)) in enumerate(zip(part, found.tolist(), strict=True)):
                fits[i] = PowerLawFit(L0, A, a, last, scale, at_edge=len(exponents) > 1 and j not in inner)
    return [fits[i] for i in range(len(problems))]


def fit_power_law(x: Vector, y: Vector, weight: Vector, exponents: Vector = EXPONENTS) -> PowerLawFit:
    """Return the fit to one problem of `fit_power_laws`."""
    return fit_power_laws([(x, y, weight)], exponents)[0]


def _best_exponents(x: Matrix, y: Matrix, weight: Matrix, exponents: Matrix) -> tuple[Indices, Matrix]:
    """Return which exponent fits each row best, and the numbers of its fit, as `PowerLawFit` has them."""
    z = np.exp(-exponents[:, :, None] * np.log(x / x[:, -1:])[:, None])
    y, weight = y[:, None], weight[:, None]
    least = MIN_SCALE * np.abs(y).mean(axis=2, keepdims=True)
    robust, best = np.broadcast_to(weight, z.shape), np.full(len(x), np.inf)
    chosen, found, live = np.zeros(len(x), np.int64), np.empty((len(x), 5)), np.arange(len(x))
    for done in range(1, MAX_ROUNDS + 1):
        L0, A = _nonnegative_lines(z, y, robust)
        size = y - L0[:, :, None]
        size -= A[:, :, None] * z
        np.abs(size, out=size)
        scale = NORMAL * row_medians(size) + least[:, :, 0]
        before, best = best, scale.min(axis=1)
        if done >= MIN_ROUNDS:
            settled = (best > SETTLED_RATIO * before) | (done == MAX_ROUNDS)
            rows = np.flatnonzero(settled)
            limit, its = HUBER * best[rows, None, None], size[rows]
            losses = np.where(its <= limit, its**2, 2 * limit * its - limit**2)
            k = np.add.reduce(weight[rows] * losses, axis=2).argmin(axis=1)
            numbers = L0[rows, k], A[rows, k], exponents[live[rows], k], x[live[rows], -1], scale[rows, k]
            chosen[live[rows]], found[live[rows]] = k, np.stack(numbers, axis=1)
            if len(rows) == len(live):
                break
            live, best, size, scale, z, y, weight, least = (
                each[~settled] for each in (live, best, size, scale, z, y, weight, least)
            )
        robust = huber_weights(size, HUBER * scale[:, :, None], least)
        robust *= weight
    return chosen, found


def _nonnegative_lines(z: Tensor, y: Tensor, weight: Tensor) -> tuple[Matrix, Matrix]:
    """Return the best L0 and A, both at least 0, for each row of z."""
    sums = partial(np.add.reduce, axis=2, keepdims=True)
    total, weighted = sums(weight), weight * z
    z_mean, y_mean = sums(weighted) / total, sums(weight * y) / total
    z_left, y_left = z - z_mean, y - y_mean
    y_left *= weight * z_left
    z_left *= z_left
    z_left *= weight
    spread = sums(z_left)
    slope = np.maximum(sums(y_left) / np.where(spread > 0, spread, np.inf), 0)
    offset = y_mean - slope * z_mean
    if (offset < 0).any():
        through_zero = sums(weighted * y) / sums(weight * z**2)
        offset, slope = np.maximum(offset, 0), np.where(offset < 0, through_zero, slope)
    return offset[:, :, 0], slope[:, :, 0]


def row_medians(values: Tensor) -> Vector:
    """Return the median of each row of finite values; NumPy's own takes a third of the time of a fit."""
    middle = (values.shape[-1] - 1) // 2, values.shape[-1] // 2
    ordered = np.sort(values, axis=-1)
    return np.asarray((ordered[..., middle[0]] + ordered[..., middle[1]]) / 2)


def fit_annealing_coefficient(
    x: Vector, annealing: Vector, y: Vector, weight: Vector, prior: tuple[float, float] | None = None
) -> float | None:
    """Return c by least squares for each exponent, reweighted by Huber's function; at least 0."""
    unit = float(np.abs(y).mean())
    c = _fit_scaled(x, annealing, y / unit, weight, prior and (prior[0] / unit, prior[1] / unit))
    return None if c is None else c * unit


def _fit_scaled(
    x: Vector, annealing: Vector, y: Vector, weight: Vector, prior: tuple[float, float] | None
) -> float | None:
    z = (x / x[-1]) ** -EXPONENTS[:, None]
    columns = np.stack([np.ones_like(z), z, np.broadcast_to(-annealing, z.shape)], axis=2)
    robust, scale = np.broadcast_to(weight, z.shape), np.zeros(len(z))
    ridge = MIN_RELATIVE_SCALE**1.5 * np.eye(3)
    for _ in range(MIN_ROUNDS):
        weighted = (columns * robust[:, :, None]).transpose(0, 2, 1)
        normal = weighted @ columns + ridge
        right = weighted @ y
        if prior:
            strength = np.minimum(scale / prior[1], MAX_PRIOR_STRENGTH) ** 2
            normal[:, 2, 2] += strength
            right[:, 2] += strength * prior[0]
        solution = np.linalg.solve(normal, right[:, :, None])[:, :, 0]
        size = np.abs(y - (columns @ solution[:, :, None])[:, :, 0])
        scale = NORMAL * row_medians(size) + MIN_RELATIVE_SCALE
        robust = weight * huber_weights(size, HUBER * scale[:, None], MIN_RELATIVE_SCALE)
    sound = (solution[:, :2] >= 0).all(axis=1)
    if sound.any():
        misfit = (robust * size**2).sum(axis=1)
        if prior:
            misfit += ((solution[:, 2] - prior[0]) * np.minimum(scale / prior[1], MAX_PRIOR_STRENGTH)) ** 2
        return max(float(solution[np.where(sound, misfit, np.inf).argmin(), 2]), 0.0)
    if prior:
        return None
    flat = np.stack([np.ones(len(x)), -annealing], axis=1) * np.sqrt(weight)[:, None]
    return max(float(np.linalg.lstsq(flat, y * np.sqrt(weight), rcond=None)[0][1]), 0.0)
