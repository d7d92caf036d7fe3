"""Weights & Biases: the run that is active in this process."""

import sys
import time
from pathlib import Path
from typing import Any

from toposcope.monitor.events import Alert, Event
from toposcope.monitor.sinks.values import ALERTS, tracked_values

STEP = "toposcope/step"
MAX_TITLE = 63
MIN_SECONDS_BETWEEN = 1.0
"""Between two looks at the run's row while values wait for the next one."""


class WandbSink:
    """Adds values to the rows that the run logs itself, and sends alerts as W&B's alerts.

    W&B counts rows, and drops rows of the run whose step is below that count; so none is added. Each row takes what was
    measured at one step, which stands beside it as ``toposcope/step``, the horizontal axis. Of several steps measured
    while the run logs one row, the last is seen here, and all of them in the study.

    Parameters
    ----------
    run : wandb.Run
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined = False
        self._n_alerts = 0
        self._waiting: dict[str, float] = {}
        """Values of one step of the monitor that are in no row yet."""
        self._next_look = 0.0
        self._written: tuple[int, int] | None = None
        """The row, and the step of the monitor, of the last values that were written."""

    def put(self, event: Event) -> None:
        """Pass on one event; none after the run was finished."""
        if not self._is_active():
            return
        values = tracked_values(event)
        if isinstance(event, Alert):
            self._n_alerts += 1
            values = {ALERTS: self._n_alerts}
            self._run.alert(f"toposcope: {event.kind}"[:MAX_TITLE], event.message, level="WARN")
        if values:
            same_step = self._waiting.get(STEP) == event.step
            self._waiting = {**(self._waiting if same_step else {}), **values, STEP: event.step}
        if values or (self._waiting and time.monotonic() >= self._next_look):
            self._write()

    def _write(self) -> None:
        """Write the waiting values, unless the row that the run is at holds those of another step."""
        if not self._waiting:
            return
        if not self._defined:
            self._run.define_metric("toposcope/*", step_metric=STEP, step_sync=False)
            self._defined = True
        self._next_look = time.monotonic() + MIN_SECONDS_BETWEEN
        row, step = self._run.step, int(self._waiting[STEP])
        if self._written is None or row != self._written[0] or step == self._written[1]:
            self._run.log(self._waiting, commit=False)
            self._waiting, self._written = {}, (row, step)

    def close(self) -> None:
        """Write what waits; the run goes on."""
        if self._is_active():
            self._write()

    def _is_active(self) -> bool:
        return _active_run() is self._run


def _active_run() -> Any:
    return getattr(sys.modules.get("wandb"), "run", None)


def SINK(directory: Path) -> WandbSink | None:  # noqa: N802 - the name of a registry
    """Return a sink for the active run, if there is one."""
    run = _active_run()
    return None if run is None else WandbSink(run)
