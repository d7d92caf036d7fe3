"""Whether the features of runs go with their own losses better than with one another's (METHODS 6, item 6)."""

import math

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.permutations import orders

ENUMERATED = 7
"""Most runs of which all pairings are counted."""
DRAWN = 5000
MIN_RUNS = 4
"""Three have six pairings, of which one is a sixth."""


def pairing_p(strengths: NDArray[np.float64], seed: int) -> float:
    """Return the share of all pairings of features with losses that go together as well as the true one.

    Where all runs share what moves the loss, each feature goes with another run's loss as with its own, and every
    pairing is as likely to be the best: the share is an exact p, whatever the series are like.

    Parameters
    ----------
    strengths : ndarray, shape (r, r)
        How strongly the feature of run j goes with the loss of run i; NaN where that cannot be asked.
    seed : int
        Of the pairings drawn, where there are too many to count.

    Returns
    -------
    float
        1 / r! at least, with up to 7 runs; NaN with fewer than 4 that can be asked of one another, which allow no p
        below .05.
    """
    kept = list(range(len(strengths)))
    while kept and np.isnan(strengths[np.ix_(kept, kept)]).any():
        gaps = np.isnan(strengths[np.ix_(kept, kept)])
        kept.pop(int(np.argmax(gaps.sum(axis=0) + gaps.sum(axis=1))))
    n = len(kept)
    if n < MIN_RUNS:
        return math.nan
    square = strengths[np.ix_(kept, kept)]
    if n <= ENUMERATED:
        pairings = orders(n)
    else:
        rng = np.random.default_rng(seed)
        pairings = np.vstack([np.arange(n), rng.permuted(np.tile(np.arange(n), (DRAWN - 1, 1)), axis=1)])
    sums = square[np.arange(n), pairings].sum(axis=1)
    return float((sums >= sums[0] * (1 - 1e-12)).mean())
