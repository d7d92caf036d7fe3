"""Detects learning rates that jump as no schedule does.

Schedules warm up, decay smoothly or in steps, and return to earlier peaks at restarts. A jump is a rise far above all
earlier rates, or a fall to a small fraction, within an interval that is short relative to the run so far, and far
faster than any earlier change.
"""

import math

from toposcope.monitor.alerts.latch import Latch
from toposcope.monitor.alerts.wording import factor, number
from toposcope.monitor.events import Alert

MIN_VALUES = 10
"""Values before any is judged."""
MIN_RISE = 3.2
"""Factor over the highest earlier rate; constant warm-ups end with a factor of 3."""
MIN_FALL = 20.0
"""Factor below the previous rate; step schedules divide by 10 at most."""
MIN_SPEED_RATIO = 10.0
"""Change per step relative to the fastest earlier change in the same direction."""
MIN_SHARE = 0.1
"""Least fall as a share of the highest rate, so that the end of a decay is not a jump."""
MAX_INTERVAL = 0.05
"""Longest interval between two values as a share of the steps so far; a longer one may hide any schedule."""
RECOVERY = 8
"""Normal values after the first alert before another."""


class RateJumps:
    """Detects jumps of one learning rate.

    Parameters
    ----------
    name : str
        Name of the logged value.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._latch = Latch(RECOVERY)
        self._n_values = 0
        self._step = 0
        self._rate = math.nan
        self._highest = 0.0
        self._fastest = {True: 0.0, False: 0.0}

    def add(self, step: int, rate: float) -> Alert | None:
        """Check the next finite rate; return an alert if it jumps."""
        last_step, last = self._step, self._rate
        gap = max(1, step - last_step)
        speed = abs(rate - last) / gap
        rises = rate > last
        kind = self._jump(rate, last, gap, step, speed) if self._n_values >= MIN_VALUES else ""
        limit = MIN_SPEED_RATIO * self._fastest[rises]
        highest = self._highest
        self._step, self._rate, self._n_values = step, rate, self._n_values + 1
        self._highest = max(self._highest, rate)
        if not kind:
            if last == last:
                self._fastest[rises] = max(self._fastest[rises], speed)
            self._latch.normal()
            return None
        if not self._latch.faulty():
            return None
        change = f", {factor(rate / highest)} times its highest so far" if kind == "rose" else _fall(last, rate)
        message = (
            f"{self._name}: the learning rate {kind} from {number(last)} at step {last_step:,} to {number(rate)}"
            f" at step {step:,}{change}; no schedule jumps like this, so check the scheduler."
        )
        evidence = {"value": rate, "before": last, "highest": highest, "change_per_step": speed, "limit": limit}
        return Alert("learning rate jump", step, min(last_step + 1, step), self._name, message, evidence)

    def _jump(self, rate: float, last: float, gap: int, step: int, speed: float) -> str:
        if gap > MAX_INTERVAL * step:
            return ""
        if rate > MIN_RISE * self._highest and speed > MIN_SPEED_RATIO * self._fastest[True]:
            return "rose"
        fallen = last - rate > MIN_SHARE * self._highest and rate * MIN_FALL < last
        return "fell" if fallen and speed > MIN_SPEED_RATIO * self._fastest[False] else ""


def _fall(last: float, rate: float) -> str:
    return f", by a factor of {factor(last / rate)}" if rate > 0 else ""
