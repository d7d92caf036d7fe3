"""The monitor: measures a model while it trains, without being in the way."""

import atexit
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toposcope.errors import ToposcopeError
from toposcope.monitor.activations import FixedBatch
from toposcope.monitor.adapters.optimizers import innermost
from toposcope.monitor.budget import Clock
from toposcope.monitor.recording import Place, study_name
from toposcope.monitor.running import Running, has_any, measuring_probes, n_parameters, steps_made
from toposcope.monitor.schedule import Due, interval_at, schedule
from toposcope.monitor.sinks.opening import open_sinks
from toposcope.monitor.sinks.terminal import say
from toposcope.monitor.sinks.webhook import check_address
from toposcope.monitor.together import Following, Together
from toposcope.study.declaration import check_series_name
from toposcope.study.tasks import one_line

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

DEFAULT_PROBES: tuple[dict[str, Any], ...] = (
    {"name": "neural_persistence"},
    {"name": "controls"},
    {"name": "rips", "max_dimension": 0},
    {"name": "distances"},
)
"""Beside ``training``, which every monitor has: exact H0, its change since the last measurement, norms and spectra."""

MAX_STEP = 2**63
"""The database holds no larger integers."""


class Monitor:
    """Watches a model while it trains.

    Everything but copying tensors happens on a thread. The training's numbers do not change, no random state is
    touched, and a failure of the monitor is said once and stops nothing.

    Parameters
    ----------
    model : torch.nn.Module, optional
        Compiled, wrapped or sharded models are taken as they are. Adapters hand it in when training begins.
    directory : str or Path
        A study, made if absent: ``toposcope show DIRECTORY`` shows it live, ``report``, ``forecast``, ``doctor`` and
        ``export`` work on it while it grows. Neighbours in its parent folder are runs of one project.
    every : int, "log" or callable
        When to measure, in updates of the weights: a number of steps, log-spaced steps, or a function of the step. The
        first step and the last are measured always.
    budget : float
        Share of the time of training that the monitor may take; how often and what it measures follows from it.
    probes : sequence of dict
        As in a study; each must measure layer by layer.
    batch : Tensor, sequence or mapping, optional
        Arguments of the model's forward, small and always the same: hidden states and dead units are measured on it.
        Not for sharded models.
    name : str
        Of the run; by default that of the directory.
    last_step : int, optional
        Planned; with it the final loss is forecast.
    tokens_per_step : int
    jsonl : str or Path, optional
        A file to which everything is appended, a line an event.
    webhook : str, optional
        An address that alerts are sent to.
    quiet : bool
        Whether nothing but alerts and failures is printed.
    clock : callable
        Returns seconds.

    Attributes
    ----------
    step : int
        Updates made.

    Raises
    ------
    ToposcopeError
        If an argument is wrong. What goes wrong later is said once, and training goes on.

    Examples
    --------
    >>> import torch, tempfile
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Monitor(model, folder.name, every=5, quiet=True) as monitor:
    ...     monitor.attach(optimizer)
    ...     for _ in range(10):
    ...         loss = model(torch.ones(4, 8)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    ...         monitor.log(loss=loss)
    >>> monitor.step
    10
    """

    def __init__(
        self,
        model: "nn.Module | None" = None,
        directory: str | Path = "toposcope-run",
        *,
        every: int | str | Due = 100,
        budget: float = 0.01,
        probes: Sequence[dict[str, Any]] = DEFAULT_PROBES,
        batch: Any = None,
        name: str = "",
        last_step: int | None = None,
        tokens_per_step: int = 0,
        jsonl: str | Path | None = None,
        webhook: str | None = None,
        quiet: bool = False,
        clock: Clock = time.perf_counter,
    ) -> None:
        if not 0 < budget < 1:
            raise ToposcopeError(f"budget is {budget}; give the share of the training's time, such as 0.01")
        # The loop may go to another working directory later.
        self.directory, self.step = Path(directory).absolute(), 0
        self._every, self._due, self._share = every, schedule(every), budget
        self._probes, self._batch = measuring_probes(probes), batch
        self._name = name or study_name(self.directory)
        check_series_name(self._name)
        self._last_step, self._tokens_per_step = last_step, tokens_per_step
        self._jsonl = None if jsonl is None else Path(jsonl).absolute()
        self._webhook, self._quiet, self._clock = webhook, quiet, clock
        self._model: nn.Module | None = None
        self._running: Running | Following | None = None
        self._leaving: Together | None = None
        # Weak: the optimizer holds the monitor by its hooks, and both go when it does.
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._handles: list[Any] = []
        self._is_broken = self._is_log_reported = False
        if webhook is not None:
            check_address(webhook)
        if model is not None:
            self.watch(model)

    def watch(self, model: "nn.Module", last_step: int | None = None) -> None:
        """Take the model; before `attach`, where it was not known when the monitor was made.

        Parameters
        ----------
        model : torch.nn.Module
        last_step : int, optional
            Planned; what the monitor was made with goes before it.
        """
        self._model = model
        if self._last_step is None:
            self._last_step = last_step

    def attach(self, optimizer: "Optimizer", step: int | None = None) -> None:
        """Measure after this optimizer's steps; the first measurement is made now.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
            Also inside that of Accelerate or Lightning.
        step : int, optional
            Updates made so far, where training goes on; by default what the optimizer's state says, or 0.

        Raises
        ------
        ToposcopeError
            If there is no model.
        """
        model = self._model
        if model is None:
            raise ToposcopeError("the monitor has no model: Monitor(model, ...), or monitor.watch(model) before attach")
        optimizer = innermost(optimizer)
        if self._running is not None and self._optimizer is not None and optimizer is not self._optimizer():
            say("attach: only the first optimizer's steps are counted and measured")
        if self._running is not None or self._is_broken:
            return
        with self._guard():
            self._optimizer = weakref.ref(optimizer)
            self.step = steps_made(optimizer) if step is None else _step(step)
            together = Together(model)
            if not has_any(optimizer, together.parameters.values()):
                say("attach: the optimizer holds none of the model's parameters; are they of the same model?")
            self._running = self._start(model, together) if together.is_leader else Following(together, self._clock)
            self._handles = [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            ]
            atexit.register(_close, weakref.ref(self))
            if isinstance(self._running, Running):
                # A monitor that is no more, as when a cell of a notebook is run again, gives its study free.
                weakref.finalize(self, self._running.abandon).atexit = False
            together.begin()
            self._running.measure_at_end(self.step)

    def _start(self, model: "nn.Module", together: Together) -> Running:
        return Running(
            together,
            self._probes,
            Place(self.directory, self._name, n_parameters(model), self._tokens_per_step, self._last_step),
            share=self._share,
            step=self.step,
            clock=self._clock,
            open_sinks=partial(open_sinks, self.directory, jsonl=self._jsonl, webhook=self._webhook, quiet=self._quiet),
            batch=self._fixed_batch(model, together),
        )

    def _fixed_batch(self, model: "nn.Module", together: Together) -> FixedBatch | None:
        """Return what runs the model on the user's batch; without it, the rest is measured all the same."""
        if self._batch is None:
            return None
        if together.is_sharded:
            say("batch: left out; every rank would have to run the sharded model")
            return None
        try:
            return FixedBatch(model, self._batch)
        except ToposcopeError as error:
            say(str(error))
            return None

    def log(self, step: int | None = None, **values: Any) -> None:
        """Keep what the loop knows of the last update: losses, learning rate, gradient norm, by any usual name.

        Parameters
        ----------
        step : int, optional
            Updates made; by default those that were counted. Call it after ``optimizer.step()``.
        **values : float or Tensor
            Tensors of one element; one on a GPU is not waited for.
        """
        running = self._running
        if running is None:
            return
        try:
            running.log(self.step if step is None else _step(step), values)
        except ToposcopeError as error:
            if not self._is_log_reported:
                say(f"log: {error}; the row is left out")
            self._is_log_reported = True
        except Exception as error:  # noqa: BLE001 - as in `_guard`
            self._break(error)

    def saved(self, path: str | Path, step: int | None = None) -> None:
        """Have the doctor examine a checkpoint that was saved, and write a manifest of its hashes beside it.

        Parameters
        ----------
        path : str or Path
            A file or a folder, complete.
        step : int, optional
            Updates made; by default those that were counted.
        """
        if self._running is not None:
            with self._guard():
                self._running.saved(Path(path).absolute(), self.step if step is None else _step(step))

    def for_trainer(self) -> Any:
        """Return a callback for the Trainer of transformers, which runs this monitor."""
        from toposcope.monitor.adapters.trainer import trainer_callback

        return trainer_callback(self)

    def for_lightning(self) -> Any:
        """Return a callback for the Trainer of Lightning, which runs this monitor."""
        from toposcope.monitor.adapters.lightning import lightning_callback

        return lightning_callback(self)

    def close(self) -> None:
        """Measure the last step, write everything, and end; what was not closed is closed when Python exits."""
        self._close("complete")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close("complete" if kind is None else "failed")

    def _before_step(self, optimizer: "Optimizer", *_: Any) -> None:
        running, leaving = self._running, self._leaving
        if running is None and leaving is None:
            return
        try:
            if not self._due(self.step + 1):
                return
            if running is not None:
                running.before_step()
            elif leaving is not None:
                self._leaving = None
                leaving.leave()
        except Exception as error:  # noqa: BLE001 - as in `_guard`, without what a context costs at every step
            self._break(error)

    def _after_step(self, optimizer: "Optimizer", *_: Any) -> None:
        self.step += 1
        running = self._running
        if running is None:
            return
        running.meter.read(blocking=1)
        try:
            running.count_step()
            if self._due(self.step):
                running.measure(self.step, self._interval())
        except Exception as error:  # noqa: BLE001 - as in `_guard`
            self._break(error)
        finally:
            running.meter.read(blocking=-1)

    def _interval(self) -> int:
        """Return about how many steps there are between measurements."""
        return interval_at(self._every, self.step) if isinstance(self._every, int) else max(1, self.step // 8)

    def _close(self, status: str) -> None:
        running, self._running = self._running, None
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if running is not None:
            with self._guard():
                running.finish(self.step, status)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Say what went wrong, once, and let training go on without the monitor."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the training
            self._break(error)

    def _break(self, error: Exception) -> None:
        # The hooks stay: this may be one of them, and others must not wait for this rank at the next due step.
        if self._running is not None and self._running.together.must_leave:
            self._leaving = self._running.together
        self._running, self._is_broken = None, True
        say(f"{one_line(error)}; training goes on without the monitor")


def _close(monitor: "weakref.ref[Monitor]") -> None:
    if (alive := monitor()) is not None:
        # A script that ends by an exception has not completed its run. In a notebook any cell may have failed.
        has_failed = hasattr(sys, "last_type") and not hasattr(sys, "ps1")
        alive._close("failed" if has_failed else "complete")  # noqa: SLF001


def _step(step: Any) -> int:
    """Return a number of updates as an integer of Python; tensors and NumPy's integers are taken too.

    Raises
    ------
    ToposcopeError
        If it is none.
    """
    try:
        number = int(step)
        if number == step and 0 <= number < MAX_STEP:
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise ToposcopeError(f"the step is {step!r}, not a number of updates")
