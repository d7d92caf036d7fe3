"""Learning rates that jump as no schedule does.

Schedules rise in warm-ups, fall by decays and by steps, and return to former peaks at restarts. A jump is a rise far
above all rates before, or a fall to a small part, in one interval that is short beside the run so far and by far more
than the rate changed in any interval before.
"""

import math

from toposcope.monitor.alerts.latch import Latch
from toposcope.monitor.alerts.wording import factor, number
from toposcope.monitor.events import Alert

MIN_VALUES = 10
"""Logged before any is judged."""
MIN_RISE = 3.2
"""Factor over the highest rate before; constant warm-ups end with one of 3."""
MIN_FALL = 20.0
"""Factor below the rate before; steps of schedules divide by 10 at most."""
MIN_ABRUPT = 10.0
"""Times the fastest change before, a step, in the same direction."""
MIN_SHARE = 0.1
"""Share of the highest rate by which a fall changes it: the end of a decay is none."""
MAX_INTERVAL = 0.05
"""Length of the interval, as a share of the steps so far: within a longer one a schedule may have done anything."""
RECOVERY = 8


class RateJumps:
    """Jumps of one learning rate.

    Parameters
    ----------
    name : str
        Of its column.
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
        """Take the next finite rate; return an alert where it jumps."""
        last_step, last = self._step, self._rate
        gap = max(1, step - last_step)
        speed = abs(rate - last) / gap
        rises = rate > last
        kind = self._jump(rate, last, gap, step, speed) if self._n_values >= MIN_VALUES else ""
        limit = MIN_ABRUPT * self._fastest[rises]
        highest = self._highest
        self._step, self._rate, self._n_values = step, rate, self._n_values + 1
        self._highest = max(self._highest, rate)
        if not kind:
            if last == last:
                self._fastest[rises] = max(self._fastest[rises], speed)
            self._latch.usual()
            return None
        if not self._latch.faulty():
            return None
        beside = f"{factor(rate / highest)} times its highest so far" if kind == "rose" else _fraction(last, rate)
        message = (
            f"{self._name}: the learning rate {kind} from {number(last)} at step {last_step:,} to {number(rate)}"
            f" at step {step:,}, {beside}, as no schedule does."
        )
        evidence = {"value": rate, "before": last, "highest": highest, "change_per_step": speed, "limit": limit}
        return Alert("learning rate jump", step, min(last_step + 1, step), self._name, message, evidence)

    def _jump(self, rate: float, last: float, gap: int, step: int, speed: float) -> str:
        if gap > MAX_INTERVAL * step:
            return ""
        if rate > MIN_RISE * self._highest and speed > MIN_ABRUPT * self._fastest[True]:
            return "rose"
        fallen = last - rate > MIN_SHARE * self._highest and rate * MIN_FALL < last
        return "fell" if fallen and speed > MIN_ABRUPT * self._fastest[False] else ""


def _fraction(last: float, rate: float) -> str:
    return f"{factor(last / rate)} times less" if rate > 0 else "nothing is left of it"
