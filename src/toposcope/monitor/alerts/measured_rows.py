"""Reads statistics by layer from a measurement, and combines several layers into one alert."""

from collections.abc import Mapping, Sequence

import numpy as np

from toposcope.monitor.alerts.wording import layers_named
from toposcope.monitor.events import Alert, Measured
from toposcope.typing import Vector

NETWORK = "network"
"""Name of the row for all layers together."""


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
    """Return one alert for one or several layers.

    Parameters
    ----------
    kind : str
    event : Measured
        Measurement in which the fault was noticed.
    last : int
        Step of the previous measurement.
    layers : sequence of str
        Affected layers, the worst first.
    n_layers : int
        Number of layers checked.
    what : str
        What happened to the worst layer; the step is appended.
    evidence : mapping of str to float
        Numbers of the worst layer.
    """
    which = f" Affected: {layers_named(layers, n_layers)}." if len(layers) > 1 else ""
    before = f" (last measured at step {last:,})" if last else ""
    message = f"{layers[0]}: {what} at step {event.step:,}{before}.{which}"
    numbers = {**evidence, "layers": float(len(layers))}
    return Alert(kind, event.step, min(last + 1, event.step), layers[0], message, numbers)
