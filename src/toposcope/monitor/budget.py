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
"""A step counts at most this many times the median one: an evaluation in between is no step."""
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
        self._clock, self._lock = clock, threading.Lock()
        self._active = {"blocked": 0, "measuring": 0}
        self._counted = {"blocked"} | ({"measuring"} if beside_counts else set())
        self._at, self._seconds = clock(), dict.fromkeys(("either", *self._active), 0.0)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Count the time within; `what` is ``blocked`` or ``measuring``."""
        self._change(what, 1)
        try:
            yield
        finally:
            self._change(what, -1)

    def add(self, seconds: float) -> None:
        """Count seconds of a processor that the clock did not see as a whole, such as those of writing to a disk."""
        with self._lock:
            self._seconds["either"] += seconds if "measuring" in self._counted else 0.0

    @property
    def cost(self) -> float:
        """Seconds so far."""
        self._change("blocked", 0)
        return self._seconds["either"]

    @property
    def blocked(self) -> float:
        """Seconds in which training waited."""
        self._change("blocked", 0)
        return self._seconds["blocked"]

    def _change(self, what: str, by: int) -> None:
        with self._lock:
            now = self._clock()
            elapsed, self._at = max(0.0, now - self._at), now
            if any(self._active[name] for name in self._counted):
                self._seconds["either"] += elapsed
            for name, count in self._active.items():
                self._seconds[name] += elapsed if count else 0.0
            self._active[what] += by


class Budget:
    """What may be spent: a share of the time that training took, divided evenly among the probes.

    Parameters
    ----------
    share : float
        Of the time of training.
    names : iterable of str
        Of the probes.
    meter : Meter
    clock : callable
    """

    def __init__(self, share: float, names: Iterable[str], meter: Meter, clock: Clock) -> None:
        self.share, self.meter = share, meter
        self.trained = 0.0
        self._clock = clock
        self._accounts = dict.fromkeys(names, 0.0)
        self._expected: dict[tuple[str, str], float] = {}
        self._known: set[tuple[str, str]] = set()
        self._recent: list[float] = []
        self._median = math.nan
        self._free = 0.0  # cost from before the first step and after the last
        self._last: tuple[float, float, float] | None = None  # time, seconds blocked, cost

    def begin(self) -> None:
        """Forget what was spent before training."""
        cost = self.meter.cost
        self._free += cost - (self._last[2] if self._last else 0.0)
        self._last = (self._clock(), self.meter.blocked, cost)
        self._accounts = dict.fromkeys(self._accounts, 0.0)

    def step(self) -> None:
        """Count the step that ends now."""
        if self._last is None:
            self.begin()
            return
        at, blocked, _ = self._last
        now = (self._clock(), self.meter.blocked, self.meter.cost)
        seconds = max(0.0, now[0] - at - (now[1] - blocked))
        self._recent.append(seconds)
        if math.isnan(self._median) or len(self._recent) >= N_RECENT:
            self._median, self._recent = median(self._recent), []
        seconds = min(seconds, MAX_PAUSE * self._median)
        self.trained += seconds
        for name in self._accounts:
            self._accounts[name] += self.share * seconds / len(self._accounts)
        self._last = now

    @property
    def step_seconds(self) -> float:
        """Median seconds of the last steps; NaN before the first."""
        return self._median

    @property
    def free(self) -> float:
        """Seconds spent before the first step."""
        return self._free

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
        return needed <= self._accounts[name] and needed + ahead <= self.credit

    def charge(self, name: str, layer: str, seconds: float) -> None:
        """Charge a probe for a layer that it measured, and remember what it took."""
        before = self._expected.get((name, layer), 0.0) if (name, layer) in self._known else 0.0
        self._expected[name, layer] = max(seconds, FORGET * before)
        self._known.add((name, layer))
        self._accounts[name] -= seconds

    def forget(self, name: str, layer: str) -> None:
        """Expect nothing of a layer any more."""
        self._expected.pop((name, layer), None)
        self._known.discard((name, layer))

    def share_out(self) -> None:
        """Pass on what a probe has saved beyond two whole measurements to those that save for one."""
        whole = dict.fromkeys(self._accounts, 0.0)
        for name, layer in self._expected:
            whole[name] += self.needed(name, [layer])
        saving = [name for name, cost in whole.items() if self._accounts[name] < cost]
        for name, cost in whole.items():
            surplus = self._accounts[name] - 2 * cost
            if saving and name not in saving and surplus > 0:
                self._accounts[name] -= surplus
                for other in saving:
                    self._accounts[other] += surplus / len(saving)
