"""When a monitor measures: at regular steps, at log-spaced steps, or where a function says so."""

import math
from collections.abc import Callable

from toposcope.errors import ToposcopeError

Due = Callable[[int], bool]
"""Takes the step; returns whether to measure."""

MAX_REGULAR = 500
"""The interval doubles after this many measurements, and each time the run has doubled in length since, so that the
number of measurements grows with the logarithm of the length."""
STEPS_PER_DECADE = 20
"""Log-spaced steps per decade."""


def schedule(every: int | str | Due) -> Due:
    """Return a function that says whether to measure a step.

    Parameters
    ----------
    every : int, "log" or callable
        A number of steps; log-spaced steps, 20 per decade; or such a function.

    Raises
    ------
    ToposcopeError
        If `every` is none of these.
    """
    if callable(every):
        return every
    if every == "log":
        return _is_log_spaced
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return lambda step: step % every == 0 and step % interval_at(every, step) == 0
    raise ToposcopeError(f'every is {every!r}; give a number of steps, "log", or a function of the step')


def interval_at(every: int, step: int) -> int:
    """Return the number of steps between measurements around a step."""
    doublings = max(0, math.ceil(math.log2(max(step, 1) / (every * MAX_REGULAR))))
    return int(every * 2**doublings)


def _is_log_spaced(step: int) -> bool:
    if step < 1:
        return step == 0
    exponent = round(STEPS_PER_DECADE * math.log10(step))
    return step == round(10 ** (exponent / STEPS_PER_DECADE))
