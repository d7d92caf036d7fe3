"""Phases of training by the published study's rule (METHODS 8)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 5
SHARE = 0.1
CONSECUTIVE = 3


@dataclass(frozen=True)
class Phases:
    """Steps the rule finds.

    Attributes
    ----------
    largest_change : int or None
        Step that ends the largest smoothed change between neighbouring checkpoints.
    diminishing_returns : int or None
        Step that begins the first of 3 consecutive smoothed changes under 10% of the peak; None if there is none.
    """

    largest_change: int | None
    diminishing_returns: int | None


def phases(steps: NDArray[np.int64], values: NDArray[np.float64]) -> Phases:
    """Apply the published rule to a feature over training; changes are smoothed by a moving average of 5.

    Parameters
    ----------
    steps : ndarray, shape (n,)
    values : ndarray, shape (n,)
        Mean neural persistence in the paper.
    """
    change = np.abs(np.diff(values))
    if len(change) < WINDOW or not change.max() > 0:
        return Phases(None, None)
    smooth = np.convolve(change, np.ones(WINDOW) / WINDOW, mode="same")
    peak = int(np.argmax(smooth))
    low = smooth < SHARE * smooth[peak]
    runs = np.flatnonzero(np.convolve(low, np.ones(CONSECUTIVE), mode="valid") == CONSECUTIVE)
    after = runs[runs > peak]
    return Phases(int(steps[peak + 1]), int(steps[after[0]]) if len(after) else None)
