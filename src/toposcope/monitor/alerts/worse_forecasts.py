"""Detects forecasts of the final loss that are worse than the intervals of earlier ones allow."""

from collections import deque
from statistics import median

from toposcope.monitor.alerts.wording import number
from toposcope.monitor.events import Alert, Forecasted

MIN_HALF_WIDTHS = 3.0
"""Least rise of a forecast, in upper half-widths of the earlier intervals."""
MAX_EARLIER = 64


class WorseForecasts:
    """Detects a forecast whose interval lies above those of the earlier forecasts."""

    def __init__(self) -> None:
        self._earlier: deque[Forecasted] = deque(maxlen=MAX_EARLIER)

    def add(self, event: Forecasted) -> list[Alert]:
        """Check a forecast; after an alert, it becomes the reference for later ones."""
        earlier = list(self._earlier)
        self._earlier.append(event)
        if not earlier:
            return []
        loss, high = median(e.loss for e in earlier), median(e.high for e in earlier)
        limit = loss + MIN_HALF_WIDTHS * (high - loss)
        if not (event.loss > limit and event.low > high):
            return []
        self._earlier.clear()
        self._earlier.append(event)
        last = earlier[-1]
        message = (
            f"The forecast of the final loss rose to {number(event.loss)} ({number(event.low)} to {number(event.high)})"
            f" at step {event.step:,}; until step {last.step:,} it was about {number(loss)}, at most {number(high)}."
        )
        evidence = {"value": event.loss, "level": loss, "high": high, "limit": limit}
        return [Alert("forecast worse", event.step, min(last.step + 1, event.step), "", message, evidence)]
