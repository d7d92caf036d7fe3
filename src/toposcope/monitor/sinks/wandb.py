"""Weights & Biases: reports to the run that is active in this process."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toposcope.monitor.events import Alert, Event
from toposcope.monitor.sinks.sink import Tracker

STEP = "toposcope/step"
MAX_TITLE = 63
MIN_SECONDS_BETWEEN = 1.0  # seconds between checks for a new row while values wait for one


class WandbSink(Tracker):
    """Adds values to the run's own rows, and sends alerts as W&B's alerts.

    W&B counts rows, and drops rows of the run whose step is below that count, so this sink must not add any. Each row
    gets the values of one measured step, and that step as ``toposcope/step``, the horizontal axis. If several steps are
    measured before the run logs its next row, W&B shows the last one; the study has all of them.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined = False
        self._waiting: dict[str, float] = {}  # values of one step of the monitor that are not in a row yet
        self._next_check = 0.0
        self._written: tuple[int, int] | None = None  # row and monitor step of the last values written

    def put(self, event: Event) -> None:
        """Report one event, unless the run has finished."""
        if _active_run() is self._run:
            super().put(event)

    def alert(self, alert: Alert) -> None:
        """Send an alert."""
        self._run.alert(f"toposcope: {alert.kind}"[:MAX_TITLE], alert.message, level="WARN")

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Keep values until a row can take them."""
        if values:
            same_step = self._waiting.get(STEP) == step
            self._waiting = {**(self._waiting if same_step else {}), **values, STEP: step}
        if values or (self._waiting and time.monotonic() >= self._next_check):
            self._write()

    def _write(self) -> None:
        """Write the waiting values, unless the run's current row has values of another step."""
        if not self._waiting:
            return
        if not self._defined:
            self._run.define_metric("toposcope/*", step_metric=STEP, step_sync=False)
            self._defined = True
        self._next_check = time.monotonic() + MIN_SECONDS_BETWEEN
        row, step = self._run.step, int(self._waiting[STEP])
        if self._written is None or row != self._written[0] or step == self._written[1]:
            self._run.log(self._waiting, commit=False)
            self._waiting, self._written = {}, (row, step)

    def close(self) -> None:
        """Write the waiting values; leave the run open."""
        if _active_run() is self._run:
            self._write()


def _active_run() -> Any:
    return getattr(sys.modules.get("wandb"), "run", None)


def SINK(directory: Path) -> WandbSink | None:  # noqa: N802 - the name of a registry
    """Return a sink for the active run, if there is one."""
    run = _active_run()
    return None if run is None else WandbSink(run)
