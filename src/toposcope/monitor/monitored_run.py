"""The training thread's part of the monitor: decides what is due and affordable, and copies tensors."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toposcope.errors import ToposcopeError
from toposcope.monitor.activations import Activations, FixedBatch
from toposcope.monitor.budget import MIN_COST_RATIO, START_SECONDS, Budget, Clock, Meter, Plan, Planner
from toposcope.monitor.events import Note
from toposcope.monitor.looks import interval
from toposcope.monitor.measuring import marker, warm_up
from toposcope.monitor.parameters import watched
from toposcope.monitor.quantities import PendingQuantities
from toposcope.monitor.ranks import RankGroup
from toposcope.monitor.recording import RunInfo
from toposcope.monitor.saved_checkpoints import DOCTOR
from toposcope.monitor.session import STORING, Session, Worker
from toposcope.monitor.sinks.opening import RunSinks
from toposcope.monitor.sinks.terminal import echo
from toposcope.monitor.stopping import Stopping
from toposcope.probes import Probes, declarations, make_probes
from toposcope.probes.activations import ActivationsProbe
from toposcope.probes.training import TrainingProbe
from toposcope.study.tasks import one_line
from toposcope.wording import examples

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

LOOK_SHARE = 0.2  # share of the budget that looks may take

MODEL_SHARE = 4  # queued snapshots take at most a fourth of the model's bytes, or as much as its largest layer
TRAINING = TrainingProbe.name()
TRAINING_COSTS = ("", STORING)
"""Charged to the probe ``training``: its own measurement, and storing all measurements of a step."""
ACTIVATIONS = ActivationsProbe.name()
ACTIVATION_COSTS = ("run", "measured")
CLOSE_SECONDS = 120.0  # time within which the monitor's thread must empty its queue at the end
WRITE_SECONDS = 2.0  # time for which saving a checkpoint waits until everything up to it is written


class MonitoredRun:
    """A run as its leading rank monitors it.

    In data-parallel training, rank 0 measures. If tensors are sharded, all ranks take part in the reductions, and in
    gathering one tensor after another as rank 0 decides (see `RankGroup`).
    """

    def __init__(
        self,
        ranks: RankGroup,
        probes: Sequence[dict[str, Any]],
        run: RunInfo,
        *,
        share: float,
        step: int,
        clock: Clock,
        open_sinks: Callable[[Callable[[float], None]], RunSinks],
        batch: FixedBatch | None,
        stopping: Stopping,
    ) -> None:
        self.ranks, self._layers = ranks, ranks.layers
        devices = {parameter.device.type for parameter in ranks.parameters.values()}
        self.meter = Meter(clock, counts_concurrent=devices == {"cpu"})
        made = make_probes(list(probes))
        self._names = [probe.name() for probe in made]
        self._budget = Budget(share, [TRAINING, *self._names, DOCTOR, *([ACTIVATIONS] if batch else [])], self.meter)
        self._planner = Planner(made, {n: (x.shape[0], x.shape[1]) for n, x in self._layers.items()}, self._budget)
        layers, others = list(self._layers.values()), [ActivationsProbe()] if batch else []
        self._session = Session(run, made, layers, step, self._budget, open_sinks(self.meter.add), stopping, others)
        self._batch, self._step = batch, step
        sizes = [layer.n_bytes for layer in layers]
        total = sum(parameter.numel() * parameter.element_size() for parameter in ranks.parameters.values())
        dtype = str(next(iter(ranks.parameters.values())).dtype).removeprefix("torch.")
        if not marker(dtype).exists():
            echo("compiling what measures, once on this machine, in about 15 seconds")
        warm_up(probes, dtype)
        self._worker = Worker(  # after what warms up: two threads that import one package see half of it
            self._session.handle, self._session.idle, self._failed, max([*sizes, total // MODEL_SHARE])
        )
        self._is_measured, self._is_changed, self._started = False, False, 0.0
        self._next_look, self._last_step = step + 1, run.last_step
        self._look_began = self._look_seconds = self._look_spent = 0.0
        self._complete_at = self._saved_at = -1  # the last steps at which nothing was skipped, or a checkpoint saved

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Queue the values that the loop logged."""
        if self._worker.is_running:
            began = self.meter.own()
            self._session.logged.append((step, {name: _copied_number(value) for name, value in values.items()}))
            self.meter.add_since(began)
            if step == self._saved_at:
                self._worker.put(self._session.write)

    def saved(self, path: Path, step: int) -> None:
        """Queue a saved checkpoint for examination."""
        self._worker.put(partial(self._session.checkpoints.add, path, step))
        self.write()

    def write(self) -> None:
        """Write everything up to this step, since training may resume here."""
        with self.meter.during("blocked"):
            self._saved_at = self._step
            if self._worker.put(self._session.write):
                self._wait(WRITE_SECONDS)

    def count_step(self, *, is_due: bool) -> None:
        """Count a step that has ended, and note the layers that it no longer trained, or trained again."""
        self._step += 1
        self._budget.step()
        for what, names in self.ranks.training_changes(is_due=is_due).items():
            are = "layer {} is" if len(names) == 1 else "layers {} are"
            message = f"{are.format(examples(names))} {what.format(format(self._step, ','))}"
            self._session.logged.append((self._step, Note(self._step, names, message)))

    def abandon(self) -> None:
        """Stop at once, from any thread; the last step is not measured, since the weights may be in use."""
        self._worker.put(partial(self._session.finish, "failed", self._step))
        self._worker.stop(0)

    def before_step(self) -> None:
        """Prepare the measurement of a due step: copy some of the weights, to measure their update."""
        with self.meter.during("blocked"):
            self._started = self.meter.blocked
            self._budget.redistribute()
            self._is_measured = self.ranks.decide(
                self._worker.is_running and self._budget.affords(TRAINING, TRAINING_COSTS) and not _is_captured()
            )
            if self._is_measured:
                self.ranks.before()
            self._notice_changes()

    def begin_look(self, step: int) -> None:
        """Prepare a look at the parameters before the optimizer's step, if it is due and affordable."""
        looks = self.ranks.looks
        if step < self._next_look or looks is None:
            return
        every = interval(step, self._last_step)
        if not self._affords_look():
            self._next_look = step + max(1, every // 8)
            return
        self._next_look = step + every
        with self.meter.during("blocked"):
            began = self.meter.own()
            looks.before()
            self._look_began = self.meter.own() - began

    def _affords_look(self) -> bool:
        """Return whether a look is paid for, by a share of the budget that nothing else can spend."""
        allowed = LOOK_SHARE * self._budget.share * self._budget.trained
        needed = self._look_spent + self._session.look_seconds + self._look_seconds
        return needed <= allowed and self._worker.is_running and not _is_captured()

    def end_look(self, step: int) -> None:
        """Look after the optimizer's step, if that was prepared."""
        if self.ranks.looks is None or not self.ranks.looks.is_prepared:
            return
        with self.meter.during("blocked"):
            began = self.meter.own() - self._look_began
            self._session.logged.append((step, self.ranks.looks.after(step)))
            seconds = self.meter.own() - began
        self._look_spent += seconds
        self._look_seconds = max(seconds, MIN_COST_RATIO * self._look_seconds)

    def _notice_changes(self) -> None:
        """Warn once if the model has new parameters, which are not measured; the budget may skip all other work."""
        if not self._is_changed and (new := self.ranks.new_parameters()):
            self._is_changed = True
            echo(f"{examples(new, 1)}: added after attach, so not measured; attach the monitor to the complete model")

    def measure_at_end(self, step: int, *, is_extra: bool = False) -> None:
        """Measure before the first step or after the last, and wait for the result."""
        with self.meter.during("blocked"):
            self._estimate_look()
            self._measure_at_end(step, is_extra=is_extra)
        self._budget.begin()

    def _estimate_look(self) -> None:
        """Look twice before training, without gradients: the first warms up, and the second is timed."""
        if self.ranks.looks is not None and not self._look_seconds:
            for _ in range(2):
                began = self.meter.own()
                self.ranks.looks.before()
                self.ranks.looks.after(self._step)
                self._look_seconds = self.meter.own() - began

    def resume(self) -> None:
        """Go on where the run was interrupted, if it was, once the first measurement is complete."""
        earlier = self._session.earlier
        self._budget.resume(earlier.trained_seconds, earlier.cost_seconds)
        self.ranks.resume(earlier.n_updates)

    def _measure_at_end(self, step: int, *, is_extra: bool) -> None:
        # The first call warms up and is not timed. `Follower` makes the same calls, since both are collective.
        self.ranks.after(gradients=False)
        started = self.meter.blocked
        training = self.ranks.after(gradients=False)
        self._budget.charge(TRAINING, "", self.meter.blocked - started)
        self._measure(step, self._planner.at_ends, training, 2 * START_SECONDS, at_end=True, is_extra=is_extra)
        self._wait(CLOSE_SECONDS)

    def _wait(self, seconds: float) -> None:
        """Wait until the queue is empty, at most so long."""
        deadline = time.monotonic() + seconds
        while self._worker.unfinished and self._worker.is_running and time.monotonic() < deadline:
            time.sleep(0.001)

    def measure(self, step: int, interval: int) -> None:
        """Measure as much of a due step as is affordable."""
        if not self._is_measured:
            seconds = self._budget.expected(TRAINING, TRAINING_COSTS)
            self._session.skip(f"{TRAINING}: all layers; measuring them takes {seconds:.2g} s")
            return
        self._is_measured = False
        training = self.ranks.after()
        self._budget.charge(TRAINING, "", self.meter.blocked - self._started)
        self._measure(step, partial(self._plan, interval), training, self._budget.credit)

    def _plan(self, interval: int) -> Plan:
        if self._worker.unfinished:
            return Plan(skipped=[f"{name}: the previous measurement is not finished" for name in self._names])
        return self._planner.at(interval * self._budget.step_seconds)

    def finish(self, step: int, status: str) -> None:
        """Measure the last step, and write everything."""
        ends = self.ranks.ends(status)
        try:
            if ends and (self.ranks.is_sharded or self._complete_at != step):
                self.measure_at_end(step)
        finally:  # whoever waits may be interrupted
            self._worker.put(partial(self._session.finish, status, step))
            self._worker.stop(CLOSE_SECONDS)

    def _measure(
        self,
        step: int,
        planned: Callable[[], Plan],
        training: PendingQuantities,
        seconds: float,
        *,
        at_end: bool = False,
        is_extra: bool = False,
    ) -> None:
        """Queue copies of the planned layers one by one, until `seconds` are spent."""
        plan = self._planned(planned)
        limit, skipped = self.meter.cost + seconds, list(plan.skipped)
        self._worker.put(partial(self._session.begin_step, step, is_extra=is_extra))
        rejected: list[str] = []
        for name, copy in self.ranks.copies(plan.wanted, lambda: not rejected and self.meter.cost <= limit):
            probes, layer = plan.wanted[name], self._layers[name]
            if copy is None:
                skipped += [f"{probe.name()}: {name}; the measurement took longer than expected" for probe in probes]
            elif not self._worker.put(partial(self._session.measure, layer, copy, probes), layer.n_bytes):
                rejected.append(name)  # the thread hangs or has ended; wait for it only once
                skipped += [f"{probe.name()}: {name}; the monitor's thread does not respond" for probe in probes]
        activations = self._activations(skipped, at_end=at_end)
        self._worker.put(partial(self._session.end_step, training, activations, skipped))
        self._complete_at = self._complete_at if skipped or is_extra else step

    def _activations(self, skipped: list[str], *, at_end: bool) -> Activations | None:
        """Run the model on the fixed batch, if affordable."""
        if self._batch is None:
            return None
        seconds = self._budget.expected(ACTIVATIONS, ACTIVATION_COSTS)
        if not (seconds <= START_SECONDS if at_end else self._budget.affords(ACTIVATIONS, ACTIVATION_COSTS)):
            skipped.append(f"{ACTIVATIONS}: all blocks; measuring them takes {seconds:.2g} s")
            return None
        started = self.meter.blocked
        try:
            return self._batch.run()
        except Exception as error:  # noqa: BLE001 - whatever the model raises, the other probes continue
            echo(f"batch: the model fails on it ({one_line(error)}); nothing is measured on it any more")
            self._batch = None
            return None
        finally:
            self._budget.charge(ACTIVATIONS, "run", self.meter.blocked - started)

    def _planned(self, planned: Callable[[], Plan]) -> Plan:
        try:
            return planned()
        except Exception:
            for _ in self.ranks.copies(None, lambda: False):  # tells the other ranks
                pass
            raise

    def _failed(self, error: BaseException) -> None:
        echo(f"{type(error).__name__}: {error}; training continues without the monitor")
        self._session.release()


def measuring_probes(probes: Probes) -> list[dict[str, Any]]:
    """Return the probes of a user, checked; a name stands for the probe with its default options."""
    wanted = declarations(probes)
    for probe in make_probes(wanted):
        if not (probe.by_layer() or "diagrams" in probe.REQUIRES) or probe.REQUIRES - {"first", "previous", "diagrams"}:
            raise ToposcopeError(
                f"probe {probe.label()}: needs whole checkpoints; measure saved ones with toposcope measure"
            )
    return wanted


def steps_made(optimizer: "Optimizer") -> int:
    """Return the number of steps in an optimizer's state; 0 if it counts none."""
    steps = [float(state["step"]) for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    return int(max(steps, default=0))


def parameter_ids(optimizer: "Optimizer | None") -> set[int]:
    """Return the ids of an optimizer's parameters."""
    groups = [] if optimizer is None else optimizer.param_groups
    return {id(parameter) for group in groups for parameter in group["params"]}


def n_parameters(model: "nn.Module") -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in watched(model).values() if p.requires_grad)


def _is_captured() -> bool:
    """Return whether a CUDA graph is being captured; a measurement must not become part of it."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _copied_number(value: Any) -> Any:
    """Return a copy of a logged number without waiting for a GPU; None for a tensor with more than one element."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            return None
        return value.detach().clone() if value.device.type != "cpu" else value.detach().item()
    return value
