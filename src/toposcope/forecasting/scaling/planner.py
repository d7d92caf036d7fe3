"""What to train with a given compute: the best model, a smaller one, one of scarce data, one that pays inference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw
from toposcope.forecasting.tuning import MAX_EXTRAPOLATION, MAX_SIZE_SPAN
from toposcope.wording import counted

FLOP = 6.0  # floating-point operations of training, for each parameter and token
LEVEL = 0.95
INFERENCE_FLOP = 2.0  # floating-point operations of inference, for each parameter and token
R_D, R_N = 15.387756, 5.309743
"""R*_D and R*_N as published: how fast repetitions, and parameters beyond what the unique data warrant, lose their
worth. They are borrowed: points whose data were read once hold no information on them."""
BORROWED = (
    "what repeated tokens are worth is borrowed (Muennighoff et al. 2023, R*_D 15.4 and R*_N 5.3), not fitted to these "
    "points"
)


@dataclass(frozen=True)
class Interval:
    """A value, and the ends of its interval over the bootstrap; NaN without one."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Plan:
    """The compute-optimal model for a budget."""

    budget_flops: float  # C
    N: Interval  # parameters, and tokens under it: C = 6 N D
    D: Interval
    # nats, at the optimum of each law. Its interval shows how well the law is known, not how a single run scatters
    # about it
    loss: Interval
    tokens_per_parameter: Interval  # D / N
    # by what factor ``N``, ``D`` and ``C`` lie outside of the points that were fitted; 1 within
    beyond: dict[str, float]
    remarks: tuple[str, ...]
    # why the best size is not identifiable from these points, and what would help; empty if it is
    undetermined: str = ""


@dataclass(frozen=True)
class OverTraining:
    """The cost of a model k times smaller than the compute-optimal one."""

    N: float  # N* / k
    D_same_loss: float  # tokens after which it has the loss of the compute-optimal model; infinite if it never has
    extra_compute: float  # what these cost beyond the budget, as a share of it; infinite likewise
    D_same_compute: float  # tokens that the budget pays for
    loss_same_compute: float  # nats, that they reach, and how far it is above the optimum
    extra_loss: float


def optimal_split(law: ScalingLaw, budget_flops: float) -> tuple[float, float]:
    """Return the N and D of least loss with 6 N D = C (Hoffmann et al. 2022, equation 4).

    N = G (C / 6)^(beta / (alpha + beta)) and D = (C / 6)^(alpha / (alpha + beta)) / G, with G = (alpha A / (beta B))^(1
    / (alpha + beta)).
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
    undetermined, n = "", len(np.unique(points.run))
    if N.high > MAX_SIZE_SPAN * N.low:
        undetermined = (
            f"The best size is not identifiable from {counted(n, 'run')}: its interval spans a factor of "
            f"{N.high / N.low:.2g}; add runs nearer to the budget, of other sizes at equal tokens and other tokens at "
            "equal size."
        )
    return Plan(budget_flops, N, D, loss, ratio, beyond, tuple(_remarks(fitted, at, beyond)), undetermined)


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
        if beyond[name] > 1.01:  # nearer needs no remark
            end = f"up to {known.max():.3g}" if at[name] > known.max() else f"from {known.min():.3g}"
            is_far = name == "C" and beyond[name] > MAX_EXTRAPOLATION
            far = "; so far out the form of the law is itself a guess" if is_far else ""
            yield f"extrapolated in {what}: {at[name]:.3g} is {beyond[name]:.3g} times beyond the points ({end}){far}"
    if not fitted.bootstrap:
        yield "no interval: the law has no bootstrap"


def check_positive(name: str, value: float) -> None:
    """Raise a ToposcopeError if a number is not finite and positive."""
    if not (np.isfinite(value) and value > 0):
        raise ToposcopeError(f"{name}: {value:g} given; expected a number above 0")


@dataclass(frozen=True)
class InferencePlan:
    """A model whose training and inference are paid together."""

    N: float
    D: float  # training tokens
    loss: float  # nats
    training_flops: float  # 6 N D
    inference_flops: float  # 2 N D_inf

    @property
    def flops(self) -> float:
        """Their sum."""
        return self.training_flops + self.inference_flops


def cheapest_for_loss(law: ScalingLaw, loss: float, inference_tokens: float) -> InferencePlan:
    """Return the model of a loss for which 6 N D + 2 N D_inf is least (Sardana et al. 2023, equation 3)."""
    gap = loss - law.E
    if not (np.isfinite(loss) and gap > 0):
        raise ToposcopeError(f"loss: {loss:g} given; no model gets below E = {law.E:.4g}")

    def at(logit: float) -> tuple[float, float]:
        """Return N and D, where parameters make up so much of the loss above E."""
        share_n, share_d = 1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(logit))
        return float((law.A / (share_n * gap)) ** (1 / law.alpha)), float((law.B / (share_d * gap)) ** (1 / law.beta))

    # Without inference the shares are as beta to alpha.
    return _with_inference(law, at, np.log(law.beta / law.alpha), inference_tokens)


def best_for_budget(law: ScalingLaw, budget_flops: float, inference_tokens: float) -> InferencePlan:
    """Return the model of least loss with 6 N D + 2 N D_inf = C."""
    check_positive("budget", budget_flops)

    def at(log_d: float) -> tuple[float, float]:
        D = float(np.exp(log_d))
        return budget_flops / (FLOP * D + INFERENCE_FLOP * inference_tokens), D

    return _with_inference(law, at, np.log(optimal_split(law, budget_flops)[1]), inference_tokens)


def _with_inference(
    law: ScalingLaw, at: Callable[[float], tuple[float, float]], start: float, inference_tokens: float
) -> InferencePlan:
    """Return the plan at the place where 1% more parameters and 1% more tokens bring as much for what they cost.

    1% more parameters cost 6 N D + 2 N D_inf and 1% more tokens 6 N D, so their gains have the ratio 1 + D_inf / (3 D)
    there: the score is its logarithm.
    """
    from scipy.optimize import brentq

    if not (np.isfinite(inference_tokens) and inference_tokens >= 0):
        raise ToposcopeError(f"inference tokens: {inference_tokens:g} given; expected 0 or more")

    def rising(place: float) -> float:
        N, D = at(place)
        return float(law.score(N, D) - np.log1p(INFERENCE_FLOP * inference_tokens / (FLOP * D)))

    width = 1.0
    while rising(start - width) > 0 or rising(start + width) < 0:
        width *= 2
    N, D = at(float(brentq(rising, start - width, start + width, xtol=1e-13)))
    return InferencePlan(N, D, float(law.loss(N, D)), FLOP * N * D, INFERENCE_FLOP * N * inference_tokens)


@dataclass(frozen=True)
class RepeatedPlan:
    """The model of least loss for a budget and so many unique tokens."""

    N: float
    D: float  # tokens trained on with repetitions; C = 6 N D
    epochs: float  # D over the unique tokens; below 1 if they are not all needed
    loss: float  # nats
    loss_of_fresh_data: float  # loss that the budget would reach without repetitions
    remarks: tuple[str, ...]


def worth(total: float, unique: float, constant: float) -> float:
    """Return D' = U + U R* (1 - exp(-R / R*)), R = D / U - 1: how many fresh tokens D of them are worth.

    Muennighoff et al. 2023, section 3; without repetitions D' = D. Parameters beyond U_N likewise, with R*_N.
    """
    if total <= unique:
        return total
    return float(unique * (1 - constant * np.expm1(-(total / unique - 1) / constant)))


def repeated_loss(law: ScalingLaw, N: float, D: float, unique_tokens: float) -> float:
    """Return E + A / N'^alpha + B / D'^beta, nats: the loss of D tokens of which so many are unique.

    N' counts parameters beyond U_N, the compute-optimal number for the unique tokens that are read, at less than one.
    """
    unique = min(unique_tokens, D)
    return float(law.loss(worth(N, min(optimal_parameters(law, unique), N), R_N), worth(D, unique, R_D)))


def plan_repeated(law: ScalingLaw, budget_flops: float, unique_tokens: float) -> RepeatedPlan:
    """Return the model of least loss for a budget and so many unique tokens."""
    from scipy.optimize import brentq

    check_positive("unique tokens", unique_tokens)
    N, D = optimal_split(law, budget_flops)
    fresh = float(law.loss(N, D))
    if unique_tokens >= D:
        return RepeatedPlan(N, D, D / unique_tokens, fresh, fresh, ())
    warranted = optimal_parameters(law, unique_tokens)

    def score(log_n: float) -> float:
        """Return the logarithm of what 1% more parameters bring over what 1% more tokens bring; it falls with N."""
        N, D = np.exp(log_n), budget_flops / (FLOP * np.exp(log_n))
        worth_n, worth_d = worth(N, warranted, R_N), worth(D, unique_tokens, R_D)
        faded = (N / warranted - 1) / R_N - (D / unique_tokens - 1) / R_D
        return float(law.score(worth_n, worth_d) + np.log(N / worth_n * worth_d / D) - faded)

    # With U_N parameters more of them bring more; with every token read once, more tokens do.
    most = budget_flops / (FLOP * unique_tokens)
    N = float(np.exp(brentq(score, np.log(warranted), np.log(most), xtol=1e-13)))
    D = budget_flops / (FLOP * N)
    return RepeatedPlan(N, D, D / unique_tokens, repeated_loss(law, N, D, unique_tokens), fresh, (BORROWED,))
