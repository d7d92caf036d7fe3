"""Faults that the measured layers show: spikes, collapses, growth without bound, layers that stop learning."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.integrity.finding import layers_text
from toposcope.monitor.alerts.noise import Latch, Tail, rate_of
from toposcope.monitor.events import Alert, Measured, factor, number
from toposcope.probes.feature import NETWORK
from toposcope.typing import Vector

# Chosen on 21 families of synthetic noise, checked on 15 others (benchmarks/false_alarms.py, docs/methods/monitor.md).
N_LEVEL = 3  # measurements whose median is the level of a layer; few, so that a trend does not count as noise
N_LONG = 15  # measurements of the long median, so that the return from an excursion is not a deviation
N_NOISE = 64  # differences between consecutive measurements whose median absolute value is the noise of a layer
POOLED_WEIGHT = 8  # weight of the median noise of all layers, in differences, if it exceeds the layer's own
MIN_UNITS = 8.0  # least deviation of a layer, in units of noise
MIN_MEASUREMENTS = 4  # measurements whose largest deviation is known before any layer is judged
MAX_FAULTY = 10  # consecutive faulty measurements of a layer after which they become its new level
MAX_EXCLUDED_ALERTS = 2  # alerts whose deviations are excluded from the noise; those of further ones count as noise
RISE_TAIL_INDEX = 2.0  # index of the heaviest tail of rises: that of Student's t with 2 degrees of freedom
FALL_TAIL_INDEX = 1.0  # index of the tail of falls, for values with a density near 0
DEAD_TAIL_INDEX = 3.0  # index of the tail of rises of the share of dead units, which is bounded
MIN_LEVEL_NOISE = 0.005  # floor of the noise estimate of norms and ranks, relative to the level
MIN_STOP_NOISE = 0.02  # the same for gradients and updates
MIN_DEAD_NOISE = 0.005  # floor of the noise estimate of the share of dead units
MIN_STOP_FALL = 30.0  # factor by which a gradient or an update must fall, relative to other layers
MAX_TRANSIENTS = 2  # transient zeros after which zeros must last twice as long to raise an alert, and so on
MAX_NORMAL_FALL = 6.0  # deepest transient fall, in units of noise, with which a single 0 is an alert
MIN_NOISE_VALUES = 16  # values from which the noise of a layer is known well enough for that
MIN_GROWTH = 5.0  # growth over the highest level of the first half; updates add up to 4 under a linear warm-up
MIN_ACCELERATION = 1.5  # that growth relative to the range over the second quarter of the run, in logarithms
MIN_GROWTH_NOISE = 0.001  # floor of the noise estimate of slowly growing norms, relative to the level
MIN_GROWTH_UNITS = 8.0  # that growth in units of the noise
MIN_GROWTH_MEASUREMENTS = 32  # measurements before growth is judged
LEVEL_EVERY = 4  # measurements from one stored level to the next
MIN_LAYER_VALUES = 8  # measurements of a layer before it is judged


def of_layers(event: Measured, probe: str, statistic: str) -> dict[str, float]:
    """Return a statistic by layer without NaN; that of the network only if no layer has it."""
    found = {
        layer: row[statistic]
        for (layer, name), row in event.rows.items()
        if name == probe and statistic in row and row[statistic] == row[statistic]
    }
    return found if len(found) <= 1 else {layer: value for layer, value in found.items() if layer != NETWORK}


def logarithms(values: Mapping[str, float]) -> tuple[list[str], Vector]:
    """Return the layers with a positive, finite value, and the logarithms of the values."""
    layers = [layer for layer, value in values.items() if 0 < value < float("inf")]
    return layers, np.log([values[layer] for layer in layers])


def alert_of_layers(
    kind: str,
    event: Measured,
    last: int,
    layers: Sequence[str],
    n_layers: int,
    what: str,
    evidence: Mapping[str, float],
) -> Alert:
    """Return one alert for one or several layers, the worst first; `what` happened to that one."""
    which = f" Affected: {layers_text(layers, n_layers, 'layers')}." if len(layers) > 1 else ""
    before = f" (last measured at step {last:,})" if last else ""
    message = f"{layers[0]}: {what} at step {event.step:,}{before}.{which}"
    numbers = {**evidence, "layers": float(len(layers))}
    return Alert(kind, event.step, min(last + 1, event.step), layers[0], message, numbers)


class Baseline(NamedTuple):
    """Level (over a few values and over many) and noise of layers, and which have enough values to be judged."""

    level: Vector
    long_level: Vector
    noise: Vector
    ready: NDArray[np.bool_]

    @property
    def low(self) -> Vector:
        """Level from which falls are measured."""
        return np.minimum(self.level, self.long_level)

    @property
    def high(self) -> Vector:
        """Level from which rises are measured."""
        return np.maximum(self.level, self.long_level)


class LayerHistory:
    """Recent values of one statistic of every layer, in constant memory; `min_noise` is for constant ones."""

    def __init__(self, min_noise: float) -> None:
        self._min_noise = min_noise
        self._columns: dict[str, int] = {}
        self._values = np.empty((N_LONG, 0))
        self._differences = np.empty((N_NOISE, 0))
        self._counts = np.empty(0, np.int64)
        self._last: tuple[NDArray[np.int64], Baseline] | None = None  # baseline that was returned last, if it holds

    def columns(self, layers: Sequence[str]) -> NDArray[np.int64]:
        """Return the columns of layers, adding new layers."""
        new = [layer for layer in layers if layer not in self._columns]
        if new:
            self._columns |= {layer: len(self._columns) + k for k, layer in enumerate(new)}
            self._values = _widened(self._values, len(new))
            self._differences = _widened(self._differences, len(new))
            self._counts = np.concatenate([self._counts, np.zeros(len(new), np.int64)])
        return np.array([self._columns[layer] for layer in layers], np.int64)

    def forget(self, layers: Sequence[str]) -> None:
        """Begin anew with layers whose training changed."""
        columns = [self._columns[layer] for layer in layers if layer in self._columns]
        self._counts[columns] = 0
        self._last = None
        for values in (self._values, self._differences):
            values[:, columns] = np.nan

    def baseline(self, columns: NDArray[np.int64]) -> Baseline:
        """Return the level and noise of layers, before new values are added."""
        if self._last is not None and np.array_equal(self._last[0], columns):
            return self._last[1]
        counts = self._counts[columns]
        last = self._values[(counts - 1 - np.arange(N_LEVEL)[:, None]) % N_LONG, columns]
        level = _medians(last, np.minimum(counts, N_LEVEL))
        long_level = _medians(self._values[:, columns], np.minimum(counts, N_LONG))
        n = np.clip(counts - 1, 0, N_NOISE)
        noise = np.fmax(_medians(self._differences[:, columns], n), self._min_noise)
        pooled = noise * (np.median(noise) / noise) ** (POOLED_WEIGHT / (n + POOLED_WEIGHT))
        found = Baseline(level, long_level, np.maximum(noise, pooled), counts >= MIN_LAYER_VALUES)
        self._last = columns, found
        return found

    def add(self, columns: NDArray[np.int64], values: Vector) -> None:
        """Add new values, which must be finite."""
        self._last = None
        counts = self._counts[columns]
        last = self._values[(counts - 1) % N_LONG, columns]
        self._values[counts % N_LONG, columns] = values
        later = counts > 0
        self._differences[(counts[later] - 1) % N_NOISE, columns[later]] = np.abs(values - last)[later]
        self._counts[columns] += 1


def _widened(array: Vector, n_columns: int) -> Vector:
    return np.concatenate([array, np.full((len(array), n_columns), np.nan)], axis=1)


def _medians(values: Vector, counts: NDArray[np.int64]) -> Vector:
    """Return the median of each column's first `counts` values, the rest being NaN."""
    ordered = np.sort(values, axis=0)
    return np.asarray(ordered[np.minimum(counts // 2, len(ordered) - 1), np.arange(ordered.shape[1])])


class LayerCheck:
    """Finds layers whose statistic deviates from its level by more than noise explains.

    The limit follows from the largest deviation over all layers at each measurement. `tail_index` is that of the
    heaviest tail assumed, which is exponential where deviations are `in_logs`.
    """

    def __init__(
        self, name: str, min_change: float, tail_index: float, min_noise: float, *, in_logs: bool = True
    ) -> None:
        self._name, self._min_change, self._tail_index, self._in_logs = name, min_change, tail_index, in_logs
        self.history = LayerHistory(min_noise)
        self._tail, self._largest, self._n_alerts = Tail(), 0.0, 0
        self._latches: dict[str, Latch] = {}
        self._streaks: dict[str, int] = {}
        self.limit = math.inf

    def compared(
        self, gap: int, layers: Sequence[str], values: Vector, *, falls: bool = False
    ) -> tuple[Baseline, NDArray[np.bool_], list[int]]:
        """Return the baseline, which layers rose from it (or fell), and the places of new ones, the worst first."""
        columns = self.history.columns(layers)
        baseline = self.history.baseline(columns)
        deviations = baseline.low - values if falls else values - baseline.high
        faulty = self.faulty(gap, deviations, baseline)
        newly = self.newly(layers, faulty)
        self.learn(columns, layers, values, faulty)
        return baseline, faulty, sorted(newly, key=lambda k: -deviations[k])

    def faulty(self, gap: int, deviations: Vector, baseline: Baseline) -> NDArray[np.bool_]:
        """Return which layers deviate upwards by more than noise explains, `gap` steps after the last measurement."""
        ready = baseline.ready
        if not ready.any():
            return np.zeros(len(ready), np.bool_)
        units = np.where(ready, deviations / baseline.noise, 0.0)
        above = np.zeros(len(ready), np.bool_)
        if self._tail.count >= MIN_MEASUREMENTS:
            rate = rate_of(self._name, "layers", gap)
            self.limit = max(MIN_UNITS, self._tail.limit(rate))
            above = ready & (units > MIN_UNITS) & ((units > self.limit) | (deviations > self._bound(rate)))
        self._largest = max(self._largest, float(deviations[ready & ~above].max(initial=0.0)))
        self._tail.add(float(units[~above].max(initial=0.0)))
        return above & (deviations > self._min_change)

    def _bound(self, rate: float) -> float:
        """Return the bound that follows from the largest deviation so far, whatever the noise of a layer."""
        odds = max(1.0, 1 / (self._tail.count * rate))
        if self._in_logs:
            return self._largest + math.log(odds) / self._tail_index
        return float(self._largest * odds ** (1 / self._tail_index))

    def newly(self, layers: Sequence[str], faulty: NDArray[np.bool_]) -> list[int]:
        """Return the positions of the layers that raise an alert now, not while the fault of an earlier one lasts."""
        found = []
        for position, layer in enumerate(layers):
            if faulty[position]:
                if self._latches.setdefault(layer, Latch(1)).faulty():
                    found.append(position)
                self._streaks[layer] = self._streaks.get(layer, 0) + 1
            elif layer in self._latches:
                self._latches[layer].normal()
                self._streaks.pop(layer, None)
        self._n_alerts += bool(found)
        if found and self._n_alerts > MAX_EXCLUDED_ALERTS and math.isfinite(self.limit):
            self._tail.add(self.limit)
        return found

    def learn(
        self, columns: NDArray[np.int64], layers: Sequence[str], values: Vector, faulty: NDArray[np.bool_]
    ) -> None:
        """Update the levels with normal values, and with faulty ones that have lasted for so long that they are new."""
        lasting = np.array([self._streaks.get(layer, 0) > MAX_FAULTY for layer in layers], np.bool_)
        learnt = ~faulty | lasting
        self.history.add(columns[learnt], values[learnt])


class Outliers:
    """Detects layers whose statistic rises, or falls, by more than its noise explains.

    `least` is the least change, a factor of a positive statistic. Of a share, which is not compared by its logarithm,
    it is a difference.
    """

    def __init__(
        self, kind: str, probe: str, statistic: str, least: float, *, falls: bool = False, share: bool = False
    ) -> None:
        self._kind, self._probe, self._statistic, self._falls, self._is_share = kind, probe, statistic, falls, share
        if share:
            self._check = LayerCheck(kind, least, DEAD_TAIL_INDEX, MIN_DEAD_NOISE, in_logs=False)
        else:
            tail_index = FALL_TAIL_INDEX if falls else RISE_TAIL_INDEX
            self._check = LayerCheck(kind, math.log(least), tail_index, MIN_LEVEL_NOISE)
        self.history = self._check.history
        self.faulty: set[str] = set()
        self.alerted: dict[str, int] = {}
        """Step of the last alert of each layer."""

    def measured(self, event: Measured, last: int, reported: Collection[str] = ()) -> list[Alert]:
        """Check a measurement, the previous one being of step `last`; `reported` layers raise no alert."""
        found = of_layers(event, self._probe, self._statistic)
        if self._is_share:
            layers = [layer for layer, share in found.items() if math.isfinite(share)]
            values = np.array([found[layer] for layer in layers])
        else:
            layers, values = logarithms(found)
        if not layers:
            return []
        baseline, faulty, newly = self._check.compared(event.step - last, layers, values, falls=self._falls)
        self.faulty = (self.faulty - set(layers)) | {layers[k] for k in np.flatnonzero(faulty)}
        newly = [k for k in newly if layers[k] not in reported]
        if not newly:
            return []
        self.alerted |= {layers[k]: event.step for k in newly}
        levels, first = baseline.low if self._falls else baseline.high, newly[0]
        noise = float(baseline.noise[first])
        if self._is_share:
            value, level = float(values[first]), float(levels[first])
            what = f"{value:.0%} of its units have no gradient, up from about {level:.0%},"
        else:
            value, level = float(np.exp(values)[first]), float(np.exp(levels)[first])
            change = level / value if self._falls else value / level
            what = (
                f"its {self._statistic.replace('_', ' ')} {'fell' if self._falls else 'rose'} from about"
                f" {number(level)} to {number(value)}, a factor of {factor(change)} while its noise is"
                f" {100 * noise:.2g}%,"
            )
            noise *= level
        evidence = {"value": value, "level": level, "noise": noise, "limit": self._check.limit}
        return [alert_of_layers(self._kind, event, last, [layers[k] for k in newly], len(layers), what, evidence)]


class Stopped:
    """Detects layers whose gradient, or update, vanishes while those of other layers do not."""

    def __init__(self, name: str, statistics: tuple[str, ...]) -> None:
        self._name, self._statistics = name, statistics
        self._check = LayerCheck(name, math.log(MIN_STOP_FALL), FALL_TAIL_INDEX, MIN_STOP_NOISE)
        self.history = self._check.history
        self._seen: dict[str, int] = {}
        self._zeros: dict[str, int] = {}
        self._min_duration, self._n_transients = 1, 0
        self._deepest = 0.0
        self.faulty: set[str] = set()

    def measured(self, event: Measured, last: int, reported: Collection[str]) -> list[Alert]:
        """Check a measurement, the previous one being of step `last`; `reported` layers raise no alert."""
        found = ((name, of_layers(event, "training", name)) for name in self._statistics)
        statistic, values = next((pair for pair in found if pair[1]), ("", {}))
        if len(values) < 2:
            return []  # nothing to compare with
        stopped, level = self._stopped(event.step - last, values)
        down = set(stopped) | self._all_zero(values)
        layers = list(values)
        newly = [layers[k] for k in self._check.newly(layers, np.array([layer in down for layer in layers]))]
        self.faulty = (self.faulty - values.keys()) | down
        new = sorted((layer for layer in newly if layer not in reported), key=values.__getitem__)
        if not new:
            return []
        first = new[0]
        before = f", down from about {number(level[first])}," if first in level else ""
        name = statistic.replace("_", " ")
        what = f"its {name} is {number(values[first])}{before} while those of other layers are normal"
        evidence = {"value": values[first], "others": float(np.median(list(values.values())))}
        if first in level:
            evidence["level"] = level[first]
        return [alert_of_layers(self._name, event, last, new, len(values), what, evidence)]

    def _stopped(self, gap: int, values: Mapping[str, float]) -> tuple[list[str], dict[str, float]]:
        """Return the layers that fell to nearly 0 relative to the others, and the level of each layer."""
        layers, logs = logarithms(values)
        if not layers:
            return [], {}
        columns = self.history.columns(layers)
        baseline = self.history.baseline(columns)
        falls = np.where(baseline.ready, baseline.low - logs, 0.0)
        falls = falls - _of_others(falls, baseline.ready)
        faulty = self._check.faulty(gap, falls, baseline)
        known = np.array([self._seen.get(layer, 0) >= MIN_NOISE_VALUES for layer in layers]) & baseline.ready & ~faulty
        self._deepest = max(self._deepest, float((-np.expm1(-falls) / baseline.noise)[known].max(initial=0.0)))
        self._check.learn(columns, layers, logs, faulty)
        for layer in layers:
            self._seen[layer] = self._seen.get(layer, 0) + 1
        usual = {layers[k]: math.exp(baseline.level[k]) for k in np.flatnonzero(baseline.ready)}
        return [layers[k] for k in np.flatnonzero(faulty)], usual

    def _all_zero(self, values: Mapping[str, float]) -> set[str]:
        """Return the layers that became exactly 0 while most others are not."""
        zero = {layer for layer, value in values.items() if value == 0}
        alive = {layer for layer in values if self._seen.get(layer, 0) >= MIN_LAYER_VALUES}
        for layer in self._zeros.keys() - zero:
            if layer in values and self._zeros.pop(layer) >= self._min_duration:
                self._n_transients += 1
                self._min_duration *= 2 if self._n_transients >= MAX_TRANSIENTS else 1
        if 2 * len(zero & alive) > len(alive):
            return set()
        for layer in zero & alive:
            self._zeros[layer] = self._zeros.get(layer, 0) + 1
        needed = max(self._min_duration, 2 if self._deepest > MAX_NORMAL_FALL else 1)
        return {layer for layer in zero & alive if self._zeros[layer] >= needed}


def _of_others(falls: Vector, ready: NDArray[np.bool_]) -> Vector:
    """Return the median fall of the other layers; a falling learning rate lowers all of them."""
    n = int(ready.sum())
    if n < 2:
        return np.zeros(len(falls))
    if n == 2:
        return np.where(ready, falls[ready].sum() - falls, 0.0)
    return np.full(len(falls), float(np.median(falls[ready])))


MAX_LEVELS = 64  # past levels in memory


class SlowGrowth:
    """Detects layers whose norm grows exponentially, but too slowly for a jump at any one measurement."""

    def __init__(self) -> None:
        self._history = LayerHistory(MIN_GROWTH_NOISE)
        self._levels: list[tuple[int, Vector, Vector]] = []
        self._n_measurements = 0
        self._latches: dict[str, Latch] = {}

    def measured(self, event: Measured, last: int, alerted: Mapping[str, int]) -> list[Alert]:
        """Check a measurement; `alerted` has the step of each layer's last alert by `Outliers`."""
        layers, logs = logarithms(values := of_layers(event, "training", "weight_norm"))
        if not layers:
            return []
        columns = self._history.columns(layers)
        self._history.add(columns, logs)
        self._n_measurements += 1
        if self._n_measurements % LEVEL_EVERY:
            return []
        baseline = self._history.baseline(columns)
        whole = np.full(int(columns.max()) + 1, np.nan)
        whole[columns] = baseline.level
        enough = self._n_measurements >= MIN_GROWTH_MEASUREMENTS
        grown = self._grown(event.step, whole) if enough else np.zeros(len(whole))
        grown[columns] *= grown[columns] > MIN_GROWTH_UNITS * baseline.noise
        self._store(event.step, whole)
        newly = []
        for layer, column in zip(layers, columns.tolist(), strict=True):
            latch = self._latches.setdefault(layer, Latch(LEVEL_EVERY))
            if not grown[column]:
                latch.normal()
            elif latch.faulty() and alerted.get(layer, 0) <= event.step / 2:
                newly.append((float(grown[column]), layer))
        if not newly:
            return []
        newly.sort(reverse=True)
        growth, first = newly[0]
        what = (
            f"its weight norm is {number(values[first])}, {factor(math.exp(growth))} times what it was"
            f" by step {event.step // 2:,}, and still growing as fast,"
        )
        evidence = {"value": values[first], "level": values[first] / math.exp(growth), "limit": MIN_GROWTH}
        names = [name for _, name in newly]
        return [alert_of_layers("norm running away", event, last, names, len(layers), what, evidence)]

    def _grown(self, step: int, levels: Vector) -> Vector:
        """Return the growth of each layer over the second half of the run if it is excessive, else 0."""
        quarter = [(low, high) for end, low, high in self._levels if step / 4 < end <= step / 2]
        before = [high for end, _, high in self._levels if end <= step / 2]
        if len(quarter) < 2:
            return np.zeros(len(levels))
        n = len(levels)
        lowest = np.fmin.reduce([_fitted(low, n) for low, _ in quarter])
        highest = np.fmax.reduce([_fitted(high, n) for _, high in quarter])
        growth = levels - np.fmax.reduce([_fitted(high, n) for high in before])
        enough = (growth > math.log(MIN_GROWTH)) & (growth > MIN_ACCELERATION * (highest - lowest))
        return np.where(enough, growth, 0.0)

    def _store(self, step: int, levels: Vector) -> None:
        self._levels.append((step, levels, levels))
        if len(self._levels) == MAX_LEVELS:
            merged = []
            for (_, low, high), (end, next_low, next_high) in zip(self._levels[::2], self._levels[1::2], strict=True):
                n = len(next_low)
                merged.append((end, np.fmin(_fitted(low, n), next_low), np.fmax(_fitted(high, n), next_high)))
            self._levels = merged


def _fitted(levels: Vector, n: int) -> Vector:
    """Return levels for n layers, NaN for layers added later."""
    found = np.full(n, np.nan)
    found[: min(n, len(levels))] = levels[:n]
    return found
