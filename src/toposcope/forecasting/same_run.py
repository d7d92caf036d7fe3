"""Whether two logs are of one run: rounded, thinned, cut off, renamed or resampled, they still share its noise.

Two runs of one recipe that differ in the seed alone differ in every row, by the noise of a batch and more. Two logs of
one run agree in every row to the last digit of the coarser of the two. So logs are of one run where all rows agree to
that digit, and where that many rows would hardly do so by chance.
"""

from math import erf, lgamma, log, sqrt

import numpy as np

from toposcope.logs import Log
from toposcope.typing import Steps, Vector

MAX_CHANCE = 1e-6
"""Probability that two runs agree by chance in as many rows as two logs of one do."""
MIN_AGREEING = 0.95
"""Share of the rows in which logs of one run agree; a row may have been written twice, or damaged."""
MIN_TOLERANCE = 5e-5
"""Share of the loss: logs of one run may differ so far by round-off, or by the unit they were converted from."""
MAX_TOLERANCE = 0.01
"""Share of the loss: logs that were rounded more coarsely show no difference between two runs."""
MIN_SEED_DIFFERENCE, MAX_SEED_DIFFERENCE = 2e-4, 2e-3
"""Share of the loss by which the seed alone is taken to change it, where the noise of the log says less or more."""
SHARED_NOISE = 0.5
"""Share of its noise by which a run differs from one of the same batches in the same order."""
MAX_DECIMALS, MAX_DIGITS, MAX_BITS = 8, 8, 24
"""Decimals, significant digits and binary digits; a log with more was not rounded."""
DIGIT_ROUNDING = 1e-6
"""Of the last digit."""
MAX_ROWS = 2000
"""Rows, evenly chosen, by which logs are compared."""
MIN_COMMON_STEPS = 5
"""Steps in both logs; with fewer, one log is interpolated at the steps of the other."""
MAX_RATE_DIFFERENCE = 0.02
"""Of learning rates, over the peak."""
NORMAL = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""


def is_same_run(one: Log, other: Log) -> bool:
    """Return whether two logs are of one run: they agree where both have rows or, without any, have one name.

    Steps that one log counts from 0 and the other from 1 are brought in line. Where the logs have hardly a step in
    common, the finer is interpolated at the steps of the coarser.
    """
    if one.steps[0] > other.steps[-1] or other.steps[0] > one.steps[-1]:
        return one.name == other.name
    shifts = dict.fromkeys((0, 1, -1, int(other.steps[0] - one.steps[0])))
    # of one name, to agree is enough
    max_chance = 1.0 if one.name == other.name else MAX_CHANCE
    return any(_agree(one, other, shift, max_chance) for shift in shifts)


def ends_alike(one: Log, other: Log) -> bool:
    """Return whether two logs end at one step, but for as many steps as lie between two of their rows."""
    apart = [int(np.max(np.diff(log.steps[-3:]), initial=0)) for log in (one, other)]
    return bool(abs(int(one.steps[-1] - other.steps[-1])) <= max(apart))


def _agree(one: Log, other: Log, shift: int, max_chance: float) -> bool:
    """Return whether two logs agree, the steps of the second less `shift` being those of the first."""
    steps = other.steps - shift
    common, i, j = np.intersect1d(one.steps, steps, assume_unique=True, return_indices=True)
    if len(common) >= MIN_COMMON_STEPS or len(common) in (len(one.steps), len(other.steps)):
        few = _evenly(len(common))
        agree = _same_losses(one.loss[i[few]], other.loss[j[few]], max_chance)
    else:
        agree = _interpolates(one.steps, one, steps, other, max_chance) or _interpolates(
            steps, other, one.steps, one, max_chance
        )
    return agree and _same_rates(one, other, shift)


def _interpolates(fine_steps: Steps, fine: Log, coarse_steps: Steps, coarse: Log, max_chance: float) -> bool:
    """Return whether the rows of one log lie on the lines between those of another."""
    inside = np.flatnonzero((coarse_steps >= fine_steps[0]) & (coarse_steps <= fine_steps[-1]))
    rows = inside[_evenly(len(inside))]
    return _same_losses(np.interp(coarse_steps[rows], fine_steps, fine.loss), coarse.loss[rows], max_chance)


def _same_losses(one: Vector, other: Vector, max_chance: float) -> bool:
    """Return whether losses agree to the last digit, in more rows than those of two runs would by chance."""
    n = len(one)
    if not n:
        return False
    apart = np.abs(one - other)
    # most pairs differ so plainly that neither quantile nor median is needed
    if (apart > MAX_TOLERANCE * one.max()).sum() > (1 - MIN_AGREEING) * (n - 1) + 1:
        return False
    level = float(np.median(one))
    if np.quantile(apart, MIN_AGREEING) > MAX_TOLERANCE * level:
        return False
    digits = _last_digit(one), _last_digit(other)
    # two numbers rounded alike are equal, or a whole digit apart
    digit = np.where(np.isclose(*digits, atol=0), digits[0], sum(digits))
    tolerance = np.maximum(digit / 2 * (1 + DIGIT_ROUNDING), MIN_TOLERANCE * one)
    agreeing = int((np.abs(one - other) <= tolerance).sum())
    if agreeing < MIN_AGREEING * n:
        return False
    noise = SHARED_NOISE * sqrt(2) * _noise(one)
    difference = float(np.clip(noise, MIN_SEED_DIFFERENCE * level, MAX_SEED_DIFFERENCE * level))
    # two identical numbers of many digits agree further than to the tolerance
    reach = np.median(np.maximum(digit / 2, np.abs(one - other)))
    chance = max(erf(float(reach) / (difference * sqrt(2))), 1e-300)
    ways = lgamma(n + 1) - lgamma(agreeing + 1) - lgamma(n - agreeing + 1)
    return ways + agreeing * log(chance) <= log(max_chance)


def _same_rates(one: Log, other: Log, shift: int) -> bool:
    """Return whether learning rates agree wherever both were logged: branches of one trunk part there."""
    steps, rates = zip(*(_rates(log) for log in (one, other)), strict=True)
    if not len(rates[0]) or not len(rates[1]):
        return True
    moved = steps[0], steps[1] - shift
    peak = max(float(np.abs(each).max()) for each in rates)
    # a thinned log misses the corners of a schedule: its rows lie on the lines of the other, not the reverse
    return any(_on_lines(moved[i], rates[i], moved[1 - i], rates[1 - i], MAX_RATE_DIFFERENCE * peak) for i in (0, 1))


def _rates(log: Log) -> tuple[Steps, Vector]:
    known = np.isfinite(log.learning_rate)
    return log.steps[known], log.learning_rate[known]


def _on_lines(steps: Steps, values: Vector, line_steps: Steps, line_values: Vector, tolerance: float) -> bool:
    """Return whether values lie on the lines between others, all but one or a few, where these reach."""
    inside = (steps >= line_steps[0]) & (steps <= line_steps[-1])
    apart = np.abs(values[inside] - np.interp(steps[inside], line_steps, line_values)) > tolerance
    return int(apart.sum()) <= max(1, (1 - MIN_AGREEING) * len(apart))


def _noise(losses: Vector) -> float:
    """Return the standard deviation of the noise by second differences."""
    if len(losses) < 3:
        return 0.0
    return NORMAL * float(np.median(np.abs(np.diff(losses, 2)))) / sqrt(6)


def _last_digit(losses: Vector) -> Vector:
    """Return the size of the last digit that losses were logged with, decimal or binary: the coarsest that fits."""
    size = np.zeros(len(losses))
    for decimals in range(MAX_DECIMALS + 1):
        if _whole(losses * 10.0**decimals):
            size = np.full(len(losses), 10.0**-decimals)
            break
    places = np.floor(np.log10(losses))
    for digits in range(1, MAX_DIGITS + 1):
        if _whole(losses * 10.0 ** (digits - 1 - places)):
            size = np.maximum(size, 10.0 ** (places - digits + 1))
            break
    exponents = np.floor(np.log2(losses))
    for bits in range(1, MAX_BITS + 1):
        if _whole(losses * 2.0 ** (bits - 1 - exponents)):
            size = np.maximum(size, 2.0 ** (exponents - bits + 1))
            break
    return size


def _whole(numbers: Vector) -> bool:
    return bool(np.abs(numbers - numbers.round()).max() <= DIGIT_ROUNDING)


def _evenly(n: int) -> Steps:
    if n <= MAX_ROWS:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, min(n, MAX_ROWS)).round().astype(np.int64))
