"""What the course of a loss says before any law is fitted: a new stage of training, or that no law describes it."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.forecasters.power_law_fit import PowerLawFit, fit_power_law
from toposcope.logs import Run
from toposcope.logs.anomalies import row_noise
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Steps, Vector
from toposcope.wording import joined

# Stages and courses that no law describes: docs/methods/forecasting.md; all on benchmarks/forecast_odd_runs.py
STAGE_WINDOW = 0.08  # share of the rows on either side of a jump to which lines are fitted
MIN_JUMP, JUMP_NOISE = 0.04, 8.0  # of ln(loss), and standard errors of its noise: a new stage
MIN_SUDDEN = 0.5  # share of a jump that three rows on either side show; of a slope less
MIN_JUMP_LEFT = 0.3  # share of a jump that is left at the end; of a spike less
MAX_RATE_JUMP = 0.05  # share of the peak; a larger change of the learning rate explains a jump
MAX_CLIMBED = 0.5  # between epochs, share of the fall from the first of them on
MAX_EPOCH_DIFFERENCE = 0.15  # relative, of the distances between the beginnings of epochs
MIN_RISE, RISE_NOISE, MIN_RISES = 0.1, 8.0, 2  # of ln(loss), its noise, and their number: losses that go up and down
MIN_SHARE_ABOVE = 0.3  # share of the blocks in which such a loss lies above its first value
PLATEAU_SHARE, MAX_PLATEAU_CHANGE = 0.3, 0.15  # blocks of a plateau, and its change over the fall after it
MIN_SUDDEN_FALL, MAX_FALL_SHARE = 0.5, 0.3  # that fall in ln(loss), and the share of blocks that it takes

FEW_EPOCHS = 10  # of a plan: in more of them data are learned by heart little by little, in so few by stairs
STAIR_ROWS = 4  # on either side of where an epoch begins, whose medians are compared
EARLY = 0.05  # of an epoch: rows that stand for several steps, and epochs that are rounded
NOISE_OF_MEDIANS = 0.9  # standard deviation of the difference of two medians of four rows over that of a row
STAIR_NOISE = 3.0  # standard errors of the difference of these medians that are no stair
MIN_ROWS, MIN_FEW_ROWS = 24, 12  # of a log that is searched for jumps and plateaus, and for rises
MIN_WINDOW = 6  # rows on either side of a jump to which lines are fitted, at least
MAX_FITTED = 20_000  # points that a law is fitted to; of more rows they are medians of equally many


class Stage(NamedTuple):
    """A new stage of training: its first step, and by how much the logarithm of the loss jumped there."""

    step: int
    jump: float
    is_epoch: bool = False  # the last epoch, of a loss that falls by stairs as epochs begin

    @property
    def brief(self) -> str:
        """The first step in words."""
        return f"{'last epoch' if self.is_epoch else 'new stage'} since step {self.step:,}"

    def __str__(self) -> str:
        if self.is_epoch:
            return f"{self.brief}: the loss falls by stairs as epochs begin; forecast from that step on"
        verb = "rose" if self.jump > 0 else "fell"
        return (
            f"{self.brief}: the loss {verb} by {abs(np.expm1(self.jump)):.0%} there, which no "
            "learning rate explains; forecast from that step on"
        )


class Stairs(NamedTuple):
    """Falls of the loss where epochs begin, as the model learns its data by heart."""

    steps: tuple[int, ...]
    epoch: float  # steps of one

    def __str__(self) -> str:
        plural = "s" if len(self.steps) > 1 else ""
        return f"it falls by stairs as epochs begin, at step{plural} {joined([f'{step:,}' for step in self.steps])}"


def new_stage(log: Run, schedule: Schedule) -> Stage | Stairs | None:
    """Return the last stage that begins with a jump of the loss for good, or the stairs that jumps are; else None.

    Next to each row a line is fitted to those before and to those after it, of ln(loss) less the law of ``s1``. They
    jump where the lines differ by more than 8 standard errors of the noise and by 4%, without a change of the learning
    rate. Jumps at even distances are epochs, one that is undone is a spike.
    """
    if not log.is_validation and (stairs := _known_stairs(log)) is not None:
        return stairs
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
        begins = log.steps[falls]
        return Stairs(tuple(begins.tolist()), float(begins[-1] - begins[0]) / (len(falls) - 1))
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
    if np.ptp(distances) > MAX_EPOCH_DIFFERENCE * distances.max():
        return False
    # a loss that goes up and down regularly climbs back what it fell
    ends = [np.log(log.loss[first + 1 : last]) for first, last in pairwise(places)]
    climbed = sum(float(np.median(rows[-MIN_WINDOW:]) - np.median(rows[:MIN_WINDOW])) for rows in ends)
    fallen = np.median(np.log(log.loss[: places[0]][-MIN_WINDOW:])) - np.median(np.log(log.loss[-MIN_WINDOW:]))
    return bool(climbed < MAX_CLIMBED * fallen)


def _known_stairs(log: Run) -> Stairs | None:
    """Return the falls where epochs begin that the log states, the last among them; None where it did not fall there.

    Medians of a few rows on either side are compared, less what the rows before lead to expect.
    """
    if not np.isfinite(log.steps_per_epoch):
        return None
    values, noise = np.log(log.loss), row_noise(np.log(log.loss))
    falls: list[int] = []
    begun = int(log.steps[-1] / log.steps_per_epoch + EARLY)
    for k in range(1, begun + 1):
        at = int(np.searchsorted(log.steps, k * log.steps_per_epoch, side="right"))
        if min(at, len(values) - at) < STAIR_ROWS:
            continue
        before, after = values[max(at - 2 * STAIR_ROWS, 0) : at], values[at : at + STAIR_ROWS]
        course = float(np.median(before[:-STAIR_ROWS]) - np.median(before[-STAIR_ROWS:])) if at >= 8 else 0.0
        fall = float(np.median(before[-STAIR_ROWS:]) - np.median(after)) - max(course, 0.0)
        if fall > max(MIN_JUMP, STAIR_NOISE * noise * NOISE_OF_MEDIANS):
            falls.append(int(log.steps[at]))
        elif falls:
            falls.clear()  # the data are learned by heart, or it was something else
    return Stairs(tuple(falls), log.steps_per_epoch) if falls else None


def check_epochs(log: Run, schedule: Schedule, stairs: Stairs | None, *, is_from_scratch: bool) -> None:
    """Refuse (`RefusedError`) a training loss beyond the present epoch where the same data make it fall by stairs.

    In its first epoch nothing shows how it will: of a plan of few epochs it is refused too, but for a language model
    that learns from scratch.
    """
    epoch = log.steps_per_epoch if stairs is None else stairs.epoch
    if log.is_validation or not np.isfinite(epoch):
        return
    last, whole = int(log.steps[-1]), schedule.last_step / epoch
    begun = last / epoch if stairs is None else stairs.steps[-1] / epoch
    to_begin = whole - np.floor(begun + EARLY) - 1 - EARLY
    if to_begin <= 0:
        return
    remedy = "forecast a validation loss (--column loss=NAME), or give siblings"
    if stairs is not None:
        raise RefusedError(
            f"{log.name}: {log.target!r} does not fall evenly: {stairs}; the model learns its data by heart, and no "
            f"law describes how far its loss falls in the epochs to come, to step {schedule.last_step:,}: {remedy}"
        )
    if last < epoch and 1 + EARLY < whole <= FEW_EPOCHS and not is_from_scratch:
        raise RefusedError(
            f"{log.name}: {last / epoch:.0%} of the first of {whole:.2g} epochs was seen: how far a training loss "
            f"falls where data are repeated, no law describes before they are; {remedy}, or ask again from step "
            f"{round(epoch * (1 + EARLY)):,}"
        )


def _blocks(log: Run) -> tuple[Vector, Steps, float]:
    """Return the medians of ln(loss) over blocks of rows, their first steps, and the noise of a median."""
    n = min(30, len(log.loss) // 3)
    parts = np.array_split(np.log(log.loss), n)
    steps = np.array([part[0] for part in np.array_split(log.steps, n)])
    return np.array([np.median(part) for part in parts]), steps, row_noise(np.log(log.loss)) / np.sqrt(len(parts[0]))


def check_falls(log: Run) -> None:
    """Refuse (`RefusedError`) a loss that need not fall where training goes well, whatever was seen of it."""
    if log.need_not_fall:
        why = f"need not fall where training goes well ({log.need_not_fall})"
        raise RefusedError(f"{log.name}: {log.target!r} {why}: no law describes where it ends")


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
        raise RefusedError(
            f"{log.name}: {log.target!r} rose and fell again {rises} times by more than its noise, which no learning "
            "rate explains: no law describes where it ends"
        )


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
