"""The callback for the Trainer of transformers."""

from pathlib import Path
from typing import Any

from toposcope.extras import require
from toposcope.monitor.adapters.guarding import Watcher, guarded
from toposcope.monitor.adapters.values import scalar_values

SUMMARY = "train_runtime"
"""A key of the Trainer's last log, which holds means over the whole run rather than values of a step."""


def trainer_callback(monitor: Watcher) -> Any:
    """Return a `TrainerCallback` that runs a monitor.

    Steps are those of the Trainer (``state.global_step``), which also counts updates that mixed precision skips.
    """
    require("transformers", "for_trainer")
    from transformers import TrainerCallback

    class MonitorCallback(TrainerCallback):  # type: ignore[misc]
        """Passes the model and the logs to the monitor; changes nothing in the Trainer."""

        @guarded
        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
        ) -> None:
            """Attach the monitor at the step where the Trainer starts or resumes."""
            monitor.watch(model, last_step=state.max_steps)
            monitor.attach(optimizer, step=state.global_step)

        @guarded
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Use the step of the Trainer."""
            monitor.step = state.global_step

        @guarded
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            """Log what the Trainer logs.

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
