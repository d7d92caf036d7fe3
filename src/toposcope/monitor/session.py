"""The monitor's thread, and its work: it measures, stores, checks for faults and reports to the sinks."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from toposcope.checkpoints import Layer
from toposcope.checkpoints.networks import networks
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.monitor.activations import Activations
from toposcope.monitor.alerts import Alerts
from toposcope.monitor.budget import Budget, Thinning
from toposcope.monitor.events import DIVERGED, Alert, Event, Logged, Measured, Note
from toposcope.monitor.looks import PendingLook
from toposcope.monitor.measuring import Measurer, StepMeasurements
from toposcope.monitor.quantities import PendingQuantities
from toposcope.monitor.recording import Earlier, Recording, RunInfo, WriteQueue, stored_names
from toposcope.monitor.running_forecast import RunningForecast
from toposcope.monitor.saved_checkpoints import SavedCheckpoints
from toposcope.monitor.shards import Copy
from toposcope.monitor.sinks.opening import RunSinks
from toposcope.monitor.sinks.terminal import echo
from toposcope.monitor.stopping import Stopping
from toposcope.probes import Measurement, Probe, ProbeInput
from toposcope.probes.activations import ActivationsProbe
from toposcope.probes.feature import NETWORK
from toposcope.probes.training import TrainingProbe
from toposcope.study.tasks import checked

Job = Callable[[], None]  # work for the thread; a snapshot of a layer is a job that holds memory until it is done

STORING = "storing"  # name in the budget of the cost of storing a measurement, charged to the probe ``training``
N_FREE_ROWS = 1000  # log rows that are stored outside the budget, so that the logs of short runs are complete


class Session:
    """A run as the monitor's thread sees it.

    `probes` measure snapshots of layers, `other_probes` do not; `step` is where the run starts or resumes.
    """

    def __init__(
        self,
        run: RunInfo,
        probes: Sequence[Probe],
        layers: Sequence[Layer],
        step: int,
        budget: Budget,
        sinks: RunSinks,
        stopping: Stopping,
        other_probes: Sequence[Probe] = (),
    ) -> None:
        self._run, self._probes, self._layers, self._first = run, probes, layers, step
        self._budget, self._sinks, self._stopping = budget, sinks, stopping
        self._alerts, self._forecast = Alerts(run.last_step), RunningForecast(run)
        self._training, self._other_probes = TrainingProbe(), other_probes
        # Of several networks no value is one of "the network".
        one_network = [] if networks([layer.entry for layer in layers]) else [layer.name for layer in layers]
        if stopping.patience is not None and not one_network:
            echo("patience: ignored, since the model is several networks, which have no mean neural persistence")
        self._measurer = Measurer(probes, one_network, budget.charge, budget.meter.clock)
        self._roles = {layer.name: layer.role for layer in layers}
        self.checkpoints = SavedCheckpoints(budget)
        self._writes = WriteQueue(self._open)
        self._current: StepMeasurements | None = None
        self._stored_diagrams: dict[tuple[str, str], dict[str, dict[str, Diagram]]] = {}
        self.logged: deque[tuple[int, Mapping[str, Any] | Note | PendingLook]] = deque()
        """Logged values, notes and looks that are not written yet, in order."""
        self.look_seconds = 0.0  # of CPU time that checking them took
        self._next_write = 0.0
        self._thinning, self._n_rows, self._row_seconds = Thinning(budget.share), 0, 0.0
        self._other_seconds = 0.0  # spent by a write on anything but the log
        self._unreadable: set[str] = set()
        self._skipped: dict[str, int] = {}
        self._last_skipped: Sequence[str] = ()
        self.n_measured = 0
        self.earlier = Earlier()
        """What was done before the run was interrupted, once it is known."""

    def handle(self, job: Job) -> None:
        """Do one job; all that the thread does, but for being idle, goes through here."""
        job()

    def begin_step(self, step: int, *, is_extra: bool) -> None:
        """Begin a measurement; `is_extra` if it is not due, and made only because training resumes here."""
        self._current = StepMeasurements(step, is_extra=is_extra)

    def measure(self, layer: Layer, copy: Copy, probes: Sequence[Probe]) -> None:
        """Measure a copy of one layer."""
        assert self._current is not None
        with self._budget.meter.during("measuring"):
            self._measurer.measure(replace(layer, entry=copy.entry(layer.name)), probes, self._current)

    def idle(self) -> None:
        """Write, forecast and examine checkpoints, if the next write or forecast is due."""
        is_due = bool(self.logged) and self._forecast.is_due(self.logged[-1][0], self._budget)
        if is_due or time.monotonic() >= self._next_write:
            self.write()
            self._make_forecast()
            self._examine()

    def skip(self, what: str) -> None:
        """Count a skipped measurement: the name of a probe, a colon, and the reason."""
        name = what.partition(":")[0]
        self._skipped[name] = self._skipped.get(name, 0) + 1

    def end_step(self, training: PendingQuantities, activations: Activations | None, skipped: Sequence[str]) -> None:
        """End a measurement, with what the training thread measured, and store it."""
        done, self._current = self._current, None
        assert done is not None
        with self._budget.meter.during("measuring"):
            for layer, values in training.rows().items():
                role = self._roles.get(layer, NETWORK)
                if layer in self._roles or layer == NETWORK:
                    finite = {name: value for name, value in values.items() if math.isfinite(value)}
                    done.add(self._training, Measurement(layer, role, finite))
            self._measurer.finish(done)
            if activations is not None:
                self._measure_activations(activations, done)
        self.n_measured += 1
        self._last_skipped = skipped
        for line in skipped:
            self.skip(line)
        self._writes.add(lambda recording: self._write_measured(recording, done), done)
        rows = {
            (layer, probe.name()): measurement.statistics
            for probe, of in done.measurements.items()
            for layer, measurement in of.items()
        }
        self.write()  # what was logged before comes first
        if done.step == self._first and self._writes.recording is not None:
            is_missing = self._measurer.resume(self._stored_diagrams)
            if is_missing and done.is_extra and self._writes.recording.cut_at is not None:
                echo(f"the diagrams before step {done.step} are not stored: the next distances are to this step")
        with self._counting_cpu_time():
            self._dispatch(measured := Measured(done.step, rows, skipped))
            if said := self._stopping.measured(measured):
                self._store_and_dispatch([Note(done.step, (), said)])
            self._store_and_dispatch(self._alerts.ranks(done.step, training.ranks()))
        self._next_write = 0.0

    def _measure_activations(self, activations: Activations, done: StepMeasurements) -> None:
        started = self._budget.meter.clock()
        probe = ActivationsProbe()
        for result in probe.measure(ProbeInput([], frozenset(), inputs={"training": activations}, step=done.step)):
            done.add(probe, checked(result))
        self._budget.charge(probe.name(), "measured", self._budget.meter.clock() - started)

    def _dispatch(self, event: Event) -> None:
        """Send an event to the sinks, and store and send the alerts that it raises."""
        self._sinks.put(event)
        self._store_and_dispatch(self._alerts.check(event))

    @contextmanager
    def _counting_cpu_time(self) -> Iterator[None]:
        """Count the CPU time of this thread; waiting for a disk takes none."""
        started = time.thread_time()
        try:
            yield
        finally:
            self._budget.meter.add(time.thread_time() - started)

    def _store_and_dispatch(self, events: Sequence[Event]) -> None:
        for event in events:
            said = self._alerts.explained(event, self.checkpoints.before) if isinstance(event, Alert) else event
            self._writes.add(partial(Recording.put, event=said))
            self._dispatch(said)

    def write(self, *, is_last: bool = False) -> None:
        """Write what is queued, at last the status anyway; if the study cannot be written, try again later."""
        started, self._other_seconds = time.thread_time(), 0.0
        with self._counting_cpu_time():
            if rows := self._logged_rows():
                self._writes.add(lambda recording: self._write_log(recording, rows))
            wait = self._writes.write(self.status, is_last=is_last)
        # Writing the log takes at most half of the budget.
        seconds = time.thread_time() - started - self._other_seconds
        self._next_write = time.monotonic() + max(wait, 2 * seconds / self._budget.share)

    def _open(self) -> Recording:
        started = time.thread_time()
        recording = Recording(
            self._run, [self._training, *self._probes, *self._other_probes], self._layers, self._first
        )
        self._forecast.prepare(self._budget)
        if recording.cut_at is not None:
            for step, values in recording.logged().items():
                self._forecast.add(step, values)
            self._stored_diagrams = recording.last_diagrams()
            self.earlier = recording.earlier()
            stored = f"; the stored rows up to step {recording.cut_at} are replaced as training repeats these steps"
            repeats = recording.cut_at > self._first
            echo(f"{recording.run} resumes at step {self._first}{stored if repeats else ''}")
        self._other_seconds += time.thread_time() - started
        return recording

    def _make_forecast(self, *, final: bool = False) -> None:
        with self._counting_cpu_time():
            self._store_and_dispatch(self._forecast.update(self._budget, final=final))

    def _examine(self, *, final: bool = False) -> None:
        """Examine saved checkpoints."""
        n_before = self.checkpoints.n_examined
        with self._budget.meter.during("measuring"):
            try:
                alerts = list(self.checkpoints.examine(final=final))
            except ToposcopeError as error:
                echo(str(error))
                return
        with self._counting_cpu_time():
            self._store_and_dispatch(alerts)
        if self.checkpoints.n_examined > n_before:
            findings, n = list(self.checkpoints.findings), self.checkpoints.n_examined
            self._writes.add(lambda recording: recording.findings(findings, n))

    def _logged_rows(self) -> dict[int, dict[str, float]]:
        """Return the rows logged since the last write, by step; thin them, and dispatch each as an event."""
        started = time.thread_time()
        rows: dict[int, dict[str, float]] = {}
        events = list[Logged | Note | PendingLook]()
        for _ in range(len(self.logged)):
            step, values = self.logged.popleft()
            if not isinstance(values, Mapping):
                events.append(values)
                continue
            numbers = _numbers(values)
            if new := values.keys() - numbers.keys() - self._unreadable:
                self._unreadable |= new
                echo(f"log: {', '.join(sorted(new))}: not a number; ignored")
            if self._thinning.keeps(step, numbers):
                rows.setdefault(step, {}).update(numbers)
                self._forecast.add(step, stored_names(numbers))
                events.append(Logged(step, numbers))
        for event in events:
            if isinstance(event, Note):
                self._store_and_dispatch([event])
            elif isinstance(event, PendingLook):
                began = time.thread_time()
                self._store_and_dispatch(self._alerts.looked(event.event()))
                self.look_seconds += time.thread_time() - began
            else:
                self._dispatch(event)
        self._row_seconds = time.thread_time() - started
        return rows

    def _write_measured(self, recording: Recording, done: StepMeasurements) -> None:
        started = time.thread_time()
        if disagreement := recording.measured(done):
            echo(disagreement)
        seconds = time.thread_time() - started
        self._other_seconds += seconds
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
        """Return what the monitor measured, what it cost and what it skipped."""
        budget, recording = self._budget, self._writes.recording
        cut_at = None if recording is None else recording.cut_at
        return {
            "last_step": self._run.last_step,
            "diverged": None if self._forecast.diverged is None else str(self._forecast.diverged),
            "forecast_target": self._forecast.target,
            "no_forecast": self._forecast.no_forecast(),
            "borrowed": self._forecast.borrowed,
            "n_measured": self.n_measured,
            "checkpoints": self.checkpoints.to_dict(),
            "budget": budget.share,
            "trained_seconds": round(budget.trained, 3),
            "cost_seconds": round(budget.cost, 3),
            "blocked_seconds": round(budget.meter.blocked, 3),
            "start_seconds": round(budget.exempt, 3),
            "step_seconds": budget.step_seconds if budget.trained else None,
            "log_every": self._thinning.every,
            "log_left_out": self._thinning.n_dropped,
            "skipped": self._skipped,
            "last_skipped": list(self._last_skipped),
            "looks": self._looks(),
            "resumed": None if cut_at is None else [self._first, cut_at],
        }

    def _looks(self) -> Mapping[str, Any] | None:
        """Return what the looks at the layers saw, those before the run was interrupted included."""
        seen, earlier = self._alerts.looks, self.earlier.looks
        if not seen.n_looks:
            return earlier
        return {
            "n_layers": seen.n_layers,
            "n_updated": seen.n_updated,
            "idle": sorted(seen.idle),
            "n_looks": seen.n_looks + (earlier["n_looks"] if earlier else 0),
            "first": earlier["first"] if earlier else seen.first,
            "last": seen.last,
        }

    def finish(self, status: str, step: int) -> None:
        """Measure and write what is left, and close the study."""
        self.write()
        if last := self._thinning.last_dropped():
            self._thinning.every = 1
            self.logged.append(last)
        self._make_forecast(final=True)
        self._examine(final=True)
        self._budget.begin()  # training is over: it pays for none of this
        self.write(is_last=True)
        has_diverged = status == "complete" and self._forecast.diverged is not None
        self._writes.close(DIVERGED if has_diverged else status, step)
        self._sinks.close()

    def release(self) -> None:
        """Close the study and the sinks after a failure."""
        if self._writes.recording is not None:
            self._writes.recording.release()
        self._sinks.close()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers, tensors with one element included."""
    numbers = {}
    for name, value in values.items():
        try:
            numbers[name] = float(value)
        except Exception:  # noqa: BLE001 - whatever a user's object raises, it is not a number
            continue
    return numbers


MAX_WAIT_SECONDS = 10.0
"""Time that a job waits for room in the queue; a hanging disk must not block the training for longer."""
IDLE_SECONDS = 0.25  # interval at which a thread without jobs calls `idle`


class Worker:
    """A thread and its queue, in which jobs hold at most `limit` bytes; a larger one is accepted if no other does.

    `handle` does a job; if it raises, `failed` is called on the thread, which ends and accepts no further jobs. `idle`
    is called between jobs, and every quarter of a second while there are none.
    """

    def __init__(
        self, handle: Callable[[Job], None], idle: Job, failed: Callable[[BaseException], None], limit: int
    ) -> None:
        self._handle, self._idle, self._failed, self._limit = handle, idle, failed, limit
        self._jobs: deque[tuple[Job, int]] = deque()
        self._bytes = 0
        self.unfinished = 0
        """Number of jobs that are queued or in progress."""
        self._changed = threading.Condition()
        self._stopping = False
        # A daemon, so that a script can exit without closing its monitor.
        self._thread = threading.Thread(target=self._run, name="toposcope-monitor", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread accepts jobs."""
        return self._thread.is_alive() and not self._stopping

    def put(self, job: Job, n_bytes: int = 0) -> bool:
        """Queue a job once there is room for its bytes; return False after a timeout, or if the thread has ended."""
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        with self._changed:
            while self._bytes and self._bytes + n_bytes > self._limit and self.is_running:
                if time.monotonic() > deadline:
                    return False
                self._changed.wait(IDLE_SECONDS)
            if not self.is_running:
                return False
            self._jobs.append((job, n_bytes))
            self._bytes += n_bytes
            self.unfinished += 1
            self._changed.notify_all()
            return True

    def stop(self, timeout: float | None = None) -> None:
        """Finish the queued jobs, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while (taken := self._next()) is not None:
                for job, n_bytes in taken:
                    try:
                        self._handle(job)
                    finally:
                        self._finish(n_bytes)
                self._idle()
            self._idle()
        except BaseException as error:  # noqa: BLE001 - reported to the user; training continues
            self._stopping = True
            self._failed(error)
        finally:
            with self._changed:
                self._jobs.clear()
                self._changed.notify_all()

    def _next(self) -> list[tuple[Job, int]] | None:
        """Return a list with the next job, an empty one after a timeout, or None at the end."""
        with self._changed:
            if not self._jobs and not self._stopping:
                self._changed.wait(IDLE_SECONDS)
            if self._jobs:
                return [self._jobs.popleft()]
            return None if self._stopping else []

    def _finish(self, n_bytes: int) -> None:
        with self._changed:
            self._bytes -= n_bytes
            self.unfinished -= 1
            self._changed.notify_all()
