"""Patience: stop when a quantity that should grow has not, for long enough."""

import numpy as np

from toposcope.typing import Vector


def out_of_patience(values: Vector, patience: int, burn_in: int, delta: float, highest: float = -np.inf) -> int | None:
    """Stop when a quantity that should grow has not, for long enough.

    With mean normalised neural persistence and ``highest = 0`` to begin with, this is the criterion of Rieck et al.
    2019 (arXiv:1812.09764, Algorithm 2, with the burn-in of their experiments). With the loss, its sign changed, and
    nothing to begin with, it is the patience on the validation loss they compare it with (Prechelt 1998).
    """
    waited = 0
    for place in np.flatnonzero(np.isfinite(values))[burn_in:].tolist():
        if values[place] > highest + delta:
            highest, waited = float(values[place]), 0
        else:
            waited += 1
        if waited >= patience:
            return int(place)
    return None
