"""Faults that logged values, forecasts and ranks show: spikes, jumps, values that are not finite."""

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from toposcope.integrity.finding import layers_text
from toposcope.monitor.alerts.noise import Latch, Tail, rate_of
from toposcope.monitor.events import Alert, Forecasted, Logged, Measured, factor, number
from toposcope.probes.feature import NETWORK

MIN_SPIKE_VALUES = 50  # values before any is judged
MIN_SPIKE_UNITS = 8.0  # least height of a spike in units of noise, however regular the stream
N_SPIKE_LEVEL = 7  # values whose median is the level; few, so that trends and slow waves do not count as noise
N_SPIKE_NOISE = 64  # differences between consecutive values whose median absolute value is the unit of noise
MIN_CHANGES = 10  # nonzero differences from which the rounding of a stream is estimated
MAX_ROUNDING = 2.0**-8  # relative rounding assumed before that: that of bfloat16
MIN_TYPICAL = 0.05  # least unit of noise as a share of the mean difference, for streams that rarely change
SPIKE_RECOVERY = 8  # normal values after the first alert before another
RECOVERED = 0.5  # share of a spike's height below which a value has recovered
MAX_RAISED = 100  # raised values after which they become the new level
MAX_EXCLUDED_SPIKES = 2  # spikes that are excluded from the noise; further spikes count as noise of the stream
N_BLOCK = 16  # values per block, whose median is stored as a past level
MAX_BLOCKS = 128
PAST_FRACTION = 4
"""A spike must exceed all levels since this fraction of the steps, so that a return to them is not a spike."""


class Spike(NamedTuple):
    """A value far above the level."""

    value: float  # the value is `units` times `noise` above `level`, and more than `limit` times is a spike
    level: float  # the value is `units` times `noise` above `level`, and more than `limit` times is a spike
    noise: float  # the value is `units` times `noise` above `level`, and more than `limit` times is a spike
    units: float  # the value is `units` times `noise` above `level`, and more than `limit` times is a spike
    limit: float  # the value is `units` times `noise` above `level`, and more than `limit` times is a spike


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
    """Detects spikes in one stream."""

    def __init__(self, check: str) -> None:
        self.check = check
        self._latch = Latch(SPIKE_RECOVERY)
        self._past = PastLevels()
        self._tail = Tail()
        self._recent: deque[float] = deque(maxlen=N_SPIKE_LEVEL)
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
        spike = self._judge(step, gap, value) if self._n_values >= MIN_SPIKE_VALUES else None
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
        if len(self._recent) < N_SPIKE_LEVEL or not noise:
            return None
        level = sorted(self._recent)[N_SPIKE_LEVEL // 2]
        if not value - level > MIN_SPIKE_UNITS * noise:
            return None
        level = max(level, self._past.highest_since(step // PAST_FRACTION))
        # The tail is that of the peaks of excursions, which are nearly independent, so the rate is per peak too.
        rate = rate_of(self.check, gap) * self._n_values / max(1, self._n_peaks)
        limit = max(MIN_SPIKE_UNITS, self._tail.limit(rate))
        units = (value - level) / noise
        return Spike(value, level, noise, units, limit) if units > limit else None

    def _learn(self, step: int, value: float) -> None:
        recent = self._recent
        if len(recent) == N_SPIKE_LEVEL and (noise := self._noise()):
            units = (value - sorted(recent)[N_SPIKE_LEVEL // 2]) / noise
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
        self._mean_difference += (difference - self._mean_difference) / min(self._n_values + 1, N_SPIKE_NOISE * N_BLOCK)
        self._differences.append(difference)
        insort(self._sorted, difference)
        if len(self._differences) > N_SPIKE_NOISE:
            del self._sorted[bisect_left(self._sorted, self._differences.popleft())]

    def _noise(self) -> float:
        """Return the unit of noise; 0 before there are differences."""
        if not self._sorted:
            return 0.0
        noise = max(self._sorted[len(self._sorted) // 2], MIN_TYPICAL * self._mean_difference)
        if self._n_changes < MIN_CHANGES:
            return max(noise, MAX_ROUNDING * abs(self._recent[-1]))
        return max(noise, self._smallest_change)


MIN_RATES = 10  # values before any is judged
MIN_RISE = 3.2  # factor over the highest earlier rate; constant warm-ups end with a factor of 3
MIN_FALL = 20.0  # factor below the previous rate; step schedules divide by 10 at most
MIN_SPEED_RATIO = 10.0  # change per step relative to the fastest earlier change in the same direction
MIN_SHARE = 0.1  # least fall as a share of the highest rate, so that the end of a decay is not a jump
MAX_INTERVAL = 0.05
"""Longest interval between two values as a share of the steps so far; a longer one may hide any schedule."""
RATE_RECOVERY = 8  # normal values after the first alert before another


class RateJumps:
    """Detects jumps of one learning rate."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._latch = Latch(RATE_RECOVERY)
        self._n_values = 0
        self._step = 0
        self._rate = math.nan
        self._highest = 0.0
        self._fastest = {True: 0.0, False: 0.0}

    def add(self, step: int, rate: float) -> Alert | None:
        """Check the next finite rate; return an alert if it jumps."""
        last_step, last = self._step, self._rate
        gap = max(1, step - last_step)
        speed = abs(rate - last) / gap
        rises = rate > last
        kind = self._jump(rate, last, gap, step, speed) if self._n_values >= MIN_RATES else ""
        limit = MIN_SPEED_RATIO * self._fastest[rises]
        highest = self._highest
        self._step, self._rate, self._n_values = step, rate, self._n_values + 1
        self._highest = max(self._highest, rate)
        if not kind:
            if last == last:
                self._fastest[rises] = max(self._fastest[rises], speed)
            self._latch.normal()
            return None
        if not self._latch.faulty():
            return None
        change = f", {factor(rate / highest)} times its highest so far" if kind == "rose" else ""
        change = f", by a factor of {factor(last / rate)}" if kind == "fell" and rate > 0 else change
        message = (
            f"{self._name}: the learning rate {kind} from {number(last)} at step {last_step:,} to {number(rate)}"
            f" at step {step:,}{change}; no schedule jumps like this, so check the scheduler."
        )
        evidence = {"value": rate, "before": last, "highest": highest, "change_per_step": speed, "limit": limit}
        return Alert("learning rate jump", step, min(last_step + 1, step), self._name, message, evidence)

    def _jump(self, rate: float, last: float, gap: int, step: int, speed: float) -> str:
        if gap > MAX_INTERVAL * step:
            return ""
        if rate > MIN_RISE * self._highest and speed > MIN_SPEED_RATIO * self._fastest[True]:
            return "rose"
        fallen = last - rate > MIN_SHARE * self._highest and rate * MIN_FALL < last
        return "fell" if fallen and speed > MIN_SPEED_RATIO * self._fastest[False] else ""


NOT_FINITE = "non-finite"
FINITE_RECOVERY = 8
"""Finite values after the first alert before another; doubled each time, since mixed precision overflows at times."""


class NotFinite:
    """Detects values that are not finite."""

    def __init__(self) -> None:
        self._logged: dict[str, Latch] = {}
        self._weights, self._gradients = Latch(1), Latch(1)

    def logged(self, event: Logged, names: Sequence[str]) -> list[Alert]:
        """Check the named logged values; several that fail together raise one alert."""
        newly = []
        for name in names:
            if math.isfinite(event.values[name]):
                if name in self._logged:
                    self._logged[name].normal()
            elif self._logged.setdefault(name, Latch(FINITE_RECOVERY)).faulty():
                newly.append(name)
        if not newly:
            return []
        values = [event.values[name] for name in newly]
        which = " and ".join(f"{name} is {value}" for name, value in zip(newly, values, strict=True))
        message = f"{which} at step {event.step:,}."
        return [Alert(NOT_FINITE, event.step, event.step, newly[0], message, {"value": values[0]})]

    def measured(self, event: Measured, last: int) -> list[Alert]:
        """Check a measurement; weights and gradients that fail together raise one alert."""
        training = {layer: row for (layer, probe), row in event.rows.items() if probe == "training"}
        if not training:
            return []
        weights = _counts(training, "nonfinite", "weight_norm")
        gradients = _counts(training, "nonfinite_gradients", "gradient_norm")
        raised = None
        for what, counts, latch in (("weights", weights, self._weights), ("gradients", gradients, self._gradients)):
            if not counts:
                latch.normal()
            elif latch.faulty() and raised is None:
                raised = what, counts
        return (
            []
            if raised is None
            else [_not_finite_alert(event, last, *raised, max(1, len(training.keys() - {NETWORK})))]
        )


def _counts(rows: Mapping[str, Mapping[str, float]], count: str, norm: str) -> dict[str, float]:
    """Return the number of non-finite values by layer, 1 if only a norm shows them; the network only if alone."""
    found = {
        layer: max(row.get(count, 0.0), 0.0) or 1.0
        for layer, row in rows.items()
        if row.get(count, 0.0) != 0 or not math.isfinite(row.get(norm, 0.0))
    }
    return found if len(found) <= 1 else {layer: n for layer, n in found.items() if layer != NETWORK}


def _not_finite_alert(event: Measured, last: int, what: str, counts: Mapping[str, float], n_layers: int) -> Alert:
    layers = list(counts)
    total = sum(counts.values())
    where = layers_text(layers, n_layers, "layers")
    before = f" (last measured at step {last:,})" if last else ""
    message = (
        f"{where}: {total:,.0f} of the {what} {'are' if total != 1 else 'is'} NaN or infinite at step"
        f" {event.step:,}{before}."
    )
    evidence = {"values": total, "layers": float(len(layers))}
    return Alert(NOT_FINITE, event.step, min(last + 1, event.step), layers[0], message, evidence)


TOLERANCE = 1e-6  # largest relative difference between equal norms that are summed in different order
EXACT = ("hash", "checksum", "digest")  # words in the names of quantities that must be exactly equal
MAX_NAMED_RANKS = 4


class RankDivergence:
    """Detects ranks that differ in quantities they should share."""

    def __init__(self) -> None:
        self._latch = Latch(1)
        self._last = 0

    def add(self, step: int, ranks: Mapping[int, Mapping[str, float]]) -> list[Alert]:
        """Check the quantities of each rank; return an alert if some differ from most."""
        last, self._last = self._last, step
        names = dict.fromkeys(name for values in ranks.values() for name in values)
        apart = {name: differing for name in names if (differing := _differing(name, ranks))}
        if not apart:
            self._latch.normal()
            return []
        if not self._latch.faulty():
            return []
        name, (usual, others) = next(iter(apart.items()))
        first = min(others)
        named = ", ".join(map(str, sorted(others)[:MAX_NAMED_RANKS])) + (
            " ..." if len(others) > MAX_NAMED_RANKS else ""
        )
        message = (
            f"rank{'s'[: len(others) != 1]} {named} of {len(ranks)}: {name} is {others[first]!r} on rank {first} and"
            f" {usual!r} on the others at step {step:,}; they were equal at step {last:,}."
        )
        if last == 0:
            message = message.rpartition(";")[0] + "."
        evidence = {"value": others[first], "usual": usual, "ranks": float(len(others))}
        return [Alert("ranks differ", step, min(last + 1, step), f"rank {first}", message, evidence)]


def _differing(name: str, ranks: Mapping[int, Mapping[str, float]]) -> tuple[float, dict[int, float]] | None:
    """Return the most common value of a quantity, and the ranks that differ; of two ranks, the second one differs."""
    values = {rank: row[name] for rank, row in sorted(ranks.items()) if name in row}
    exact = any(word in name.lower() for word in EXACT)
    agreeing = Counter({rank: sum(_equal(a, b, exact) for b in values.values()) for rank, a in values.items()})
    if not agreeing:
        return None
    usual = values[agreeing.most_common(1)[0][0]]
    others = {rank: value for rank, value in values.items() if not _equal(value, usual, exact)}
    return (usual, others) if others else None


def _equal(a: float, b: float, exact: bool) -> bool:
    if a == b or (a != a and b != b):
        return True
    return not exact and math.isclose(a, b, rel_tol=TOLERANCE)


MIN_HALF_WIDTHS = 3.0  # least rise of a forecast, in upper half-widths of the earlier intervals
MAX_EARLIER = 64


class WorseForecasts:
    """Detects a forecast whose interval lies above those of the earlier forecasts."""

    def __init__(self) -> None:
        self._earlier: deque[Forecasted] = deque(maxlen=MAX_EARLIER)

    def add(self, event: Forecasted) -> list[Alert]:
        """Check a forecast; after an alert, it becomes the reference for later ones."""
        earlier = list(self._earlier)
        self._earlier.append(event)
        if not earlier:
            return []
        loss, high = median(e.loss for e in earlier), median(e.high for e in earlier)
        limit = loss + MIN_HALF_WIDTHS * (high - loss)
        if not (event.loss > limit and event.low > high):
            return []
        self._earlier.clear()
        self._earlier.append(event)
        last = earlier[-1]
        message = (
            f"The forecast of the final loss rose to {number(event.loss)} ({number(event.low)} to {number(event.high)})"
            f" at step {event.step:,}; until step {last.step:,} it was about {number(loss)}, at most {number(high)}."
        )
        evidence = {"value": event.loss, "level": loss, "high": high, "limit": limit}
        return [Alert("forecast worse", event.step, min(last.step + 1, event.step), "", message, evidence)]
