"""What a monitor does on its own thread: measures, stores, watches for faults, and passes on what it found."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.monitor.activations import Activations
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import Alert, Event, Forecasted, Logged, Measured
from toposcope.monitor.examining import Examining
from toposcope.monitor.gathering import Copy
from toposcope.monitor.measuring import Measuring, StepMeasurements
from toposcope.monitor.quantities import Pending
from toposcope.monitor.recording import Place, Recording
from toposcope.monitor.sinks.sink import Sink
from toposcope.monitor.thinning import Thinning
from toposcope.monitor.watching import Watch
from toposcope.probes import Measurement, Probe, Subject
from toposcope.probes.activations import ActivationsProbe
from toposcope.probes.feature import NETWORK
from toposcope.probes.training import TrainingProbe
from toposcope.study.tasks import checked

WRITE_SECONDS = 0.5
"""Time between writes of what was logged, at least; more where writing is slow."""
STORING = "storing"
"""What storing a measurement takes, in the budget: charged to the probe ``training``."""
RETRY_SECONDS = 10.0
"""Time after which a write that failed is tried again."""
N_FREE_ROWS = 1000
"""Rows of the log that are kept however fast the steps are, and that no budget covers: short runs are whole."""
MAX_WAITING = 1_000
"""Writes that wait for a store that cannot be written; then the oldest are dropped."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of one layer, to be measured."""

    layer: Layer
    copy: Copy
    probes: Sequence[Probe]


@dataclass(frozen=True)
class StepStart:
    """The beginning of the measurement of a step."""

    step: int


@dataclass(frozen=True)
class StepEnd:
    """The end of it, with what was taken on the training thread: for the probe ``training``."""

    training: Pending
    activations: Activations | None = None
    skipped: Sequence[str] = ()


@dataclass(frozen=True)
class Finish:
    """The end of the run."""

    status: str
    step: int


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was saved."""

    path: Path
    step: int


Job = Snapshot | StepStart | StepEnd | Saved | Finish


class Session:
    """The state of a run on the monitor's thread.

    Parameters
    ----------
    place : Place
    probes : sequence of Probe
        Those that measure snapshots.
    layers : sequence of Layer
    step : int
        The first step.
    budget : Budget
    sinks : list of Sink
    watch : Watch
    say : callable
        Takes a sentence for the user.
    further : sequence of Probe
        Those that measure something else.
    """

    def __init__(
        self,
        place: Place,
        probes: Sequence[Probe],
        layers: Sequence[Layer],
        step: int,
        budget: Budget,
        sinks: list[Sink],
        watch: Watch,
        say: Callable[[str], None],
        further: Sequence[Probe] = (),
    ) -> None:
        self._place, self._probes, self._layers, self._first = place, probes, layers, step
        self._budget, self._sinks, self._watch, self._say = budget, sinks, watch, say
        self._training, self._further = TrainingProbe(), further
        self._measuring = Measuring(probes, [layer.name for layer in layers], budget.charge, budget.meter.clock)
        self._roles = {layer.name: layer.role for layer in layers}
        self._examining = Examining(budget)
        self._recording: Recording | None = None
        self._now: StepMeasurements | None = None
        self.logged: deque[tuple[int, Mapping[str, Any]]] = deque()
        """Values that wait to be written, in the order in which they were logged."""
        self._unwritten: deque[Callable[[Recording], None]] = deque()
        self._next_write = 0.0
        self._thinning, self._n_rows, self._row_seconds = Thinning(budget.share), 0, 0.0
        self._aside = 0.0  # seconds of a write that are not of the log
        self._skipped: dict[str, int] = {}
        self._last_skipped: Sequence[str] = ()
        self.n_measured = 0
        self._is_reported = False

    def handle(self, job: Job) -> None:
        """Do one job."""
        if isinstance(job, StepStart):
            self._now = StepMeasurements(job.step)
        elif isinstance(job, Snapshot):
            assert self._now is not None
            with self._budget.meter.during("measuring"):
                layer = replace(job.layer, entry=job.copy.entry(job.layer.name))
                self._measuring.measure(layer, job.probes, self._now)
        elif isinstance(job, StepEnd):
            self._end_step(job)
        elif isinstance(job, Saved):
            self._examining.add(job.path, job.step)
        else:
            self._finish(job)

    def idle(self) -> None:
        """Write what waits, now and then."""
        if time.monotonic() >= self._next_write:
            self._write()
            self._make_forecast()
            self._examine()

    def skip(self, what: str) -> None:
        """Count what was left out: the name of a probe, then a colon and the reason."""
        name = what.partition(":")[0]
        self._skipped[name] = self._skipped.get(name, 0) + 1

    def _end_step(self, end: StepEnd) -> None:
        done, self._now = self._now, None
        assert done is not None
        with self._budget.meter.during("measuring"):
            for layer, values in end.training.rows().items():
                role = self._roles.get(layer, NETWORK)
                if layer in self._roles or layer == NETWORK:
                    finite = {name: value for name, value in values.items() if math.isfinite(value)}
                    done.add(self._training, Measurement(layer, role, finite))
            self._measuring.finish(done)
            if end.activations is not None:
                self._measure_activations(end.activations, done)
        self.n_measured += 1
        self._last_skipped = end.skipped
        for line in end.skipped:
            self.skip(line)
        self._unwritten.append(lambda recording: self._write_measured(recording, done))
        rows = {
            (layer, probe.name()): measurement.statistics
            for probe, of in done.measurements.items()
            for layer, measurement in of.items()
        }
        with self._counting():
            self._pass_on(Measured(done.step, rows, end.skipped))
            self._follow(self._watch.ranks(done.step, end.training.ranks()))
        self._next_write = 0.0
        if self.n_measured == 1:
            self._write()  # training waits for the first measurement, which no budget covers: storing it is part of it

    def _measure_activations(self, activations: Activations, done: StepMeasurements) -> None:
        started = self._budget.meter.clock()
        probe = ActivationsProbe()
        for result in probe.measure(Subject([], frozenset(), inputs={"training": activations}, step=done.step)):
            done.add(probe, checked(result))
        self._budget.charge(probe.name(), "measured", self._budget.meter.clock() - started)

    def _pass_on(self, event: Event) -> None:
        """Give an event to the sinks and the watch, and what follows from it likewise."""
        for sink in list(self._sinks):
            try:
                sink.put(event)
            except Exception as error:  # noqa: BLE001 - a tracker at fault stops neither the others nor the training
                self._sinks.remove(sink)
                self._say(f"{type(sink).__name__} is closed: {type(error).__name__}: {error}")
        self._follow(self._watch(event))

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count the time of a processor that this thread takes within; not the time in which it waits for a disk."""
        started = time.thread_time()
        try:
            yield
        finally:
            self._budget.meter.add(time.thread_time() - started)

    def _follow(self, events: Sequence[Event]) -> None:
        for event in events:
            self._keep(event)
            self._pass_on(event)

    def _keep(self, event: Event) -> None:
        if isinstance(event, Alert):
            self._unwritten.append(lambda recording: recording.alert(event))
        elif isinstance(event, Forecasted):
            self._unwritten.append(lambda recording: recording.forecast(event))

    def _write(self) -> None:
        """Write what waits; if the store cannot be written, say so once and try again later."""
        started, self._aside = time.thread_time(), 0.0
        with self._counting():
            wait = self._write_now()
        # Writing the log takes at most half of the budget.
        seconds = time.thread_time() - started - self._aside
        self._next_write = time.monotonic() + max(wait, 2 * seconds / self._budget.share)

    def _write_now(self) -> float:
        """Write, and return the seconds after which there may be something again."""
        if rows := self._logged_rows():
            self._unwritten.append(lambda recording: self._write_log(recording, rows))
        if not self._unwritten and self._recording is not None:
            return WRITE_SECONDS
        try:
            recording = self._opened()
            while self._unwritten:
                self._unwritten[0](recording)
                self._unwritten.popleft()
            recording.status(self.status())
        except ToposcopeError as error:
            if not self._is_reported:
                self._say(f"{error}; training goes on, and writing is tried again every {RETRY_SECONDS:.0f} s")
            self._is_reported = True
            while len(self._unwritten) > MAX_WAITING:
                self._unwritten.popleft()
            return RETRY_SECONDS
        return WRITE_SECONDS

    def _opened(self) -> Recording:
        if self._recording is None:
            started = time.thread_time()
            self._recording = Recording(
                self._place, [self._training, *self._probes, *self._further], self._layers, self._first
            )
            cut_at = self._recording.cut_at
            if cut_at is not None:
                self._watch.remember(self._recording.logged())
                again = f"; steps up to {cut_at} were stored and are trained again" if cut_at > self._first else ""
                self._say(f"{self._recording.run} goes on at step {self._first}{again}")
            self._aside += time.thread_time() - started
        return self._recording

    def _make_forecast(self, *, final: bool = False) -> None:
        with self._budget.meter.during("measuring"):
            events = self._watch.forecast(final=final)
        with self._counting():
            self._follow(events)

    def _examine(self, *, final: bool = False) -> None:
        """Examine checkpoints that were saved."""
        n_before = self._examining.n_examined
        with self._budget.meter.during("measuring"):
            try:
                alerts = list(self._examining.examine(final=final))
            except ToposcopeError as error:
                self._say(str(error))
                return
        with self._counting():
            self._follow(alerts)
        if self._examining.n_examined > n_before:
            findings, n = list(self._examining.findings), self._examining.n_examined
            self._unwritten.append(lambda recording: recording.findings(findings, n))

    def _logged_rows(self) -> dict[int, dict[str, float]]:
        """Return what was logged since the last write, by step, and watch it; rows too many to keep are left out."""
        started = time.thread_time()
        rows: dict[int, dict[str, float]] = {}
        for _ in range(len(self.logged)):
            step, values = self.logged.popleft()
            numbers = _numbers(values)
            if self._thinning.keeps(step, numbers):
                self._take_row(step, numbers, rows)
        self._row_seconds = time.thread_time() - started
        return rows

    def _take_row(self, step: int, numbers: dict[str, float], rows: dict[int, dict[str, float]]) -> None:
        rows.setdefault(step, {}).update(numbers)
        self._pass_on(Logged(step, numbers))

    def _write_measured(self, recording: Recording, done: StepMeasurements) -> None:
        started = time.thread_time()
        recording.measured(done)
        seconds = time.thread_time() - started
        self._aside += seconds
        self._budget.charge(TrainingProbe.name(), STORING, seconds)

    def _write_log(self, recording: Recording, rows: dict[int, dict[str, float]]) -> None:
        started = time.thread_time()
        recording.log(rows)
        seconds, self._row_seconds = self._row_seconds + time.thread_time() - started, 0.0
        self._n_rows += len(rows)
        if self._n_rows <= N_FREE_ROWS:
            self._budget.waive(seconds)
        else:
            self._thinning.adapt(self._budget.step_seconds, len(rows), seconds)

    def status(self) -> dict[str, Any]:
        """Return what the monitor did, took and left out."""
        budget = self._budget
        return {
            "last_step": self._place.last_step,
            "n_measured": self.n_measured,
            "budget": budget.share,
            "trained_seconds": round(budget.trained, 3),
            "cost_seconds": round(budget.cost, 3),
            "blocked_seconds": round(budget.meter.blocked, 3),
            "start_seconds": round(budget.free, 3),
            "step_seconds": budget.step_seconds if budget.trained else None,
            "log_every": self._thinning.every,
            "log_left_out": self._thinning.n_dropped,
            "skipped": self._skipped,
            "last_skipped": list(self._last_skipped),
            "resumed": [self._first, self._recording.cut_at]
            if self._recording and self._recording.cut_at is not None
            else None,
        }

    def _finish(self, job: Finish) -> None:
        self._write()
        if last := self._thinning.last_dropped():
            self._thinning.every = 1
            self.logged.append(last)
        self._make_forecast(final=True)
        self._examine(final=True)
        self._write()
        if self._recording is not None and not self._unwritten:
            self._recording.close(job.status, job.step)
        for sink in self._sinks:
            sink.close()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers; tensors of one element are."""
    numbers = {}
    for name, value in values.items():
        try:
            numbers[name] = float(value)
        except Exception:  # noqa: BLE001 - whatever a user's object raises, it is no number
            continue
    return numbers
