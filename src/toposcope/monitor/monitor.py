"""The monitor: measures a model while it trains, and stays out of the way."""

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

from toposcope.errors import ToposcopeError, checks_arguments
from toposcope.extras import require
from toposcope.monitor.activations import FixedBatch, check_statistics
from toposcope.monitor.adapters import innermost
from toposcope.monitor.budget import Clock, Due, interval_at, schedule
from toposcope.monitor.monitored_run import MonitoredRun, measuring_probes, n_parameters, parameter_ids, steps_made
from toposcope.monitor.parameters import choose, layout, names_of, unmeasured
from toposcope.monitor.ranks import Follower, RankGroup
from toposcope.monitor.recording import RunInfo, study_name
from toposcope.monitor.sinks.opening import open_sinks
from toposcope.monitor.sinks.terminal import echo
from toposcope.monitor.sinks.webhook import check_address
from toposcope.monitor.stopping import WATCHED, Stopping
from toposcope.probes import Probes
from toposcope.study.declaration import check_series_name
from toposcope.study.tasks import one_line
from toposcope.wording import examples

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

DEFAULT_PROBES: tuple[dict[str, Any], ...] = (
    {"name": "neural_persistence"},
    {"name": "controls"},
    {"name": "rips", "max_dimension": 0},
    {"name": "distances"},
)
"""Besides ``training``, which every monitor runs: exact H0, its change since the last measurement, norms, spectra."""

MAX_STEP = 2**63  # SQLite stores no larger integers


class Monitor:
    """Watches a model while it trains.

    Everything but copying tensors runs on a separate thread. The monitor changes no number of the training and touches
    no random state. If it fails, it prints one line, and training continues without it.

    Parameters
    ----------
    model : torch.nn.Module, optional
        May be compiled, wrapped or sharded. The callbacks for frameworks pass it when training begins.
    directory : str or Path
        The study to write, created if absent. ``toposcope show DIRECTORY`` shows it live; ``report``, ``forecast``,
        ``doctor`` and ``export`` work on it while it grows. Studies in the same parent folder count as runs of one
        project, and the forecast uses them.
    every : int, "log" or callable
        When to measure, in optimizer steps: a fixed interval, log-spaced steps, or a function of the step. The
        weights before the first step and after the last are always measured.
    budget : float
        Share of the training time that the monitor may take. It skips measurements that would exceed it.
    probes : sequence of dict or str, dict, str
        As in a study; each must measure layer by layer.
    layers : str or sequence of str, optional
        The layers whose weights are measured, by name, pattern (``"*.mlp.*"``) or role (``"attn.q"``, ``"mlp"``); by
        default all.
    batch : Tensor, sequence or mapping, optional
        Arguments of the model's forward: a small, fixed batch on which hidden states, attention, routing and dead
        units are measured. Ignored for sharded models.
    activations : str or sequence of str, optional
        The statistics to measure on `batch`, such as ``"attention_logit_max"``; by default all.
    name : str
        Name of the run; defaults to that of the directory.
    last_step : int, optional
        Planned number of optimizer steps, needed to forecast the final loss.
    tokens_per_step : int
        Tokens per optimizer step, so that the log can count tokens.
    webhook : str, optional
        URL to which alerts are posted.
    patience : int, optional
        Set `should_stop` once mean neural persistence has not grown for so many measurements (Rieck et al. 2019),
        counted from where the run begins or resumes; the callbacks for frameworks then stop the training. Runs on
        several ranks are not stopped. In our experiments this costs more than stopping each run at a fixed fraction of
        its steps, which is printed with it.
    quiet : bool
        Print alerts, notes and failures only.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    step : int
        Optimizer steps so far.

    Raises
    ------
    ToposcopeError
        If an argument is wrong. Later failures are printed once and never raised.

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

    @checks_arguments
    def __init__(
        self,
        model: "nn.Module | None" = None,
        directory: str | Path = "toposcope-run",
        *,
        every: int | str | Due = 100,
        budget: float = 0.01,
        probes: Probes = DEFAULT_PROBES,
        layers: str | Sequence[str] | None = None,
        batch: Any = None,
        activations: str | Sequence[str] | None = None,
        name: str = "",
        last_step: int | None = None,
        tokens_per_step: int = 0,
        webhook: str | None = None,
        patience: int | None = None,
        quiet: bool = False,
        clock: Clock = time.perf_counter,
    ) -> None:
        require("torch", "the monitor")
        if not 0 < budget < 1:
            raise ToposcopeError(f"budget is {budget}; give a share of the training time between 0 and 1, such as 0.01")
        # The loop may change the working directory later.
        self.directory: Path = Path(directory).absolute()
        self.step: int = 0
        self._every, self._due, self._share = every, schedule(every), budget
        self._probes, self._batch, self._stopping = measuring_probes(probes), batch, Stopping(patience)
        if patience is not None and all(probe["name"] != WATCHED for probe in self._probes):
            raise ToposcopeError(f"patience: it watches {WATCHED}, which is not among the probes; add it")
        self._layers = None if layers is None else names_of("layers", layers)
        if batch is None and activations is not None:
            raise ToposcopeError("activations: there is nothing to measure them on; give a small batch, as batch=...")
        self._activations = check_statistics(activations)
        self._name = name or study_name(self.directory)
        check_series_name(self._name)
        self._last_step, self._tokens_per_step = last_step, tokens_per_step
        self._webhook, self._quiet, self._clock = webhook, quiet, clock
        self._model: nn.Module | None = None
        self._run: MonitoredRun | Follower | None = None
        self._ranks_to_notify: RankGroup | None = None  # after a failure here
        # Weak: the optimizer's hooks hold the monitor, and the two must be freed together.
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._handles: list[Any] = []
        self._is_broken = self._is_log_reported = False
        if webhook is not None:
            check_address(webhook)
        if model is not None:
            self.watch(model)

    @property
    def should_stop(self) -> bool:
        """Whether `patience` is over, so that the loop may end; known a moment after the measurement that tells it."""
        return self._stopping.is_due

    def watch(self, model: "nn.Module", last_step: int | None = None) -> None:
        """Set the model, before `attach`, if it was not known when the monitor was created.

        Parameters
        ----------
        model : torch.nn.Module
        last_step : int, optional
            Planned number of optimizer steps; ignored if the monitor was created with one.

        Raises
        ------
        ToposcopeError
            If the model has none of the layers that the monitor was created for.
        """
        if self._layers is not None:
            choose(layout(model), self._layers)
        self._model = model
        if self._last_step is None:
            self._last_step = last_step

    def attach(self, optimizer: "Optimizer", step: int | None = None) -> None:
        """Measure now, and from now on after steps of this optimizer.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
            May be wrapped by Accelerate or Lightning.
        step : int, optional
            Optimizer steps so far, if training resumes; by default read from the optimizer's state, else 0.

        Raises
        ------
        ToposcopeError
            If there is no model.
        """
        model = self._model
        if model is None:
            raise ToposcopeError(
                "the monitor has no model; pass it to Monitor(model, ...), or call monitor.watch(model) before attach"
            )
        optimizer = innermost(optimizer)
        if not hasattr(optimizer, "register_step_post_hook"):
            raise ToposcopeError(f"attach: expected an optimizer, got {type(optimizer).__name__}")
        if self._run is not None and self._optimizer is not None and optimizer is not self._optimizer():
            echo("attach: this second optimizer is ignored; the monitor counts and measures the steps of the first")
        if self._run is not None or self._is_broken:
            return
        with self._guard():
            self._optimizer = reference = weakref.ref(optimizer)
            self.step = steps_made(optimizer) if step is None else _step(step)
            ranks = RankGroup(model, lambda: parameter_ids(reference()), self._layers)
            if parameter_ids(optimizer).isdisjoint(map(id, ranks.parameters.values())):
                echo("attach: the optimizer holds none of the model's parameters, so no update is measured")
            if self._stopping.patience is not None and ranks.has_others:
                echo("patience: ignored, since one of several ranks alone would stop")
                self._stopping = Stopping(None)
            if ranks.is_leader:
                _report_unmeasured(model)
            self._run = self._start(model, ranks) if ranks.is_leader else Follower(ranks, self._clock)
            self._handles = [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
                optimizer.register_state_dict_pre_hook(self._before_saving),
            ]
            atexit.register(_close, weakref.ref(self))
            if isinstance(self._run, MonitoredRun):
                # A monitor that is garbage-collected, as when a notebook cell is run again, releases its study.
                weakref.finalize(self, self._run.abandon).atexit = False
            ranks.begin()
            self._run.measure_at_end(self.step, is_extra=self.step > 0 and not self._due(self.step))
            self._run.resume()

    def _start(self, model: "nn.Module", ranks: RankGroup) -> MonitoredRun:
        return MonitoredRun(
            ranks,
            self._probes,
            RunInfo(self.directory, self._name, n_parameters(model), self._tokens_per_step, self._last_step),
            share=self._share,
            step=self.step,
            clock=self._clock,
            open_sinks=partial(open_sinks, self.directory, webhook=self._webhook, quiet=self._quiet),
            batch=self._fixed_batch(model, ranks),
            stopping=self._stopping,
        )

    def _fixed_batch(self, model: "nn.Module", ranks: RankGroup) -> FixedBatch | None:
        """Return the runner of the user's batch; None, with a warning, if the model cannot run on it."""
        if self._batch is None:
            return None
        if ranks.is_sharded:
            echo("batch: ignored, since every rank would have to run the sharded model; everything else is measured")
            return None
        try:
            return FixedBatch(model, self._batch, self._activations)
        except ToposcopeError as error:
            echo(str(error))
            return None

    def log(self, step: int | None = None, **values: Any) -> None:
        """Record values of the last step: losses, learning rate, gradient norm, under any of their usual names.

        Call it after ``optimizer.step()``.

        Parameters
        ----------
        step : int, optional
            Optimizer steps so far; by default those that the monitor counted.
        **values : float or Tensor
            Numbers, or tensors with one element. A tensor on a GPU is read later, without waiting for it.
        """
        run = self._run
        if run is None:
            if self._optimizer is None and not self._is_log_reported:
                echo("log: nothing is recorded before monitor.attach(optimizer)")
                self._is_log_reported = True
            return
        try:
            run.log(self.step if step is None else _step(step), values)
        except ToposcopeError as error:
            if not self._is_log_reported:
                echo(f"log: {error}; rows like this one are ignored")
            self._is_log_reported = True
        except Exception as error:  # noqa: BLE001 - as in `_guard`
            self._break(error)

    def saved(self, path: str | Path, step: int | None = None) -> None:
        """Have the doctor examine a saved checkpoint, and name it in alerts as one to go back to.

        Parameters
        ----------
        path : str or Path
            File or folder of the checkpoint, completely written.
        step : int, optional
            Optimizer steps so far; by default those that the monitor counted.
        """
        where = Path(path).absolute()
        if not where.exists():
            echo(f"saved: {where}: no such file or folder; not examined")
        elif self._run is not None:
            with self._guard():
                self._run.saved(where, self.step if step is None else _step(step))

    def for_trainer(self) -> Any:
        """Return a callback that runs this monitor in the Trainer of transformers."""
        from toposcope.monitor.adapters import trainer_callback

        return trainer_callback(self)

    def for_lightning(self) -> Any:
        """Return a callback that runs this monitor in the Trainer of Lightning."""
        from toposcope.monitor.adapters import lightning_callback

        return lightning_callback(self)

    def close(self) -> None:
        """Measure the last step, write everything, and stop.

        A monitor that is still open when Python exits is closed then. If an exception ended the script, the run is
        stored as failed.
        """
        self._close("complete")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close("complete" if kind is None else "failed")

    def _before_step(self, optimizer: "Optimizer", *_: Any) -> None:
        run, ranks = self._run, self._ranks_to_notify
        if run is None and ranks is None:
            return
        try:
            if run is not None:
                run.begin_look(self.step + 1)
            if not self._due(self.step + 1):
                return
            if run is not None:
                run.before_step()
            elif ranks is not None:
                self._ranks_to_notify = None
                ranks.notify_failure()
        except Exception as error:  # noqa: BLE001 - as in `_guard`, without the cost of a context manager at every step
            self._break(error)

    def _after_step(self, optimizer: "Optimizer", *_: Any) -> None:
        self.step += 1
        run = self._run
        if run is None:
            return
        try:
            run.end_look(self.step)
            began = run.meter.own()
            is_due = self._due(self.step)
            run.count_step(is_due=is_due)
            run.meter.add_since(began)
            if is_due:
                with run.meter.during("blocked"):
                    run.measure(self.step, self._interval())
        except Exception as error:  # noqa: BLE001 - as in `_guard`
            self._break(error)

    def _before_saving(self, optimizer: "Optimizer") -> None:
        if self._run is not None:
            with self._guard():
                self._run.write()

    def _interval(self) -> int:
        """Return the approximate number of steps between measurements."""
        return interval_at(self._every, self.step) if isinstance(self._every, int) else max(1, self.step // 8)

    def _close(self, status: str) -> None:
        run, self._run = self._run, None
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if run is not None:
            with self._guard():
                run.finish(self.step, status)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn an exception into one printed line, and stop the monitor instead of the training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the training
            self._break(error)

    def _break(self, error: Exception) -> None:
        # The hooks stay: this may be called from one, and the other ranks must be told at the next due step.
        if self._run is not None and self._run.ranks.has_others:
            self._ranks_to_notify = self._run.ranks
        self._run, self._is_broken = None, True
        echo(f"{one_line(error)}; training continues without the monitor")


def _close(monitor: "weakref.ref[Monitor]") -> None:
    if (alive := monitor()) is not None:
        # A script that an exception ends has not completed its run. In a notebook, any cell may have raised it.
        has_failed = hasattr(sys, "last_type") and not hasattr(sys, "ps1")
        alive._close("failed" if has_failed else "complete")  # noqa: SLF001


def _report_unmeasured(model: "nn.Module") -> None:
    """Say which parameters are not measured, one line for each reason."""
    names: dict[str, list[str]] = {}
    for name, reason in unmeasured(model).items():
        names.setdefault(reason, []).append(name)
    for reason, of_reason in names.items():
        echo(f"{examples(of_reason, 1)}: not measured, because {reason}")


def _step(step: Any) -> int:
    """Return a step as an int; it may be a tensor or a NumPy integer."""
    try:
        number = int(step)
        if number == step and 0 <= number < MAX_STEP:
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise ToposcopeError(f"step is {step!r}; give the number of optimizer steps so far")
