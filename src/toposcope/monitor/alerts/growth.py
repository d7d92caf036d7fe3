"""Detects weight norms that grow slowly without bound: exponential growth over the second half of the run."""

import math
from collections.abc import Mapping

import numpy as np

from toposcope.monitor.alerts.latch import Latch
from toposcope.monitor.alerts.layer_history import LayerHistory
from toposcope.monitor.alerts.measured_rows import alert_of_layers, logarithms, of_layers
from toposcope.monitor.alerts.wording import factor, number
from toposcope.monitor.events import Alert, Measured
from toposcope.typing import Vector

MIN_GROWTH = 5.0
"""Growth over the highest level of the first half; a sum of updates grows by 4 under a linear warm-up."""
MIN_ACCELERATION = 1.5
"""That growth relative to the range over the second quarter of the run, both in logarithms."""
MIN_NOISE = 0.001
"""Floor of the noise estimate, relative to the level."""
MIN_UNITS = 8.0
"""That growth in units of the noise."""
MIN_MEASUREMENTS = 32
EVERY = 4
"""Measurements from one stored level to the next."""
MAX_LEVELS = 64


class SlowGrowth:
    """Detects layers whose norm grows exponentially, but too slowly for a jump at any one measurement."""

    def __init__(self) -> None:
        self._history = LayerHistory(MIN_NOISE)
        self._levels: list[tuple[int, Vector, Vector]] = []
        self._n_measurements = 0
        self._latches: dict[str, Latch] = {}

    def measured(self, event: Measured, last: int, alerted: Mapping[str, int]) -> list[Alert]:
        """Check a measurement; `alerted` has the step of each layer's last alert by `Departures`."""
        values = of_layers(event, "training", "weight_norm")
        layers, logs = logarithms(values)
        if not layers:
            return []
        columns = self._history.columns(layers)
        self._history.add(columns, logs)
        self._n_measurements += 1
        if self._n_measurements % EVERY:
            return []
        baseline = self._history.baseline(columns)
        whole = np.full(int(columns.max()) + 1, np.nan)
        whole[columns] = baseline.level
        grown = self._grown(event.step, whole) if self._n_measurements >= MIN_MEASUREMENTS else np.zeros(len(whole))
        grown[columns] *= grown[columns] > MIN_UNITS * baseline.noise
        self._store(event.step, whole)
        newly = []
        for layer, column in zip(layers, columns.tolist(), strict=True):
            latch = self._latches.setdefault(layer, Latch(EVERY))
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
        names = [layer for _, layer in newly]
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
