"""Whether a loss is past its best: the last evaluations lie above the lowest ones by more than noise."""

from typing import NamedTuple

import numpy as np

from toposcope.logs.anomalies import NORMAL_MAD
from toposcope.logs.run import Run
from toposcope.logs.table import ByStep
from toposcope.typing import Steps, Vector

MIN_LAST, MAX_LAST = 4, 10  # last evaluations whose mean is compared; of fewer, noise alone may lie above the best
MIN_LEVEL = 2  # evaluations that the lowest level is of, at least
RISE_WIDTH, OVERFIT_WIDTH = 4.6, 3.2
"""Standard errors between the lowest level and the last one; fewer where the training loss fell meanwhile. By trials of
losses that fall to a plateau, looked at after each of up to 60 evaluations, 1 in 100 is said to have risen."""
MIN_TRAINING_FALL = 0.05  # share by which the training loss fell since the best evaluation, where a model may overfit
MIN_RISE = 0.01  # share of the best loss that is a rise
MIN_FEW_RISE, MIN_FEW_LATER = 0.03, 2  # the same for evaluations too few to know their noise, and those after the best
FEW = 14.0  # the noise is raised by this over the number of evaluations to the power 1.5: of few it is hardly known
POWER_WIDTH = (
    3.0  # standard errors between what is named half the time, and 90% of the time: the level is uncertain too
)


class Evaluations(NamedTuple):
    """What the evaluations show."""

    step: int  # of the lowest
    best: float
    rise: float  # of the last ones above the lowest level; 0 if they do not lie above it beyond noise
    noise: float  # standard deviation of one evaluation
    power: float  # the smallest rise above the best, of four evaluations, that would have been seen
    since: int  # evaluations since the best


def evaluations(steps: Steps, losses: Vector, training: ByStep | None = None) -> Evaluations | None:
    """Return what the evaluations show; None of too few to know their noise."""
    n = len(losses)
    lowest = int(np.argmin(losses))
    if n < 2 * MIN_LAST and (few := _few_evaluations(steps, losses, training)) is not None:
        return few
    if n < MIN_LAST + MIN_LEVEL:
        return None
    noise = evaluation_noise(losses) * (1 + FEW / n**1.5)
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    rise, named = 0.0, np.inf
    width_of_rise = OVERFIT_WIDTH if _training_fell(training, int(steps[lowest])) else RISE_WIDTH
    for last in range(MIN_LAST, min(MAX_LAST, n - MIN_LEVEL) + 1):
        late = (sums[n] - sums[n - last]) / last
        for width in range(MIN_LEVEL, min(2 * MAX_LAST, n - last) + 1):
            level = float(((sums[width : n - last + 1] - sums[: n - last + 1 - width]) / width).min())
            error = noise * (1 / last + 1 / width) ** 0.5
            if (
                late - level > max(width_of_rise * error, MIN_RISE * level)
                and losses[n - last :].min() > losses[lowest]
            ):
                rise = max(rise, late - level)
            if last == MIN_LAST:
                named = min(named, level + max(RISE_WIDTH * error, MIN_RISE * level) + POWER_WIDTH * error)
    power = named - float(losses[: n - MIN_LAST].min())
    return Evaluations(int(steps[lowest]), float(losses[lowest]), rise, noise, power, n - 1 - lowest)


def _few_evaluations(steps: Steps, losses: Vector, training: ByStep | None) -> Evaluations | None:
    """Return what few evaluations show, whose noise is hardly known; None unless they rose while training loss fell."""
    lowest = int(np.argmin(losses))
    best, later = float(losses[lowest]), losses[lowest + 1 :]
    rose = len(later) >= MIN_FEW_LATER and later.min() > (1 + MIN_FEW_RISE) * best
    if not rose or not _training_fell(training, int(steps[lowest])):
        return None
    return Evaluations(int(steps[lowest]), best, float(later.mean()) - best, np.nan, np.nan, len(later))


def _training_fell(training: ByStep | None, since: int) -> bool:
    """Return whether the training loss fell by more than a little since a step."""
    if training is None:
        return False
    before = training.values[training.steps <= since][-MAX_LAST:]
    after = training.values[training.steps > since][-MAX_LAST:]
    return len(before) > 0 and len(after) > 0 and bool(after.mean() < (1 - MIN_TRAINING_FALL) * before.mean())


def evaluation_noise(losses: Vector) -> float:
    """Return the standard deviation of the noise of evaluations, by second differences after the steep first third."""
    bends = np.abs(np.diff(losses[len(losses) // 3 :], 2))
    return float(np.median(bends)) * NORMAL_MAD / 6**0.5


def is_past_best(run: Run) -> bool:
    """Return whether the validation loss of a run is past its best."""
    found = None if run.validation is None else evaluations(*run.validation, run.training)
    return found is not None and found.rise > 0
