"""What the course of a loss says before any law is fitted: a new stage of training, or that no law describes it."""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.forecasters.power_law_fit import PowerLawFit, fit_power_law
from toposcope.logs import Run
from toposcope.logs.anomalies import row_noise
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Steps, Vector

# Stages and courses that no law describes: docs/methods/forecasting.md; all on benchmarks/forecast_odd_runs.py
STAGE_WINDOW = 0.08  # share of the rows on either side of a jump to which lines are fitted
MIN_JUMP, JUMP_NOISE = 0.04, 8.0  # of ln(loss), and standard errors of its noise: a new stage
MIN_SUDDEN = 0.5  # share of a jump that three rows on either side show; of a slope less
MIN_JUMP_LEFT = 0.3  # share of a jump that is left at the end; of a spike less
MAX_RATE_JUMP = 0.05  # share of the peak; a larger change of the learning rate explains a jump
MAX_EPOCH_DIFFERENCE = 0.15  # relative, of the distances between the beginnings of epochs
MIN_RISE, RISE_NOISE, MIN_RISES = 0.1, 8.0, 2  # of ln(loss), its noise, and their number: losses that go up and down
MIN_SHARE_ABOVE = 0.3  # share of the blocks in which such a loss lies above its first value
PLATEAU_SHARE, MAX_PLATEAU_CHANGE = 0.3, 0.15  # blocks of a plateau, and its change over the fall after it
MIN_SUDDEN_FALL, MAX_FALL_SHARE = 0.5, 0.3  # that fall in ln(loss), and the share of blocks that it takes

MIN_ROWS, MIN_FEW_ROWS = 24, 12  # of a log that is searched for jumps and plateaus, and for rises
MIN_WINDOW = 6  # rows on either side of a jump to which lines are fitted, at least
MAX_FITTED = 20_000  # points that a law is fitted to; of more rows they are medians of equally many


class Stage(NamedTuple):
    """A new stage of training: its first step, and by how much the logarithm of the loss jumped there."""

    step: int
    jump: float

    @property
    def brief(self) -> str:
        """The first step in words."""
        return f"new stage since step {self.step:,}"

    def __str__(self) -> str:
        verb = "rose" if self.jump > 0 else "fell"
        return (
            f"{self.brief}: the loss {verb} by {abs(np.expm1(self.jump)):.0%} there, which no "
            "learning rate explains; forecast from that step on"
        )


class Stairs(NamedTuple):
    """Falls of the loss at even distances, as epochs begin, between which it hardly falls."""

    steps: tuple[int, ...]

    def __str__(self) -> str:
        *before, last = (f"{step:,}" for step in self.steps)
        return f"it falls by stairs, as with epochs, at steps {', '.join(before)} and {last}"


def new_stage(log: Run, schedule: Schedule) -> Stage | Stairs | None:
    """Return the last stage that begins with a jump of the loss for good, or the stairs that jumps are; else None.

    Next to each row a line is fitted to those before and to those after it, of ln(loss) less the law of ``s1``. They
    jump where the lines differ by more than 8 standard errors of the noise and by 4%, without a change of the learning
    rate. Jumps at even distances are epochs, one that is undone is a spike.
    """
    n = len(log.steps)
    width = max(MIN_WINDOW, round(STAGE_WINDOW * n))
    if n < max(MIN_ROWS, 3 * width) or log.is_validation:
        return None
    x = schedule.progress(np.maximum(log.steps, 1))
    left = np.log(log.loss / _law(x, log.loss)(x))
    left = np.median(sliding_window_view(np.pad(left, 1, mode="edge"), 3), axis=1)
    jumps = _jumps(left, width)
    limit = max(MIN_JUMP, JUMP_NOISE * row_noise(left) * np.sqrt(8 / width))
    places: list[int] = []
    sizes = np.abs(jumps)
    while sizes.max(initial=0.0) > limit:
        i = int(np.argmax(sizes))
        sizes[max(i - width, 0) : i + width + 1] = 0
        place = i + width
        # of a steep slope few rows on either side show little
        near = np.median(left[place : place + 3]) - np.median(left[place - 3 : place])
        if near * jumps[i] >= MIN_SUDDEN * jumps[i] ** 2 and not _rate_jumps(log, schedule, place, width):
            places.append(place)
    falls = sorted(place for place in places if jumps[place - width] < 0)
    if _are_epochs(log, falls):
        return Stairs(tuple(log.steps[falls].tolist()))
    if not places:
        return None
    last = max(places)
    jump = float(jumps[last - width])
    law = _law(x[last // 4 : last], log.loss[last // 4 : last])
    tail = slice(-max(MIN_WINDOW, (n - last) // 4), None)
    gap = float(np.median(np.log(log.loss[tail] / law(x[tail]))))
    undone = gap * jump <= MIN_JUMP_LEFT * jump**2
    higher = float(np.median(log.loss[tail])) > float(np.median(log.loss[:MIN_WINDOW]))
    return None if undone or higher else Stage(int(log.steps[last]), jump)


def _law(x: Vector, losses: Vector) -> PowerLawFit:
    """Return the power law of all rows: a fit holds a row of numbers for each of its exponents."""
    each = -(-len(x) // MAX_FITTED)
    x, losses = (np.median(values[len(x) % each :].reshape(-1, each), axis=1) for values in (x, losses))
    return fit_power_law(x, losses, np.ones(len(x)))


def _jumps(values: Vector, width: int) -> Vector:
    """Return by how much lines fitted to the rows before and after a row differ there, at rows width, ..., n - width.

    The sums over windows are differences of cumulative ones: of long logs, a product would copy each window.
    """
    at = np.arange(width) - (width - 1) / 2
    sums, moments = (np.cumsum(np.append(0.0, terms)) for terms in (values, values * np.arange(len(values))))
    means = (sums[width:] - sums[:-width]) / width
    middles = np.arange(len(means)) + (width - 1) / 2
    # from the middle of a window to half a row beyond it
    rises = (moments[width:] - moments[:-width] - middles * means * width) * width / 2 / (at @ at)
    return np.asarray((means - rises)[width:] - (means + rises)[:-width])


def _rate_jumps(log: Run, schedule: Schedule, place: int, width: int) -> bool:
    """Return whether the learning rate jumps near a row, or is still warming up."""
    first, last = log.steps[max(place - width, 0)], log.steps[min(place + width, len(log.steps) - 1)]
    changes = np.abs(np.diff(schedule.rates[first : last + 1 : max(1, (last - first) // (2 * width))]))
    return bool(first < schedule.warm_up or changes.max(initial=0.0) > MAX_RATE_JUMP * schedule.peak)


def _are_epochs(log: Run, places: list[int]) -> bool:
    """Return whether falls are at even distances, as epochs begin: from step 0 on, or after a few without a fall."""
    if len(places) < 2:
        return False
    falls = log.steps[places]
    epoch = (falls[-1] - falls[0]) / (len(falls) - 1)
    # two falls are at even distances by chance too often, unless the first of them ends the first epoch
    before = falls[0] / max(1, round(falls[0] / epoch) if len(falls) > 2 else 1)
    distances = np.array([before, *np.diff(falls)])
    return bool(np.ptp(distances) <= MAX_EPOCH_DIFFERENCE * distances.max())


def _blocks(log: Run) -> tuple[Vector, Steps, float]:
    """Return the medians of ln(loss) over blocks of rows, their first steps, and the noise of a median."""
    n = min(30, len(log.loss) // 3)
    parts = np.array_split(np.log(log.loss), n)
    steps = np.array([part[0] for part in np.array_split(log.steps, n)])
    return np.array([np.median(part) for part in parts]), steps, row_noise(np.log(log.loss)) / np.sqrt(len(parts[0]))


def check_plateau(log: Run) -> None:
    """Refuse (`RefusedError`) a loss that stood still from near its beginning and then fell suddenly."""
    if len(log.loss) < MIN_ROWS:
        return
    blocks, steps, _ = _blocks(log)
    n, begin = len(blocks), len(blocks) // 10
    for end in range(n - 1, begin + round(PLATEAU_SHARE * n), -1):
        fall = float(blocks[end - 1] - blocks.min())
        flat = np.ptp(blocks[begin:end]) <= MAX_PLATEAU_CHANGE * fall
        reached = int(np.argmax(blocks[end:] <= blocks[end - 1] - MIN_SUDDEN_FALL))
        if fall >= MIN_SUDDEN_FALL and flat and reached <= MAX_FALL_SHARE * n:
            raise RefusedError(
                f"{log.name}: {log.target!r} stood still at about {np.exp(blocks[end - 1]):.4g} until about step "
                f"{steps[end]:,} and then fell suddenly, to {np.exp(blocks.min()):.4g}: no law describes where it ends"
            )


def check_course(log: Run, schedule: Schedule, found: Stage | Stairs | None) -> None:
    """Refuse (`RefusedError`) a loss above its first value, or one that goes up and down where the rate does not."""
    part, since = (log.since(found.step), f" since step {found.step:,}") if isinstance(found, Stage) else (log, "")
    if len(part.loss) < MIN_FEW_ROWS:
        return
    blocks, _, noise = _blocks(part)
    limit = max(MIN_RISE, RISE_NOISE * noise)
    above = float((blocks > blocks[0] + limit).mean())
    if above >= MIN_SHARE_ABOVE:
        first = f"{np.exp(blocks[0]):.4g}, the median of its first {-(-len(part.loss) // len(blocks))} rows{since}"
        raise RefusedError(
            f"{log.name}: {log.target!r} was above {first}, for {above:.0%} of what was seen: no law describes where "
            "it ends"
        )
    rises = _rises(blocks, limit)
    rates = schedule.rates[: int(log.steps[-1]) + 1]
    cycles = (rates - np.minimum.accumulate(rates)).max(initial=0.0) > MAX_RATE_JUMP * schedule.peak
    if rises >= MIN_RISES and not cycles:
        course = f"rose and fell again {rises} times by more than its noise, which no learning rate explains"
        if isinstance(found, Stairs):
            course = f"does not fall evenly: {found}"
        raise RefusedError(f"{log.name}: {log.target!r} {course}: no law describes where it ends")


def _rises(blocks: Vector, limit: float) -> int:
    """Return how often a series rises by more than a limit above its lowest value since it last fell by as much."""
    count, low, high, rising = 0, blocks[0], blocks[0], False
    for value in blocks[1:]:
        low, high = min(low, value), max(high, value)
        if not rising and value - low > limit:
            rising, high = True, value
            count += 1
        elif rising and high - value > limit:
            rising, low = False, value
    return count
