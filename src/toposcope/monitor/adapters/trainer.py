"""The callback for the Trainer of transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from toposcope.monitor.adapters.guarding import guarded
from toposcope.monitor.adapters.values import scalar_values

if TYPE_CHECKING:
    from toposcope.monitor.monitor import Monitor

SUMMARY = "train_runtime"
"""In what the Trainer logs last: means over the whole run, which belong to no step."""


def trainer_callback(monitor: "Monitor") -> Any:
    """Return a `TrainerCallback` that runs a monitor.

    Steps are those of the Trainer (``state.global_step``), which counts updates that mixed precision skipped.
    """
    from transformers import TrainerCallback

    class MonitorCallback(TrainerCallback):  # type: ignore[misc]
        """Hands the model over when training begins, and the logs as they come; changes nothing."""

        @guarded
        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
        ) -> None:
            """Begin, at the step that the Trainer begins or resumes at."""
            monitor.watch(model, last_step=state.max_steps)
            monitor.attach(optimizer, step=state.global_step)

        @guarded
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Count as the Trainer does."""
            monitor.step = state.global_step

        @guarded
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            """Pass on what was logged.

            The last log of a run closes the monitor: afterwards the Trainer may load the best checkpoint's weights.
            """
            if SUMMARY in (logs or {}):
                monitor.close()
            else:
                monitor.log(step=state.global_step, **scalar_values(logs or {}))

        @guarded
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Pass on where the checkpoint is."""
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if path.is_dir():
                monitor.saved(path, step=state.global_step)

        @guarded
        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """End."""
            monitor.close()

    return MonitorCallback()
