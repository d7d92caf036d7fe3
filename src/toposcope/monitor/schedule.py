"""When a monitor measures: every so many steps, at log-spaced steps, or where the user says."""

import math
from collections.abc import Callable

from toposcope.errors import ToposcopeError

Due = Callable[[int], bool]
"""Takes the number of updates made; returns whether to measure."""

MAX_REGULAR = 500
"""Measurements at regular steps; then every second is left out, after as many again every second of those, and so on:
what is stored of a long run grows with the logarithm of its length."""
PER_DECADE = 20
"""Log-spaced steps in a decade."""


def schedule(every: int | str | Due) -> Due:
    """Return when to measure.

    Parameters
    ----------
    every : int, "log" or callable
        A number of steps; log-spaced steps, 20 a decade; or a function from the step to whether to measure.

    Raises
    ------
    ToposcopeError
        If it is none of these.
    """
    if callable(every):
        return every
    if every == "log":
        return _is_log_spaced
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return lambda step: step % every == 0 and step % interval_at(every, step) == 0
    raise ToposcopeError(f'every is {every!r}; give a number of steps, "log", or a function of the step')


def interval_at(every: int, step: int) -> int:
    """Return the steps between measurements at a step."""
    doublings = max(0, math.ceil(math.log2(max(step, 1) / (every * MAX_REGULAR))))
    return int(every * 2**doublings)


def _is_log_spaced(step: int) -> bool:
    if step < 1:
        return step == 0
    exponent = round(PER_DECADE * math.log10(step))
    return step == round(10 ** (exponent / PER_DECADE))
