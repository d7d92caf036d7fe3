"""What the monitor may spend: its cost so far, which steps and layers it measures, which rows of the log it keeps."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from statistics import median

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import identify_columns
from toposcope.probes import Probe
from toposcope.probes.probe import Shape

# The budget: chosen on ``benchmarks/monitor.py`` and on simulated runs; ``docs/methods/monitor.md``.
MAX_REGULAR = 500  # measurements after which the interval doubles, and again each time the run has doubled in length
STEPS_PER_DECADE = 20  # log-spaced steps per decade
SAFETY_FACTOR = 2.0  # a measurement starts if this many times its expected cost is affordable, since times vary
FIRST_SAFETY_FACTOR = 5.0  # the same for the first measurement of a layer, whose expected cost is an estimate
MAX_STEP_FACTOR = 20  # a step longer than this many median steps counts as one: it contains an evaluation or the like
N_MEDIAN_STEPS = 64  # the median step time is taken of this many steps, and updated as often
MIN_COST_RATIO = 0.7  # an expected cost falls to no less than this share of itself from one measurement to the next
MAX_WAIT = 10  # due steps that a probe waits to afford all layers; beyond that, it measures a few at a time, in turn
LOG_SHARE = 0.25  # share of the budget that log rows may take
FIRST_ROW_SECONDS = 50e-6  # expected cost of a row before any was written
SMOOTHING = 0.2  # weight of the last write in the moving average of the cost of a row
FORECAST_SHARE = 0.6  # share of the budget that is set aside for forecasts, as far as the next one needs it

Due = Callable[[int], bool]  # takes the step; returns whether to measure


def schedule(every: int | str | Due) -> Due:
    """Return a function that says whether to measure a step."""
    if callable(every):
        return every
    if every == "log":
        return _is_log_spaced
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return lambda step: step % every == 0 and step % interval_at(every, step) == 0
    raise ToposcopeError(f'every is {every!r}; give a number of steps, "log", or a function of the step')


def interval_at(every: int, step: int) -> int:
    """Return the number of steps between measurements around a step."""
    doublings = max(0, math.ceil(math.log2(max(step, 1) / (every * MAX_REGULAR))))
    return int(every * 2**doublings)


def _is_log_spaced(step: int) -> bool:
    if step < 1:
        return step == 0
    exponent = round(STEPS_PER_DECADE * math.log10(step))
    return step == round(10 ** (exponent / STEPS_PER_DECADE))


Clock = Callable[[], float]  # returns the time in seconds


class Meter:
    """Counts the seconds in which the monitor blocked the training, or measured concurrently with it.

    Seconds of both are counted once. If the model is on a GPU, measuring on the CPU takes nothing from the training and
    is not counted. `own` is the clock of the hooks, which wait for nothing of the monitor's: on a CPU that of the CPU
    time, since a thread that others push aside in a hook would have been pushed aside in the training as well.
    """

    def __init__(self, clock: Clock, *, counts_concurrent: bool = True) -> None:
        self.clock, self._lock, self.counts_concurrent = clock, threading.Lock(), counts_concurrent
        self.own: Clock = time.thread_time if counts_concurrent else clock
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

    def add_since(self, began: float) -> None:
        """Count the seconds of a hook since it began, by the clock `own`."""
        with self._lock:
            self._cost += self.own() - began

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
    """A share of the training time: forecasts come first, and the rest is divided evenly among the probes.

    Of the income, forecasts get a fixed part until the next one is paid for, whatever measurements have spent; the rest
    goes to accounts, one for each probe.
    """

    def __init__(self, share: float, names: Iterable[str], meter: Meter) -> None:
        self.share, self.meter = share, meter
        self.trained = 0.0
        self._lock = threading.Lock()  # guards the accounts
        self._credited = 0.0  # seconds of training already credited to the accounts
        self._reserve = self._most_reserved = 0.0
        self._accounts = dict.fromkeys(names, 0.0)
        self._expected: dict[tuple[str, str], float] = {}
        self._known: set[tuple[str, str]] = set()
        self._recent: list[float] = []
        self._n_steps = 0
        self.step_seconds = math.nan
        """Median duration of recent steps; NaN before the first."""
        self._earlier_cost = 0.0
        self.exempt = 0.0
        """Seconds that the budget does not cover: before the first step and after the last, and waived ones."""
        self._last: tuple[float, float, float] | None = None  # time, seconds blocked, cost

    def begin(self) -> None:
        """Exempt what was spent since the last step, and empty the accounts."""
        now = self.meter.read()
        self.exempt += now[2] - (self._last[2] if self._last else 0.0)
        self._last = now
        with self._lock:
            self._credited = self.trained
            self._accounts = dict.fromkeys(self._accounts, 0.0)
            self._reserve = 0.0

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
        self._n_steps += 1
        # Of the first steps the median is taken ever again, since the very first may be of another length.
        if self._n_steps % N_MEDIAN_STEPS == 0:
            self.step_seconds, self._recent = median(self._recent), []
        elif self._n_steps < N_MEDIAN_STEPS and self._n_steps & (self._n_steps - 1) == 0:
            self.step_seconds = median(self._recent)
        if seconds > MAX_STEP_FACTOR * self.step_seconds:
            seconds = self.step_seconds
        self.trained += seconds
        self._last = now

    def waive(self, seconds: float) -> None:
        """Exempt counted seconds from the cost."""
        if self.meter.counts_concurrent:
            self.exempt += seconds

    @property
    def cost(self) -> float:
        """Seconds spent since the first step of the run, without exempt ones."""
        return self._earlier_cost + self.meter.cost - self.exempt

    @property
    def credit(self) -> float:
        """Seconds that all probes together may spend now."""
        return self.share * self.trained - self.cost - max(0.0, self.reserve)

    @property
    def forecast_income(self) -> float:
        """Seconds for forecasts per second of training."""
        return FORECAST_SHARE * self.share

    @property
    def reserve(self) -> float:
        """Seconds set aside for the next forecast, which no probe may spend; negative while the last is not paid."""
        self._credit_accounts()
        return self._reserve

    def reserve_for_forecast(self, seconds: float) -> None:
        """Set what the next forecast costs; 0 if there will be none. What is beyond it flows back to the probes."""
        self._credit_accounts()
        with self._lock:
            self._most_reserved, self._reserve = seconds, min(self._reserve, seconds)

    def pay_forecast(self, seconds: float) -> None:
        """Pay a forecast that was made."""
        with self._lock:
            self._reserve -= seconds

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
        """Credit the reserve, and each account with its part of the rest, for the training since the last call."""
        with self._lock:
            trained = self.trained
            since, self._credited = trained - self._credited, trained
            kept = min(self.forecast_income * since, max(0.0, self._most_reserved - self._reserve))
            self._reserve += kept
            for name in self._accounts:
                self._accounts[name] += (self.share * since - kept) / len(self._accounts)

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


START_SECONDS = 2.0
"""Expected seconds of the measurement before the first step and of that after the last, both outside the budget."""


@dataclass
class Plan:
    """What to measure at a step."""

    wanted: dict[str, list[Probe]] = field(default_factory=dict)  # layer -> probes
    skipped: list[str] = field(default_factory=list)  # what is skipped, each with the reason

    def add(self, probe: Probe, layers: Sequence[str]) -> None:
        """Add layers to be measured with a probe."""
        for layer in layers:
            self.wanted.setdefault(layer, []).append(probe)


class Planner:
    """Decides what to measure."""

    def __init__(self, probes: Sequence[Probe], shapes: Mapping[str, Shape], budget: Budget) -> None:
        self._probes, self._layers, self._budget = probes, list(shapes), budget
        self._sources = {probe: probe.source(probes) for probe in probes}
        self._turn = dict.fromkeys(probes, 0)
        for probe in probes:
            for layer, shape in shapes.items():
                budget.expect(probe.name(), layer, probe.expected_seconds({layer: shape}))

    def at_ends(self) -> Plan:
        """Plan the measurement before the first step or after the last."""
        plan, total = Plan(), 0.0
        for probe in self._probes:
            cost = self._budget.expected(probe.name(), self._layers)
            if total + cost <= START_SECONDS:
                plan.add(probe, self._layers)
                total += cost
            else:
                plan.skipped.append(f"{probe.name()}: measuring all layers would take {cost:.2g} s")
        return plan

    def at(self, interval: float) -> Plan:
        """Plan a due step; `interval` is the training time between due steps in seconds."""
        budget, plan, ahead = self._budget, Plan(), 0.0
        whole = {probe.name(): budget.expected(probe.name(), self._layers) for probe in self._probes}
        budget.redistribute()
        for probe in self._probes:
            name, source = probe.name(), self._sources[probe]
            layers = self._layers if source is None else [n for n in self._layers if source in plan.wanted.get(n, ())]
            if not layers:
                continue
            if not budget.affords(name, layers, ahead=ahead):
                layers = self._few(probe, layers, interval, ahead)
            if layers:
                plan.add(probe, layers)
                ahead += budget.needed(name, layers)
            if len(layers) < len(self._layers):
                left = f"{len(self._layers) - len(layers)} of {len(self._layers)} layers" if layers else "all layers"
                plan.skipped.append(f"{name}: {left}; measuring all takes {whole[name]:.2g} s")
        return plan

    def _few(self, probe: Probe, layers: Sequence[str], interval: float, ahead: float) -> list[str]:
        """Return as many layers as are affordable, in turn; none if the probe should wait until it can afford all."""
        budget, name = self._budget, probe.name()
        income = budget.share * interval / len(self._probes)
        if budget.needed(name, layers) <= MAX_WAIT * income:
            return []
        first, available = self._turn[probe], budget.available(name, ahead)
        turns = [*layers[first:], *layers[:first]]
        needed = accumulate(budget.needed(name, [layer]) for layer in turns)
        few = turns[: sum(seconds <= available for seconds in needed)]
        self._turn[probe] = (first + len(few)) % len(layers)
        return few


MAX_EVERY = 1024  # longest block of steps


class Thinning:
    """Keeps the first row of each kind in every block of steps, and all rows with a validation loss.

    Rows are of one kind if they have the same names and agree in whether all values are finite. The length of a block
    is a power of two.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._row_seconds = FIRST_ROW_SECONDS
        self._block = -1
        self._seen: set[tuple[bool, tuple[str, ...]]] = set()
        self._n_kinds = 1
        self._last: tuple[int, Mapping[str, float]] | None = None
        self.every, self.n_dropped = 1, 0

    def keeps(self, step: int, values: Mapping[str, float]) -> bool:
        """Return whether to keep a row."""
        if self.every == 1:
            return True
        if step // self.every != self._block:
            self._block = step // self.every
            self._n_kinds = max(1, len(self._seen))
            self._seen.clear()
        names = tuple(values)
        kind = all(map(math.isfinite, values.values())), names
        if kind in self._seen and not _has_validation(names):
            self._last = step, values
            self.n_dropped += 1
            return False
        self._seen.add(kind)
        self._last = None
        return True

    def last_dropped(self) -> tuple[int, Mapping[str, float]] | None:
        """Return the last row if it was dropped, so that the end of the run can be stored."""
        last, self._last = self._last, None
        self.n_dropped -= last is not None
        return last

    def adapt(self, step_seconds: float, n_rows: int, seconds: float) -> None:
        """Adapt the block length to the cost of `n_rows` rows that took `seconds` to write."""
        if not n_rows or not step_seconds > 0:
            return
        self._row_seconds += SMOOTHING * (seconds / n_rows - self._row_seconds)
        wanted = self._n_kinds * self._row_seconds / (LOG_SHARE * self._share * step_seconds)
        every = min(MAX_EVERY, 1 << max(0, math.ceil(math.log2(max(wanted, 1.0)))))
        # hysteresis: shorten blocks only if that is clearly affordable
        if every > self.every or 3 * wanted < self.every:
            self.every, self._block = every, -1


@lru_cache(maxsize=256)
def _has_validation(names: tuple[str, ...]) -> bool:
    columns = identify_columns(names)
    return any(target.validation for target in (*columns.losses, *columns.accuracies))
