"""What to train with a given compute: parameters, tokens and the loss to expect.

Training compute is taken to be C = 6 N D floating-point operations (Kaplan et al. 2020, section 2.1).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw

FLOP = 6.0
"""Floating-point operations of training, for each parameter and token."""
LEVEL = 0.95
MAX_EXTRAPOLATION = 10.0
"""Times the compute of the points; beyond, the form of the law itself is in doubt."""
MAX_SIZE_SPAN = 30.0
"""Ends of the interval of the best size, one over the other, beyond which the points do not determine it."""
MIN_EXTRAPOLATION = 1.01
"""Within this factor of the points there is no remark on extrapolation."""


@dataclass(frozen=True)
class Interval:
    """A value, and the ends of its interval over the bootstrap; NaN without one."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Plan:
    """The compute-optimal model for a budget.

    Attributes
    ----------
    budget_flops : float
        C.
    N, D : Interval
        Parameters and tokens, C = 6 N D.
    loss : Interval
        Nats, at the optimum of each law. Its interval shows how well the law is known, not how a single run scatters
        about it.
    tokens_per_parameter : Interval
        D / N.
    beyond : dict of float
        By what factor ``N``, ``D`` and ``C`` lie outside of the points that were fitted; 1 within.
    remarks : tuple of str
    undetermined : str
        Why the best size is not identifiable from these points, and what would help; empty if it is.
    """

    budget_flops: float
    N: Interval
    D: Interval
    loss: Interval
    tokens_per_parameter: Interval
    beyond: dict[str, float]
    remarks: tuple[str, ...]
    undetermined: str = ""


@dataclass(frozen=True)
class OverTraining:
    """The cost of a model k times smaller than the compute-optimal one.

    Attributes
    ----------
    N : float
        N* / k.
    D_same_loss : float
        Tokens after which it has the loss of the compute-optimal model; infinite if it never has.
    extra_compute : float
        What these cost beyond the budget, as a share of it; infinite likewise.
    D_same_compute, loss_same_compute, extra_loss : float
        Tokens that the budget pays for, the loss they reach, and how far it is above the optimum; nats.
    """

    N: float
    D_same_loss: float
    extra_compute: float
    D_same_compute: float
    loss_same_compute: float
    extra_loss: float


def optimal_split(law: ScalingLaw, budget_flops: float) -> tuple[float, float]:
    """Return the N and D of least loss with 6 N D = C (Hoffmann et al. 2022, equation 4).

    N = G (C / 6)^(beta / (alpha + beta)) and D = (C / 6)^(alpha / (alpha + beta)) / G, with
    G = (alpha A / (beta B))^(1 / (alpha + beta)).

    Raises
    ------
    ToposcopeError
        If the budget is not finite and positive.
    """
    check_positive("budget", budget_flops)
    whole = law.alpha + law.beta
    log_g = (np.log(law.alpha * law.A) - np.log(law.beta * law.B)) / whole
    log_nd = np.log(budget_flops / FLOP)
    return float(np.exp(log_g + law.beta / whole * log_nd)), float(np.exp(law.alpha / whole * log_nd - log_g))


def optimal_parameters(law: ScalingLaw, tokens: float) -> float:
    """Return the N for which a number of tokens is compute-optimal: the score is 0 there."""
    check_positive("tokens", tokens)
    log_n = np.log(law.alpha * law.A) - np.log(law.beta * law.B) + law.beta * np.log(tokens)
    return float(np.exp(log_n / law.alpha))


def plan(fitted: FittedScalingLaw, budget_flops: float, *, level: float = LEVEL) -> Plan:
    """Plan the compute-optimal model for a budget.

    Parameters
    ----------
    fitted : FittedScalingLaw
    budget_flops : float
        C, all of the training.
    level : float
        Of the intervals, in (0, 1).

    Raises
    ------
    ToposcopeError
        If the budget is not finite and positive.
    """

    def described(law: ScalingLaw) -> tuple[float, float, float, float]:
        N, D = optimal_split(law, budget_flops)
        return N, D, float(law.loss(N, D)), D / N

    N, D, loss, ratio = over_bootstrap(fitted, described, level)
    points = fitted.points
    at = {"N": N.value, "D": D.value, "C": budget_flops}
    known = {"N": points.N, "D": points.D, "C": points.C}
    beyond = {name: float(max(1.0, at[name] / known[name].max(), known[name].min() / at[name])) for name in at}
    return Plan(budget_flops, N, D, loss, ratio, beyond, tuple(_remarks(fitted, at, beyond)), _undetermined(N, points))


def _undetermined(N: Interval, points: Points) -> str:
    if not N.high > MAX_SIZE_SPAN * N.low:
        return ""
    n = len(np.unique(points.run))
    return (
        f"The best size is not identifiable from {n} run{'' if n == 1 else 's'}: its interval spans a factor of "
        f"{N.high / N.low:.2g}; add runs nearer to the budget, of other sizes at equal tokens and other tokens at "
        "equal size."
    )


def over_bootstrap(
    fitted: FittedScalingLaw, describe: Callable[[ScalingLaw], tuple[float, ...]], level: float = LEVEL
) -> list[Interval]:
    """Return quantities of a law, with their percentile intervals over the bootstrap."""
    if not 0 < level < 1:
        raise ToposcopeError(f"level: {level:g} given; expected a number between 0 and 1")
    values = describe(fitted.law)
    if not fitted.bootstrap:
        return [Interval(value, np.nan, np.nan) for value in values]
    resampled = np.array([describe(law) for law in fitted.bootstrap])
    low, high = np.percentile(resampled, [50 * (1 - level), 50 * (1 + level)], axis=0)
    return [Interval(*map(float, ends)) for ends in zip(values, low, high, strict=True)]


def over_training(law: ScalingLaw, budget_flops: float, k: float) -> OverTraining:
    """Compare a model of N* / k parameters with the compute-optimal one of the budget.

    For the same loss it needs D with B / D^beta = L* - E - A / N^alpha, where that is positive.

    Parameters
    ----------
    law : ScalingLaw
    budget_flops : float
    k : float
        How many times fewer parameters; below 1, more of them.

    Raises
    ------
    ToposcopeError
        If the budget or k is not finite and positive.
    """
    check_positive("k", k)
    N_best, D_best = optimal_split(law, budget_flops)
    best = float(law.loss(N_best, D_best))
    N = N_best / k
    D_same_loss = tokens_for(law, N, best)
    D_same_compute = D_best * k
    loss = float(law.loss(N, D_same_compute))
    return OverTraining(
        N=N,
        D_same_loss=D_same_loss,
        extra_compute=FLOP * N * D_same_loss / budget_flops - 1,
        D_same_compute=D_same_compute,
        loss_same_compute=loss,
        extra_loss=loss - best,
    )


def tokens_for(law: ScalingLaw, N: float, loss: float) -> float:
    """Return the tokens after which N parameters reach a loss; infinite if they never do."""
    left = loss - float(law.E + law.A * N**-law.alpha)
    return float((left / law.B) ** (-1 / law.beta)) if left > 0 else np.inf


def _remarks(fitted: FittedScalingLaw, at: dict[str, float], beyond: dict[str, float]) -> Iterator[str]:
    """Yield remarks on how far a plan lies outside of the points."""
    points = fitted.points
    for name, what, known in (("N", "parameters", points.N), ("D", "tokens", points.D), ("C", "compute", points.C)):
        if beyond[name] > MIN_EXTRAPOLATION:
            end = f"up to {known.max():.3g}" if at[name] > known.max() else f"from {known.min():.3g}"
            far = (
                "; so far out the form of the law is itself a guess"
                if name == "C" and beyond[name] > MAX_EXTRAPOLATION
                else ""
            )
            yield f"extrapolated in {what}: {at[name]:.3g} is {beyond[name]:.3g} times beyond the points ({end}){far}"
    if not fitted.bootstrap:
        yield "no interval: the law has no bootstrap"


def check_positive(name: str, value: float) -> None:
    """Raise a ToposcopeError if a number is not finite and positive."""
    if not (np.isfinite(value) and value > 0):
        raise ToposcopeError(f"{name}: {value:g} given; expected a number above 0")
