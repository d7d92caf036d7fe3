"""Detects layers that stop learning: gradient or update near 0 while those of other layers are not, or dead units."""

import math
from collections.abc import Mapping

import numpy as np

from toposcope.monitor.alerts.layer_check import LayerCheck
from toposcope.monitor.alerts.layer_history import MIN_VALUES, LayerHistory
from toposcope.monitor.alerts.measured_rows import alert_of_layers, logarithms, of_layers
from toposcope.monitor.alerts.wording import number
from toposcope.monitor.events import Alert, Measured
from toposcope.typing import Vector

MIN_NOISE = 0.02
"""Floor of the noise estimate of gradients and updates, relative to the level."""
MAX_TRANSIENTS = 2
"""Transient zeros after which zeros must last twice as long to raise an alert, and so on."""
MIN_FALL = 30.0
"""Factor by which a gradient or an update must fall, relative to other layers."""
MAX_NORMAL_FALL = 6.0
"""Deepest transient fall, in units of noise, with which a single 0 is an alert; after deeper ones, it must last."""
MIN_NOISE_VALUES = 16
"""Values from which the noise of a layer is known well enough for that."""
TAIL_INDEX = 1.0
"""Index of the tail of falls, for values with a density near 0."""
MIN_DEAD_NOISE = 0.005
"""Floor of the noise estimate of the share of dead units."""
MIN_DEAD_RISE = 0.1
"""Least rise of the share of dead units that raises an alert."""
DEAD_TAIL_INDEX = 3.0
"""Index of the tail of rises of that share, which is bounded."""


class Stillness:
    """Detects layers that stop learning; a layer raises one alert, by the first of three checks that sees it."""

    def __init__(self) -> None:
        self.checks: tuple[_StopCheck | _DeadUnitCheck, ...] = (
            _StopCheck("dead layer", ("gradient_norm",)),
            _StopCheck("frozen layer", ("update_ratio", "update_norm")),
            _DeadUnitCheck(),
        )

    def measured(self, event: Measured, last: int) -> list[Alert]:
        """Check a measurement; `last` is the step of the previous one."""
        alerts = []
        for check in self.checks:
            reported = set[str]().union(*(other.down for other in self.checks if other is not check))
            alert = check.measured(event, last, reported)
            if alert is not None:
                alerts.append(alert)
        return alerts


class _StopCheck:
    """Detects layers whose gradient, or update, vanishes while those of other layers do not."""

    def __init__(self, name: str, statistics: tuple[str, ...]) -> None:
        self._name, self._statistics = name, statistics
        self._check = LayerCheck(name, math.log(MIN_FALL), TAIL_INDEX)
        self.history = LayerHistory(MIN_NOISE)
        self._seen: dict[str, int] = {}
        self._zeros: dict[str, int] = {}
        self._min_duration, self._n_transients = 1, 0
        self._deepest = 0.0
        self.down: set[str] = set()

    def measured(self, event: Measured, last: int, reported: set[str]) -> Alert | None:
        """Check a measurement; layers that another check reported raise no alert."""
        values = next((v for s in self._statistics if (v := of_layers(event, "training", s))), {})
        if len(values) < 2:
            return None  # nothing to compare with
        stopped, level = self._stopped(event.step - last, values)
        zero = self._all_zero(values)
        down = set(stopped) | zero
        layers = list(values)
        newly = [layers[k] for k in self._check.newly(layers, np.array([layer in down for layer in layers]))]
        self.down = (self.down - values.keys()) | down
        new = [layer for layer in newly if layer not in reported]
        if not new:
            return None
        new.sort(key=lambda layer: values[layer])
        first = new[0]
        before = f", down from about {number(level[first])}," if first in level else ""
        what = (
            f"its {self._statistic_of(event)} is {number(values[first])}{before} while those of other layers are normal"
        )
        evidence = {"value": values[first], "others": float(np.median(list(values.values())))}
        if first in level:
            evidence["level"] = level[first]
        return alert_of_layers(self._name, event, last, new, len(values), what, evidence)

    def _statistic_of(self, event: Measured) -> str:
        return next(s for s in self._statistics if of_layers(event, "training", s)).replace("_", " ")

    def _stopped(self, gap: int, values: Mapping[str, float]) -> tuple[list[str], dict[str, float]]:
        """Return the layers that fell to nearly 0 relative to the others, and the level of each layer."""
        layers, logs = logarithms(values)
        if not layers:
            return [], {}
        columns = self.history.columns(layers)
        baseline = self.history.baseline(columns)
        falls = np.where(baseline.ready, baseline.low - logs, 0.0)
        falls = falls - _of_others(falls, baseline.ready)
        faulty = self._check.faulty(gap, falls, baseline.noise, baseline.ready)
        known = np.array([self._seen.get(layer, 0) >= MIN_NOISE_VALUES for layer in layers]) & baseline.ready & ~faulty
        self._deepest = max(self._deepest, float((-np.expm1(-falls) / baseline.noise)[known].max(initial=0.0)))
        learnt = np.array([not bad or self._check.lasting(n) for n, bad in zip(layers, faulty, strict=True)], np.bool_)
        self.history.add(columns[learnt], logs[learnt])
        for layer in layers:
            self._seen[layer] = self._seen.get(layer, 0) + 1
        usual = {layers[k]: math.exp(baseline.level[k]) for k in np.flatnonzero(baseline.ready)}
        return [layers[k] for k in np.flatnonzero(faulty)], usual

    def _all_zero(self, values: Mapping[str, float]) -> set[str]:
        """Return the layers that became exactly 0 while most others are not."""
        zero = {layer for layer, value in values.items() if value == 0}
        alive = {layer for layer in values if self._seen.get(layer, 0) >= MIN_VALUES}
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


def _of_others(falls: Vector, ready: np.typing.NDArray[np.bool_]) -> Vector:
    """Return the median fall of the other layers; a falling learning rate lowers all of them."""
    n = int(ready.sum())
    if n < 2:
        return np.zeros(len(falls))
    if n == 2:
        return np.where(ready, falls[ready].sum() - falls, 0.0)
    return np.full(len(falls), float(np.median(falls[ready])))


class _DeadUnitCheck:
    """Detects layers whose share of dead units jumps."""

    def __init__(self) -> None:
        self._check = LayerCheck("dead units", MIN_DEAD_RISE, DEAD_TAIL_INDEX, in_logs=False)
        self.history = LayerHistory(MIN_DEAD_NOISE)
        self.down: set[str] = set()

    def measured(self, event: Measured, last: int, reported: set[str]) -> Alert | None:
        """Check a measurement; layers that another check reported raise no alert."""
        shares = of_layers(event, "training", "dead_units")
        layers = [layer for layer, share in shares.items() if math.isfinite(share)]
        if not layers:
            return None
        values = np.array([shares[layer] for layer in layers])
        columns = self.history.columns(layers)
        baseline = self.history.baseline(columns)
        rises = values - baseline.high
        faulty = self._check.faulty(event.step - last, rises, baseline.noise, baseline.ready)
        newly = [k for k in self._check.newly(layers, faulty) if layers[k] not in reported]
        learnt = np.array([not bad or self._check.lasting(n) for n, bad in zip(layers, faulty, strict=True)], np.bool_)
        self.history.add(columns[learnt], values[learnt])
        self.down = (self.down - set(layers)) | {layers[k] for k in np.flatnonzero(faulty)}
        if not newly:
            return None
        newly.sort(key=lambda k: -rises[k])
        value, level = float(values[newly[0]]), float(baseline.high[newly[0]])
        what = f"{value:.0%} of its units have no gradient, up from about {level:.0%},"
        evidence = {
            "value": value,
            "level": level,
            "noise": float(baseline.noise[newly[0]]),
            "limit": self._check.limit,
        }
        return alert_of_layers("dead units", event, last, [layers[k] for k in newly], len(layers), what, evidence)
