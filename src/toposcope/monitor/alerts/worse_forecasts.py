"""Forecasts of the final loss that get worse by more than the intervals of earlier ones allow."""

from collections import deque
from statistics import median

from toposcope.monitor.alerts.wording import number
from toposcope.monitor.events import Alert, Forecasted

MIN_HALF_WIDTHS = 3.0
"""Upper half-widths of the earlier intervals, by which a forecast is worse."""
MAX_KEPT = 64


class WorseForecasts:
    """Whether a forecast lies above those before, interval and all."""

    def __init__(self) -> None:
        self._earlier: deque[Forecasted] = deque(maxlen=MAX_KEPT)

    def add(self, event: Forecasted) -> list[Alert]:
        """Take a forecast; after an alert it is the one that others are compared with."""
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
            f" at step {event.step:,}; up to step {last.step:,} it was about {number(loss)}, at most {number(high)}."
        )
        evidence = {"value": event.loss, "level": loss, "high": high, "limit": limit}
        return [Alert("forecast worse", event.step, min(last.step + 1, event.step), "", message, evidence)]
