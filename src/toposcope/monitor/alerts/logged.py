"""Faults that logged values, forecasts and ranks show: spikes, jumps, values that are not finite."""

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from statistics import median

from toposcope.checks import CHECKS
from toposcope.integrity.finding import layers_text
from toposcope.monitor.alerts.noise import Latch, Tail, rate_of
from toposcope.monitor.events import Alert, Forecasted, Logged, Measured, factor, number
from toposcope.probes.feature import NETWORK

# Chosen on 21 families of synthetic noise, checked on 15 others (benchmarks/false_alarms.py, docs/methods/monitor.md).
MIN_SPIKE_UNITS = 8.0  # least height of a spike in units of noise, however regular the stream
N_SPIKE_LEVEL = 7  # values whose median is the level; few, so that trends and slow waves do not count as noise
N_SPIKE_NOISE = 64  # differences between consecutive values whose median absolute value is the unit of noise
MIN_CHANGES = 10  # nonzero differences from which the rounding of a stream is estimated
MIN_TYPICAL = 0.05  # least unit of noise as a share of the mean difference, for streams that rarely change
MAX_EXCURSION = 16  # values above the level after which an excursion counts as another, so that a trend has a tail
SPIKE_RECOVERY = 8  # normal values after the first alert before another
RECOVERED = 0.5  # share of a spike's height below which a value has recovered
MAX_RAISED = 100  # raised values after which they become the new level
MAX_EXCLUDED_SPIKES = 2  # spikes that are excluded from the noise; further ones count as noise of the stream
N_BLOCK = 16  # values per block, whose median is stored as a past level
PAST_FRACTION = 4  # a spike exceeds all levels since this fraction of the steps: a return to them is no spike

# Early warnings: windows as chosen by ``toposcope early-warnings`` on half of its kinds of trouble, at the pace of the
# monitor; their rates, in ``checks.py``, are of 1, 3 and 10 in 100,000 the largest that raised no alarm in its 1.1
# million quiet steps, and at most two where the log has every second to tenth step.
MIN_RISE_MEAN, MIN_RISE_LEVEL = 2, 16  # values of these windows, unless one of a step
MAX_GAP_GROWTH = 1.5  # factor on the interval between measurements above which the noise is another

MIN_RATE_RISE = 3.2  # factor over the highest earlier rate; constant warm-ups end with a factor of 3
MIN_RATE_FALL = 20.0  # factor below the previous rate; step schedules divide by 10 at most
MIN_SPEED_RATIO = 10.0  # change per step relative to the fastest earlier change in the same direction
MIN_RATE_SHARE = 0.1  # least fall as a share of the highest rate, so that the end of a decay is not a jump
MAX_RATE_INTERVAL = 0.05  # longest interval between two rates as a share of the steps; longer ones hide any schedule
RATE_RECOVERY = 8  # normal values after the first alert before another
FINITE_RECOVERY = 8  # finite values before another alert, doubled each time: mixed precision overflows at times
MIN_HALF_WIDTHS = 3.0  # least rise of a forecast, in upper half-widths of the earlier intervals

MIN_SPIKE_VALUES = 50  # logged values before any is judged
MIN_RATES = 10  # learning rates before any is judged

MAX_ROUNDING = 2.0**-8  # relative rounding of a stream with few changes: that of bfloat16
MAX_BLOCKS = 128  # past levels in memory


class PastLevels:
    """Medians of blocks of values, in constant memory: neighbouring blocks are merged into the higher of the two."""

    def __init__(self, n_block: int = N_BLOCK) -> None:
        self._n_block = n_block
        self._block: list[float] = []
        self._levels: list[tuple[int, float]] = []

    def add(self, step: int, value: float) -> None:
        """Add a value."""
        self._block.append(value)
        if len(self._block) == self._n_block:
            self._levels.append((step, sorted(self._block)[self._n_block // 2]))
            self._block = []
        if len(self._levels) == MAX_BLOCKS:
            pairs = zip(self._levels[::2], self._levels[1::2], strict=True)
            self._levels = [(later[0], max(one[1], later[1])) for one, later in pairs]

    def highest_since(self, step: int) -> float:
        """Return the highest level after a step; minus infinity if none is known."""
        return max((level for end, level in self._levels if end > step), default=float("-inf"))


class _Ordered:
    """The last values of a stream, in order of time and of size."""

    def __init__(self, length: int) -> None:
        self._length, self._queue = length, deque[float]()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def last(self) -> float:
        """The last value."""
        return self._queue[-1]

    @property
    def median(self) -> float:
        """The median; of two middle values the upper."""
        return self._sorted[len(self._sorted) // 2]

    def add(self, value: float) -> None:
        """Add a value, in place of the oldest of so many."""
        self._queue.append(value)
        insort(self._sorted, value)
        if len(self._queue) > self._length:
            del self._sorted[bisect_left(self._sorted, self._queue.popleft())]

    def clear(self) -> None:
        """Forget all values."""
        self._queue.clear()
        self._sorted.clear()


class SpikeDetector:
    """Detects spikes in one stream; or rises, of the mean of `n_mean` values above the median of `n_level`."""

    def __init__(self, check: str, name: str, n_mean: int = 1, n_level: int = N_SPIKE_LEVEL) -> None:
        self.check, self._name, self._n_level = check, name, n_level
        self._last: deque[float] = deque(maxlen=n_mean)
        self._latch = Latch(SPIKE_RECOVERY)
        self._past = PastLevels()
        self._tail = Tail()
        self._recent, self._differences = _Ordered(n_level), _Ordered(N_SPIKE_NOISE)
        self._mean_difference = 0.0
        self._smallest_change = float("inf")
        self._n_changes = 0
        self._n_values = 0
        self._n_peaks = 0
        self._peak = 0.0
        self._n_above = 0
        self._step = 0
        self._recovered_below: float | None = None
        self._n_raised = 0

    def add(self, step: int, value: float) -> Alert | None:
        """Check the next finite value; return an alert at the first value of a spike."""
        gap, self._step = step - self._step, step
        self._last.append(value)
        value = sum(each / len(self._last) for each in self._last)  # their sum may overflow
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
        self._recovered_below = spike["level"] + RECOVERED * (value - spike["level"])
        if self._latch.n_alerts > MAX_EXCLUDED_SPIKES:
            self._tail.add(min(spike["units"], spike["limit"]))
            self._n_peaks += 1
        self._peak = 0.0
        return self._alert(step, spike) if raised else None

    def _alert(self, step: int, spike: Mapping[str, float]) -> Alert:
        value, level, predicts = number(spike["value"]), number(spike["level"]), CHECKS[self.check].predicts
        limit = f"the limit is {factor(spike['limit'])} times."
        if predicts and spike["level"] > 0:
            share = 100 * (spike["value"] / spike["level"] - 1)
            mean = f" in the mean of its last {len(self._last)} values" if len(self._last) > 1 else ""
            message = (
                f"{self._name}: rose by {factor(share)}%, from its level of {level} to {value}{mean} at step {step:,},"
                f" {factor(spike['units'])} times its noise; {limit} {predicts}"
            )
        else:
            message = (
                f"{self._name}: rose to {value} at step {step:,}, {factor(spike['units'])} times its noise"
                f" ({number(spike['noise'])}) above its level of {level}; {limit}"
            )
        return Alert(self.check, step, step, self._name, message, spike)

    def _judge(self, step: int, gap: int, value: float) -> dict[str, float] | None:
        """Return the evidence for a spike: `value` is `units` times `noise` above `level`, above `limit` times."""
        noise = self._noise()
        if len(self._recent) < self._n_level or not noise:
            return None
        level = self._recent.median
        if not value - level > MIN_SPIKE_UNITS * noise:
            return None
        level = max(level, self._past.highest_since(step // PAST_FRACTION))
        # The tail is that of the peaks of excursions, which are nearly independent, so the rate is per peak too.
        rate = rate_of(self.check, next(iter(CHECKS[self.check].monitor)), gap) * self._n_values / max(1, self._n_peaks)
        limit = max(MIN_SPIKE_UNITS, self._tail.limit(rate))
        units = (value - level) / noise
        evidence = {"value": value, "level": level, "noise": noise, "units": units, "limit": limit}
        return evidence if units > limit else None

    def _learn(self, step: int, value: float) -> None:
        recent = self._recent
        if len(recent) == self._n_level and (noise := self._noise()):
            units = (value - recent.median) / noise
            self._peak = max(self._peak, units)
            self._n_above = self._n_above + 1 if units > 0 else 0
            if self._peak and self._n_above % MAX_EXCURSION == 0:
                self._tail.add(self._peak)
                self._n_peaks += 1
                self._peak = 0.0
        if len(recent):
            self._add_difference(abs(value - recent.last))
        recent.add(value)
        self._past.add(step, value)
        self._n_values += 1

    def _add_difference(self, difference: float) -> None:
        if difference:
            self._n_changes += 1
            self._smallest_change = min(self._smallest_change, difference)
        n = min(self._n_values + 1, N_SPIKE_NOISE * N_BLOCK)
        self._mean_difference += (difference - self._mean_difference) / n
        self._differences.add(difference)

    def _noise(self) -> float:
        """Return the unit of noise; 0 before there are differences."""
        if not len(self._differences):
            return 0.0
        noise = max(self._differences.median, MIN_TYPICAL * self._mean_difference)
        if self._n_changes < MIN_CHANGES:
            return max(noise, MAX_ROUNDING * abs(self._recent.last))
        return max(noise, self._smallest_change)


class Rises:
    """Detects rises of one stream: of the mean over some steps above the median over many, at its present pace."""

    def __init__(self, check: str, name: str, mean_steps: int, level_steps: int) -> None:
        self._check, self._name, self._steps = check, name, (mean_steps, level_steps)
        self._gap, self._last = 0, -1
        self._detector: SpikeDetector | None = None

    def add(self, step: int, value: float) -> Alert | None:
        """Check the next finite value; where values come more rarely than before, begin anew."""
        gap, first = step - self._last, self._last < 0
        self._last = step
        if first:
            return None
        if self._detector is None or gap > MAX_GAP_GROWTH * self._gap:
            n_mean, n_level = (-(-steps // max(gap, 1)) for steps in self._steps)
            n_mean = max(n_mean, min(self._steps[0], MIN_RISE_MEAN))
            self._detector = SpikeDetector(self._check, self._name, n_mean, max(n_level, MIN_RISE_LEVEL))
            self._gap = gap
        return self._detector.add(step, value)


class RateJumps:
    """Detects jumps of one learning rate."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._latch = Latch(RATE_RECOVERY)
        self._n_values = 0
        self._step = 0
        self._rate = math.nan
        self._highest = 0.0
        self._fastest = {True: 0.0, False: 0.0}  # change per step, by whether the rate rose

    def add(self, step: int, rate: float) -> Alert | None:
        """Check the next finite rate; return an alert if it jumps."""
        last_step, last, highest = self._step, self._rate, self._highest
        gap = max(1, step - last_step)
        speed = abs(rate - last) / gap
        rises = rate > last
        limit = MIN_SPEED_RATIO * self._fastest[rises]
        is_judged = self._n_values >= MIN_RATES and gap <= MAX_RATE_INTERVAL * step and speed > limit
        change = self._change(rate, last) if is_judged else None
        self._step, self._rate, self._n_values = step, rate, self._n_values + 1
        self._highest = max(highest, rate)
        if change is None:
            if last == last:
                self._fastest[rises] = max(self._fastest[rises], speed)
            self._latch.normal()
            return None
        if not self._latch.faulty():
            return None
        message = (
            f"{self._name}: the learning rate {'rose' if rises else 'fell'} from {number(last)} at step {last_step:,}"
            f" to {number(rate)} at step {step:,}{change}; no schedule jumps like this, so check the scheduler."
        )
        evidence = {"value": rate, "before": last, "highest": highest, "change_per_step": speed, "limit": limit}
        return Alert("learning rate jump", step, min(last_step + 1, step), self._name, message, evidence)

    def _change(self, rate: float, last: float) -> str | None:
        """Return by how much the rate rose or fell; None if schedules do that."""
        if rate > MIN_RATE_RISE * self._highest > 0:
            return f", {factor(rate / self._highest)} times its highest so far"
        if last - rate > MIN_RATE_SHARE * self._highest and rate * MIN_RATE_FALL < last:
            return f", by a factor of {factor(last / rate)}" if rate > 0 else ""
        return None


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
        which = " and ".join(f"{name} is {event.values[name]}" for name in newly)
        evidence = {"value": event.values[newly[0]]}
        return [Alert("non-finite", event.step, event.step, newly[0], f"{which} at step {event.step:,}.", evidence)]

    def measured(self, event: Measured, last: int) -> list[Alert]:
        """Check a measurement; weights and gradients that fail together raise one alert."""
        training = {layer: row for (layer, probe), row in event.rows.items() if probe == "training"}
        raised = None
        for what, latch, count, norm in (
            ("weights", self._weights, "nonfinite", "weight_norm"),
            ("gradients", self._gradients, "nonfinite_gradients", "gradient_norm"),
        ):
            counts = _counts(training, count, norm)
            if counts and latch.faulty():
                raised = raised or (what, counts)
            elif training and not counts:
                latch.normal()
        if raised is None:
            return []
        what, counts = raised
        layers, total = list(counts), sum(counts.values())
        where = layers_text(layers, max(1, len(training.keys() - {NETWORK})), "layers")
        before = f" (last measured at step {last:,})" if last else ""
        message = (
            f"{where}: {total:,.0f} of the {what} {'are' if total != 1 else 'is'} NaN or infinite at step"
            f" {event.step:,}{before}."
        )
        evidence = {"values": total, "layers": float(len(layers))}
        return [Alert("non-finite", event.step, min(last + 1, event.step), layers[0], message, evidence)]


def _counts(rows: Mapping[str, Mapping[str, float]], count: str, norm: str) -> dict[str, float]:
    """Return the number of non-finite values by layer, 1 if only a norm shows them; the network only if alone."""
    found = {
        layer: max(row.get(count, 0.0), 0.0) or 1.0
        for layer, row in rows.items()
        if row.get(count, 0.0) != 0 or not math.isfinite(row.get(norm, 0.0))
    }
    return found if len(found) <= 1 else {layer: n for layer, n in found.items() if layer != NETWORK}


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
        name, (usual, others) = next(
            ((name, differing) for name in names if (differing := _differing(name, ranks))[1]), ("", (0.0, {}))
        )
        if not others:
            self._latch.normal()
            return []
        if not self._latch.faulty():
            return []
        first = min(others)
        named = ", ".join(map(str, sorted(others)[:MAX_NAMED_RANKS])) + " ..." * (len(others) > MAX_NAMED_RANKS)
        before = f"; they were equal at step {last:,}" if last else ""
        message = (
            f"rank{'s'[: len(others) != 1]} {named} of {len(ranks)}: {name} is {others[first]!r} on rank {first} and"
            f" {usual!r} on the others at step {step:,}{before}."
        )
        evidence = {"value": others[first], "usual": usual, "ranks": float(len(others))}
        return [Alert("ranks differ", step, min(last + 1, step), f"rank {first}", message, evidence)]


def _differing(name: str, ranks: Mapping[int, Mapping[str, float]]) -> tuple[float, dict[int, float]]:
    """Return the most common value of a quantity, and the ranks that differ; of two ranks, the second one differs."""
    values = {rank: row[name] for rank, row in sorted(ranks.items()) if name in row}
    exact = any(word in name.lower() for word in EXACT)
    agreeing = Counter({rank: sum(_equal(a, b, exact) for b in values.values()) for rank, a in values.items()})
    usual = values[agreeing.most_common(1)[0][0]]
    return usual, {rank: value for rank, value in values.items() if not _equal(value, usual, exact)}


def _equal(a: float, b: float, exact: bool) -> bool:
    if a == b or (a != a and b != b):
        return True
    return not exact and math.isclose(a, b, rel_tol=TOLERANCE)


class WorseForecasts:
    """Detects a forecast whose interval lies above those of the earlier forecasts."""

    def __init__(self) -> None:
        self._earlier: deque[Forecasted] = deque(maxlen=64)

    def add(self, event: Forecasted) -> list[Alert]:
        """Check a forecast; after an alert, it becomes the reference for later ones."""
        earlier = [e for e in self._earlier if e.target == event.target]
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
