"""trackio: reports to the run that is active on the training thread."""

import sys
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Alert
from toposcope.monitor.sinks.sink import Tracker

TOO_OLD = "this version of trackio cannot log at a given step; install trackio 0.40 or newer"


class TrackioSink(Tracker):
    """Logs values at the step of the run's own last row, and sends alerts as trackio's alerts.

    A higher step would shift the steps of the run's next rows. The step of the monitor is logged as ``toposcope/step``,
    which can be chosen as the horizontal axis.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def alert(self, alert: Alert) -> None:
        """Send an alert."""
        self._run.alert(f"toposcope: {alert.kind}", alert.message, step=self._row())

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Log values at the step of the last row."""
        if values:
            self._run.log({**values, "toposcope/step": step}, step=self._row())

    def _row(self) -> int:
        return max(0, int(self._run._next_step) - 1)  # noqa: SLF001 - trackio exposes it nowhere else


def SINK(directory: Path) -> TrackioSink | None:  # noqa: N802 - the name of a registry
    """Return a sink for the active run, if there is one."""
    variables = sys.modules.get("trackio.context_vars") or sys.modules.get("trackio")
    current = getattr(variables, "current_run", None)
    run = current.get() if current is not None else None
    if run is None:
        return None
    if not hasattr(run, "_next_step") or "step" not in signature(run.log).parameters or not hasattr(run, "alert"):
        raise ToposcopeError(TOO_OLD)
    return TrackioSink(run)
