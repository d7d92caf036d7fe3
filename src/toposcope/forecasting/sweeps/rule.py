"""When a run of a sweep can stop: its loss at shares of its own planned steps, beside the other runs' there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.typing import Steps, Vector

Risk = Literal["low", "medium", "high"]

# docs/findings/sweeps.md
AFTER_WARM_UP = 1.25  # of the warm-up, before which a loss is not compared
AT = 0.02  # share of a step by which an evaluation may miss it
TIED = 1e-9  # relative: quantiles and means of equal losses err by their rounding
FAR, LATE = 2.0, 1.25  # factors: between steps to interpolate, and of an evaluation that comes after the step


@dataclass(frozen=True)
class StoppingRule:
    """A run stops if its loss, at a share of its planned steps, is above a quantile of what others had there.

    Attributes
    ----------
    eta : float
        One of so many goes on: 2 is the median.
    shares : tuple of float
        Of the planned steps of each run, ascending, at which it is compared; with `means` from the first one on, at
        every evaluation.
    means : bool
        Whether the best loss of a run so far is compared with the others' mean losses so far, in place of losses there.
    at_least : int
        Other runs that have to be known there.
    """

    eta: float
    shares: tuple[float, ...]
    means: bool = False
    at_least: int = 1

    def stops(self, value: float, cutoff: float) -> bool:
        """Return whether a run stops: it is above the cutoff, and by more than rounding."""
        return value > cutoff and not math.isclose(value, cutoff, rel_tol=TIED)

    def cutoff(self, values: Sequence[float]) -> float:
        """Return the value above which a run stops: the 1/eta quantile, linear; NaN of too few."""
        ordered = sorted(values)
        if len(ordered) < self.at_least:
            return math.nan
        place = (len(ordered) - 1) / self.eta
        low = int(place)
        if place == low or ordered[low] == ordered[low + 1]:
            return ordered[low]
        return ordered[low] + (place - low) * (ordered[low + 1] - ordered[low])


RULES: dict[Risk, StoppingRule] = {
    "low": StoppingRule(2, (0.1,), means=True, at_least=3),
    "medium": StoppingRule(2, (0.2, 0.4, 0.8)),
    "high": StoppingRule(3, (0.1, 0.3, 0.9)),
}
"""By the risk of losing the best run; the measured one is in `toposcope.forecasting.sweeps.measured`."""


def loss_at(steps: Steps, losses: Vector, step: float) -> float:
    """Return the loss at a step: that evaluated there, else on the line over log(step) between the two around it.

    NaN where it is not known yet, or where no evaluation is near; infinite where either of them is.

    Parameters
    ----------
    steps : ndarray, shape (n,), ascending
    losses : ndarray, shape (n,)
    step : float
    """
    place = int(np.searchsorted(steps, step * (1 - AT)))
    if place == len(steps):
        return math.nan
    after, before = float(steps[place]), float(steps[place - 1]) if place else 0.0
    if after <= step * (1 + AT):
        return float(losses[place])
    if before * FAR >= step and after <= step * FAR:
        share = math.log(step / before) / math.log(after / before)
        return float((1 - share) * losses[place - 1] + share * losses[place])
    return float(losses[place]) if after <= step * LATE else math.nan


def mean_until(steps: Steps, losses: Vector, step: float) -> float:
    """Return the mean loss over the steps from the first evaluation to a step; NaN where that is not known yet.

    Parameters
    ----------
    steps : ndarray, shape (n,), ascending
    losses : ndarray, shape (n,)
    step : float
    """
    n = int(np.searchsorted(steps, step * (1 + AT), side="right"))
    if not n or steps[-1] < step * (1 - AT):
        return math.nan
    if n == 1 or not np.isfinite(losses[:n]).all():
        return float(losses[:n].max())
    return float(np.trapezoid(losses[:n], steps[:n]) / (steps[n - 1] - steps[0]))


def best_until(steps: Steps, losses: Vector, step: float) -> float:
    """Return the lowest loss up to a step; NaN where that is not known yet."""
    n = int(np.searchsorted(steps, step * (1 + AT), side="right"))
    return float(losses[:n].min()) if n and steps[-1] >= step * (1 - AT) else math.nan
