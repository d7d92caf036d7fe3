"""When a run got into trouble, from its loss alone; fixed before any precursor was looked at.

The loss of a batch is compared with the best level that the run had reached. Trouble is a stretch whose mean is above
that level by more than batches explain; its onset is the first step of the stretch, found by walking back, so that a
slow rise begins early and a precursor is not credited with the time that it takes to be seen.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.extend import Vector

Seen = Literal["spike that recovers", "spike that does not recover", "slow divergence", "none"]

BASELINE = 100  # steps whose mean is a level; before twice as many a run has none, and no onset
SHORT = 10  # steps of the mean in which a spike is seen
SHORT_SDS, LONG_SDS = 3.0, 1.0  # rises of the means of SHORT and BASELINE steps: about 10 standard errors of both
WALK_BACK_SDS = 0.5  # the stretch goes back to where the mean of SHORT steps was no higher: 1.6 standard errors
NOISE_STEPS = 200  # whose differences give the standard deviation of a batch's loss
RECOVERY_STEPS = 500  # within which a mean of BASELINE steps has to be back below LONG_SDS
SUDDEN_STEPS = 50  # so long before half of its height a spike was below a quarter of that
FIRST_SDS = 2.0  # the first step of a stretch is the first so high within SHORT steps


@dataclass(frozen=True)
class Onset:
    """What was seen in a loss."""

    step: int | None  # the first of the rise, counted from 0
    seen: Seen


def find_onset(loss: Vector) -> Onset:
    """Return the onset of trouble and its kind, from the loss of every step; one that is not finite is trouble."""
    finite = np.isfinite(loss)
    n = len(loss) if finite.all() else int(finite.argmin())
    values = np.asarray(loss[:n], dtype=np.float64)
    lost = n < len(loss)  # trouble at the last, if none before
    none = Onset(n, "spike that does not recover") if lost else Onset(None, "none")
    if n < 2 * BASELINE + SHORT:
        return none
    levels, noise = _levels(values), _noise(values)
    short, long = _means(values, SHORT), _means(values, BASELINE)
    steps = np.arange(2 * BASELINE, n)
    # Means of the steps from t on, against what was known before t.
    rises = short[np.minimum(steps, n - SHORT)] - levels[steps] > SHORT_SDS * noise[steps]
    whole = steps <= n - BASELINE
    rises |= whole & (long[np.minimum(steps, n - BASELINE)] - levels[steps] > LONG_SDS * noise[steps])
    rises &= steps <= n - SHORT
    if not rises.any():
        return none
    detected = int(steps[rises.argmax()])
    level, spread = levels[detected], noise[detected]
    # A forward mean may rise before its first step does: from the peak, back.
    peak = detected + int(np.argmax(short[detected : detected + BASELINE]))
    sudden = _is_sudden(values, peak, level)
    step = _foot(values, short, peak, level, spread)
    if not sudden:
        step = min(step, _bend(values, max(2 * BASELINE, detected - NOISE_STEPS), peak, level))
    after = _means(values[peak : peak + RECOVERY_STEPS + BASELINE], BASELINE)
    if not lost and (after - level <= LONG_SDS * spread).any():
        return Onset(step, "spike that recovers")
    return Onset(step, "spike that does not recover" if sudden else "slow divergence")


def _foot(values: Vector, short: Vector, peak: int, level: float, spread: float) -> int:
    """Return the first step of the stretch around the peak."""
    low = np.flatnonzero(short[:peak] - level <= WALK_BACK_SDS * spread)
    start = max(2 * BASELINE, int(low[-1]) + 1 if len(low) else 0)
    high = np.flatnonzero(values[start : start + SHORT] - level > FIRST_SDS * spread)
    return start + (int(high[0]) if len(high) else 0)


def _bend(values: Vector, begin: int, peak: int, level: float) -> int:
    """Return where a line that rises from the level begins, by least squares."""
    rise = values[begin : peak + SHORT] - level
    starts = np.arange(max(1, peak - begin))
    lines = np.maximum(0, np.arange(len(rise)) - starts[:, None])
    return begin + int(np.argmax((lines @ rise) ** 2 / (lines**2).sum(1)))


def _means(values: Vector, width: int) -> Vector:
    """Return the means of so many steps from each step on, shape (steps - width + 1,); none of fewer steps."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[width:] - sums[: max(0, len(sums) - width)]) / width)


def _levels(values: Vector) -> Vector:
    """Return for each step the lowest mean of BASELINE steps that ended before it."""
    means = np.minimum.accumulate(_means(values, BASELINE))
    levels = np.full(len(values), np.inf)
    levels[BASELINE:] = means[: len(values) - BASELINE]
    return levels


def _noise(values: Vector) -> Vector:
    """Return for each step the robust standard deviation of the loss over the steps before it, freed of its trend."""
    windows = np.lib.stride_tricks.sliding_window_view(np.abs(np.diff(values)), NOISE_STEPS)[::SHORT]
    each = 1.4826 / np.sqrt(2) * np.median(windows, axis=1)
    return np.concatenate([np.full(NOISE_STEPS + 1, np.inf), np.repeat(each, SHORT)])[: len(values)]


def _is_sudden(values: Vector, peak: int, level: float) -> bool:
    """Return whether the loss was below a quarter of half of its height shortly before it reached that half."""
    heights = _means(values[: peak + RECOVERY_STEPS + BASELINE], SHORT) - level
    half = peak - SUDDEN_STEPS + int(np.argmax(heights[peak - SUDDEN_STEPS :] >= heights[peak:].max() / 2))
    return bool(heights[max(0, half - SUDDEN_STEPS)] <= heights[half] / 4)
