"""Values that are NaN or infinite: of the log, of the gradients, of the weights."""

import math
from collections.abc import Mapping, Sequence

from toposcope.monitor.alerts.latch import Latch
from toposcope.monitor.alerts.measured_rows import NETWORK
from toposcope.monitor.alerts.wording import layers_named
from toposcope.monitor.events import Alert, Logged, Measured

KIND = "non-finite"
RECOVERY = 8
"""Finite values after the first alert before the next; doubled each time: mixed precision has infinite gradients."""


class NotFinite:
    """Whether anything is not finite."""

    def __init__(self) -> None:
        self._logged: dict[str, Latch] = {}
        self._weights, self._gradients = Latch(1), Latch(1)

    def logged(self, event: Logged, names: Sequence[str]) -> list[Alert]:
        """Take logged values, those named; several that fail together are one alert."""
        newly = []
        for name in names:
            if math.isfinite(event.values[name]):
                if name in self._logged:
                    self._logged[name].usual()
            elif self._logged.setdefault(name, Latch(RECOVERY)).faulty():
                newly.append(name)
        if not newly:
            return []
        values = [event.values[name] for name in newly]
        which = " and ".join(f"{name} is {value}" for name, value in zip(newly, values, strict=True))
        message = f"{newly[0]}: not finite at step {event.step:,}: {which}."
        return [Alert(KIND, event.step, event.step, newly[0], message, {"value": values[0]})]

    def measured(self, event: Measured, last: int) -> list[Alert]:
        """Take a measurement; weights and gradients that fail together are one alert."""
        training = {layer: row for (layer, probe), row in event.rows.items() if probe == "training"}
        if not training:
            return []
        weights = _counts(training, "nonfinite", "weight_norm")
        gradients = _counts(training, "nonfinite_gradients", "gradient_norm")
        raised = None
        for what, counts, latch in (("weights", weights, self._weights), ("gradients", gradients, self._gradients)):
            if not counts:
                latch.usual()
            elif latch.faulty() and raised is None:
                raised = what, counts
        return [] if raised is None else [_alert(event, last, *raised, len(training))]


def _counts(rows: Mapping[str, Mapping[str, float]], count: str, norm: str) -> dict[str, float]:
    """Return how many values are not finite by layer; 1 where only a norm shows it. The network only by itself."""
    found = {
        layer: max(row.get(count, 0.0), 0.0) or 1.0
        for layer, row in rows.items()
        if row.get(count, 0.0) != 0 or not math.isfinite(row.get(norm, 0.0))
    }
    return found if len(found) <= 1 else {layer: n for layer, n in found.items() if layer != NETWORK}


def _alert(event: Measured, last: int, what: str, counts: Mapping[str, float], n_layers: int) -> Alert:
    layers = list(counts)
    total = sum(counts.values())
    where = layers_named(layers, n_layers)
    before = f", not yet at step {last:,}" if last else ""
    message = (
        f"{where}: {total:,.0f} of the {what} {'are' if total != 1 else 'is'} NaN or infinite at step"
        f" {event.step:,}{before}."
    )
    evidence = {"values": total, "layers": float(len(layers))}
    return Alert(KIND, event.step, min(last + 1, event.step), layers[0], message, evidence)
