"""What was measured, by statistic, and the alerts of several layers at once."""

from collections.abc import Mapping, Sequence

import numpy as np

from toposcope.monitor.alerts.wording import layers_named
from toposcope.monitor.events import Alert, Measured
from toposcope.typing import Vector

NETWORK = "network"
"""Place of what was measured of all layers together."""


def of_layers(event: Measured, probe: str, statistic: str) -> dict[str, float]:
    """Return a statistic by layer, NaN left out; that of the network only where no layer has it."""
    found = {
        layer: row[statistic]
        for (layer, name), row in event.rows.items()
        if name == probe and statistic in row and row[statistic] == row[statistic]
    }
    return found if len(found) <= 1 else {layer: value for layer, value in found.items() if layer != NETWORK}


def logarithms(values: Mapping[str, float]) -> tuple[list[str], Vector]:
    """Return the layers of which a statistic is positive and finite, and its logarithms."""
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
    """Return one alert of one or several layers, the worst first.

    Parameters
    ----------
    kind : str
    event : Measured
        In which it was noticed.
    last : int
        Step of the measurement before, at which all was well.
    layers : sequence of str
    n_layers : int
        Of which these are some.
    what : str
        What happened to the first of them, to be continued by since when.
    evidence : mapping of str to float
        Of the first.
    """
    which = f" In all: {layers_named(layers, n_layers)}." if len(layers) > 1 else ""
    before = f", not yet at step {last:,}" if last else ""
    message = f"{layers[0]}: {what} at step {event.step:,}{before}.{which}"
    numbers = {**evidence, "layers": float(len(layers))}
    return Alert(kind, event.step, min(last + 1, event.step), layers[0], message, numbers)
