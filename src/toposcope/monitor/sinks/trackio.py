"""trackio: the run that is active on the thread that trains."""

import sys
from inspect import signature
from pathlib import Path
from typing import Any

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Alert, Event
from toposcope.monitor.sinks.values import ALERTS, tracked_values

TOO_OLD = "this version of trackio numbers rows by itself; install 0.40 or newer to see measurements there"


class TrackioSink:
    """Logs values beside the last row that the run logged itself; an alert is one of trackio's.

    A row with a higher step would raise the step of the rows that the run logs next. The step of the monitor is the
    value ``toposcope/step``, which the dashboard takes as horizontal axis.

    Parameters
    ----------
    run : trackio.Run
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._n_alerts = 0

    def put(self, event: Event) -> None:
        """Pass on one event."""
        values = tracked_values(event)
        row = max(0, self._run._next_step - 1)  # noqa: SLF001 - the only place where trackio has it
        if isinstance(event, Alert):
            self._n_alerts += 1
            values = {ALERTS: self._n_alerts}
            self._run.alert(f"toposcope: {event.kind}", event.message, step=row)
        if values:
            self._run.log({**values, "toposcope/step": event.step}, step=row)

    def close(self) -> None:
        """Leave the run open: whoever began it ends it."""


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
