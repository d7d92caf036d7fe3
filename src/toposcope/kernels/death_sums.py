"""Deaths in units of the scale, and sums of persistences, from the weights of a maximum spanning tree.

Cost: two passes over the weights of the tree.
"""

from typing import NamedTuple

import numpy as np

from toposcope.kernels.compiled import compiled
from toposcope.typing import Vector

LANES = 8
"""Sums that are taken side by side, one of every eighth term: quicker than one sum, and rounded less often."""


class DeathSums(NamedTuple):
    """What neural persistence is computed from.

    Attributes
    ----------
    deaths : ndarray, shape (N - 1,), float64
        Weights divided by the scale; 1 where all weights are zero.
    total : float
        Sum of the persistences, 1 - death.
    unit : float
        The largest persistence, or 1 if that is zero: relative to it, high powers of small persistences do not
        underflow all at once.
    powers : float
        Sum of the p-th powers of the persistences in that unit.
    """

    deaths: Vector
    total: float
    unit: float
    powers: float


@compiled
def death_sums(weights: Vector, scale: float, p: float, counted: bool) -> DeathSums:
    """Divide by the scale, and sum up.

    Parameters
    ----------
    weights : ndarray, shape (N - 1,), float64
        Descending.
    scale : float
    p : float
    counted : bool
        Whether there is one point more, of persistence 1, unless all weights are zero.
    """
    if weights[0] == 0:
        return DeathSums(np.ones_like(weights), 0.0, 1.0, 0.0)
    deaths = weights / scale
    largest = 1.0 if counted else 1.0 - deaths[-1]
    unit = largest if largest > 0 else 1.0
    totals, powers = np.zeros(LANES), np.zeros(LANES)
    for start in range(0, len(deaths), LANES):
        for lane in range(min(LANES, len(deaths) - start)):
            persistence = 1.0 - deaths[start + lane]
            relative = persistence / unit
            totals[lane] += persistence
            powers[lane] += relative * relative if p == 2 else relative**p
    more = 1.0 if counted else 0.0
    return DeathSums(deaths, totals.sum() + more, unit, powers.sum() + more)
