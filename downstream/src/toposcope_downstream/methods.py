"""Ways from parameters and tokens to a score, each fitted to many weightings of one ladder at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.extend import EXPONENT_PRIOR, Matrix, Vector, complex_step, least_squares
from toposcope_downstream.ladder import Endpoints

# Scores of tasks: docs/downstream.md; made ladders, and the OLMo ladder without its two targets
SCORE_ERROR, LOSS_ERROR = 0.01, 0.01  # what a law misses a score, and ln of a loss, by: the unit of its residuals
CEILING = (3.0, 1.0)  # prior of the log-odds of the highest score: 95%, one deviation 87 to 98%

SIZE = (0.0, 5.0)  # prior of the logarithm of a term at the middle of the ladder: none, nearly
WRONG_LABELS = (float(np.log(0.05)), 1.0)
"""Prior of the logarithm of -ln of the highest score: 2 to 14% of a benchmark's questions have a wrong or no answer
(Northcutt et al. 2021: 3.3% on average; Gema et al. 2024: 6.5% of MMLU). Small models cannot show it."""


@dataclass(frozen=True)
class Link:
    """score = low + (high - low) / (1 + exp(slope (loss - midpoint)))."""

    low: float
    high: float
    slope: float
    midpoint: float

    def __call__(self, loss: ArrayLike) -> Vector:
        """Return the score, of the shape of the losses."""
        from scipy.special import expit

        above = expit(-self.slope * (np.asarray(loss, dtype=np.float64) - self.midpoint))
        score: Vector = self.low + (self.high - self.low) * above
        return score


@dataclass(frozen=True)
class ExponentialLink:
    """score = low + (1 - low) exp(-rate (loss - best)), 1 from ``best`` on (Gadre et al. 2024, equation 5)."""

    low: float  # the score of chance
    rate: float
    best: float  # the loss of a perfect score

    def __call__(self, loss: ArrayLike) -> Vector:
        """Return the score, of the shape of the losses."""
        above = np.exp(-self.rate * np.maximum(np.asarray(loss, dtype=np.float64) - self.best, 0))
        score: Vector = self.low + (1 - self.low) * above
        return score


Complexes = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class Resampled:
    """What a fit to resampled runs begins with."""

    parents: Matrix  # shape (k, p); parameters of the runs that were resampled: the start
    # shape (k, p); standard normal numbers, by which the means of the priors are moved. What runs determine does not
    # feel it; what they leave open varies as widely as the prior
    shifts: Matrix

    def __getitem__(self, columns: slice) -> "Resampled":
        return Resampled(self.parents[:, columns], self.shifts[:, columns])


class LadderMethod(ABC):
    """A way from parameters and tokens to a score; by default one that needs no loss and has no link."""

    name: str
    needs_loss = False

    @abstractmethod
    def fit(self, points: Endpoints, chance: float, weights: Matrix, resampled: Resampled | None = None) -> Matrix:
        """Return parameters, shape (k, p), for weights of the runs, shape (k, n).

        Where weights are those of a resample, ``resampled`` holds the starts, and where priors lie.
        """

    @abstractmethod
    def score(self, points: Endpoints, chance: float, theta: Matrix, N: Vector, D: Vector) -> Matrix:
        """Return scores, shape (k, m)."""

    def loss(self, points: Endpoints, theta: Matrix, N: Vector, D: Vector) -> Matrix:
        """Return losses, shape (k, m); NaN of a method without."""
        return np.full((len(theta), len(N)), np.nan)

    def link(self, points: Endpoints, chance: float, theta: Vector) -> Link | ExponentialLink | None:
        """Return the link of the loss to the score; None of a method without."""
        return None


class LogAccuracy(LadderMethod):
    """-ln of the score above chance is A / N^alpha + B / D^beta + E.

    The score of guessing is taken off and the rest is divided by what is left to gain. Of -ln accuracy as a power of
    compute: Krajewski et al. 2025; here parameters and tokens have terms of their own, as in a law of the loss.
    """

    name = "log_accuracy"

    def fit(self, points: Endpoints, chance: float, weights: Matrix, resampled: Resampled | None = None) -> Matrix:
        """Fit by least squares of the score."""
        x, y = _centred(points, points.N, points.D)
        grid = [[a, np.log(p), a, np.log(q), -3.0] for a, p, q in product((-1.0, 0.5), (0.15, 0.4), (0.15, 0.4))]

        def predicted(theta: Complexes) -> Complexes:
            return np.asarray(chance + (1 - chance) * np.exp(-_power_law(theta, x, y)))

        priors = (SIZE, EXPONENT_PRIOR, SIZE, EXPONENT_PRIOR, WRONG_LABELS)
        return _fit(predicted, points.score, SCORE_ERROR, weights, grid, priors, resampled)

    def score(self, points: Endpoints, chance: float, theta: Matrix, N: Vector, D: Vector) -> Matrix:
        """Return scores, shape (k, m)."""
        return np.asarray(chance + (1 - chance) * np.exp(-_power_law(theta, *_centred(points, N, D))))


class Line(LadderMethod):
    """The score is a straight line in the logarithm of compute, which never falls."""

    name = "line"

    def fit(self, points: Endpoints, chance: float, weights: Matrix, resampled: Resampled | None = None) -> Matrix:
        """Fit by least squares: middle, score there, and slope."""
        x, total = np.log(points.compute), weights.sum(axis=1)
        middle, height = weights @ x / total, weights @ points.score / total
        apart = x - middle[:, None]
        squares = np.maximum((weights * apart**2).sum(axis=1), 1e-9)
        slope = np.maximum((weights * apart * points.score).sum(axis=1) / squares, 0)
        return np.stack([middle, height, slope], axis=1)

    def score(self, points: Endpoints, chance: float, theta: Matrix, N: Vector, D: Vector) -> Matrix:
        """Return scores, shape (k, m)."""
        middle, height, slope = (column[:, None] for column in theta.T)
        return np.asarray(np.clip(height + slope * (np.log(6 * N) + np.log(D) - middle), chance, 1))


class TwoStage(LadderMethod):
    """First the loss, A / N^alpha + B / D^beta + E, then the score in it: a sigmoid with chance at its foot."""

    name = "two_stage"
    needs_loss = True
    priors: tuple[tuple[float, float], ...] = (SIZE, SIZE, CEILING)
    grid: tuple[tuple[float, ...], ...] = ((0.0, 0.0, 3.0), (-1.0, 1.0, 3.0), (-2.0, 0.0, 1.0))

    def fit(self, points: Endpoints, chance: float, weights: Matrix, resampled: Resampled | None = None) -> Matrix:
        """Fit the logarithm of the loss, then the score in the loss measured, each by least squares."""
        x, y = _centred(points, points.N, points.D)
        middle = float(np.log(points.loss).mean())
        exponents = product((0.2, 0.5), (0.2, 0.5), (-0.5, -2.0))
        law_grid = [[-1.5, np.log(p), -1.5, np.log(q), floor] for p, q, floor in exponents]

        def predicted_loss(theta: Complexes) -> Complexes:
            return np.asarray(np.log(_power_law(theta, x, y)) + middle)

        law_priors = (SIZE, EXPONENT_PRIOR, SIZE, EXPONENT_PRIOR, (-1.0, 2.0))
        parts = (resampled[:5], resampled[5:]) if resampled is not None else (None, None)
        law = _fit(predicted_loss, np.log(points.loss), LOSS_ERROR, weights, law_grid, law_priors, parts[0])
        return np.concatenate([law, self.fit_link(points, chance, weights, parts[1])], axis=1)

    def fit_link(self, points: Endpoints, chance: float, weights: Matrix, resampled: Resampled | None = None) -> Matrix:
        """Return the parameters of the link alone, shape (k, q)."""
        middle_loss, spread = _scale(points)

        def predicted_score(theta: Complexes) -> Complexes:
            return chance + (1 - chance) * self._above(theta, (points.loss - middle_loss) / spread)

        grid = [list(start) for start in self.grid]
        return _fit(predicted_score, points.score, SCORE_ERROR, weights, grid, self.priors, resampled)

    def score(self, points: Endpoints, chance: float, theta: Matrix, N: Vector, D: Vector) -> Matrix:
        """Return scores, shape (k, m)."""
        found = self.loss(points, theta, N, D)
        links = (self.link(points, chance, row) for row in theta)
        return np.stack([link(losses) for link, losses in zip(links, found, strict=True)])

    def loss(self, points: Endpoints, theta: Matrix, N: Vector, D: Vector) -> Matrix:
        """Return losses, shape (k, m)."""
        return np.asarray(_power_law(theta[:, :5], *_centred(points, N, D)) * np.exp(np.log(points.loss).mean()))

    def link(self, points: Endpoints, chance: float, theta: Vector) -> Link | ExponentialLink:
        """Return the sigmoid."""
        a, k, ceiling = theta[5:].tolist()
        middle, spread = _scale(points)
        slope = float(np.exp(k)) / spread
        high = chance + (1 - chance) / (1 + float(np.exp(-ceiling)))
        return Link(chance, high, slope, middle + a / slope)

    @staticmethod
    def _above(theta: Complexes, loss: Vector) -> Complexes:
        a, k, ceiling = (column[:, None] for column in theta.T)
        return np.asarray(1 / (1 + np.exp(-ceiling)) * (1 / (1 + np.exp(-(a - np.exp(k) * loss)))))


class TwoStageExponential(TwoStage):
    """The same with an exponential link, -ln of the score above chance linear in the loss: for losses that are given.

    It is no method of a ladder: as such it is off by twice as much as `LogAccuracy`.
    """

    name = "two_stage_exponential"
    priors = (SIZE, (0.0, 2.0))
    grid = ((0.0, 0.0), (1.0, 1.0), (-1.0, 0.0))

    def link(self, points: Endpoints, chance: float, theta: Vector) -> ExponentialLink:
        """Return the exponential."""
        rate, missing = np.exp(theta[5:]).tolist()
        middle, spread = _scale(points)
        return ExponentialLink(chance, rate / spread, middle - missing / rate * spread)

    @staticmethod
    def _above(theta: Complexes, loss: Vector) -> Complexes:
        rate, missing = (column[:, None] for column in theta.T)
        return np.asarray(np.exp(-np.exp(missing) - np.exp(rate) * loss))


LADDER_METHODS: tuple[LadderMethod, ...] = (LogAccuracy(), Line(), TwoStage())


def _fit(
    predicted: Callable[[Complexes], Complexes],
    target: Vector,
    error: float,
    weights: Matrix,
    grid: list[list[float]],
    priors: tuple[tuple[float, float], ...],
    resampled: Resampled | None,
) -> Matrix:
    """Return the best parameters of each row of weights, shape (k, p)."""
    mean, spread = np.array(priors).T
    if resampled is None:
        starts, means = np.tile(np.array(grid, dtype=np.float64), (len(weights), 1)), mean[None]
    else:
        starts, means = resampled.parents, mean + spread * resampled.shifts
    each = len(starts) // len(weights)
    means = np.broadcast_to(means, starts.shape)
    roots = np.repeat(np.sqrt(weights), each, axis=0)

    def residuals(theta: Complexes, rows: NDArray[np.int64]) -> Complexes:
        return np.concatenate(
            [(predicted(theta) - target) / error * roots[rows], (theta - means[rows]) / spread], axis=1
        )

    theta, squares = least_squares(complex_step(residuals), starts)
    best = squares.reshape(-1, each).argmin(axis=1)
    return np.asarray(theta.reshape(len(weights), each, -1)[np.arange(len(weights)), best])


def _power_law(theta: NDArray[Any], x: Vector, y: Vector) -> NDArray[Any]:
    a, p, b, q, floor = (column[:, None] for column in theta.T)
    return np.asarray(np.exp(floor) + np.exp(a - np.exp(p) * x) + np.exp(b - np.exp(q) * y))


def _centred(points: Endpoints, N: Vector, D: Vector) -> tuple[Vector, Vector]:
    """Return ln N and ln D, from the middle of the ladder."""
    return np.log(N) - np.log(points.N).mean(), np.log(D) - np.log(points.D).mean()


def _scale(points: Endpoints) -> tuple[float, float]:
    return float(points.loss.mean()), float(points.loss.std()) or 1.0
