"""The protocol of sinks, which receive the events of a monitor, and what those for trackers share."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from toposcope.monitor.events import Alert, Event, Forecasted, Measured
from toposcope.probes.feature import NETWORK


class Sink(Protocol):
    """Receives the events of a monitor one after another, on a thread of its own.

    If it raises, the monitor prints one line, closes this sink and continues with the others.
    """

    def put(self, event: Event) -> None:
        """Report one event; ignore kinds of events that do not matter here."""

    def close(self) -> None:
        """Finish; no event follows."""


class SinkMaker(Protocol):
    """Opens a sink for a tracker that is in use; a module of `toposcope.monitor.sinks` names it ``SINK``."""

    def __call__(self, directory: Path) -> Sink | None:
        """Return a sink for a run's directory; None if this process does not use the tracker.

        It is called on the training thread first, since trackers know the active run by thread or by context. It must
        inspect `sys.modules` only, and import or start nothing.
        """


class Tracker:
    """A sink for a tracker: a subclass reports the values of a step, and the text of an alert."""

    _n_alerts = 0

    def put(self, event: Event) -> None:
        """Report one event; of an alert, also how many there were."""
        values = tracked_values(event)
        if isinstance(event, Alert):
            self._n_alerts += 1
            values = {"toposcope/alerts": self._n_alerts}
            self.alert(event)
        self.report(event.step, values)

    def alert(self, alert: Alert) -> None:
        """Report the text of an alert."""
        raise NotImplementedError

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Report the values of a step, possibly none."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the run open; whoever started it ends it."""


def tracked_values(event: Event) -> dict[str, float]:
    """Return the values of an event for a tracker, by name; none for values that the loop logged.

    Of a measurement, only the rows of the network are sent: hundreds of layers would flood a tracker, and are in the
    study.
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
            return {f"toposcope/forecast/{name}": v for name, v in (("final_loss", loss), ("low", low), ("high", high))}
        case _:
            return {}


def _part(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)
