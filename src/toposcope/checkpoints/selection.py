"""Which checkpoints of a series are wanted."""

from collections.abc import Sequence

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which checkpoints of a series are wanted; all, if nothing is said.

    Attributes
    ----------
    steps : list of int
        These.
    every : int
        Those whose step is a multiple of it; 0 is no condition.
    log_spaced : int
        So many of what is left by then, or all if there are fewer: the first and the last, and between them those
        nearest to an even grid in the logarithm of the step. Step 0 has no logarithm: where there is one it is the
        first. 1 is the last alone; 0 is no condition.
    """

    steps: list[int] = []
    every: int = 0
    log_spaced: int = 0

    def choose(self, steps: Sequence[int], spec: str) -> list[int]:
        """Return the wanted ones of some ascending steps; with several conditions, those that fulfil all.

        Parameters
        ----------
        steps : sequence of int
            What there is.
        spec : str
            The series, for messages.

        Raises
        ------
        ToposcopeError
            If a step is wanted that is not there, a condition makes no sense, or nothing is left.
        """
        for name, value in (("every", self.every), ("log_spaced", self.log_spaced)):
            if value < 0:
                raise ToposcopeError(f"{name} is {value}; it must be at least 1, or 0 for no condition")
        wanted = set(self.steps)
        missing = sorted(wanted - set(steps))
        if missing:
            raise ToposcopeError(f"{spec}: no checkpoint at step {missing[0]}; {_told(steps)}")
        chosen = [s for s in steps if (not wanted or s in wanted) and (not self.every or s % self.every == 0)]
        if not chosen:
            raise ToposcopeError(f"{spec}: no wanted step is a multiple of {self.every}; {_told(steps)}")
        return _log_spaced(chosen, self.log_spaced) if self.log_spaced else chosen


def _log_spaced(steps: list[int], count: int) -> list[int]:
    """Return `count` steps: first and last, then from below for each place of the grid the nearest that is left."""
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
    for place in np.linspace(logs[0], logs[-1], max(count, 2))[1 : count - 1]:
        nearest = int(np.argmin(np.abs(left - place)))
        chosen.append(nearest)
        left[nearest] = np.inf
    return zero + [positive[k] for k in sorted(chosen)]


def _told(steps: Sequence[int]) -> str:
    return f"it has {len(steps)}, from step {steps[0]} to {steps[-1]}" if steps else "it has none"
