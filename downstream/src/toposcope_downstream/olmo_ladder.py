"""The two stages of Bhagia et al. 2024, "Establishing task scaling laws via compute-efficient model ladders"."""

import warnings
from dataclasses import dataclass
from itertools import product

import numpy as np

from toposcope.extend import Matrix, ScalingLaw, ToposcopeError, Vector
from toposcope_downstream.ladder import Endpoints, Ladder, LadderModel
from toposcope_downstream.methods import LadderMethod, Link, Resampled

DELTA = 1e-3  # residuals of the logarithm of the loss beyond this count linearly
TOKENS_PER_PARAMETER = 19.0  # models with fewer are not used: the paper's ladder begins at one Chinchilla, about 20
WINDOW = 5  # evaluations in a mean
SKIPPED = 0.1  # share of each run's evaluations, from its beginning, that the link does not see
START = (3.0, 6.0, 0.1, 0.2, 1.0)  # ln A, ln B, alpha, beta and E
LINK_START = (0.9, 3.0)  # L0 and k
MIDPOINTS, SLOPES = (0.0, 0.1, 0.5, 0.9), (0.5, 1.0, 3.0)
"""L0 and k of several starts: as quantiles of the losses, and in units of one over their standard deviation."""
MIN_MODELS = 5
MAX_LOG = 700.0  # of a term on the way to an optimum: its exponential is still finite
PARAMETERS = 9  # five of the law and four of the link


@dataclass(frozen=True, eq=False)
class OlmoLadder:
    """A fit of the loss in parameters and tokens, and of the score in the loss."""

    law: ScalingLaw  # of the task's loss
    link: Link

    def loss(self, N: float, D: float) -> float:
        """Return the predicted loss of the task."""
        return float(self.law.loss(N, D))

    def score(self, N: float, D: float) -> float:
        """Return the predicted score."""
        return float(self.link(self.law.loss(N, D)))


def olmo_ladder(ladder: Ladder, *, starts: int = 1) -> OlmoLadder:
    """Fit the two stages as the OLMo ladder does, to the last bound.

    First the loss at the end of each run, the mean of its last 5 values: A / N^alpha + B / D^beta + E, by L-BFGS-B on
    the Huber loss of its logarithm. Then the score in the loss along all runs, without the first 10% of each and as
    trailing means of 5, with the point (0, 1): a falling sigmoid by least squares.
    """
    models = [model for model in ladder.models if model.D[-1] >= TOKENS_PER_PARAMETER * model.N]
    models = [model for model in models if np.isfinite(model.loss + model.score).any()]
    if not ladder.loss_name:
        raise ToposcopeError(f"olmo_ladder: task {ladder.target.name}: no loss is known; use log_accuracy")
    if len(models) < MIN_MODELS:
        raise ToposcopeError(
            f"olmo_ladder: task {ladder.target.name}: {len(models)} ladder models with a loss and 20 tokens per "
            f"parameter or more; {MIN_MODELS} are needed"
        )
    if ladder.target.chance is None:
        raise ToposcopeError(f"olmo_ladder: task {ladder.target.name}: its chance is unknown; state it")
    return OlmoLadder(_law(models), _link(models, ladder.target.chance, starts))


def _law(models: list[LadderModel]) -> ScalingLaw:
    from scipy.optimize import minimize

    N, D = np.array([model.N for model in models]), np.array([model.D[-1] for model in models])
    target = np.log([model.loss[np.isfinite(model.loss)][-WINDOW:].mean() for model in models])

    def objective(theta: Vector) -> tuple[float, Vector]:
        a, b, alpha, beta, E = theta
        p, q = np.exp(np.minimum(a - alpha * np.log(N), MAX_LOG)), np.exp(np.minimum(b - beta * np.log(D), MAX_LOG))
        residual = np.log(p + q + E) - target
        size = np.abs(residual)
        slope = np.clip(residual, -DELTA, DELTA) / (p + q + E)
        value = np.where(size <= DELTA, size**2 / 2, DELTA * (size - DELTA / 2)).sum()
        gradient = [slope @ p, slope @ q, -slope @ (p * np.log(N)), -slope @ (q * np.log(D)), slope.sum()]
        return float(value), np.array(gradient)

    options = {"ftol": 0.0, "gtol": 1e-10, "maxiter": 10_000, "maxfun": 100_000}
    found = minimize(objective, START, jac=True, bounds=[(0, None)] * 5, method="L-BFGS-B", options=options)
    a, b, alpha, beta, E = found.x.tolist()
    if max(a, b) > MAX_LOG:
        raise ToposcopeError("olmo_ladder: the fit of the loss diverged; the runs do not determine its exponents")
    return ScalingLaw(E, float(np.exp(a)), float(np.exp(b)), alpha, beta)


def _link(models: list[LadderModel], chance: float, starts: int) -> Link:
    from scipy.optimize import OptimizeWarning, curve_fit

    along = [_smoothed(model) for model in models]
    loss = np.concatenate([*(losses for losses, _ in along), [0.0]])
    score = np.concatenate([*(scores for _, scores in along), [1.0]])

    def sigmoid(loss: Vector, a: float, L0: float, k: float, b: float) -> Vector:
        from scipy.special import expit

        return np.asarray(a * expit(k * (loss - L0)) + b)

    bounds = ([-1.0, 0.0, 0.0, 0.0], [0.0, np.inf, np.inf, 1.0])
    middles, steep = np.quantile(loss[:-1], MIDPOINTS), np.array(SLOPES) / (float(loss[:-1].std()) or 1.0)
    grid = [LINK_START, *product(middles.tolist(), steep.tolist())][:starts]
    best, least = None, np.inf
    for L0, k in grid:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizeWarning)  # of the covariance, which is not used
            try:
                theta, *_ = curve_fit(sigmoid, loss, score, (chance - 1, L0, k, 1.0), bounds=bounds, maxfev=100_000)
            except RuntimeError:  # this start did not converge
                continue
        squares = float(((sigmoid(loss, *theta) - score) ** 2).sum())
        if squares < least:
            best, least = theta, squares
    if best is None:
        raise ToposcopeError("olmo_ladder: the fit of the score in the loss did not converge; use another method")
    a, L0, k, b = best.tolist()
    return Link(low=a + b, high=b, slope=k, midpoint=L0)


def _smoothed(model: LadderModel) -> tuple[Vector, Vector]:
    """Return trailing means of loss and score, without the beginning of the run."""
    known = np.isfinite(model.loss + model.score)
    first = min(int(np.ceil(SKIPPED * known.sum())), max(int(known.sum()) - 1, 0))  # the end of a run always counts
    return _trailing(model.loss[known][first:]), _trailing(model.score[known][first:])


def _trailing(values: Vector) -> Vector:
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - WINDOW, 0)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


class OlmoLadderMethod(LadderMethod):
    """`olmo_ladder`, which needs the ladder itself: it looks at whole runs.

    It has no bootstrap of its own: how sure it is follows from held-out runs alone.
    """

    name = "olmo_ladder"
    needs_loss = True

    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder

    def fit(self, points: Endpoints, chance: float, weights: Matrix, resampled: Resampled | None = None) -> Matrix:
        """Fit to the runs that have a weight; NaN where these are too few."""
        if resampled is not None:
            return resampled.parents
        return np.stack([self._fit([run for run, w in zip(points.run, row, strict=True) if w == 0]) for row in weights])

    def score(self, points: Endpoints, chance: float, theta: Matrix, N: Vector, D: Vector) -> Matrix:
        """Return scores, shape (k, m)."""
        return np.stack([_fitted_of(row).link(_fitted_of(row).law.loss(N, D)) for row in theta])

    def loss(self, points: Endpoints, theta: Matrix, N: Vector, D: Vector) -> Matrix:
        """Return losses, shape (k, m)."""
        return np.stack([_fitted_of(row).law.loss(N, D) for row in theta])

    def link(self, points: Endpoints, chance: float, theta: Vector) -> Link:
        """Return the sigmoid."""
        return _fitted_of(theta).link

    def _fit(self, held_out: list[str]) -> Vector:
        try:
            fitted = olmo_ladder(self.ladder.without(held_out))
        except ToposcopeError:
            return np.full(PARAMETERS, np.nan)
        law, link = fitted.law, fitted.link
        return np.array([law.E, law.A, law.B, law.alpha, law.beta, link.low, link.high, link.slope, link.midpoint])


def _fitted_of(theta: Vector) -> OlmoLadder:
    values = theta.tolist()
    return OlmoLadder(ScalingLaw(*values[:5]), Link(*values[5:]))
