"""What to train with a given compute."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw
from toposcope.typing import Vector
from toposcope.wording import counted

# Scaling laws and decisions: docs/methods/scaling.md, docs/decision.md
MAX_EXTRAPOLATION = 10.0  # times the compute of the points; beyond, the form of the law itself is in doubt
MAX_SIZE_SPAN = 30.0  # ends of the interval of the best size over each other; beyond, the points do not determine it

FLOP = 6.0  # floating-point operations of training, for each parameter and token
LEVEL = 0.95  # of the intervals over resampled laws


@dataclass(frozen=True)
class Interval:
    """A value, and the ends of its interval over the bootstrap; NaN without one."""

    value: float
    low: float
    high: float
    level: float = LEVEL

    @classmethod
    def of(cls, value: float, resampled: Vector, level: float = LEVEL) -> "Interval":
        """Return a value with the percentile interval of what it is under resampled laws."""
        low, high = np.percentile(resampled, [50 * (1 - level), 50 * (1 + level)])
        return cls(value, float(low), float(high), level)


@dataclass(frozen=True, eq=False)
class Plan:
    """The compute-optimal model for a budget."""

    budget_flops: float  # C
    # parameters, and tokens under it: C = 6 N D. Their intervals allow for the law being wrong as well: `_size`
    N: Interval
    D: Interval
    loss: Interval  # nats, at the optimum of each law: its interval does not hold the scatter of single runs
    tokens_per_parameter: Interval  # D / N
    # by what factor ``N``, ``D`` and ``C`` lie outside of the points that were fitted; 1 within
    beyond: dict[str, float]
    remarks: tuple[str, ...]
    # why the best size is not identifiable from these points, and what would help; empty if it is
    undetermined: str = ""


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
    loss = over_bootstrap(fitted, lambda law: float(law.loss(*optimal_split(law, budget_flops))), level)
    N, whole = _size(fitted, budget_flops, level), budget_flops / FLOP
    D = Interval(optimal_split(fitted.law, budget_flops)[1], whole / N.high, whole / N.low, level)
    ratio = Interval(D.value / N.value, D.low / N.high, D.high / N.low, level)
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


def _size(fitted: FittedScalingLaw, budget_flops: float, level: float) -> Interval:
    """Return the best size, with an interval for how runs scatter and for how the law misses them.

    A bootstrap takes the law for true: what it misses is common to points of about equal tokens or compute, and grows
    beyond them. So to the variance of ln N* over resampled runs is added that of a jackknife of quarters of the points,
    by tokens or by compute, whichever is larger, about the value of all points: laws without a quarter mostly err to
    one side (Shao and Tu 1995, sections 2.1 and 9.1).
    """
    size = over_bootstrap(fitted, lambda law: optimal_split(law, budget_flops)[0], level)
    value, low, high = np.log([size.value, size.low, size.high])
    logs = [np.log([optimal_split(law, budget_flops)[0] for law in laws]) for laws in fitted.parts if len(laws) > 1]
    variance = max((3 * float(((each - value) ** 2).mean()) for each in logs), default=0.0)
    more = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(variance)
    low, high = np.exp([value - np.hypot(value - low, more), value + np.hypot(high - value, more)]).tolist()
    return Interval(size.value, low, high, level)


def over_bootstrap(fitted: FittedScalingLaw, describe: Callable[[ScalingLaw], float], level: float = LEVEL) -> Interval:
    """Return a quantity of a law, with its percentile interval over the bootstrap; NaN without one."""
    if not 0 < level < 1:
        raise ToposcopeError(f"level: {level:g} given; expected a number between 0 and 1")
    resampled = np.array([describe(law) for law in fitted.bootstrap] or [np.nan])
    return Interval.of(describe(fitted.law), resampled, level)


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
