"""The sums that neural persistence is computed from, in one pass over the weights of a tree."""

from typing import NamedTuple

import numpy as np

from toposcope.kernels.compiled import compiled
from toposcope.typing import Vector

SUM_LANES = 8  # sums that are taken side by side: quicker than one sum, and rounded less often


class DeathSums(NamedTuple):
    """What neural persistence is computed from."""

    deaths: Vector  # shape (N - 1,); weights divided by the scale; 1 where all weights are zero
    total: float  # sum of the persistences, 1 - death
    # the largest persistence, or 1 if that is zero: relative to it, high powers of small persistences do not underflow
    # all at once
    unit: float
    powers: float  # sum of the p-th powers of the persistences in that unit


@compiled
def death_sums(weights: Vector, scale: float, p: float, counted: bool) -> DeathSums:
    """Divide by the scale, and sum up."""
    if weights[0] == 0:
        return DeathSums(np.ones_like(weights), 0.0, 1.0, 0.0)
    deaths = weights / scale
    largest = 1.0 if counted else 1.0 - deaths[-1]
    unit = largest if largest > 0 else 1.0
    totals, powers = np.zeros(SUM_LANES), np.zeros(SUM_LANES)
    for start in range(0, len(deaths), SUM_LANES):
        for lane in range(min(SUM_LANES, len(deaths) - start)):
            persistence = 1.0 - deaths[start + lane]
            relative = persistence / unit
            totals[lane] += persistence
            powers[lane] += relative * relative if p == 2 else relative**p
    total = sum_of_powers = 0.0
    for lane in range(SUM_LANES):  # the sums of NumPy and of compiled code differ in their order
        total += totals[lane]
        sum_of_powers += powers[lane]
    more = 1.0 if counted else 0.0
    return DeathSums(deaths, float(total + more), float(unit), float(sum_of_powers + more))
