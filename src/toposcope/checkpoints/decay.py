"""Weights with which averaged checkpoints stand for a decay of the learning rate."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError

HALF_LIVES = 4  # of the moving average in a window; the first checkpoint then stands for 1/16 that is older
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "1-sqrt": lambda x: 1 - math.sqrt(x),
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "ema": lambda x: 1 - 2.0 ** (-HALF_LIVES * (1 - x)),
}
"""The learning rate, relative to the one held before, at a share `x` of the window, by the name of the decay."""


def decay_weights(steps: Sequence[int], decay: str = "linear") -> NDArray[np.float64]:
    """Return the weights c that average checkpoints as a decay over their window weighs the updates between them.

    A decay w applied to the updates gives theta_0 + sum_j w_j (theta_{j+1} - theta_j) = sum_i c_i theta_i, where c_i is
    w at the midpoint to the checkpoint before less w at the midpoint to the one after; w is 1 before the first and 0
    after the last. For equal steps and a linear decay these are equal weights, the two ends halved (WSM, arXiv
    2507.17634).

    Parameters
    ----------
    steps : sequence of int
        Of the checkpoints, ascending; the window is from the first to the last. They need not be evenly spaced.
    decay : {"linear", "1-sqrt", "cosine", "ema"}
        ``ema`` is the exponential moving average that starts at the first checkpoint, with a half-life of a quarter of
        the window.

    Returns
    -------
    array of float, shape (n,)
        At least 0, with the sum 1.

    Raises
    ------
    ToposcopeError
        If there are fewer than two steps, they do not ascend, or the decay is none of these.

    Examples
    --------
    >>> decay_weights([100, 200, 300, 400, 500]).tolist()
    [0.125, 0.25, 0.25, 0.25, 0.125]
    """
    if decay not in DECAYS:
        raise ToposcopeError(f"decay {decay!r}: not known; choose one of {', '.join(DECAYS)}")
    if len(steps) < 2:
        raise ToposcopeError(f"a decay needs at least two checkpoints; there are {len(steps)}")
    at = np.array(steps, dtype=np.float64)
    if (np.diff(at) <= 0).any():
        raise ToposcopeError(f"the steps of a decay ascend; these do not: {', '.join(map(str, steps[:8]))}")
    shares = ((at[1:] + at[:-1]) / 2 - at[0]) / (at[-1] - at[0])
    rates = np.array([1.0, *(DECAYS[decay](x) for x in shares.tolist()), 0.0])
    weights: NDArray[np.float64] = rates[:-1] - rates[1:]
    return weights
