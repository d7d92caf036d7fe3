"""A training loss that rises for good, and a learning rate that leaves its schedule slowly: trouble that lasts."""

import math
from collections import deque
from statistics import median

import numpy as np

from toposcope.logs import Run
from toposcope.logs.schedules.departures import MAX_VALLEY, departures
from toposcope.monitor.alerts.logged import PastLevels
from toposcope.monitor.events import Alert, number

# Steps of the loss that last: chosen on ``benchmarks/false_alarms.py``, where nearly all that is left are losses that
# jump at each epoch. Rows of a block, and the least rise in units of the scatter of blocks.
N_NEW, N_PAST, MIN_PAST = 4, 12, 8  # blocks after the step, blocks before it at most, and at least
PAST_STEP_FRACTION = 2  # a step exceeds all levels since this fraction of the rows
MIN_LOSS_STEP, MIN_NEW_SHARE = 0.02, 0.25  # least relative step, and the share of it above all levels before
MIN_DRIFT_ROWS, MAX_DRIFT_ROWS, MIN_DRIFT_AFTER = 30, 512, 4  # rates before any is judged, in memory, after its rise
DRIFT_CHECKS = 25  # times that a log is looked at while its rows double, about


class LossStep:
    """Detects a step of the level of a positive loss that stays, below divergence.

    Medians of blocks of rows are compared, in logarithms. The last `N_NEW` lie above every level of as many since half
    third of the rows, by a multiple of the scatter of the `N_PAST` blocks before, around their trend.
    """

    def __init__(self, name: str, n_rows: int, min_units: float) -> None:
        self._name, self._n_rows, self._min_units = name, n_rows, min_units
        self._block: list[float] = []
        self._blocks = deque[tuple[int, float]](maxlen=N_PAST + N_NEW)
        self._past, self._n, self._step = PastLevels(1), 0, -1
        self.resting = 0
        """Blocks for which a step stays one that was found."""

    def add(self, step: int, loss: float) -> Alert | None:
        """Check the next finite loss; after an alert, the new level is learnt."""
        if loss <= 0:
            return None
        self._step = step if not self._block else self._step
        self._block.append(math.log(loss))
        if len(self._block) < self._n_rows:
            return None
        self._blocks.append((self._step, median(self._block)))
        self._block, self._n, self.resting = [], self._n + 1, max(0, self.resting - 1)
        blocks = list(self._blocks)
        past, new = [b for _, b in blocks[:-N_NEW]], blocks[-N_NEW:]
        if len(past) < N_NEW:
            return None
        # windows that share no block with the new one
        self._past.add(self._n - N_NEW, median(past[-N_NEW:]))
        highest = self._past.highest_since(self._n // PAST_STEP_FRACTION)
        level, rise = median(past), median(b for _, b in new) - highest
        units = rise / max(_scatter(past), 1e-9)
        is_over = len(past) >= MIN_PAST and min(b for _, b in new[-2:]) > highest
        is_new = rise > max(MIN_LOSS_STEP, MIN_NEW_SHARE * (rise + highest - level))
        if self.resting or not (is_over and is_new and units > self._min_units):
            return None
        before, now = math.exp(level), math.exp(median(b for _, b in new))
        since = next(at for at, b in new if b > highest)
        message = (
            f"{self._name}: rose from about {number(before)} to {number(now)} near step {since:,}, and stays there: its"
            f" last {N_NEW * self._n_rows} rows are above every level since half of the run. Have the"
            " data, the labels or the learning rate changed?"
        )
        evidence = {"value": now, "level": before, "units": units, "limit": self._min_units}
        return Alert("loss step", step, since, self._name, message, evidence)


def _scatter(values: list[float]) -> float:
    """Return the standard deviation of values around their line; at least as their differences have it."""
    x, y = np.arange(len(values)) - (len(values) - 1) / 2, np.array(values)
    rest = y - y.mean() - x * (x @ y) / (x @ x)
    return max(float(np.sqrt(rest @ rest / (len(values) - 2))), 1.05 * float(np.median(np.abs(np.diff(y)))))


class RateDrift:
    """Detects a learning rate that leaves its schedule slowly, by the rule for whole logs, now and then."""

    def __init__(self, name: str, last_step: int | None) -> None:
        self._name, self._last_step = name, last_step
        self._rows: list[tuple[int, float]] = []
        self._every = 1  # steps of the log from one row that is remembered to the next
        self._n = self._known = 0
        self._next = MIN_DRIFT_ROWS

    def add(self, step: int, rate: float, *, is_known: bool) -> Alert | None:
        """Check the next finite rate; what lies before a jump that another alert showed is not looked at again."""
        self._n += 1
        self._known = step if is_known else self._known
        if self._n % self._every or (self._rows and step <= self._rows[-1][0]):
            return None
        self._rows.append((step, rate))
        if len(self._rows) > MAX_DRIFT_ROWS:
            self._rows, self._every = self._rows[1::2], 2 * self._every
        if self._n < self._next:
            return None
        self._next = self._n + max(8, self._n // DRIFT_CHECKS)
        steps, rates = np.array([at for at, _ in self._rows]), np.array([value for _, value in self._rows])
        run = Run(self._name, steps, np.ones(len(steps)), rates, last_step=self._last_step)
        settled = self._rows[-min(MIN_DRIFT_AFTER, len(self._rows))][0]
        # a jump may be a stair or a restart, and a rise from the lowest rates the first of a cycle
        lowest = MAX_VALLEY * rates.max()
        found = [
            d for d in departures(run) if self._known < d.step <= settled and d.kind == "rise" and d.expected > lowest
        ]
        # stairs rise as well, and rest between
        is_rising = bool((np.diff(rates[-MIN_DRIFT_AFTER:]) > 0).all())
        if not found or not is_rising:
            return None
        self._known = step
        evidence = {"value": found[0].rate, "before": found[0].expected}
        return Alert("learning rate jump", step, found[0].step, self._name, f"{self._name}: {found[0]}.", evidence)
