"""Detects spikes of a logged quantity: values far above the recent level, in units of the quantity's own noise."""

from bisect import bisect_left, insort
from collections import deque
from typing import NamedTuple

from toposcope.monitor.alerts.latch import Latch
from toposcope.monitor.alerts.rates import rate_of
from toposcope.monitor.alerts.tail import Tail

MIN_VALUES = 50
"""Values before any is judged."""
MIN_UNITS = 8.0
"""Least height of a spike in units of noise, however regular the stream."""
N_LEVEL = 7
"""Values whose median is the level; few, so that trends and slow waves do not count as noise."""
N_NOISE = 64
"""Differences between consecutive values whose median absolute value is the unit of noise."""
MIN_CHANGES = 10
"""Nonzero differences from which the rounding of a stream is estimated."""
MAX_ROUNDING = 2.0**-8
"""Relative rounding assumed before that: that of bfloat16."""
MIN_TYPICAL = 0.05
"""Least unit of noise as a share of the mean difference, for streams that rarely change."""
RECOVERY = 8
"""Normal values after the first alert before another."""
RECOVERED = 0.5
"""Share of a spike's height below which a value has recovered."""
MAX_RAISED = 100
"""Raised values after which they become the new level."""
MAX_EXCLUDED_SPIKES = 2
"""Spikes that are excluded from the noise; further spikes count as noise of the stream."""
N_BLOCK = 16
"""Values per block, whose median is stored as a past level."""
MAX_BLOCKS = 128
PAST_FRACTION = 4
"""A spike must exceed all levels since this fraction of the steps, so that a return to them is not a spike."""


class Spike(NamedTuple):
    """A value far above the level.

    Attributes
    ----------
    value, level, noise, units, limit : float
        The value is `units` times `noise` above `level`, and more than `limit` times is a spike.
    """

    value: float
    level: float
    noise: float
    units: float
    limit: float


class PastLevels:
    """Medians of blocks of values, in constant memory: neighbouring blocks are merged into the higher of the two."""

    def __init__(self) -> None:
        self._block: list[float] = []
        self._levels: list[tuple[int, float]] = []

    def add(self, step: int, value: float) -> None:
        """Add a value."""
        self._block.append(value)
        if len(self._block) == N_BLOCK:
            self._levels.append((step, sorted(self._block)[N_BLOCK // 2]))
            self._block = []
        if len(self._levels) == MAX_BLOCKS:
            pairs = zip(self._levels[::2], self._levels[1::2], strict=True)
            self._levels = [(later[0], max(one[1], later[1])) for one, later in pairs]

    def highest_since(self, step: int) -> float:
        """Return the highest level after a step; minus infinity if none is known."""
        return max((level for end, level in self._levels if end > step), default=float("-inf"))


class SpikeDetector:
    """Detects spikes in one stream.

    Parameters
    ----------
    check : str
        Name of the check in `SHARES`, which sets its rate of false alarms.
    """

    def __init__(self, check: str) -> None:
        self.check = check
        self._latch = Latch(RECOVERY)
        self._past = PastLevels()
        self._tail = Tail()
        self._recent: deque[float] = deque(maxlen=N_LEVEL)
        self._differences: deque[float] = deque()
        self._sorted: list[float] = []
        self._mean_difference = 0.0
        self._smallest_change = float("inf")
        self._n_changes = 0
        self._n_values = 0
        self._n_peaks = 0
        self._peak = 0.0
        self._step = 0
        self._recovered_below: float | None = None
        self._n_raised = 0

    def add(self, step: int, value: float) -> Spike | None:
        """Check the next finite value; return a spike at its first value."""
        gap, self._step = step - self._step, step
        if self._recovered_below is not None and value > self._recovered_below:
            self._latch.faulty()
            self._n_raised += 1
            if self._n_raised >= MAX_RAISED:
                self._recovered_below = None
                self._recent.clear()
            return None
        self._recovered_below = None
        spike = self._judge(step, gap, value) if self._n_values >= MIN_VALUES else None
        if spike is None:
            self._latch.normal()
            self._learn(step, value)
            return None
        raised = self._latch.faulty()
        self._n_raised = 1
        self._recovered_below = spike.level + RECOVERED * (value - spike.level)
        if self._latch.n_alerts > MAX_EXCLUDED_SPIKES:
            self._tail.add(min(spike.units, spike.limit))
            self._n_peaks += 1
        self._peak = 0.0
        return spike if raised else None

    def _judge(self, step: int, gap: int, value: float) -> Spike | None:
        noise = self._noise()
        if len(self._recent) < N_LEVEL or not noise:
            return None
        level = sorted(self._recent)[N_LEVEL // 2]
        if not value - level > MIN_UNITS * noise:
            return None
        level = max(level, self._past.highest_since(step // PAST_FRACTION))
        # The tail is that of the peaks of excursions, which are nearly independent, so the rate is per peak too.
        rate = rate_of(self.check, gap) * self._n_values / max(1, self._n_peaks)
        limit = max(MIN_UNITS, self._tail.limit(rate))
        units = (value - level) / noise
        return Spike(value, level, noise, units, limit) if units > limit else None

    def _learn(self, step: int, value: float) -> None:
        recent = self._recent
        if len(recent) == N_LEVEL and (noise := self._noise()):
            units = (value - sorted(recent)[N_LEVEL // 2]) / noise
            if units > self._peak:
                self._peak = units
            elif units <= 0 and self._peak:
                self._tail.add(self._peak)
                self._n_peaks += 1
                self._peak = 0.0
        if recent:
            self._add_difference(abs(value - recent[-1]))
        recent.append(value)
        self._past.add(step, value)
        self._n_values += 1

    def _add_difference(self, difference: float) -> None:
        if difference:
            self._n_changes += 1
            self._smallest_change = min(self._smallest_change, difference)
        self._mean_difference += (difference - self._mean_difference) / min(self._n_values + 1, N_NOISE * N_BLOCK)
        self._differences.append(difference)
        insort(self._sorted, difference)
        if len(self._differences) > N_NOISE:
            del self._sorted[bisect_left(self._sorted, self._differences.popleft())]

    def _noise(self) -> float:
        """Return the unit of noise; 0 before there are differences."""
        if not self._sorted:
            return 0.0
        noise = max(self._sorted[len(self._sorted) // 2], MIN_TYPICAL * self._mean_difference)
        if self._n_changes < MIN_CHANGES:
            return max(noise, MAX_ROUNDING * abs(self._recent[-1]))
        return max(noise, self._smallest_change)
