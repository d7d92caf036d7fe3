"""Selects the values of an event for trackers, under names that every tracker accepts."""

import re

from toposcope.monitor.events import Event, Forecasted, Measured
from toposcope.probes.feature import NETWORK

ALERTS = "toposcope/alerts"
"""Name under which trackers get the number of alerts so far."""
_NOT_ALLOWED = re.compile(r"[^\w.-]+", re.ASCII)


def tracked_values(event: Event) -> dict[str, float]:
    """Return the values of an event for a tracker, by name; none for values that the loop logged.

    Of a measurement, only the rows of the network are sent: hundreds of layers would flood a tracker, and are in the
    study.

    Examples
    --------
    >>> tracked_values(Measured(100, {("network", "rips"): {"total": 1.5}, ("layers.0", "rips"): {"total": 2.0}}))
    {'toposcope/network/rips/total': 1.5}
    """
    match event:
        case Measured(rows=rows):
            return {
                f"toposcope/{NETWORK}/{_part(probe)}/{_part(statistic)}": float(value)
                for (layer, probe), statistics in rows.items()
                if layer == NETWORK
                for statistic, value in statistics.items()
            }
        case Forecasted(loss=loss, low=low, high=high):
            return {
                "toposcope/forecast/final_loss": loss,
                "toposcope/forecast/low": low,
                "toposcope/forecast/high": high,
            }
        case _:
            return {}


def _part(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name)
