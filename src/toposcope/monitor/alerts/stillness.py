"""Layers that die or freeze: gradient or update at or near 0 while those of other layers are not, or dead units."""

import math
from collections.abc import Mapping

import numpy as np

from toposcope.monitor.alerts.layer_check import LayerCheck
from toposcope.monitor.alerts.measured_rows import alert_of_layers, logarithms, of_layers
from toposcope.monitor.alerts.panel import MIN_VALUES, Panel
from toposcope.monitor.alerts.wording import number
from toposcope.monitor.events import Alert, Measured
from toposcope.typing import Vector

MIN_NOISE = 0.02
"""Least unit of noise of gradients and updates, as a share of the level."""
MAX_PASSED = 2
"""Zeros that passed, after which the next have to last twice as long, and so on: they come and go in this run."""
MIN_FALL = 30.0
"""Factor by which a gradient or an update falls below that of other layers before it is nearly 0."""
MAX_USUAL_UNITS = 6.0
"""Units of noise; where deeper falls have been seen and passed, a 0 may be one, and counts only if it lasts."""
MIN_KNOWN_NOISE = 16
"""Values of a layer from which its noise is known well enough for that."""
TAIL_INDEX = 1.0
"""Of values near 0 that have a density there."""
MIN_DEAD_NOISE = 0.005
MIN_DEAD_RISE = 0.1
"""Least rise of the share of dead units."""
DEAD_TAIL_INDEX = 3.0
"""Of that share, which is bounded."""


class Stillness:
    """Layers that stand still; a layer has one alert, by whichever of the three shows it first."""

    def __init__(self) -> None:
        self._gradients = _Stops("dead layer", ("gradient_norm",))
        self._updates = _Stops("frozen layer", ("update_ratio", "update_norm"))
        self._dead_units = _DeadUnits()

    def measured(self, event: Measured, last: int) -> list[Alert]:
        """Take a measurement; `last` is the step of the one before."""
        checks: tuple[_Stops | _DeadUnits, ...] = (self._gradients, self._updates, self._dead_units)
        alerts = []
        for check in checks:
            reported = set[str]().union(*(other.down for other in checks if other is not check))
            alert = check.measured(event, last, reported)
            if alert is not None:
                alerts.append(alert)
        return alerts


class _Stops:
    """Layers whose gradient, or update, stops while those of others go on."""

    def __init__(self, name: str, statistics: tuple[str, ...]) -> None:
        self._name, self._statistics = name, statistics
        self._check = LayerCheck(name, math.log(MIN_FALL), TAIL_INDEX)
        self._panel = Panel(MIN_NOISE)
        self._seen: dict[str, int] = {}
        self._zeros: dict[str, int] = {}
        self._patience, self._n_passed = 1, 0
        self._deepest = 0.0
        self.down: set[str] = set()

    def measured(self, event: Measured, last: int, reported: set[str]) -> Alert | None:
        """Take a measurement; layers that another check reported are silent."""
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
        usual = f", usually about {number(level[first])}," if first in level else ""
        what = f"its {self._statistic_of(event)} is {number(values[first])}{usual} while others go on"
        evidence = {"value": values[first], "others": float(np.median(list(values.values())))}
        if first in level:
            evidence["level"] = level[first]
        return alert_of_layers(self._name, event, last, new, len(values), what, evidence)

    def _statistic_of(self, event: Measured) -> str:
        return next(s for s in self._statistics if of_layers(event, "training", s)).replace("_", " ")

    def _stopped(self, gap: int, values: Mapping[str, float]) -> tuple[list[str], dict[str, float]]:
        """Return the layers that fell to nearly 0 beside the others, and the level of each."""
        layers, logs = logarithms(values)
        if not layers:
            return [], {}
        columns = self._panel.columns(layers)
        standing = self._panel.standing(columns)
        falls = np.where(standing.ready, standing.low - logs, 0.0)
        falls = falls - _of_others(falls, standing.ready)
        faulty = self._check.faulty(gap, falls, standing.noise, standing.ready)
        known = np.array([self._seen.get(layer, 0) >= MIN_KNOWN_NOISE for layer in layers]) & standing.ready & ~faulty
        self._deepest = max(self._deepest, float((-np.expm1(-falls) / standing.noise)[known].max(initial=0.0)))
        learnt = np.array([not bad or self._check.lasting(n) for n, bad in zip(layers, faulty, strict=True)], np.bool_)
        self._panel.add(columns[learnt], logs[learnt])
        for layer in layers:
            self._seen[layer] = self._seen.get(layer, 0) + 1
        usual = {layers[k]: math.exp(standing.level[k]) for k in np.flatnonzero(standing.ready)}
        return [layers[k] for k in np.flatnonzero(faulty)], usual

    def _all_zero(self, values: Mapping[str, float]) -> set[str]:
        """Return the layers that are exactly 0 and were not, where most others are not."""
        zero = {layer for layer, value in values.items() if value == 0}
        alive = {layer for layer in values if self._seen.get(layer, 0) >= MIN_VALUES}
        for layer in self._zeros.keys() - zero:
            if layer in values and self._zeros.pop(layer) >= self._patience:
                self._n_passed += 1
                self._patience *= 2 if self._n_passed >= MAX_PASSED else 1
        if 2 * len(zero & alive) > len(alive):
            return set()
        for layer in zero & alive:
            self._zeros[layer] = self._zeros.get(layer, 0) + 1
        needed = max(self._patience, 2 if self._deepest > MAX_USUAL_UNITS else 1)
        return {layer for layer in zero & alive if self._zeros[layer] >= needed}


def _of_others(falls: Vector, ready: np.typing.NDArray[np.bool_]) -> Vector:
    """Return how far the other layers fell, by their median: a falling learning rate moves all of them."""
    n = int(ready.sum())
    if n < 2:
        return np.zeros(len(falls))
    if n == 2:
        return np.where(ready, falls[ready].sum() - falls, 0.0)
    return np.full(len(falls), float(np.median(falls[ready])))


class _DeadUnits:
    """Layers whose share of dead units jumps."""

    def __init__(self) -> None:
        self._check = LayerCheck("dead units", MIN_DEAD_RISE, DEAD_TAIL_INDEX, in_logs=False)
        self._panel = Panel(MIN_DEAD_NOISE)
        self.down: set[str] = set()

    def measured(self, event: Measured, last: int, reported: set[str]) -> Alert | None:
        """Take a measurement; layers that another check reported are silent."""
        shares = of_layers(event, "training", "dead_units")
        layers = [layer for layer, share in shares.items() if math.isfinite(share)]
        if not layers:
            return None
        values = np.array([shares[layer] for layer in layers])
        columns = self._panel.columns(layers)
        standing = self._panel.standing(columns)
        rises = values - standing.high
        faulty = self._check.faulty(event.step - last, rises, standing.noise, standing.ready)
        newly = [k for k in self._check.newly(layers, faulty) if layers[k] not in reported]
        learnt = np.array([not bad or self._check.lasting(n) for n, bad in zip(layers, faulty, strict=True)], np.bool_)
        self._panel.add(columns[learnt], values[learnt])
        self.down = (self.down - set(layers)) | {layers[k] for k in np.flatnonzero(faulty)}
        if not newly:
            return None
        newly.sort(key=lambda k: -rises[k])
        value, level = float(values[newly[0]]), float(standing.high[newly[0]])
        what = f"{value:.0%} of its units have no gradient, usually about {level:.0%},"
        evidence = {
            "value": value,
            "level": level,
            "noise": float(standing.noise[newly[0]]),
            "limit": self._check.limit,
        }
        return alert_of_layers("dead units", event, last, [layers[k] for k in newly], len(layers), what, evidence)
