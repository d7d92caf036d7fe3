"""The monitor's budget: its cost so far, the training time so far, and what each probe may spend."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median

Clock = Callable[[], float]
"""Returns the time in seconds."""

SAFETY_FACTOR = 2.0
"""A measurement starts only if this many times its expected cost is affordable, since times vary."""
FIRST_SAFETY_FACTOR = 5.0
"""The same for the first measurement of a layer, whose expected cost is an estimate."""
MAX_STEP_FACTOR = 20
"""A step longer than this many median steps counts as one median step: it contains an evaluation or the like."""
N_MEDIAN_STEPS = 64
"""The median step time is taken of this many steps, and updated as often."""
MIN_COST_RATIO = 0.7
"""An expected cost falls to no less than this share of itself from one measurement to the next."""


class Meter:
    """Counts the seconds in which the monitor blocked the training, or measured concurrently with it.

    Seconds of both are counted once. If the model is on a GPU, measuring on the CPU takes nothing from the training
    and is not counted.

    Parameters
    ----------
    clock : callable
    counts_concurrent : bool
        Whether concurrent measuring counts.
    """

    def __init__(self, clock: Clock, *, counts_concurrent: bool = True) -> None:
        self.clock, self._lock, self.counts_concurrent = clock, threading.Lock(), counts_concurrent
        self._n_blocking, self._n_measuring = 0, 0
        self._at, self._cost, self._blocked = clock(), 0.0, 0.0

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Count the time inside the context as `what`: ``blocked`` or ``measuring``."""
        blocking, measuring = int(what == "blocked"), int(what == "measuring")
        self.read(blocking, measuring)
        try:
            yield
        finally:
            self.read(-blocking, -measuring)

    def add(self, seconds: float) -> None:
        """Count seconds of CPU time that were not measured with the clock, such as those of writing to a disk."""
        if self.counts_concurrent:
            with self._lock:
                self._cost += seconds

    @property
    def cost(self) -> float:
        """Seconds counted so far."""
        return self.read()[2]

    @property
    def blocked(self) -> float:
        """Seconds in which the training was blocked."""
        return self.read()[1]

    def read(self, blocking: int = 0, measuring: int = 0) -> tuple[float, float, float]:
        """Return the time, the blocked seconds and the cost, then add to the numbers of open contexts of either kind.

        It is called several times a step, so it is inlined rather than split into functions.
        """
        with self._lock:
            now = self.clock()
            if (elapsed := now - self._at) > 0:
                if self._n_blocking:
                    self._blocked += elapsed
                    self._cost += elapsed
                elif self._n_measuring and self.counts_concurrent:
                    self._cost += elapsed
            self._at = now
            self._n_blocking += blocking
            self._n_measuring += measuring
            return now, self._blocked, self._cost


class Budget:
    """A share of the training time, divided evenly among the probes, each with an account.

    Parameters
    ----------
    share : float
        Share of the training time.
    names : iterable of str
        Names of the probes.
    meter : Meter
    """

    def __init__(self, share: float, names: Iterable[str], meter: Meter) -> None:
        self.share, self.meter = share, meter
        self.trained = 0.0
        self._lock = threading.Lock()  # guards the accounts
        self._credited = 0.0  # seconds of training already credited to the accounts
        self._accounts = dict.fromkeys(names, 0.0)
        self._expected: dict[tuple[str, str], float] = {}
        self._known: set[tuple[str, str]] = set()
        self._recent: list[float] = []
        self._median = math.nan
        self._earlier_cost = 0.0
        self._exempt = 0.0  # seconds that the budget does not cover
        self._last: tuple[float, float, float] | None = None  # time, seconds blocked, cost

    def begin(self) -> None:
        """Exempt what was spent since the last step, and empty the accounts."""
        now = self.meter.read()
        self._exempt += now[2] - (self._last[2] if self._last else 0.0)
        self._last = now
        with self._lock:
            self._credited = self.trained
            self._accounts = dict.fromkeys(self._accounts, 0.0)

    def resume(self, trained: float, cost: float) -> None:
        """Add the seconds trained and spent before the run was interrupted, so that the share is of the whole run."""
        self.trained += trained
        self._earlier_cost += cost

    def step(self) -> None:
        """Count a step that ends now."""
        if self._last is None:
            self.begin()
            return
        at, blocked, _ = self._last
        now = self.meter.read()
        seconds = max(0.0, now[0] - at - (now[1] - blocked))
        self._recent.append(seconds)
        if len(self._recent) >= N_MEDIAN_STEPS or math.isnan(self._median):
            self._median, self._recent = median(self._recent), []
        if seconds > MAX_STEP_FACTOR * self._median:
            seconds = self._median
        self.trained += seconds
        self._last = now

    @property
    def step_seconds(self) -> float:
        """Median duration of recent steps in seconds; NaN before the first."""
        return self._median

    @property
    def exempt(self) -> float:
        """Seconds that the budget does not cover: those before the first step and after the last, and waived ones."""
        return self._exempt

    def waive(self, seconds: float) -> None:
        """Exempt counted seconds from the cost."""
        if self.meter.counts_concurrent:
            self._exempt += seconds

    @property
    def cost(self) -> float:
        """Seconds spent since the first step of the run, without exempt ones."""
        return self._earlier_cost + self.meter.cost - self._exempt

    @property
    def credit(self) -> float:
        """Seconds that all probes together may spend now."""
        return self.share * self.trained - self.cost

    def expect(self, name: str, layer: str, seconds: float) -> None:
        """Set the expected cost of measuring a layer, unless it is known."""
        self._expected.setdefault((name, layer), seconds)

    def expected(self, name: str, layers: Iterable[str]) -> float:
        """Return the expected cost of measuring layers with a probe, in seconds."""
        return sum(self._expected.get((name, layer), 0.0) for layer in layers)

    def needed(self, name: str, layers: Iterable[str]) -> float:
        """Return the credit that a probe needs to start measuring layers: the expected cost times a safety factor."""
        return sum(
            (SAFETY_FACTOR if (name, layer) in self._known else FIRST_SAFETY_FACTOR)
            * self._expected.get((name, layer), 0.0)
            for layer in layers
        )

    def affords(self, name: str, layers: Iterable[str], *, ahead: float = 0.0) -> bool:
        """Return whether a probe may measure layers now, after `ahead` seconds of other planned work."""
        return self.needed(name, layers) <= self.available(name, ahead)

    def available(self, name: str, ahead: float = 0.0) -> float:
        """Return the seconds that a probe may spend now, after `ahead` seconds of other planned work."""
        self._credit_accounts()
        return min(self._accounts[name], self.credit - ahead)

    def charge(self, name: str, layer: str, seconds: float) -> None:
        """Charge a probe for measuring a layer, and update the expected cost."""
        before = self._expected.get((name, layer), 0.0) if (name, layer) in self._known else 0.0
        self._expected[name, layer] = max(seconds, MIN_COST_RATIO * before)
        self._known.add((name, layer))
        with self._lock:
            self._accounts[name] -= seconds

    def _credit_accounts(self) -> None:
        """Credit each account with its share of the training time since the last call."""
        with self._lock:
            trained = self.trained
            income = self.share * (trained - self._credited) / len(self._accounts)
            self._credited = trained
            for name in self._accounts:
                self._accounts[name] += income

    def forget(self, name: str, layer: str) -> None:
        """Drop the expected cost of a layer."""
        self._expected.pop((name, layer), None)
        self._known.discard((name, layer))

    def redistribute(self) -> None:
        """Give what probes have saved beyond two complete measurements to those that cannot afford one."""
        self._credit_accounts()
        whole = dict.fromkeys(self._accounts, 0.0)
        for name, layer in self._expected:
            whole[name] += self.needed(name, [layer])
        with self._lock:
            saving = [name for name, cost in whole.items() if self._accounts[name] < cost]
            for name, cost in whole.items():
                surplus = self._accounts[name] - 2 * cost
                if saving and name not in saving and surplus > 0:
                    self._accounts[name] -= surplus
                    for other in saving:
                        self._accounts[other] += surplus / len(saving)
