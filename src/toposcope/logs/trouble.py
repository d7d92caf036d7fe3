"""What may be wrong with a run, as its losses show: it diverged, or steps are missing."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.typing import Steps, Vector

WINDOW = 0.05
"""Of the rows; medians of windows are compared, which single spikes do not move."""
FEWEST_ROWS = 20
"""With fewer, noise alone may end above its beginning."""
CLEARLY = 1.1
"""Above by so much is more than noise."""
SPIKE = 2.0
"""Times the median of five rows."""
REGULAR = 0.8
"""Share of equal intervals that makes a log regular."""
LONG = 3
"""Intervals in one that make a gap."""
LATE = 10
"""Intervals before the first row that make a late beginning."""


def trouble(steps: Steps, losses: Vector) -> list[str]:
    """Return a sentence if a run diverged.

    Parameters
    ----------
    steps : ndarray, shape (n,), int64
        In any order.
    losses : ndarray, shape (n,), float64
        NaN and infinite ones included; none is 0 or below.
    """
    order = np.argsort(steps, kind="stable")
    steps, losses = steps[order], losses[order]
    finite = np.flatnonzero(np.isfinite(losses))
    if len(finite) and finite[-1] < len(losses) - 1:
        return [f"the run diverged: no loss is finite and positive after step {steps[finite[-1]]}"]
    kept = losses[finite]
    if len(kept) < FEWEST_ROWS:
        return []
    width = max(3, round(WINDOW * len(kept)))
    windows = [float(np.median(kept[i : i + width])) for i in range(0, len(kept) - width + 1, width)]
    first, lowest, last = windows[0], min(windows), float(np.median(kept[-width:]))
    if last <= CLEARLY * lowest or last - lowest <= 0.5 * (first - lowest):
        return []
    return [
        f"the run diverged, or did not learn: the loss began at {first:.4g}, was {lowest:.4g} and ends at {last:.4g}"
    ]


def spikes(steps: Steps, losses: Vector) -> list[str]:
    """Return a sentence if single losses stand far above those around them; steps ascend, losses are finite."""
    if len(losses) < FEWEST_ROWS:
        return []
    around = np.median(sliding_window_view(np.pad(losses, 2, mode="edge"), 5), axis=1)
    high = np.flatnonzero(losses > SPIKE * around)
    if not len(high):
        return []
    worst = int(high[np.argmax(losses[high])])
    return [
        f"{len(high)} loss{'es'[: 2 * (len(high) > 1)]} above {SPIKE:g} times those around, the largest "
        f"{losses[worst]:.4g} at step {steps[worst]}: kept, and of little weight in a fit"
    ]


def gaps(steps: Steps) -> list[str]:
    """Return sentences on steps that are missing, in the middle or before the first; steps ascend, each once."""
    intervals = np.diff(steps)
    if len(intervals) < 2:
        return []
    usual = int(np.median(intervals))
    found = []
    if steps[0] > LATE * usual and (intervals == usual).mean() >= REGULAR:
        found.append(f"the log begins at step {steps[0]}")
    missing = np.flatnonzero(intervals >= LONG * usual)
    if len(missing) and (intervals == usual).mean() >= REGULAR:
        where = int(missing[np.argmax(intervals[missing])])
        places = "one place" if len(missing) == 1 else f"{len(missing)} places, the longest"
        found.append(f"steps are missing in {places} from {steps[where]} to {steps[where + 1]}")
    return found
