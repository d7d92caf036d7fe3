"""Whether a loss rose suddenly: where its level steps up, whether it came back, and what would have been seen."""

from bisect import bisect
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.logs.anomalies import NORMAL_MAD, row_noise
from toposcope.typing import Steps, Vector

MAX_ROWS = 4000  # rows of a loss that are looked at; of a longer log the means of as many blocks
MIN_ROWS = 16  # rows from which on a level and its noise are known
WIDTHS = (3, 6, 12, 24, 48)  # rows on either side of a place whose medians are compared
MIN_STEP, MIN_SHORT_STEP, MIN_SPIKE = 0.03, 0.1, 0.3
"""Least step of ln(loss): of the wider windows, of 3 rows, which a few hard batches may fill, and of a single row."""
SPIKE_WIDTH = 10.0  # the same of single rows, whose tails are heavier: those of small batches reached 6.6
MAX_TAIL = 4  # single rows at least half as high as one, among which it is no spike
NEAR = 10  # widths before a place by whose rows its noise is known
MAX_RATE_RISE = 1.02  # factor by which the learning rate may rise where a rise of the loss is not explained by it
NOISE_WIDTH = 7.0  # robust standard deviations of the differences of medians, which 3 of 641 sound runs reached
POWER_ROWS = 6  # rows of the rise whose power is stated
POWER_WIDTH = 1.28  # standard deviations between what is named half the time, and what is with 90% probability
MEDIAN_NOISE = 1.77  # standard deviation of the difference of two medians over that of a mean, of normal numbers
MIN_ANEW_ROWS = 5  # rows that a loss takes to fall again; one that is back sooner only spiked
MIN_LARGE = 0.3  # rise of ln(loss), for several rows, after which a run is not called healthy again
MAX_REST = 0.25  # share of a rise that may be left of one that is over
RETURNED = 0.6  # share of what was learned that is lost where a run is back at its start
MIN_LEARNED = 0.15  # fall of ln(loss) before that, for a start to be distinguished from noise
ABOVE_START = 0.15  # by which ln(loss) may exceed its first level there
RECENT_SHARE, RECENT_PLANNED_SHARE, MIN_RECENT_ROWS = 0.1, 0.06, 20
"""A rise that is over still stands for this share of the rows so far, or of the planned ones, at least for so many."""


class Rise(NamedTuple):
    """A sudden rise of a loss."""

    row: int  # its first
    step: int
    before: float  # level before it
    level: float  # median of the highest few rows after it
    peak: float  # the highest of these rows
    n_rows: int  # until the loss was back, or to the end
    is_back: bool
    is_large: bool  # whether it rose so far, for several rows, that a run keeps the mark
    from_start: bool  # whether it led back to the first level, from which the loss fell anew

    @property
    def is_short(self) -> bool:
        """Whether it is of a row or two, so that it may be a spike."""
        return self.n_rows < WIDTHS[0]


class Levels(NamedTuple):
    """The rises of a loss, and the smallest seen at its end: of a single row, and of `power_rows` rows."""

    rises: tuple[Rise, ...]
    spike_power: float
    power: float
    power_rows: int
    n: int  # rows that were looked at
    first: int
    last: int

    def standing(self, rise: Rise, n_planned: float) -> bool:
        """Return whether a rise still says something: it is not back, just over, or undid what was learned.

        `n_planned` is the number of rows of the whole run, as far as that is known.
        """
        stretch = max(RECENT_SHARE * self.n, RECENT_PLANNED_SHARE * n_planned, min(MIN_RECENT_ROWS, self.n / 4))
        recent = self.n - (rise.row + rise.n_rows) < stretch
        return not rise.is_back or rise.from_start or recent or rise.is_large


def thinned(steps: Steps, values: Vector, max_rows: int = MAX_ROWS) -> tuple[Steps, Vector]:
    """Return a series of at most so many rows: the means of blocks, each at its last step."""
    block = -(-len(steps) // max_rows)
    if block <= 1:
        return steps, values
    starts = np.arange(len(steps) % block, len(steps), block)
    return steps[starts + block - 1], np.add.reduceat(values[starts[0] :], starts - starts[0]) / block


def levels(steps: Steps, losses: Vector, rates: Vector | None = None) -> Levels | None:
    """Return the sudden rises of a loss; None of too few rows to know its noise.

    Next to each row the medians of the few rows before and after it are compared, by their logarithms. A rise is sudden
    where they differ by more than the noise of such differences allows. Where the learning rate rises, that explains
    it.

    Parameters
    ----------
    steps, losses : ndarray, shape (n,)
        Of one run, ascending; losses above 0.
    rates : ndarray, shape (n,), optional
        Learning rates, NaN where unknown.
    """
    n = len(losses)
    if n < MIN_ROWS or not (losses > 0).all():
        return None
    block = -(-n // MAX_ROWS)
    every = np.log(losses)
    spikes, spike = _spikes(every)
    few, means = thinned(steps, losses)
    y = np.log(means)
    found, lasting = _steps_up(y)
    if block == 1:
        rises = _rises(steps, every, sorted(found + spikes), rates)
    else:  # lasting rises of the means of blocks, and single rows
        first = n - block * len(y)
        rises = [
            rise._replace(row=first + block * rise.row, n_rows=block * rise.n_rows)
            for rise in _rises(few, y, sorted(found), None if rates is None else thinned(steps, rates)[1])
        ]
        rises += [
            rise
            for rise in _rises(steps, every, spikes, rates)
            if not any(other.row - block <= rise.row <= other.row + other.n_rows for other in rises)
        ]
        rises.sort(key=lambda rise: rise.row)
    now = float(np.median(losses[-5:]))
    spike_power, power = (now * float(np.expm1(least)) for least in (spike, lasting))
    return Levels(tuple(rises), spike_power, power, POWER_ROWS * block, n, int(steps[0]), int(steps[-1]))


def _rises(steps: Steps, y: Vector, found: list[tuple[int, int]], rates: Vector | None) -> list[Rise]:
    """Return the rises at rows that were found, each with the width of its windows, that no learning rate explains."""
    rises: list[Rise] = []
    for row, width in found:
        before, after = max(0, row - max(width, 5)), min(row + width, len(y)) - 1
        if rates is not None and rates[after] > MAX_RATE_RISE * rates[before]:
            continue
        if not rises or row >= rises[-1].row + rises[-1].n_rows:
            # wide windows see a rise first, narrow ones how high it goes
            places = found[bisect(found, (row, 0)) : bisect(found, (row + width, 0))]
            rises.append(_rise(steps, y, *min(places, key=lambda place: (place[1], place[0]))))
    return rises


def _steps_up(y: Vector) -> tuple[list[tuple[int, int]], float]:
    """Return rows at which medians step up, with the width of these; and the least rise of 6 rows seen at the end."""
    found: list[tuple[int, int]] = []
    n, noise, least = len(y), row_noise(y), np.inf
    for width in (width for width in WIDTHS if 4 * width <= n):
        medians = np.median(sliding_window_view(y, width), axis=1)
        steps_up = medians[width:] - medians[:-width]  # at rows width, ..., n - width
        scale = max(_spread(medians, width), noise * MEDIAN_NOISE / width**0.5)
        limit = max(NOISE_WIDTH * scale, MIN_SHORT_STEP if width == WIDTHS[0] else MIN_STEP)
        for row in (np.flatnonzero(steps_up > limit) + width).tolist():
            if steps_up[row - width] > NOISE_WIDTH * _scale_near(y, medians, row, width):
                found.append((row, width))
        if width <= POWER_ROWS:
            here = max(scale, _scale_near(y, medians, n, width))
            named = max(limit, NOISE_WIDTH * here) + POWER_WIDTH * here
            least = min(least, float(named + _fall(steps_up[-NEAR * width :])))
    return found, least


def _scale_near(y: Vector, medians: Vector, row: int, width: int) -> float:
    """Return the noise of steps before a row: it may grow as a loss falls."""
    spread = _spread(medians[max(0, row - (NEAR + 3) * width) : row - width + 1], width)
    near = y[max(0, row - NEAR * width - 2 * NEAR) : row]
    return float(max(spread, row_noise(near) * MEDIAN_NOISE / width**0.5))


def _spikes(y: Vector) -> tuple[list[tuple[int, int]], float]:
    """Return rows that are far above those before, with a width of 1; and the least such rise seen at the end."""
    above = y[5:] - np.median(sliding_window_view(y[:-1], 5), axis=1)
    noise = row_noise(y)
    limit = max(SPIKE_WIDTH * noise, MIN_SPIKE)
    found, ordered = [], np.sort(above)
    for row in (np.flatnonzero(above > limit) + 5).tolist():
        n_alike = len(above) - np.searchsorted(ordered, above[row - 5] / 2, side="right")
        is_tail = n_alike > MAX_TAIL  # of heavy noise, not a spike
        if not is_tail and above[row - 5] > SPIKE_WIDTH * row_noise(y[max(0, row - 6 * NEAR) : row]):
            found.append((row, 1))
    here = max(noise, row_noise(y[-6 * NEAR :]))
    power = max(limit, SPIKE_WIDTH * here) + POWER_WIDTH * here + _fall(above[-2 * NEAR :])
    tail = 2 * float(ordered[-MAX_TAIL - 1]) if len(above) > MAX_TAIL else 0.0
    return found, max(power, tail)


def _fall(steps_up: Vector) -> float:
    """Return by how much a loss falls from window to window, nearly always: a rise has to make up for that."""
    return max(0.0, -float(np.quantile(steps_up, 0.1)))


def _spread(medians: Vector, width: int) -> float:
    """Return the noise of steps between medians, by their second differences, in which a trend cancels."""
    bends = medians[2 * width :] - 2 * medians[width:-width] + medians[: -2 * width]
    # whose variance is three times that of the steps
    return NORMAL_MAD * float(np.median(np.abs(bends))) / 3**0.5 if len(bends) else 0.0


def _rise(steps: Steps, y: Vector, row: int, width: int) -> Rise:
    """Return the rise that windows around a row show: where it begins, how high it goes, and when it is over."""
    before = float(np.median(y[max(0, row - max(width, 5)) : row]))
    # windows see a rise from up to half their width before it
    near = np.arange(max(1, row - width // 2), min(len(y), row + width // 2 + 1))
    begin = int(near[np.argmax(y[near] - y[near - 1])])
    after = y[begin:]
    width = min(width, len(after))
    smooth = np.median(sliding_window_view(after, width), axis=1)
    peak = float(smooth[: max(width, 5)].max())
    over = np.flatnonzero(smooth <= before + MAX_REST * (peak - before))
    n_rows = int(over[0]) + width // 2 if len(over) else len(after)
    first = float(y[:3].max())
    anew = n_rows >= MIN_ANEW_ROWS and first - before >= MIN_LEARNED and after[0] <= first + ABOVE_START
    return Rise(
        begin,
        int(steps[begin]),
        float(np.exp(before)),
        float(np.exp(peak)),
        float(np.exp(after[: max(width, 5)].max())),
        n_rows,
        bool(len(over)),
        is_large=peak - before >= MIN_LARGE and n_rows >= WIDTHS[0],
        from_start=bool(anew and np.median(after[:2]) - before >= RETURNED * (first - before)),
    )
