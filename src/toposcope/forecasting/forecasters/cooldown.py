"""``cooldown``: L0 + A S1^-a - c K(t), where a fall of the learning rate gains with the progress made since.

K(t) = sum over k <= t of (eta_{k-1} - eta_k) / eta_pk [1 - (1 + (S1(t) - S1(k)) / (d S1(T)))^-b]. It is the annealing
of Luo et al. 2025 (the multi-power law), with the delay d counted in shares of the whole progress S1(T) rather than in
sums of learning rates, which makes it comparable between runs of any batch size and length: one coefficient is left.
"""

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecasters.annealed_law import AnnealedLaw
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.typing import Vector

DELAY, EXPONENT = 0.03, 1.0
"""d and b; of five pairs the one that did best without siblings of the family at 20 and 30% of three families."""


def gain(schedule: Schedule, steps: NDArray[np.int64]) -> Vector:
    """Return K at steps, shape of `steps`; the falls of the learning rate are gathered."""
    at, size = schedule.falls
    if not len(at):
        return np.zeros(len(steps))
    since = schedule.progress(steps)[:, None] - at
    delay = DELAY * schedule.progress(np.array([schedule.last_step]))[0]
    reached = np.where(since >= 0, 1 - (1 + np.maximum(since, 0) / delay) ** -EXPONENT, 0.0)
    values: Vector = reached @ size
    return values


COOLDOWN = AnnealedLaw("cooldown", gain)
"""The gain follows the learning rate with a delay that grows with the run."""
