"""Which checkpoints of a series to use."""

from collections.abc import Sequence

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which checkpoints of a series to use; all by default.

    Attributes
    ----------
    steps : list of int
        Only these.
    every : int
        Only one in so many of these, from the first on; 0 for no condition.
    log_spaced : int
        At most so many of the rest: the first and the last, and between them those nearest to an even grid in the
        logarithm of the step. Step 0, which has no logarithm, is always the first. 1 is the last alone; 0 for no
        condition.
    """

    steps: list[int] = []
    every: int = 0
    log_spaced: int = 0

    def choose(self, steps: Sequence[int], spec: str) -> list[int]:
        """Return those of some ascending steps that fulfil all conditions.

        Parameters
        ----------
        steps : sequence of int
            Available steps.
        spec : str
            The series, for messages.

        Raises
        ------
        ToposcopeError
            If a step does not exist, or a condition is not valid.
        """
        for name, value in (("every", self.every), ("log_spaced", self.log_spaced)):
            if value < 0:
                raise ToposcopeError(f"{name} is {value}; it must be at least 1, or 0 for no condition")
        wanted = set(self.steps)
        missing = sorted(wanted - set(steps))
        if missing:
            raise ToposcopeError(f"{spec}: no checkpoint at step {missing[0]}; {_available(steps)}")
        chosen = [s for s in steps if not wanted or s in wanted][:: self.every or 1]
        return _log_spaced(chosen, self.log_spaced) if self.log_spaced else chosen


def _log_spaced(steps: list[int], count: int) -> list[int]:
    """Return `count` steps: first and last, then, from below, the nearest one left to each point of the grid."""
    if len(steps) <= count:
        return steps
    if count == 1:
        return steps[-1:]
    zero = [s for s in steps if s == 0]
    positive = steps[len(zero) :]
    count -= len(zero)
    logs = np.log(np.array(positive, dtype=np.float64))
    chosen = [len(positive) - 1] if count == 1 else [0, len(positive) - 1]
    left = logs.copy()
    left[chosen] = np.inf
    for point in np.linspace(logs[0], logs[-1], max(count, 2))[1 : count - 1]:
        nearest = int(np.argmin(np.abs(left - point)))
        chosen.append(nearest)
        left[nearest] = np.inf
    return zero + [positive[k] for k in sorted(chosen)]


def _available(steps: Sequence[int]) -> str:
    return f"it has {len(steps)}, from step {steps[0]} to {steps[-1]}" if steps else "it has none"
