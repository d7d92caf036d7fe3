"""The monitor's side on the training thread: what is due, what is affordable, and the copying of tensors."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toposcope.errors import ToposcopeError
from toposcope.monitor.activations import Activations, FixedBatch
from toposcope.monitor.budget import Budget, Clock, Meter
from toposcope.monitor.examining import DOCTOR
from toposcope.monitor.parameters import watched
from toposcope.monitor.planning import START_SECONDS, Plan, Planner
from toposcope.monitor.quantities import Pending
from toposcope.monitor.recording import Place
from toposcope.monitor.running_forecast import RunningForecast
from toposcope.monitor.session import STORING, Finish, Job, Saved, Session, Snapshot, StepEnd, StepStart
from toposcope.monitor.sinks.sink import Sink
from toposcope.monitor.sinks.terminal import say
from toposcope.monitor.together import Together
from toposcope.monitor.warm_up import Compiling
from toposcope.monitor.watching import FORECAST, Watch
from toposcope.monitor.worker import Worker
from toposcope.probes import make_probes
from toposcope.probes.activations import ActivationsProbe
from toposcope.probes.training import TrainingProbe
from toposcope.study.tasks import one_line

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

MODEL_SHARE = 4
"""Snapshots that wait take at most the bytes of the model divided by this, or those of the largest layer."""
TRAINING = TrainingProbe.name()
OF_TRAINING = ("", STORING)
"""What its account pays for: quantities of the training thread, and storing what was measured."""
ACTIVATIONS = ActivationsProbe.name()
ACTIVATION_COSTS = ("run", "measured")
CLOSE_SECONDS = 120.0
"""Time the monitor's thread has at the end to measure and write what waits."""


class Running:
    """A monitored run.

    In data-parallel training the first rank measures. Where tensors are sharded, all ranks take part in the sums and in
    gathering one tensor after another, as the first rank decides (see `Together`).

    Parameters
    ----------
    together : Together
        Of the leader.
    probes : sequence of dict
    place : Place
    share : float
        Of the time of training.
    step : int
        Updates made so far.
    clock : callable
    open_sinks : callable
        Takes what counts the seconds that sinks take, and returns them.
    batch : FixedBatch, optional
    """

    def __init__(
        self,
        together: Together,
        probes: Sequence[dict[str, Any]],
        place: Place,
        *,
        share: float,
        step: int,
        clock: Clock,
        open_sinks: Callable[[Callable[[float], None]], list[Sink]],
        batch: FixedBatch | None,
    ) -> None:
        self.together, self._layers = together, together.layers
        devices = {parameter.device.type for parameter in together.parameters.values()}
        self.meter = Meter(clock, beside_counts=devices == {"cpu"})
        made = make_probes(list(probes))
        self._names = [probe.name() for probe in made]
        self._budget = Budget(
            share, [TRAINING, *self._names, FORECAST, DOCTOR, *([ACTIVATIONS] if batch else [])], self.meter
        )
        self._planner = Planner(made, {n: (x.shape[0], x.shape[1]) for n, x in self._layers.items()}, self._budget)
        forecast = RunningForecast(
            place.directory,
            place.run,
            last_step=place.last_step,
            parameters=place.n_parameters,
            tokens_per_step=place.tokens_per_step or math.nan,
        )
        watch = Watch(forecast, self._budget, place.last_step)
        self._session = Session(
            place,
            made,
            list(self._layers.values()),
            step,
            self._budget,
            open_sinks(self.meter.add),
            watch,
            say,
            [ActivationsProbe()] if batch else [],
        )
        self._batch, self._step = batch, step
        sizes = [layer.n_bytes for layer in self._layers.values()]
        total = sum(parameter.numel() * parameter.element_size() for parameter in together.parameters.values())
        self._worker: Worker[Job] = Worker(
            self._session.handle, self._session.idle, self._failed, max([*sizes, total // MODEL_SHARE])
        )
        self._dtype = str(next(iter(together.parameters.values())).dtype).removeprefix("torch.")
        self._probes = probes
        self._compiling = Compiling(probes, self._dtype)
        self._is_measured, self._started = False, 0.0
        self._whole_at = -1  # the last step of which everything was measured

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Keep what the loop logged."""
        if self._worker.is_running:
            self.meter.read(blocking=1)
            try:
                self._session.logged.append((step, {name: _held(value) for name, value in values.items()}))
            finally:
                self.meter.read(blocking=-1)

    def saved(self, path: Path, step: int) -> None:
        """Examine a checkpoint that was saved."""
        self._worker.put(Saved(path, step))

    def count_step(self) -> None:
        """Count the step that ends."""
        self._step += 1
        self._budget.step()

    def abandon(self) -> None:
        """End at once, from any thread; the weights may be in use, and the last step is not measured."""
        self._worker.put(Finish("failed", self._step))
        self._worker.stop(0)

    def before_step(self) -> None:
        """Prepare the measurement of a due step: copy some of the weights, to see how far the step moves them."""
        with self.meter.during("blocked"):
            self._started = self.meter.blocked
            self._budget.share_out()
            self._is_measured = self.together.decide(
                self._worker.is_running and self._budget.affords(TRAINING, OF_TRAINING) and not _is_captured()
            )
            if self._is_measured:
                self.together.before()

    def measure_at_end(self, step: int) -> None:
        """Measure before the first step, or after the last; wait until it is done."""
        with self.meter.during("blocked"):
            self._measure_at_end(step)
        self._budget.begin()

    def _measure_at_end(self, step: int) -> None:
        # The first time takes longer than any other. `Following` does the same: whatever is done together is in both.
        self.together.after(gradients=False)
        started = self.meter.blocked
        training = self.together.after(gradients=False)
        self._budget.charge(TRAINING, "", self.meter.blocked - started)
        self._measure(step, self._planner.at_ends, training, 2 * START_SECONDS, at_end=True)
        # Training waits: the measurement is of weights that no step has changed.
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._worker.unfinished and self._worker.is_running and time.monotonic() < deadline:
            time.sleep(0.005)

    def measure(self, step: int, interval: int) -> None:
        """Measure a due step, as far as it is affordable."""
        if not self._is_measured:
            self._session.skip(f"{TRAINING}: everything; it takes {self._budget.expected(TRAINING, OF_TRAINING):.2g} s")
            return
        self._is_measured = False
        training = self.together.after()
        self._budget.charge(TRAINING, "", self.meter.blocked - self._started)
        self._measure(step, partial(self._plan, interval), training, self._budget.credit)

    def _plan(self, interval: int) -> Plan:
        if self._worker.unfinished:
            return Plan(skipped=[f"{name}: the last measurement is under way" for name in self._names])
        return self._planner.at(interval * self._budget.step_seconds)

    def finish(self, step: int, status: str) -> None:
        """Measure the last step and write everything."""
        ends = self.together.ends(status)
        if ends and (self.together.is_sharded or self._whole_at != step):
            self.measure_at_end(step)
        self._worker.put(Finish(status, step))
        self._worker.stop(CLOSE_SECONDS)
        # What is being compiled is left to end by itself: the next run has it.

    def _measure(
        self, step: int, planned: Callable[[], Plan], training: Pending, seconds: float, *, at_end: bool = False
    ) -> None:
        """Hand over a copy of one layer after another, until so many seconds are spent."""
        plan = self._planned(planned)
        limit, skipped = self.meter.cost + seconds, list(plan.skipped)
        self._worker.put(StepStart(step))
        unanswered: list[str] = []
        for name, copy in self.together.copies(plan.wanted, lambda: not unanswered and self.meter.cost <= limit):
            probes, layer = plan.wanted[name], self._layers[name]
            if copy is None:
                skipped += [f"{probe.name()}: {name}; it took longer than expected" for probe in probes]
            elif not self._worker.put(Snapshot(layer, copy, probes), layer.n_bytes):
                unanswered.append(name)  # the thread hangs or has ended: no further layer waits for it
                skipped += [f"{probe.name()}: {name}; the monitor's thread does not answer" for probe in probes]
        activations = self._activations(skipped, at_end=at_end)
        self._worker.put(StepEnd(training, activations, skipped))
        self._whole_at = self._whole_at if skipped else step

    def _activations(self, skipped: list[str], *, at_end: bool) -> Activations | None:
        """Run the model on its fixed batch, if that is affordable."""
        if self._batch is None or not self._compiling.is_ready:
            return None
        seconds = self._budget.expected(ACTIVATIONS, ACTIVATION_COSTS)
        if not (seconds <= START_SECONDS if at_end else self._budget.affords(ACTIVATIONS, ACTIVATION_COSTS)):
            skipped.append(f"{ACTIVATIONS}: everything; it takes {seconds:.2g} s")
            return None
        started = self.meter.blocked
        try:
            return self._batch.run()
        except Exception as error:  # noqa: BLE001 - whatever the model raises, the rest is measured
            say(f"batch: the model cannot run on it ({one_line(error)}); it is left out from here on")
            self._batch = None
            return None
        finally:
            self._budget.charge(ACTIVATIONS, "run", self.meter.blocked - started)

    def _planned(self, planned: Callable[[], Plan]) -> Plan:
        try:
            if self._compiling.is_ready:
                return planned()
        except Exception:
            for _ in self.together.copies(None, lambda: False):  # lets the other ranks know
                pass
            raise
        return Plan(skipped=[f"{name}: it is being compiled" for name in self._names])

    def _failed(self, error: BaseException) -> None:
        say(f"{type(error).__name__}: {error}; training goes on without the monitor")


def measuring_probes(probes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check the probes that a user wants.

    Raises
    ------
    ToposcopeError
        If one cannot measure single layers of a model that trains.
    """
    for probe in make_probes(list(probes)):
        if not (probe.by_layer() or "diagrams" in probe.NEEDS) or probe.NEEDS - {"first", "previous", "diagrams"}:
            raise ToposcopeError(f"probe {probe.label()}: a monitor measures layer by layer; measure saved checkpoints")
    return list(probes)


def steps_made(optimizer: "Optimizer") -> int:
    """Return the updates that an optimizer has made, as far as its state says."""
    steps = [float(state["step"]) for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    return int(max(steps, default=0))


def has_any(optimizer: "Optimizer", parameters: Iterable["torch.Tensor"]) -> bool:
    """Return whether an optimizer holds any of some parameters."""
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return any(id(parameter) in own for parameter in parameters)


def n_parameters(model: "nn.Module") -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in watched(model).values() if p.requires_grad)


def _is_captured() -> bool:
    """Return whether this step is being recorded as a CUDA graph, of which a measurement must not become a part."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _held(value: Any) -> Any:
    """Return a number that later changes of a tensor do not reach, without waiting for a GPU; None if it is not one."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            return None
        return value.detach().clone() if value.device.type != "cpu" else value.detach().item()
    return value
