"""Local learning coefficient of a loss around a point (Lau, Furman, Wang, Murfet and Wei 2023, arXiv:2308.12108)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import Matrix, ToposcopeError, Vector, as_count, as_positive, derive_seed
from toposcope_experiments.learning_coefficient.local_posterior import Chain, Draws, Posterior

# The evidence of chains: those that differ more have not converged (Gelman et al. 2013, section 11.5); fewer effective
# draws leave their own number unknown; chains that accept less hardly move; with more draws where the loss is lower,
# the point is the minimum of the samples' loss at most up to their noise; and the level of the test whether it is
MAX_R_HAT, MIN_EFFECTIVE_SIZE, MIN_ACCEPTANCE, MAX_NEGATIVE_SHARE, MINIMUM_LEVEL = 1.1, 40, 0.1, 0.1, 1e-3

LossAndGradient = Callable[[NDArray[Any]], tuple[float, NDArray[Any]]]
"""Takes a point, shape (p,); returns the loss there and its gradient, shape (p,)."""


@dataclass(frozen=True, eq=False)
class LearningCoefficient:
    """Estimate of a local learning coefficient, and the evidence that its chains have converged.

    Attributes
    ----------
    value : float
        n beta (E[L(w)] - L(w*)), the mean over all draws; NaN if there is no estimate.
    standard_error : float
        Of `value`, from the effective sample size; NaN if there is no estimate.
    reason : str
        Why there is no estimate, in one line; empty if there is one.
    flag : str
        What makes an estimate doubtful, in one line; empty if nothing does.
    sample_error : float
        How much `value` varies with the n samples: to leading order (lambda beta / 2)^(1/2) (Watanabe 2013, Theorem 4),
        with the coefficient about the lowest draw, where that is below the point.
    chains : ndarray, shape (n_chains,), float64
        The mean of each chain. Those of even number start at the point, those of odd number at a draw of the Gaussian.
    r_hat : float
        Split R-hat of the chains; NaN if the loss is the same at all draws.
    effective_size : float
        Effective number of draws of all chains; NaN if the loss is the same at all draws.
    acceptance : float
        Mean probability with which the chains accept, or without a Metropolis step would accept, their steps.
    negative_share : float
        Share of the draws where the loss is below that at the point.
    discretisation_bias, discretisation_bias_error : float
        First-order estimate of what the step adds to the value of a chain without a Metropolis step, with its standard
        error over chains. A chain with one has no such bias.
    n_gradients : int
        Evaluations of the loss and its gradient.
    """

    value: float
    standard_error: float
    reason: str
    flag: str
    sample_error: float
    chains: Vector
    r_hat: float
    effective_size: float
    acceptance: float
    negative_share: float
    discretisation_bias: float
    discretisation_bias_error: float
    n_gradients: int

    def __repr__(self) -> str:
        found = f"no estimate: {self.reason}" if self.reason else f"{self.value:.4g} ± {self.standard_error:.2g}"
        found += f" ({self.flag})" if self.flag else ""
        return f"LearningCoefficient({found}, r_hat={self.r_hat:.3f}, effective_size={self.effective_size:.0f})"

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval: twice the root of the sum of squares of `standard_error` and `sample_error` either side."""
        error = 2 * math.hypot(self.standard_error, self.sample_error)
        return self.value - error, self.value + error


def local_learning_coefficient(
    loss: LossAndGradient,
    point: NDArray[Any],
    *,
    n: int,
    beta: float | None = None,
    localisation: float = 1.0,
    n_chains: int = 4,
    n_draws: int = 500,
    n_warmup: int = 250,
    n_leapfrog: int = 8,
    step: float | None = None,
    metropolis: bool = True,
    seed: int = 0,
) -> LearningCoefficient:
    """Estimate the local learning coefficient of a loss around a point, by sampling its tempered posterior.

    It is lambda = n beta (E[L(w)] - L(w*)), w drawn from exp(-n beta L(w) - gamma / 2
    ||w - w*||^2). Where the loss is quadratic, it is half the number of directions of curvature well above
    gamma / (n beta); where it is degenerate, less.

    Parameters
    ----------
    loss : callable
        Returns the mean loss, in nats a sample, and its gradient at a point; always the same at the same point. Where
        it is not finite, no draw is taken.
    point : ndarray, shape (p,), float32 or float64
        w*, whose dtype the chains are computed in.
    n : int
        Number of samples that the loss is a mean over, at least 2.
    beta : float, optional
        Inverse temperature, above 0; 1 / ln n by default.
    localisation : float
        gamma, above 0: it keeps the draws near the point. Each coordinate alone would vary by 1 / sqrt(gamma).
    n_chains, n_draws, n_warmup : int
        Chains, at least 2; the draws of each, at least 4; and steps before them that adapt the sampler, at least 8.
    n_leapfrog : int
        Largest mean number of gradients of a step; fewer are used where steps are long. One is the Metropolis-adjusted
        Langevin algorithm, more are Hamiltonian Monte Carlo.
    step : float, optional
        Step of the Langevin equation, w' = w - step / 2 grad U + sqrt(step) xi, without preconditioning. By default it
        is adapted, and so is a diagonal preconditioner.
    metropolis : bool
        Accept or refuse steps, so that the draws are from the posterior whatever the step. Otherwise the value has the
        bias that is stated with it.
    seed : int
        Each chain has a stream of its own.

    Returns
    -------
    LearningCoefficient
        Without a value where the chains disagree, hardly move, or find a loss farther below that of the point than the
        noise of n samples allows: the reason is given. With a flag where they are often below it, but not so far; on
        average below it, the value is negative.

    Raises
    ------
    ToposcopeError
        If the point is not a floating-point vector, its loss is not finite, or an option is out of range.

    Notes
    -----
    Costs at most ``n_chains (n_warmup + n_draws) n_leapfrog`` gradients on average, often a third of them; parameters
    along which the loss is flat add none. Source: Lau et al. 2023 for the estimator, which they compute by stochastic
    gradients without a Metropolis step. Half of the chains start below the posterior and half above it, so that they
    agree only if they have converged.

    Examples
    --------
    A direction without curvature adds nothing; the others add about one half each.

    >>> curvature = np.array([1.0, 10.0, 100.0, 0.0])
    >>> def loss(w):
    ...     return 0.5 * float(curvature @ w**2), curvature * w
    >>> found = local_learning_coefficient(loss, np.zeros(4), n=200)
    >>> abs(found.value - 1.49) < 2.5 * found.standard_error < 0.2
    True
    """
    centre = _checked_point(point)
    n, gamma = as_count(n, "n", 2), as_positive(localisation, "localisation")
    n_chains, n_draws = as_count(n_chains, "n_chains", 2), as_count(n_draws, "n_draws", 4)
    n_warmup, n_leapfrog = as_count(n_warmup, "n_warmup", 8), as_count(n_leapfrog, "n_leapfrog", 1)
    seed = as_count(seed, "seed", 0)
    inverse = 1 / math.log(n) if beta is None else as_positive(beta, "beta")
    langevin = None if step is None else as_positive(step, "step")
    posterior = Posterior(loss, centre, n * inverse, gamma)
    if not math.isfinite(posterior.loss_at_centre):
        raise ToposcopeError(f"loss: it is {posterior.loss_at_centre} at the point, which must be a finite one")
    draws = []
    for k in range(n_chains):
        generator = np.random.default_rng(derive_seed(seed, "learning coefficient", k))
        start = np.zeros_like(centre) if k % 2 == 0 else posterior.prior_draw(generator)
        chain = Chain(posterior, start, generator, n_leapfrog, metropolis, langevin)
        chain.warm_up(n_warmup)
        draws.append(chain.draw(n_draws))
    return _summary(draws, inverse, posterior.n_gradients)


def _checked_point(point: Any) -> NDArray[Any]:
    centre = np.asarray(point)
    if centre.ndim != 1 or not len(centre) or centre.dtype not in (np.float32, np.float64):
        raise ToposcopeError(f"point: expected a float32 or float64 vector, got {centre.dtype}, shape {centre.shape}")
    if not np.isfinite(centre).all():
        raise ToposcopeError(f"point: holds NaN or infinities, shape {centre.shape}")
    return centre


def _summary(draws: list[Draws], beta: float, n_gradients: int) -> LearningCoefficient:
    excess = np.array([chain.excess for chain in draws])
    finite = np.isfinite(excess).all()
    chains = excess.mean(axis=1)
    r_hat, size = (split_r_hat(excess), effective_size(excess)) if finite else (math.inf, 0.0)
    acceptance = float(np.mean([chain.acceptance for chain in draws]))
    negative = float((excess < 0).mean())
    biases = np.array([chain.discretisation_bias() for chain in draws])
    flag, reason = "", "" if finite else "a chain met a loss that is not finite; take a larger localisation"
    if not reason and acceptance < MIN_ACCEPTANCE:
        reason = f"chains accept {acceptance:.0%} of their steps; take a longer warm-up"
    if not reason and (negative > MAX_NEGATIVE_SHARE or excess.mean() < 0):
        reason, flag = _below_the_point(excess, beta, negative)
    reason = reason or _not_converged(r_hat, size)
    value, error = math.nan, math.nan
    if not reason:
        value, error = float(excess.mean()), 0.0 if math.isnan(size) else float(excess.std(ddof=1)) / math.sqrt(size)
    return LearningCoefficient(
        value=value,
        standard_error=error,
        reason=reason,
        flag="" if reason else flag,
        sample_error=math.sqrt((value - min(0.0, float(excess.min()))) * beta / 2),
        chains=chains,
        r_hat=r_hat,
        effective_size=size,
        acceptance=acceptance,
        negative_share=negative,
        discretisation_bias=float(biases.mean()),
        discretisation_bias_error=float(biases.std(ddof=1)) / math.sqrt(len(biases)),
        n_gradients=n_gradients,
    )


def _not_converged(r_hat: float, size: float) -> str:
    """Say what shows that the chains have not, in words without a comma, which separates flags; empty if nothing."""
    if r_hat > MAX_R_HAT:
        return f"chains disagree (R-hat {r_hat:.2f} above {MAX_R_HAT}); take more draws or a larger localisation"
    if size < MIN_EFFECTIVE_SIZE:
        return f"{size:.0f} effective draws of at least {MIN_EFFECTIVE_SIZE}; take more draws"
    return ""


def _below_the_point(excess: Matrix, beta: float, negative: float) -> tuple[str, str]:
    """Return why there is no estimate, or the flag of one, where the loss is often below that of the point.

    At the minimum of the population's loss, n times what the samples' loss has below it is half a chi-square variable
    of as many degrees of freedom as twice the coefficient about the samples' own minimum.
    """
    from scipy.special import chdtri

    lowest = float(excess.min())
    depth, freedom = -lowest / beta, max(1.0, 2 * (float(excess.mean()) - lowest))
    allowed = float(chdtri(freedom, MINIMUM_LEVEL)) / 2
    below = (
        f"below that of the point at {negative:.0%} of the draws and by {depth:.3g} nats over all samples where noise "
        f"allows {allowed:.3g}"
    )
    if depth > allowed:
        hint = "take a later checkpoint or more text"
        return f"chains left for a lower loss ({below}): it is no minimum; {hint}", ""
    return "", f"no minimum of these samples: the loss is {below}"


def split_r_hat(draws: Matrix) -> float:
    """Return the potential scale reduction of chains cut into halves.

    It is 1 where all halves have one mean, and grows with the variance between them over that within.
    """
    halves = _halves(draws)
    within, total = _variances(halves)
    if within == 0:
        return float("nan") if total == 0 else float("inf")
    return float(np.sqrt(total / within))


def effective_size(draws: Matrix) -> float:
    """Return the number of independent draws whose mean is as precise as that of these.

    Autocorrelations are summed in pairs as long as the sums are positive, and made monotone (Geyer 1992). A variance
    between the halves of chains counts as autocorrelation, so that chains which disagree have few effective draws.
    """
    halves = _halves(draws)
    within, total = _variances(halves)
    if total == 0:
        return float("nan")
    covariances = np.mean([_autocovariances(half) for half in halves], axis=0)
    correlations = 1 - (within - covariances) / total
    pairs = correlations[: len(correlations) // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs[: int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)]
    time = -1 + 2 * float(np.minimum.accumulate(positive).sum())
    # Of chains that alternate around their mean, the sum may be below that of independent draws.
    return halves.size / max(time, 1.0)


def _halves(draws: Matrix) -> Matrix:
    half = draws.shape[1] // 2
    return draws[:, draws.shape[1] - 2 * half :].reshape(-1, half)


def _variances(halves: Matrix) -> tuple[float, float]:
    """Return the mean variance within halves, and the estimate of the variance of the distribution."""
    n = halves.shape[1]
    within = float(halves.var(axis=1, ddof=1).mean())
    return within, (n - 1) / n * within + float(halves.mean(axis=1).var(ddof=1))


def _autocovariances(chain: Vector) -> Vector:
    """Return the autocovariances at lags 0 to n - 1, with the unbiased variance at lag 0."""
    n = len(chain)
    spectrum = np.fft.rfft(chain - chain.mean(), 2 * n)
    return np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[:n] / (n - 1)
