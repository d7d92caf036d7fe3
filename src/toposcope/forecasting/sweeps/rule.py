"""When a run of a sweep can stop: its loss at shares of its own planned length, beside the other runs'."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.typing import Steps, Vector

Risk = Literal["low", "medium", "high"]

# docs/findings/sweeps.md, for all below: fixed before they were tried on the sweeps there
COEFFICIENT, SPREAD, MAX_COEFFICIENT = 0.03, 0.03, 0.15  # log loss for a whole decay still to come; prior and bound
MIN_FINISHED = 6  # runs whose end the coefficient can be learnt from
AFTER_WARM_UP = 1.25  # of the warm-up, before which a loss says nothing
AT = 0.02  # share of a step by which an evaluation may miss it
FAR, LATE = 2.0, 1.25  # factors: between steps to interpolate, and of an evaluation that comes after the step


@dataclass(frozen=True)
class StoppingRule:
    """A run stops if its loss at a share of its planned steps is not among the best of those recorded there.

    Attributes
    ----------
    eta : float
        One of so many goes on.
    shares : tuple of float
        Of the planned steps of each run, ascending.
    corrected : bool
        Whether losses are compared as if the decay of the learning rate that is still to come had come.
    """

    eta: float
    shares: tuple[float, ...]
    corrected: bool

    def cutoff(self, recorded: Sequence[float]) -> float:
        """Return the value above which a run stops: the 1/eta quantile, linear; NaN where none is recorded."""
        values = sorted(recorded)
        if not values:
            return math.nan
        place = (len(values) - 1) / self.eta
        low = int(place)
        if place == low or values[low] == values[low + 1]:
            return values[low]
        return values[low] + (place - low) * (values[low + 1] - values[low])

    def stops(self, value: float, recorded: Sequence[float]) -> bool:
        """Return whether a run stops with a value, beside those recorded before; it does if it diverged."""
        return math.isinf(value) or value > self.cutoff(recorded)


RULES: dict[Risk, StoppingRule] = {
    "low": StoppingRule(4, (0.1, 0.4), corrected=True),
    "medium": StoppingRule(2, (0.2, 0.4, 0.8), corrected=False),
    "high": StoppingRule(3, (0.1, 0.3, 0.9), corrected=False),
}
"""By the risk of losing the best run; the measured one is in `toposcope.forecasting.sweeps.measured`."""


def decay_coefficient(decay_left: Vector, gains: Vector) -> float:
    """Return the log loss that a whole decay of the learning rate still takes off.

    .03 ± .03, weighted by precision with the slope over finished runs, if these are six or more; in [0, .15].

    Parameters
    ----------
    decay_left : ndarray, shape (n,)
        (rate there - rate at the end) / peak rate, of each finished run.
    gains : ndarray, shape (n,)
        log loss there - log loss at the end, finite.

    Returns
    -------
    float
    """
    n = len(gains)
    if n < MIN_FINISHED or not (size := float(((decay_left - decay_left.mean()) ** 2).sum())) > 0:
        return COEFFICIENT
    apart = decay_left - decay_left.mean()
    slope = float(apart @ gains) / size
    scatter = gains - gains.mean() - slope * apart
    variance = max(float(scatter @ scatter) / (n - 2) / size, 1e-12)
    prior = 1 / SPREAD**2
    learnt = (COEFFICIENT * prior + slope / variance) / (prior + 1 / variance)
    return min(max(learnt, 0.0), MAX_COEFFICIENT)


def loss_at(steps: Steps, losses: Vector, step: float) -> float:
    """Return the loss at a step: that evaluated there, else on the line of logarithms between the two around it.

    NaN where it is not known yet, or where no evaluation is near; infinite where either of them is.

    Parameters
    ----------
    steps : ndarray, shape (n,), ascending
    losses : ndarray, shape (n,), positive
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
        with np.errstate(divide="ignore"):
            return float(np.exp((1 - share) * np.log(losses[place - 1]) + share * np.log(losses[place])))
    return float(losses[place]) if after <= step * LATE else math.nan
