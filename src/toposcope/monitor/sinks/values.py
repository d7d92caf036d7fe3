"""What of an event goes to trackers, under names that every tracker accepts."""

import re

from toposcope.monitor.events import Event, Forecasted, Measured
from toposcope.probes.feature import NETWORK

ALERTS = "toposcope/alerts"
"""Name of the number of alerts so far."""
_NOT_ALLOWED = re.compile(r"[^\w.-]+", re.ASCII)


def tracked_values(event: Event) -> dict[str, float]:
    """Return the values of an event that go to a tracker, by name; none for what the loop logged itself.

    Of a measurement these are the rows of the network: hundreds of layers would flood a tracker, and are in the study.

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
