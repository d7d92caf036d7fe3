"""How a run ended badly, as its losses show; the noise of its rows, and steps that are missing."""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.typing import Steps, Vector

# Tuned on 350 published loss curves, whole and cut, and on made-up runs that diverge (tests/logs/test_ends_of_runs.py).
WINDOW_SHARE, MIN_WINDOW_ROWS = 0.05, 3  # rows of a window, as a share and at least; medians of windows are compared
MIN_ROWS = 20  # with fewer, noise alone may end above where it began; also those from which on a line has a noise
MIN_RISE = 1.1  # last over lowest median of a run that diverged; less may be noise
MIN_FEW_ROWS, FEW_HIGH, FEW_RISE = 5, 3, 3.0  # of a short log: rows, last ones that are high, times the first loss
MIN_FALL = 0.05  # share of the first loss by which a run has learned
MIN_RISE_WITHOUT_FALL, AT_PEAK = 1.4, 0.95  # how far one that has not must rise, and that it must be there
N_BEFORE_ZEROS, MAX_ROUNDED = 5, 5  # losses before zeros, and last places of them from which on 0 is a rounded loss
MIN_ZEROS = 2  # exact zeros that make an end; a tool may write one where nothing was logged
MIN_LEVEL_ROWS = 10  # rows of a log that may have exploded, and of its ends that are compared; of a short log half
SPIKED_SHARE = 0.25  # of the last rows; as many may be low in a run that exploded
NOISE_WIDTH = 4  # standard deviations that rows scatter by
MIN_REGULAR_SHARE = 0.8  # share of equal intervals in a log that is regular
MIN_GAP, MIN_LATE_START = 3, 10  # usual intervals in one that make a gap, and before the first row of a late start

NORMAL_MAD = 1.4826  # standard deviation of normal numbers over the median of absolute deviations
MAX_PLACES, SINGLE_PRECISION = 7, 1.2e-7  # decimals of a loss, and relative error of a float32


class Divergence(NamedTuple):
    """How a run ended badly."""

    step: int  # the first step of the bad end
    reason: str  # what was logged from there on, with values of the rows

    def __str__(self) -> str:
        return f"the run diverged at step {self.step:,}: {self.reason}"


def divergence(steps: Steps, losses: Vector, kind: str = "", *, falls: bool = True) -> Divergence | None:
    """Return how a run ended badly: NaN, infinite or 0 to the end, or above its first value by more than it fell.

    Of a loss that need not fall, only NaN and infinite count.
    """
    kept = steps <= np.minimum.accumulate(steps[::-1])[::-1]
    steps, losses = steps[kept], losses[kept]
    name = f"the {kind} loss" if kind else "the loss"
    found = _lost(steps, losses, name, falls=falls)
    if found is None and kind != "validation" and falls:
        positive = np.isfinite(losses) & (losses > 0)
        found = _explosion(steps[positive], losses[positive], name)
    return found


def _lost(steps: Steps, losses: Vector, name: str, *, falls: bool) -> Divergence | None:
    """Return where losses end that are numbers, and not 0."""
    positive = losses[np.isfinite(losses) & (losses > 0)]
    lost = ~np.isfinite(losses)
    if falls and len(positive) and positive[-N_BEFORE_ZEROS:].min() > MAX_ROUNDED * last_place(positive):
        lost |= losses == 0
    present = np.flatnonzero(~lost)
    if not len(present):
        return None
    before, tail = int(present[-1]), losses[present[-1] + 1 :]
    # NaN between numbers is how some tools write that nothing was logged
    longest = int(np.diff(present, prepend=-1).max()) - 1
    if len(tail) <= longest or (len(tail) < MIN_ZEROS and (tail == 0).all()):
        return None
    kinds = (("NaN", np.isnan(tail)), ("infinite", np.isinf(tail)), ("0", tail == 0))
    values = " or ".join(word for word, rows in kinds if rows.any())
    rows = f"in all {len(tail):,} rows from there on" if len(tail) > 1 else "in the last row"
    reason = f"{name} is {values} {rows}, after {losses[before]:.4g} at step {steps[before]:,}"
    return Divergence(int(steps[before + 1]), reason)


@np.errstate(over="ignore", invalid="ignore")
def last_place(values: Vector) -> float:
    """Return the last decimal place that values are written with, at most that of single precision."""
    for place in range(MAX_PLACES):
        scaled = values * 10.0**place
        if (np.abs(scaled - scaled.round()) <= SINGLE_PRECISION * (1 + scaled)).all():
            return float(10.0**-place)
    return float(10.0**-MAX_PLACES)


def _explosion(steps: Steps, losses: Vector, name: str) -> Divergence | None:
    """Return where a loss rose for good above its first value by more than it had fallen."""
    if len(losses) < MIN_LEVEL_ROWS:
        high = losses > FEW_RISE * losses[:2].max(initial=0.0)
        if len(losses) < MIN_FEW_ROWS or not high[-FEW_HIGH:].all():
            return None
        start = len(losses) - int(np.argmin(high[::-1])) if not high.all() else 0
        return Divergence(int(steps[start]), f"{name} {_course(steps, losses)}")
    width = max(min(MIN_LEVEL_ROWS, len(losses) // 2), round(WINDOW_SHARE * len(losses)))
    levels = np.median(sliding_window_view(losses, MIN_WINDOW_ROWS), axis=1)
    first = max(float(losses[0]), float(levels[0]))
    changes = np.diff(losses)
    noise = NOISE_WIDTH * float(np.median(np.abs(changes - np.median(changes)))) / np.sqrt(2) * NORMAL_MAD
    # most of the last rows, of few all of them: spikes do not count
    last = float(np.quantile(losses[-width:], SPIKED_SHARE if width >= MIN_LEVEL_ROWS else 0))
    fall = first - min(float(levels.min()), first)
    if last - first <= fall + noise or last <= MIN_RISE * first:
        return None
    if fall < MIN_FALL * first and (last < MIN_RISE_WITHOUT_FALL * first or last + noise < AT_PEAK * levels.max()):
        return None  # of a run that goes on from another, or learns from its own samples, the loss may begin low
    low = np.flatnonzero(losses[:-width] <= first)
    start = int(low[-1]) + 1 if len(low) else 0
    return Divergence(int(steps[start]), f"{name} {_course(steps, losses)}")


def _course(steps: Steps, losses: Vector) -> str:
    """Return the first, the lowest and the last row in words."""
    low = int(np.argmin(losses))
    return (
        f"began at {losses[0]:.4g} at step {steps[0]:,}, was lowest, {losses[low]:.4g}, at step {steps[low]:,} and "
        f"ends at {losses[-1]:.4g} at step {steps[-1]:,}"
    )


def row_noise(values: Vector) -> float:
    """Return the standard deviation of the noise of rows, by second differences; of 20 or more rows two rows apart."""
    lag = 2 if len(values) >= MIN_ROWS else 1
    bends = values[2 * lag :] - 2 * values[lag:-lag] + values[: -2 * lag]
    return float(np.median(np.abs(bends))) * NORMAL_MAD / np.sqrt(6) if len(bends) else 0.0


def gaps(steps: Steps) -> list[str]:
    """Return sentences on steps that are missing, in the middle or before the first; steps ascend, each once."""
    intervals = np.diff(steps)
    if len(intervals) < 2:
        return []
    usual = int(np.median(intervals))
    if (intervals == usual).mean() < MIN_REGULAR_SHARE:
        return []
    remarks = []
    if steps[0] > MIN_LATE_START * usual:
        remarks.append(f"the log begins at step {steps[0]}")
    missing = np.flatnonzero(intervals >= MIN_GAP * usual)
    if len(missing):
        longest = int(missing[np.argmax(intervals[missing])])
        places = "one place" if len(missing) == 1 else f"{len(missing)} places, the longest"
        remarks.append(f"steps are missing in {places} from {steps[longest]} to {steps[longest + 1]}")
    return remarks
