"""The time a monitor may take: its cost so far, the time training took, and what each probe may still spend."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median

Clock = Callable[[], float]
"""Returns seconds."""

MARGIN = 2.0
"""A measurement starts if it is affordable at this many times its expected cost: times vary."""
UNKNOWN_MARGIN = 5.0
"""The same for the first measurement of a layer, whose expected cost is a guess."""
MAX_PAUSE = 20
"""A step that takes more than so many times the median one counts as that: an evaluation in between is no step."""
N_RECENT = 64
"""Steps of which the median is taken, once in so many steps."""
FORGET = 0.7
"""An expected cost falls to this share of itself, at most, from one measurement to the next."""


class Meter:
    """Seconds during which a monitor did something: held up the training, or measured beside it.

    Seconds in which it did both count once. On a GPU, measuring beside the training takes nothing from it and does not
    count.

    Parameters
    ----------
    clock : callable
    beside_counts : bool
        Whether measuring beside the training counts.
    """

    def __init__(self, clock: Clock, *, beside_counts: bool = True) -> None:
        self.clock, self._lock, self.beside_counts = clock, threading.Lock(), beside_counts
        self._n_blocking, self._n_measuring = 0, 0
        self._at, self._cost, self._blocked = clock(), 0.0, 0.0

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Count the time within; `what` is ``blocked`` or ``measuring``."""
        blocking, measuring = int(what == "blocked"), int(what == "measuring")
        self.read(blocking, measuring)
        try:
            yield
        finally:
            self.read(-blocking, -measuring)

    def add(self, seconds: float) -> None:
        """Count seconds of a processor that the clock did not see as a whole, such as those of writing to a disk."""
        if self.beside_counts:
            with self._lock:
                self._cost += seconds

    @property
    def cost(self) -> float:
        """Seconds so far."""
        return self.read()[2]

    @property
    def blocked(self) -> float:
        """Seconds in which training waited."""
        return self.read()[1]

    def read(self, blocking: int = 0, measuring: int = 0) -> tuple[float, float, float]:
        """Return the time, the seconds in which training waited, and the cost; then more or fewer things are going on.

        It is called several times a step, and so it is written out.
        """
        with self._lock:
            now = self.clock()
            if (elapsed := now - self._at) > 0:
                if self._n_blocking:
                    self._blocked += elapsed
                    self._cost += elapsed
                elif self._n_measuring and self.beside_counts:
                    self._cost += elapsed
            self._at = now
            self._n_blocking += blocking
            self._n_measuring += measuring
            return now, self._blocked, self._cost


class Budget:
    """What may be spent: a share of the time that training took, divided evenly among the probes.

    Parameters
    ----------
    share : float
        Of the time of training.
    names : iterable of str
        Of the probes.
    meter : Meter
    """

    def __init__(self, share: float, names: Iterable[str], meter: Meter) -> None:
        self.share, self.meter = share, meter
        self.trained = 0.0
        self._lock = threading.Lock()  # of the accounts
        self._shared_out = 0.0  # seconds of training of which the accounts have their share
        self._accounts = dict.fromkeys(names, 0.0)
        self._expected: dict[tuple[str, str], float] = {}
        self._known: set[tuple[str, str]] = set()
        self._recent: list[float] = []
        self._median = math.nan
        self._free = 0.0  # cost from before the first step and after the last
        self._last: tuple[float, float, float] | None = None  # time, seconds blocked, cost

    def begin(self) -> None:
        """Forget what was spent before training."""
        now = self.meter.read()
        self._free += now[2] - (self._last[2] if self._last else 0.0)
        self._last = now
        with self._lock:
            self._shared_out = self.trained
            self._accounts = dict.fromkeys(self._accounts, 0.0)

    def step(self) -> None:
        """Count the step that ends now."""
        if self._last is None:
            self.begin()
            return
        at, blocked, _ = self._last
        now = self.meter.read()
        seconds = max(0.0, now[0] - at - (now[1] - blocked))
        self._recent.append(seconds)
        if len(self._recent) >= N_RECENT or math.isnan(self._median):
            self._median, self._recent = median(self._recent), []
        if seconds > MAX_PAUSE * self._median:
            seconds = self._median
        self.trained += seconds
        self._last = now

    @property
    def step_seconds(self) -> float:
        """Median seconds of the last steps; NaN before the first."""
        return self._median

    @property
    def free(self) -> float:
        """Seconds that the budget does not cover: spent before the first step and after the last, and waived."""
        return self._free

    def waive(self, seconds: float) -> None:
        """Take seconds that were counted out of the cost."""
        if self.meter.beside_counts:
            self._free += seconds

    @property
    def cost(self) -> float:
        """Seconds spent since the first step."""
        return self.meter.cost - self._free

    @property
    def credit(self) -> float:
        """Seconds that may be spent now, of all probes together."""
        return self.share * self.trained - self.cost

    def expect(self, name: str, layer: str, seconds: float) -> None:
        """State what measuring a layer is expected to take, until it is known."""
        self._expected.setdefault((name, layer), seconds)

    def expected(self, name: str, layers: Iterable[str]) -> float:
        """Return the seconds that a probe is expected to take for some layers."""
        return sum(self._expected.get((name, layer), 0.0) for layer in layers)

    def needed(self, name: str, layers: Iterable[str]) -> float:
        """Return the seconds that a probe must have to start measuring some layers."""
        return sum(
            (MARGIN if (name, layer) in self._known else UNKNOWN_MARGIN) * self._expected.get((name, layer), 0.0)
            for layer in layers
        )

    def affords(self, name: str, layers: Iterable[str], *, ahead: float = 0.0) -> bool:
        """Return whether a probe may measure some layers now, `ahead` seconds of other work being under way."""
        needed = self.needed(name, layers)
        self._pay_in()
        return needed <= self._accounts[name] and needed + ahead <= self.credit

    def charge(self, name: str, layer: str, seconds: float) -> None:
        """Charge a probe for a layer that it measured, and remember what it took."""
        before = self._expected.get((name, layer), 0.0) if (name, layer) in self._known else 0.0
        self._expected[name, layer] = max(seconds, FORGET * before)
        self._known.add((name, layer))
        with self._lock:
            self._accounts[name] -= seconds

    def _pay_in(self) -> None:
        """Give each account its share of the training since the last time."""
        with self._lock:
            trained = self.trained
            income = self.share * (trained - self._shared_out) / len(self._accounts)
            self._shared_out = trained
            for name in self._accounts:
                self._accounts[name] += income

    def forget(self, name: str, layer: str) -> None:
        """Expect nothing of a layer any more."""
        self._expected.pop((name, layer), None)
        self._known.discard((name, layer))

    def share_out(self) -> None:
        """Pass on what a probe has saved beyond two whole measurements to those that save for one."""
        self._pay_in()
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
