"""The monitor's side on the training thread: what is due, what is affordable, and the copying of tensors."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from toposcope.errors import ToposcopeError
from toposcope.monitor import warm_up
from toposcope.monitor.budget import Budget, Clock, Meter
from toposcope.monitor.events import Event
from toposcope.monitor.gathering import gather
from toposcope.monitor.parameters import layout, watched
from toposcope.monitor.planning import START_SECONDS, Plan, Planner
from toposcope.monitor.quantities import Pending, Quantities
from toposcope.monitor.recording import Place
from toposcope.monitor.session import Finish, Job, Session, Snapshot, StepEnd, StepStart
from toposcope.monitor.sinks.sink import Sink
from toposcope.monitor.sinks.terminal import say
from toposcope.monitor.worker import Worker
from toposcope.probes import make_probes
from toposcope.probes.training import TrainingProbe

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

MODEL_SHARE = 4
"""Snapshots that wait take at most the bytes of the model divided by this, or those of the largest layer."""
TRAINING = TrainingProbe.name()
CLOSE_SECONDS = 120.0
"""Time the monitor's thread has at the end to measure and write what waits."""


class Running:
    """A monitored run.

    In data-parallel training the first rank measures. Where tensors are sharded, all ranks take part in the sums and in
    gathering one tensor after another, as the first rank decides.

    Parameters
    ----------
    model : torch.nn.Module
    probes : sequence of dict
    place : Place
    share : float
        Of the time of training.
    step : int
        Updates made so far.
    clock : callable
    sinks : list of Sink
    watch : callable
        Takes an event, returns what follows from it.
    """

    def __init__(
        self,
        model: "nn.Module",
        probes: Sequence[dict[str, Any]],
        place: Place,
        *,
        share: float,
        step: int,
        clock: Clock,
        sinks: list[Sink],
        watch: Callable[[Event], Sequence[Event]],
    ) -> None:
        self._parameters = watched(model)
        self._layers = {layer.name: layer for layer in layout(model)}
        devices = {parameter.device.type for parameter in self._parameters.values()}
        self.meter = Meter(clock, beside_counts=devices == {"cpu"})
        made = make_probes(list(probes))
        self._names = [probe.name() for probe in made]
        self._budget = Budget(share, [TRAINING, *self._names], self.meter, clock)
        self._planner = Planner(made, {n: (x.shape[0], x.shape[1]) for n, x in self._layers.items()}, self._budget)
        self._session = Session(place, made, list(self._layers.values()), step, self._budget, sinks, watch, say)
        sizes = [layer.n_bytes for layer in self._layers.values()]
        total = sum(parameter.numel() * parameter.element_size() for parameter in self._parameters.values())
        self._worker: Worker[Job] = Worker(
            self._session.handle, self._session.idle, self._failed, max([*sizes, total // MODEL_SHARE])
        )
        self._quantities = Quantities(self._parameters, list(self._layers.values()))
        self._dtype = str(next(iter(self._parameters.values())).dtype).removeprefix("torch.")
        self._probes = probes
        self._compiling: subprocess.Popen[bytes] | None = None
        self._is_measured, self._started = False, 0.0
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile what is to be compiled: at once if it only has to be read from the disk, else in another process."""
        if warm_up.marker(self._dtype).exists():
            warm_up.warm_up(self._probes, self._dtype)
        else:
            self._compiling = warm_up.in_background(self._probes, self._dtype)

    def _is_ready(self) -> bool:
        """Return whether everything is compiled."""
        if self._compiling is None:
            return True
        if self._compiling.poll() is None:
            return False
        self._compiling = None
        warm_up.warm_up(self._probes, self._dtype)
        return True

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Keep what the loop logged."""
        if self._worker.is_running:
            self._session.logged.append((step, {name: _held(value) for name, value in values.items()}))

    def count_step(self) -> None:
        """Count the step that ends."""
        self._budget.step()

    def before_step(self) -> None:
        """Prepare the measurement of a due step: copy some of the weights, to see how far the step moves them."""
        with self.meter.during("blocked"):
            self._started = self.meter.blocked
            self._is_measured = self._budget.affords(TRAINING, [""])
            if self._is_measured:
                self._quantities.before()

    def measure_at_end(self, step: int) -> None:
        """Measure before the first step, or after the last; wait until it is done."""
        with self.meter.during("blocked"):
            self._measure_at_end(step)
        self._budget.begin()

    def _measure_at_end(self, step: int) -> None:
        plan = (
            self._planner.at_ends()
            if self._is_ready()
            else Plan(skipped=[f"{n}: it is being compiled" for n in self._names])
        )
        self._quantities.after(gradients=False)  # the first time takes longer than any other
        started = self.meter.blocked
        training = self._quantities.after(gradients=False)
        self._budget.charge(TRAINING, "", self.meter.blocked - started)
        self._measure(step, plan, training, 2 * START_SECONDS)
        # Training waits: the measurement is of weights that no step has changed.
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._worker.unfinished and self._worker.is_running and time.monotonic() < deadline:
            time.sleep(0.005)

    def measure(self, step: int, interval: int) -> None:
        """Measure a due step, as far as it is affordable."""
        if not self._is_measured:
            self._session.skip(f"{TRAINING}: everything; it takes {self._budget.expected(TRAINING, ['']):.2g} s")
            return
        self._is_measured = False
        training = self._quantities.after()
        self._budget.charge(TRAINING, "", self.meter.blocked - self._started)
        if not self._is_ready():
            plan = Plan(skipped=[f"{name}: it is being compiled" for name in self._names])
        elif self._worker.unfinished:
            plan = Plan(skipped=[f"{name}: the last measurement is under way" for name in self._names])
        else:
            plan = self._planner.at(interval * self._budget.step_seconds)
        self._measure(step, plan, training, self._budget.credit)

    def finish(self, step: int, status: str) -> None:
        """Measure the last step and write everything."""
        self.measure_at_end(step)
        self._worker.put(Finish(status, step))
        self._worker.stop(CLOSE_SECONDS)
        if self._compiling is not None:
            self._compiling.terminate()

    def _measure(self, step: int, plan: Plan, training: Pending, seconds: float) -> None:
        """Hand over a copy of one layer after another, until so many seconds are spent."""
        self._worker.put(StepStart(step))
        limit, skipped = self.meter.cost + seconds, list(plan.skipped)
        for name, probes in plan.wanted.items():
            if self.meter.cost > limit:
                skipped += [f"{probe.name()}: {name}; it took longer than expected" for probe in probes]
                continue
            layer, copy = self._layers[name], gather(self._parameters[name])
            if copy is not None and not self._worker.put(Snapshot(layer, copy, probes), layer.n_bytes):
                return
        self._worker.put(StepEnd(training, skipped))

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


def n_parameters(model: "nn.Module") -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in watched(model).values() if p.requires_grad)


def _held(value: Any) -> Any:
    """Return a value that later changes of a tensor do not reach, without waiting for a GPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.device.type != "cpu" else value.detach().item()
    return value
