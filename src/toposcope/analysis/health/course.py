"""Whether a loss falls, rises or stalls: its level in the second quarter of the steps against that in the last."""

import math
from typing import NamedTuple

import numpy as np

from toposcope.logs.anomalies import last_place, row_noise
from toposcope.typing import Steps, Vector

MIN_ROWS = 16  # of a loss whose course is judged; half as many evaluations
N_BLOCKS = 5  # of a quarter of a run; their means show the noise
MIN_FALL_ERRORS, MIN_RISE_ERRORS = 2.0, 5.0  # standard errors by which a loss must change to count as falling, rising
MIN_RISE, MAX_STALL = 0.01, 0.005  # relative: the least rise, and the largest fall in half of a run that is stalled
STALL_SHARES, STALL_ROWS = (0.15, 0.2, 0.3, 0.4, 0.5), 20  # last shares of the rows that may stall; rows of a share
MAX_STALL_SLOPE = 0.15  # of the slope before, from which on a loss falls
START_ROWS, START_GAPS = 32, 3  # rows, and usual intervals before the first, of a log that begins with its run
MIN_LEARNED_FALL = 0.03  # fall of ln(loss) since the start; the least of 490 sound runs at any cut was .038
FALLS, RISES, STALLS, UNCLEAR = "falls", "rises", "stalls", "unclear"


class Course(NamedTuple):
    """Levels of a loss in the second and in the last quarter of the steps so far."""

    before: float
    after: float
    error: float  # standard error of their difference
    late_fall: float  # from the third quarter to the last
    late_error: float  # standard error of that
    middle: int  # step in the middle, since which that is the fall
    n: int
    first: int
    last: int

    @property
    def word(self) -> str:
        """Whether the loss falls, rises or stalls; `UNCLEAR` where its noise hides it."""
        fall = self.before - self.after
        if fall > MIN_FALL_ERRORS * self.error:
            return FALLS
        if -fall > max(MIN_RISE_ERRORS * self.error, MIN_RISE * self.before):
            return RISES
        return STALLS if MIN_FALL_ERRORS * self.error + max(0.0, fall) < MAX_STALL * self.before else UNCLEAR

    @property
    def power(self) -> float:
        """The smallest fall that would have been seen with 90% probability."""
        return (MIN_FALL_ERRORS + 1.28) * self.error


def course(steps: Steps, losses: Vector, min_rows: int = MIN_ROWS) -> Course | None:
    """Return the course of a loss; None with too few rows, or of a loss that is not positive, which need not fall."""
    if len(losses) < min_rows or losses.min() <= 0:
        return None
    share = (steps - steps[0]) / max(int(steps[-1] - steps[0]), 1)
    before, after = losses[(share >= 0.25) & (share < 0.5)], losses[share >= 0.75]
    if min(len(before), len(after)) < 2:
        return None
    third = losses[(share >= 0.5) & (share < 0.75)]
    second_level, second_error = _mean_and_error(before)
    last_level, last_error = _mean_and_error(after)
    third_level, third_error = _mean_and_error(third) if len(third) else (last_level, last_error)
    rounding = _rounding_error(losses)
    return Course(
        before=second_level,
        after=last_level,
        error=max(math.hypot(second_error, last_error), rounding),
        late_fall=third_level - last_level,
        late_error=max(math.hypot(third_error, last_error), rounding),
        middle=int(steps[int(np.argmax(share >= 0.5))]),
        n=len(losses),
        first=int(steps[0]),
        last=int(steps[-1]),
    )


def stalled_since(steps: Steps, losses: Vector, min_rows: int = STALL_ROWS) -> int | None:
    """Return the step since which a loss that fell is stalled; None if it falls, or noise would hide that it does.

    Its slope against the logarithm of the step is compared with that of an equally long part before.
    """
    known = steps > 0
    rounding = _rounding_error(losses) / float(losses[-1])
    x, y = np.log(steps[known]), np.log(np.maximum(losses[known], 1e-300))
    for share in STALL_SHARES:
        n = round(share * len(x))
        if n < min_rows or len(x) < 2 * n:
            continue
        late, error = _slope(x[-n:], y[-n:])
        early, _ = _slope(x[-2 * n : -n], y[-2 * n : -n])
        span = float(x[-1] - x[-n])
        if max(-late, 0) + 2 * error < MAX_STALL_SLOPE * -early and 2 * max(error * span, rounding) < MAX_STALL:
            return int(steps[known][-n])
    return None


def fall_since_start(steps: Steps, losses: Vector) -> float | None:
    """Return the largest possible fall of ln(loss) from the first quarter to the last; None if the start is missing."""
    if len(losses) < START_ROWS or steps[0] > START_GAPS * float(np.median(np.diff(steps))):
        return None
    y, n = np.log(losses), len(losses) // 4
    (first, first_error), (last, last_error) = _mean_and_error(y[:n]), _mean_and_error(y[-n:])
    noise = row_noise(y)
    early = float(np.median(y[:5])) - MIN_FALL_ERRORS * noise / math.sqrt(5)  # a steep fall is over in a few rows
    error = max(math.hypot(first_error, last_error), noise * math.sqrt(2 / n))
    return max(first + MIN_FALL_ERRORS * error, early) - last


def _rounding_error(losses: Vector) -> float:
    """Return the standard error by the last decimal place that losses are written with."""
    return last_place(losses) / math.sqrt(12) if np.ptp(losses) else 0.0


def _slope(x: Vector, y: Vector) -> tuple[float, float]:
    """Return the slope of a line and its standard error, by the residuals' means in blocks, which noise correlates."""
    n = min(2 * N_BLOCKS, len(x))
    x, y = (np.array([block.mean() for block in np.array_split(v, n)]) for v in (x, y))
    centred = x - x.mean()
    size = float(centred @ centred)
    slope = float(centred @ y) / size
    residuals = y - y.mean() - slope * centred
    return slope, math.sqrt(float(residuals @ residuals) / (n - 2) / size)


def _mean_and_error(values: Vector) -> tuple[float, float]:
    """Return the mean, and its standard error by the means of blocks around their trend."""
    n = min(N_BLOCKS, len(values))
    blocks = np.array([block.mean() for block in np.array_split(values, n)])
    places = np.arange(n) - (n - 1) / 2
    slope = places @ blocks / (places @ places) if n > 2 else 0.0
    residuals = blocks - blocks.mean() - slope * places
    return float(values.mean()), math.hypot(*residuals.tolist()) / math.sqrt((n - 2 if n > 2 else 1) * n)
