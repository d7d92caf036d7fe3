"""Callbacks for training frameworks: the Trainer of transformers, and that of Lightning from either of its packages."""

import math
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toposcope.errors import message_of
from toposcope.extras import require
from toposcope.monitor.sinks.terminal import echo

if TYPE_CHECKING:
    from torch.optim import Optimizer


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method of a callback so that an exception is printed once, and the callback does nothing from then on."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> None:
        if getattr(self, "_is_broken", False):
            return
        try:
            method(self, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the training
            self._is_broken = True
            echo(f"{type(error).__name__}: {message_of(error)}; training continues without the monitor")

    return call


def innermost(optimizer: Any) -> "Optimizer":
    """Return the torch optimizer whose ``step`` is called once for each update of the weights.

    Accelerate calls the ``step`` of its wrapper for every micro-batch, and also when mixed precision skips the update.
    Hooks registered on a wrapper are never called.
    """
    from torch.optim import Optimizer

    found: Optimizer = optimizer
    while isinstance(inner := getattr(found, "optimizer", None), Optimizer) and inner is not found:
        found = inner
    return found


def scalar_values(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are numbers or tensors with one element, but those that `Monitor.log` names otherwise."""
    from torch import Tensor

    return {
        name: value
        for name, value in logs.items()
        if name not in {"self", "step"}
        and (isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1))
    }


SUMMARY = "train_runtime"
"""A key of the Trainer's last log, which holds means over the whole run rather than values of a step."""


def trainer_callback(monitor: Any) -> Any:
    """Return a `TrainerCallback` that runs a monitor.

    Steps are those of the Trainer (``state.global_step``), which also counts updates that mixed precision skips.
    """
    require("transformers", "for_trainer")
    from transformers import TrainerCallback

    class MonitorCallback(TrainerCallback):  # type: ignore[misc]
        """Passes the model and the logs to the monitor; changes nothing in the Trainer but, by `patience`, its end."""

        @guarded
        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
        ) -> None:
            """Attach the monitor at the step where the Trainer starts or resumes."""
            monitor.watch(model, last_step=state.max_steps)
            monitor.attach(optimizer, step=state.global_step)

        @guarded
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Use the step of the Trainer, and stop it if the monitor is to."""
            monitor.step = state.global_step
            control.should_training_stop |= monitor.should_stop

        @guarded
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            """Run what the Trainer logs.

            The last log of a run closes the monitor: after it, the Trainer may load the best checkpoint.
            """
            if SUMMARY in (logs or {}):
                monitor.close()
            else:
                monitor.log(step=state.global_step, **scalar_values(logs or {}))

        @guarded
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Report a saved checkpoint."""
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if path.is_dir():
                monitor.saved(path, step=state.global_step)

        @guarded
        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Close the monitor."""
            monitor.close()

    return MonitorCallback()


PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(monitor: Any) -> Any:
    """Return a `Callback` of Lightning that runs a monitor.

    It logs the loss that ``training_step`` returns, averaged over the batches of an update, the learning rate, and the
    values that the module logs. With several optimizers, it counts and measures the steps of the first.
    """
    return type("MonitorCallback", (_Hooks, *_callback_classes()), {})(monitor)


def _callback_classes() -> list[type]:
    """Return the callback class of each imported package; the two packages do not accept each other's."""
    from importlib import import_module

    imported = [name for name in PACKAGES if name in sys.modules]
    if not imported:
        try:
            imported = [import_module(PACKAGES[0]).__name__]
        except ModuleNotFoundError:
            imported = [import_module(PACKAGES[1]).__name__]
    return [sys.modules[name].Callback for name in imported]


class _Hooks:
    """The hooks that Lightning calls, in the order of a run."""

    def __init__(self, monitor: Any) -> None:
        self._monitor = monitor
        self._is_active = self._is_broken = self._is_between = self._was_saved = False
        self._optimizer: Any = None
        self._n_optimizers = 1
        self._resumed_step: int | None = None
        self._losses: list[Any] = []
        self._rate: Any = None
        self._last_step = 0
        self._seen: dict[str, Any] = {}
        self._known: dict[Path, float] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state to checkpoint: the step, since Lightning's own adds up the steps of several optimizers."""
        return {"step": self._monitor.step}

    @guarded
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the step of the checkpoint from which the run resumes."""
        self._resumed_step = int(state_dict["step"])

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the monitor at the step where Lightning starts or resumes."""
        if trainer.fast_dev_run:
            echo("fast_dev_run is on, so nothing is recorded; Lightning disables its own loggers too")
            return
        if not trainer.optimizers:
            echo("configure_optimizers returned no optimizer, so nothing is monitored")
            return
        self._optimizer, self._n_optimizers = innermost(trainer.optimizers[0]), len(trainer.optimizers)
        step = trainer.global_step
        if self._n_optimizers > 1:
            step = self._resumed_step or 0
        planned = trainer.estimated_stepping_batches
        self._monitor.watch(
            pl_module, last_step=int(planned) if self._n_optimizers == 1 and planned < math.inf else None
        )
        self._monitor.attach(self._optimizer, step=step)
        self._is_active, self._last_step, self._losses = True, step, []
        self._fresh_metrics(trainer)

    @guarded
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Record the learning rate of the update; a scheduler changes it before `on_train_batch_end`."""
        if self._is_active:
            self._rate = self._optimizer.param_groups[0]["lr"]

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log an update after the last of its batches."""
        if not self._is_active:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._losses += [value.detach() for value in scalar_values({"loss": loss}).values() if hasattr(value, "detach")]
        if self._n_optimizers == 1:
            # this also counts updates that mixed precision skips
            self._monitor.step = trainer.global_step
        trainer.should_stop |= self._monitor.should_stop
        step = self._monitor.step
        if step == self._last_step:
            return
        values = scalar_values(self._fresh_metrics(trainer))
        if self._rate is not None:
            values["learning_rate"] = self._rate
        if self._losses:
            # Lightning passes the loss of a batch divided by the number of accumulated batches
            loss = self._losses[0] if len(self._losses) == 1 else sum(self._losses) / len(self._losses)
            n_batches = trainer.accumulate_grad_batches
            values["loss"] = loss if n_batches == 1 else loss * n_batches
        self._losses, self._last_step = [], step
        self._monitor.log(step=step, **values)

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics of validation."""
        if self._is_active and not trainer.sanity_checking:
            self._is_between = True
            self._monitor.log(step=self._monitor.step, **scalar_values(self._fresh_metrics(trainer)))

    @guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Ignore means over the epoch, which belong to no step."""
        self._is_between = True

    @guarded
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Note that a checkpoint is about to be written; its path is known afterwards."""
        self._was_saved = self._is_between = True

    @guarded
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Report checkpoints written since the last batch, and ignore metrics logged in between."""
        if self._is_active and self._is_between:
            self._is_between = False
            self._note_saved(trainer)
            self._fresh_metrics(trainer)

    @guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the monitor, before Lightning moves the model to the CPU."""
        if self._is_active:
            self._note_saved(trainer)
            self._is_active = False
            self._monitor.close()

    @guarded
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the monitor of a run that failed or was interrupted."""
        if self._is_active:
            self._is_active = False
            self._monitor.__exit__(type(exception), exception, exception.__traceback__)

    def _fresh_metrics(self, trainer: Any) -> dict[str, Any]:
        """Return the metrics that changed since the last call; Lightning keeps old ones too."""
        metrics = dict(trainer.callback_metrics)
        fresh = {name: value for name, value in metrics.items() if self._seen.get(name) is not value}
        self._seen = metrics
        return fresh

    def _note_saved(self, trainer: Any) -> None:
        if not self._was_saved:
            return
        self._was_saved = False
        for callback in trainer.checkpoint_callbacks:
            paths = {getattr(callback, "best_model_path", ""), getattr(callback, "last_model_path", "")}
            paths |= set(getattr(callback, "best_k_models", {}))
            for path in sorted(Path(path) for path in paths if path):
                if path.exists() and self._known.get(path) != path.stat().st_mtime:
                    self._known[path] = path.stat().st_mtime
                    self._monitor.saved(path)
