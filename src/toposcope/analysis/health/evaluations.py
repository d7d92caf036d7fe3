"""Whether the validation loss is past its best: the last evaluations lie above the lowest ones by more than noise."""

from typing import NamedTuple

import numpy as np

from toposcope.logs.overfitting import NORMAL_MAD
from toposcope.typing import Steps, Vector

MIN_LAST, MAX_LAST = 4, 10  # last evaluations whose mean is compared; of fewer, noise alone may lie above the best
MIN_EVALUATIONS = 8  # of which at least half make the lowest level, and its noise is known
RISE_WIDTH = 4.0
"""Standard errors between the lowest level and the last one. By trials of losses that fall to a plateau, looked at
after each of up to 60 evaluations, 1 in 100 such runs is ever said to have risen."""
MIN_RISE = 0.01  # share of the best loss that is a rise
FEW = 2.0  # evaluations by whose share of all the noise is raised, since it is known the less
POWER_WIDTH = 1.28  # standard errors between what is named half the time, and what is with 90% probability


class Evaluations(NamedTuple):
    """What the evaluations show."""

    step: int  # of the lowest
    best: float
    rise: float  # of the last ones above the lowest level; 0 if they do not lie above it beyond noise
    noise: float  # standard deviation of one evaluation
    power: float  # the smallest rise that would have been seen
    since: int  # evaluations since the best


def evaluations(steps: Steps, losses: Vector) -> Evaluations | None:
    """Return what the evaluations show; None of too few to know their noise."""
    n = len(losses)
    lowest = int(np.argmin(losses))
    if n < MIN_EVALUATIONS:
        return None
    noise = evaluation_noise(losses) * (1 + FEW / n)
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    rise, power = 0.0, np.inf
    for last in range(MIN_LAST, min(MAX_LAST, n - MIN_LAST) + 1):
        late = (sums[n] - sums[n - last]) / last
        for width in range(MIN_LAST, min(2 * MAX_LAST, n - last) + 1):
            level = float(((sums[width : n - last + 1] - sums[: n - last + 1 - width]) / width).min())
            error = noise * (1 / last + 1 / width) ** 0.5
            least = max(RISE_WIDTH * error, MIN_RISE * level)
            power = min(power, least + POWER_WIDTH * error)
            if late - level > least and losses[n - last :].min() > losses[lowest]:
                rise = max(rise, late - level)
    return Evaluations(int(steps[lowest]), float(losses[lowest]), rise, noise, power, n - 1 - lowest)


def evaluation_noise(losses: Vector) -> float:
    """Return the standard deviation of the noise of evaluations, by second differences after the steep first third."""
    bends = np.abs(np.diff(losses[len(losses) // 3 :], 2))
    return float(np.median(bends)) * NORMAL_MAD / 6**0.5
