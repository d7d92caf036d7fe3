"""What may be wrong with a run, as its losses show: it diverged, single losses spike, or steps are missing."""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.typing import Steps, Vector

WINDOW_SHARE = 0.05
"""Of the rows; medians of windows are compared, which single spikes do not move."""
MIN_WINDOW_ROWS = 3
MIN_ROWS = 20
"""With fewer, noise alone may end above where it began."""
MIN_RISE = 1.1
"""Last over lowest median of a run that diverged; less may be noise."""
MIN_RETURN = 0.5
"""Share of what was learned that a run that diverged has lost again."""
MIN_SPIKE = 2.0
"""Times the median of five rows."""
MIN_REGULAR_SHARE = 0.8
"""Share of equal intervals in a log that is regular."""
MIN_GAP = 3
"""Usual intervals in one that make a gap."""
MIN_LATE_START = 10
"""Usual intervals before the first row of a log that begins late."""


class Divergence(NamedTuple):
    """How a run ended badly.

    Attributes
    ----------
    step : int
        The first step of the bad end.
    reason : str
        What was logged from there on, with values of the rows.
    """

    step: int
    reason: str

    def __str__(self) -> str:
        return f"the run diverged at step {self.step:,}: {self.reason}"


def divergence(steps: Steps, losses: Vector) -> Divergence | None:
    """Return how a run ended badly; None if it did not.

    Parameters
    ----------
    steps : ndarray, shape (n,), int64
        In any order.
    losses : ndarray, shape (n,), float64
        As logged: also NaN, infinite, or 0.
    """
    order = np.argsort(steps, kind="stable")
    steps, losses = steps[order], losses[order]
    finite = np.flatnonzero(np.isfinite(losses))
    if len(finite) and finite[-1] < len(losses) - 1:
        return Divergence(int(steps[finite[-1] + 1]), "no loss is finite from there on")
    return None


def spikes(steps: Steps, losses: Vector) -> list[str]:
    """Return a sentence if single losses stand far above those around them; steps ascend, losses are finite."""
    if len(losses) < MIN_ROWS:
        return []
    around = np.median(sliding_window_view(np.pad(losses, 2, mode="edge"), 5), axis=1)
    high = np.flatnonzero(losses > MIN_SPIKE * around)
    if not len(high):
        return []
    worst = int(high[np.argmax(losses[high])])
    return [
        f"{len(high)} loss{'es'[: 2 * (len(high) > 1)]} above {MIN_SPIKE:g} times those around, the largest "
        f"{losses[worst]:.4g} at step {steps[worst]}: kept, with little weight in a fit"
    ]


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
