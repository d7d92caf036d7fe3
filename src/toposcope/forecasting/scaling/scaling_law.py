"""The law of loss in parameters and tokens, L(N, D) = E + A / N^alpha + B / D^beta: its fit, and draws of laws."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.law_search import GRID, Descent, Problem, descend, optima
from toposcope.forecasting.scaling.points import Points, points_of_family
from toposcope.progress import Progress, silent
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector
from toposcope.wording import counted

# Scaling laws and decisions: docs/methods/scaling.md, docs/decision.md
EXPONENT_PRIOR = (float(np.log(0.3)), 1.0)  # of ln of an exponent, mean and deviation: 0.1 to 0.8, as published
ASSUMED_SCATTER, ASSUMED_RUNS = 0.005, 2.0  # nats, of runs about their law; degrees of freedom that it counts for
MIN_BOOTSTRAP_RUNS = 10  # below, laws are drawn from a posterior in place of a bootstrap
MIN_CURVES = 30  # below, intervals of curves cover less than they say: with 22, those of 95% held the loss in about 89%
N_CELLS, N_ZOOMS = 40, 3  # exponents on each axis of the grid, and how often it closes in on those that are likely
N_TRIES = 64  # draws of E, A and B at each pair of exponents, of which the positive ones count
NAMES = ("E", "A", "B", "alpha", "beta")
RESAMPLES = 1000
RESAMPLES_PER_BATCH = 100  # resamples between two calls of `progress`
MIN_POINTS, MIN_LEVELS = 5, 3
EXPONENT_RANGE = (0.01, 3.0)  # smallest and largest plausible exponent
MIN_INDEPENDENT_SPREAD = 0.01  # share of the spread of ln D that ln N must not explain
MAX_RELATIVE_ERROR = 0.5  # standard errors beyond this share of an exponent are remarked on


def posterior_laws(
    N: Vector, D: Vector, loss: Vector, runs: NDArray[np.int64], draws: int, random: np.random.Generator
) -> Matrix:
    """Return draws of E, A, B, alpha and beta given the losses of a few runs, shape (draws, 5).

    Points of a run count as one together (Gelman et al., Bayesian Data Analysis, sections 3.2, 14.2).
    """
    centre = np.log(N).mean(), np.log(D).mean()
    x, y = np.log(N) - centre[0], np.log(D) - centre[1]
    root = 1 / np.sqrt(np.bincount(runs)[runs])
    freedom = max(ASSUMED_RUNS + len(np.unique(runs)) - 3, 1.0)
    axes = [np.log(GRID[[0, -1]])] * 2
    for zoom in range(N_ZOOMS + 1):
        axes = [np.linspace(axis[0], axis[-1], N_CELLS) for axis in axes]
        logs = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
        alpha, beta = np.exp(logs)
        terms = np.stack([np.ones((len(alpha), len(x))), np.exp(-np.outer(alpha, x)), np.exp(-np.outer(beta, y))], 2)
        q, r = np.linalg.qr(terms * root[:, None])
        size = np.abs(np.einsum("kii->ki", r))
        singular = size.min(axis=1) < 1e-9 * size.max(axis=1)
        r[singular] = np.eye(3)
        projected = np.einsum("kij,i->kj", q, loss * root)
        square = ASSUMED_RUNS * ASSUMED_SCATTER**2 + np.maximum(
            (loss * root) @ (loss * root) - (projected**2).sum(1), 0
        )
        inverse = np.linalg.inv(r)
        tries = random.standard_normal((N_TRIES, 3)) / np.sqrt(random.chisquare(freedom, N_TRIES) / freedom)[:, None]
        linear = np.einsum(
            "kij,kmj->kmi", inverse, projected[:, None] + np.sqrt(square / freedom)[:, None, None] * tries
        )
        positive = (linear > 0).all(axis=2)
        with np.errstate(divide="ignore"):
            density = np.log(positive.mean(axis=1)) - np.log(size).sum(axis=1) - freedom / 2 * np.log(square)
        density -= (((logs - EXPONENT_PRIOR[0]) / EXPONENT_PRIOR[1]) ** 2).sum(axis=0) / 2
        density[singular] = -np.inf
        if not np.isfinite(density).any():
            return np.empty((0, 5))
        share = np.exp(density - density.max())
        if zoom < N_ZOOMS:
            axes = [_likely(axis, share.reshape(N_CELLS, N_CELLS).sum(1 - i)) for i, axis in enumerate(axes)]
    cells = random.choice(len(share), draws, p=share / share.sum())
    chosen = (random.random((draws, N_TRIES)) * positive[cells]).argmax(axis=1)
    E, a, b = linear[cells, chosen].T
    return np.stack(
        [E, a * np.exp(alpha[cells] * centre[0]), b * np.exp(beta[cells] * centre[1]), alpha[cells], beta[cells]], 1
    )


def _likely(axis: Vector, share: Vector) -> Vector:
    """Return the part of an axis that is likely, with a step to either side where there is one."""
    places = np.flatnonzero(share > 1e-4 * share.max())
    return axis[max(places[0] - 1, 0) : places[-1] + 2]


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, equation 2)."""

    E: float  # nats: the loss that no model goes below on these data
    A: float  # with alpha, what too few parameters cost
    B: float  # with beta, what too few tokens cost
    alpha: float
    beta: float

    def loss(self, N: ArrayLike, D: ArrayLike) -> Vector:
        """Return the loss in nats, of the shape that N and D broadcast to."""
        N, D = np.asarray(N, dtype=np.float64), np.asarray(D, dtype=np.float64)
        found: Vector = self.E + self.A * N**-self.alpha + self.B * D**-self.beta
        return found

    def score(self, N: ArrayLike, D: ArrayLike) -> Vector:
        """Return s = ln(alpha A N^-alpha) - ln(beta B D^-beta), of the shape that N and D broadcast to.

        It compares what a 1% larger model and 1% more tokens bring, which cost the same: below 0 more tokens bring
        more (data-limited), above 0 a larger model (capacity-limited); 0 is compute-optimal.
        """
        N, D = np.asarray(N, dtype=np.float64), np.asarray(D, dtype=np.float64)
        found: Vector = (
            np.log(self.alpha * self.A) - self.alpha * np.log(N) - np.log(self.beta * self.B) + self.beta * np.log(D)
        )
        return found


@dataclass(frozen=True, eq=False)
class FittedScalingLaw:
    """A scaling law and how well the points determine it."""

    law: ScalingLaw
    # laws of resampled runs, or draws of the posterior (`is_posterior`); empty if none was asked for
    bootstrap: tuple[ScalingLaw, ...]
    # of ``E``, ``A``, ``B``, ``alpha`` and ``beta``: standard deviations over the bootstrap; NaN without one
    standard_errors: dict[str, float]
    objective: float  # mean Huber loss of ln L at the optimum, in units of delta^2
    points: Points  # the points fitted
    remarks: tuple[str, ...] = ()  # warnings on what the points determine badly or not at all, a sentence each
    # laws without each quarter of the points, by tokens and by compute; empty without a bootstrap
    parts: tuple[tuple[ScalingLaw, ...], ...] = ()
    # whether the laws of the bootstrap are draws of a posterior: with fewer than 10 runs, or where half of the
    # resamples or more could not be fitted
    is_posterior: bool = False


def scaling_law(
    points: Points | str | Path,
    *,
    family: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Progress = silent,
) -> FittedScalingLaw:
    """Fit L(N, D) = E + A / N^alpha + B / D^beta to points.

    The Huber loss (delta 1e-3) of ln L is minimised from a full grid of starts (Hoffmann et al. 2022, approach 3, with
    the corrections of Besiroglu et al. 2024).

    Parameters
    ----------
    points : Points, str or Path
        In any order; a path is a table with columns N, D and loss, perhaps run and family.
    family : str, optional
        Whose points to fit, where they are of several.
    resamples : int
        Of the bootstrap, which draws whole runs with all their points; with fewer than 10 runs, of the posterior.
    seed : int
    progress : callable

    Returns
    -------
    FittedScalingLaw

    Raises
    ------
    RefusedError
        If the points do not determine the five parameters: fewer than 5 different ones, fewer than 3 sizes or 3 numbers
        of tokens, tokens in a fixed relation to parameters (every D / N equal), a loss that does not fall with both, or
        an exponent outside 0.01 to 3.

    Examples
    --------
    >>> from itertools import product
    >>> grid = list(product((5e7, 1e8, 2e8, 4e8, 8e8), (5e9, 2e10, 8e10)))
    >>> N, D = (np.array(axis) for axis in zip(*grid, strict=True))
    >>> fitted = scaling_law(Points(N, D, 1.8 + 400 / N**0.34 + 2000 / D**0.36), resamples=20)
    >>> round(fitted.law.E, 3), round(fitted.law.alpha, 3)
    (1.8, 0.34)
    """
    points = points_of_family(points, family)
    ordered = points.where(np.lexsort((points.loss, points.D, points.N)))
    N, D, loss = ordered.N, ordered.D, ordered.loss
    if reason := undetermined(N, D):
        raise RefusedError(f"scaling law: {reason}")
    if not np.ptp(loss) > 0:
        raise RefusedError("scaling law: the loss is the same at every point")
    problem = Problem.of(N, D, loss)
    found = optima(problem, np.ones(len(N)))
    best = problem.coefficients(found.theta[:1])[0]
    if not found.converged[0]:
        raise RefusedError("scaling law: the points lead to no optimum; give more sizes and more numbers of tokens")
    _check_exponents(best)
    runs = _numbered(ordered.run)
    n_runs = int(runs.max()) + 1
    theta, left_out = np.empty((0, 5)), 0
    if n_runs >= MIN_BOOTSTRAP_RUNS:
        theta, left_out = _bootstrap(problem, ordered, runs, found.theta[0], resamples, seed, progress)
    is_posterior = resamples > 0 and (n_runs < MIN_BOOTSTRAP_RUNS or 2 * left_out >= resamples)
    if is_posterior:
        random = np.random.default_rng(derive_seed(seed, "scaling law", "posterior"))
        theta = posterior_laws(N, D, loss, runs, resamples, random)
    parts = _without_quarters(problem, ordered, found.theta[0]) if resamples and not is_posterior else ()
    errors = theta.std(axis=0, ddof=1) if len(theta) > 1 else np.full(5, np.nan)
    standard_errors = dict(zip(NAMES, errors.tolist(), strict=True))
    law = ScalingLaw(*best.tolist())
    remarks = [*_remarks(points, law, standard_errors, n_runs, is_posterior)]
    if left_out and not is_posterior:
        remarks.append(f"{left_out} of {resamples} resamples could not be fitted: intervals are too narrow")
    remarks += filter(None, [_rival(problem, found)])
    return FittedScalingLaw(
        law=law,
        bootstrap=tuple(ScalingLaw(*row) for row in theta.tolist()),
        standard_errors=standard_errors,
        objective=float(found.objective[0]),
        points=points,
        remarks=tuple(remarks),
        parts=parts,
        is_posterior=is_posterior,
    )


def undetermined(N: Vector, D: Vector) -> str:
    """Return why points at such N and D do not determine the law; empty if they do."""
    n, sizes, tokens = len(np.unique(N + 1j * D)), len(np.unique(N)), len(np.unique(D))
    if n < MIN_POINTS:
        few = counted(n, "different point")
        return f"only {few} for five parameters; it needs {MIN_POINTS}, of other sizes or lengths"
    if sizes < MIN_LEVELS:
        return f"only {counted(sizes, 'size')}: A, alpha and E cannot be separated; at least {MIN_LEVELS} are needed"
    if tokens < MIN_LEVELS:
        few = counted(tokens, "number")
        return f"only {few} of tokens: B, beta and E cannot be separated; at least {MIN_LEVELS} are needed"
    x, y = np.log(N) - np.log(N).mean(), np.log(D) - np.log(D).mean()
    slope = float(x @ y) / float(x @ x)
    # Against a falling D the two terms go opposite ways and are separated, if badly.
    if slope > 0 and float(np.std(y - slope * x)) < MIN_INDEPENDENT_SPREAD * float(np.std(y)):
        return (
            f"tokens grow as N^{slope:.2f} at every point (D / N from {float((D / N).min()):.3g} to "
            f"{float((D / N).max()):.3g}): what parameters and what tokens bring cannot be separated; add points with "
            "another D at the same N"
        )
    return ""


def _check_exponents(found: Vector) -> None:
    for name, symbol, value in (("parameters", "alpha", found[3]), ("tokens", "beta", found[4])):
        low, high = EXPONENT_RANGE
        if value < low:
            raise RefusedError(
                f"scaling law: loss does not fall as a power of {name} ({symbol} {value:.3g}, under {low}); "
                "leave out diverged runs, or give a wider range"
            )
        if value > high:
            raise RefusedError(
                f"scaling law: loss falls with {name} at the smallest ones only ({symbol} {value:.3g}, over {high}); "
                "leave these out, or give more points near them"
            )


def _numbered(run: NDArray[np.str_]) -> NDArray[np.int64]:
    """Return a number for each run, in the order of first points: names and order of the points are immaterial."""
    _, first, inverse = np.unique(run, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _bootstrap(
    problem: Problem, points: Points, runs: Indices, start: Vector, resamples: int, seed: int, progress: Progress
) -> tuple[Vector, int]:
    """Return the coefficients of resampled runs, shape (k, 5), and the number of resamples that could not be fitted."""
    n_runs = int(runs.max()) + 1
    random = np.random.default_rng(derive_seed(seed, "scaling law", "bootstrap"))
    coefficients, left_out = [np.empty((0, 5))], 0
    for begin in range(0, resamples, RESAMPLES_PER_BATCH):
        drawn = random.integers(0, n_runs, (min(RESAMPLES_PER_BATCH, resamples - begin), n_runs))
        weights = np.stack([np.bincount(row, minlength=n_runs) for row in drawn])[:, runs].astype(np.float64)
        coefficients.append(_refits(problem, points, start, weights))
        left_out += len(weights) - len(coefficients[-1])
        progress("bootstrap of the scaling law", begin + len(drawn), resamples)
    return np.concatenate(coefficients), left_out


def _refits(problem: Problem, points: Points, start: Vector, weights: Matrix) -> Matrix:
    """Return the coefficients of fits to weighted points, shape (k, 5), of those that determine a law."""
    determined = np.array([not undetermined(points.N[row > 0], points.D[row > 0]) for row in weights])
    if not determined.any():
        return np.empty((0, 5))
    descent = descend(problem, np.repeat(start[None], int(determined.sum()), axis=0), weights[determined])
    theta = problem.coefficients(descent.theta)
    within = (theta[:, 3:] >= EXPONENT_RANGE[0]).all(axis=1) & (theta[:, 3:] <= EXPONENT_RANGE[1]).all(axis=1)
    return theta[descent.converged & within]


def _without_quarters(problem: Problem, points: Points, start: Vector) -> tuple[tuple[ScalingLaw, ...], ...]:
    """Return the laws without each quarter of the points by tokens, and by compute; equal ones stay together."""
    found = []
    for values in (points.D, points.C):
        quarter = np.searchsorted(np.quantile(values, (0.25, 0.5, 0.75)), values)
        weights = (quarter != np.arange(4)[:, None]).astype(np.float64)
        found.append(tuple(ScalingLaw(*row) for row in _refits(problem, points, start, weights).tolist()))
    return tuple(found)


def _remarks(
    points: Points, law: ScalingLaw, errors: dict[str, float], n_runs: int, is_posterior: bool
) -> Iterator[str]:
    if len(points) == MIN_POINTS:
        yield "five points for five parameters: none is left to check the law"
    along = len(points) > n_runs
    if is_posterior:
        yield (
            f"only {n_runs} runs{'' if n_runs < MIN_BOOTSTRAP_RUNS else ' that determine a law when resampled'}: "
            f"intervals are of laws that agree with them, exponents of about {np.exp(EXPONENT_PRIOR[0]):.1g} within a "
            f"factor of e and a scatter of runs of about {ASSUMED_SCATTER:g} nats assumed beforehand"
        )
    elif along and n_runs < MIN_CURVES:
        yield f"only {n_runs} runs to resample whole: intervals from so few are too narrow"
    if along:
        yield (
            "points lie along runs: unless the learning rate had fallen before each of them, the law predicts losses "
            "without a cool-down"
        )
    if law.E == 0:
        yield "E is 0: the points do not show a floor under the loss; do not extrapolate"
    for name, value in (("alpha", law.alpha), ("beta", law.beta)):
        if errors[name] > MAX_RELATIVE_ERROR * value:
            yield f"{name} is hardly determined by these points: {value:.2g}, standard error {errors[name]:.2g}"


def _rival(problem: Problem, found: Descent) -> str:
    """Return a remark if another optimum, of exponents a tenth away, fits nearly as well."""
    laws = problem.coefficients(found.theta)
    apart = np.abs(laws[:, 3:] / laws[0, 3:] - 1).max(axis=1) > 0.1
    close = found.converged & apart & (found.objective <= 1.02 * found.objective[0])
    if not close.any():
        return ""
    alpha, beta = laws[int(np.argmax(close)), 3:]
    return f"another optimum fits almost as well (alpha {alpha:.3g}, beta {beta:.3g}): the points do not choose"
