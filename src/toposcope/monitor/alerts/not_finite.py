"""Detects NaN and infinite values in the log, the gradients and the weights."""

import math
from collections.abc import Mapping, Sequence

from toposcope.monitor.alerts.latch import Latch
from toposcope.monitor.alerts.measured_rows import NETWORK
from toposcope.monitor.alerts.wording import layers_named
from toposcope.monitor.events import Alert, Logged, Measured

KIND = "non-finite"
RECOVERY = 8
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
            elif self._logged.setdefault(name, Latch(RECOVERY)).faulty():
                newly.append(name)
        if not newly:
            return []
        values = [event.values[name] for name in newly]
        which = " and ".join(f"{name} is {value}" for name, value in zip(newly, values, strict=True))
        message = f"{which} at step {event.step:,}."
        return [Alert(KIND, event.step, event.step, newly[0], message, {"value": values[0]})]

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
        return [] if raised is None else [_alert(event, last, *raised, max(1, len(training.keys() - {NETWORK})))]


def _counts(rows: Mapping[str, Mapping[str, float]], count: str, norm: str) -> dict[str, float]:
    """Return the number of non-finite values by layer, 1 if only a norm shows them; the network only if alone."""
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
    before = f" (last measured at step {last:,})" if last else ""
    message = (
        f"{where}: {total:,.0f} of the {what} {'are' if total != 1 else 'is'} NaN or infinite at step"
        f" {event.step:,}{before}."
    )
    evidence = {"values": total, "layers": float(len(layers))}
    return Alert(KIND, event.step, min(last + 1, event.step), layers[0], message, evidence)
