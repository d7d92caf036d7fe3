"""``stack_norms``: the stack, told of the norms of weights and gradients as well (METHODS 9)."""

from collections.abc import Sequence

import numpy as np

from toposcope.forecasting.forecast import RefusedError, Run
from toposcope.forecasting.forecasters.stack import RECENT, Stack, slope_of
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Vector

NORMS = ("weight_norm", "grad_norm")
FEWEST = 3
"""Logged values of a norm."""


class StackNorms(Stack):
    """The stack with level and slope of log ||W|| and log ||g|| over the late half of what was seen."""

    name = "stack_norms"

    def _features(self, log: Log, schedule: Schedule, siblings: Sequence[Run], base: float, sized: bool) -> Vector:
        norms = [value for name in NORMS for value in _level_and_slope(log, schedule, name)]
        return np.array([*super()._features(log, schedule, siblings, base, sized), *norms])


def _level_and_slope(log: Log, schedule: Schedule, name: str) -> tuple[float, float]:
    """Return the median of the logarithm of a norm, and its slope in log S1."""
    values = log.norms.get(name, np.full(len(log.steps), np.nan))
    late = (log.steps >= max(1, (1 - RECENT) * log.steps[-1])) & np.isfinite(values)
    late[late] = values[late] > 0
    if late.sum() < FEWEST:
        raise RefusedError(f"the log has no {name.replace('_', ' ')}")
    y, x = np.log(values[late]), np.log(schedule.progress(log.steps[late]))
    return float(np.median(y)), slope_of(x, y)
