"""The loss of models of every size at a fixed compute, by a fitted law: the curves of an isoFLOP plot."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toposcope.forecasting.scaling.planner import FLOP, LEVEL, Plan, plan
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw
from toposcope.typing import Vector

SPAN = 12.0
"""A curve goes from N* / 12 to 12 N*."""
N_SIZES = 121
MAX_CURVES = 5
MAX_COMPUTE_RATIO = 1.2
"""Points are of a budget if their compute is within this factor of it."""


@dataclass(frozen=True, eq=False)
class IsoFlop:
    """The loss at a fixed compute.

    Attributes
    ----------
    best : Plan
        Of the minimum.
    N, loss, low, high : ndarray, shape (k,)
        Parameters, the loss of each with D = C / (6 N), and the interval of that over the bootstrap; nats. NaN without
        one.
    points : Points
        Those fitted whose compute is within a factor of 1.2 of the budget.
    """

    best: Plan
    N: Vector
    loss: Vector
    low: Vector
    high: Vector
    points: Points


def isoflop(fitted: FittedScalingLaw, budget_flops: float, *, level: float = LEVEL) -> IsoFlop:
    """Return the curve of a budget.

    Raises
    ------
    ToposcopeError
        If the budget is not finite and positive, or the level not between 0 and 1.
    """
    best = plan(fitted, budget_flops, level=level)
    N = np.geomspace(best.N.value / SPAN, best.N.value * SPAN, N_SIZES)
    D = budget_flops / (FLOP * N)
    low = high = np.full(len(N), np.nan)
    if fitted.bootstrap:
        resampled = np.array([law.loss(N, D) for law in fitted.bootstrap])
        low, high = np.percentile(resampled, [50 * (1 - level), 50 * (1 + level)], axis=0)
    near = np.abs(np.log(fitted.points.C / budget_flops)) <= np.log(MAX_COMPUTE_RATIO)
    return IsoFlop(best, N, fitted.law.loss(N, D), low, high, fitted.points.where(near))


def budgets_of(points: Points, n: int = MAX_CURVES) -> Vector:
    """Return budgets of two digits, evenly in the logarithm over the middle nine tenths of the points; n at most."""
    low, high = np.quantile(np.log(points.C), [0.05, 0.95])
    return np.unique([float(f"{budget:.1e}") for budget in np.exp(np.linspace(low, high, n))])


def isoflops(
    fitted: FittedScalingLaw, budgets: Sequence[float] | Vector | None = None, *, level: float = LEVEL
) -> list[IsoFlop]:
    """Return the curves of some budgets; of those of the points if none are given."""
    chosen = budgets_of(fitted.points) if budgets is None else budgets
    return [isoflop(fitted, float(budget), level=level) for budget in chosen]
