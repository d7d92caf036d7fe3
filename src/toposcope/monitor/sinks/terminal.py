"""The terminal: a line on standard error for each alert, and from time to time for a measurement."""

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from toposcope.monitor.events import DIVERGED, Alert, Event, Forecasted, Logged, Measured, Note
from toposcope.probes.feature import NETWORK

MIN_SECONDS_BETWEEN = 30.0  # seconds between lines about measurements
MAX_ALERTS_PER_STEP = 5
# (probe, statistic) of the network -> its name in a line
SHOWN = {("training", "gradient_norm"): "gradient norm", ("training", "update_ratio"): "update / weight"}


class TerminalSink:
    """Writes lines that leave the progress bars of tqdm and Rich in place."""

    def __init__(self, hint: Callable[[], str] = str, *, quiet: bool = False) -> None:
        self._hint, self._quiet = hint, quiet
        self._next_line = 0.0
        self._logged: dict[str, float] = {}
        self._forecast: Forecasted | None = None
        self._alerts_of_step = (-1, 0)

    def put(self, event: Event) -> None:
        """Write a line for an alert, and for a measurement if the last line is old enough."""
        match event:
            case Logged(values=values):
                self._logged.update(values)
            case Forecasted():
                self._forecast = event
            case Note():
                echo(event.message)
            case Alert():
                if event.kind == DIVERGED:
                    self._forecast = None
                self._alert(event)
            case Measured():
                if not self._quiet and time.monotonic() >= self._next_line:
                    self._next_line = time.monotonic() + MIN_SECONDS_BETWEEN
                    echo(self._summary(event))

    def close(self) -> None:
        """Leave the terminal as it is."""

    def _alert(self, alert: Alert) -> None:
        """Write an alert, unless there were many at this step."""
        step, n = self._alerts_of_step
        n = n + 1 if step == alert.step else 1
        self._alerts_of_step = alert.step, n
        if n <= MAX_ALERTS_PER_STEP:
            echo(f"ALERT at step {alert.step:,}: {alert.message}")
        elif n == MAX_ALERTS_PER_STEP + 1:
            echo(f"ALERT at step {alert.step:,}: further alerts at this step are in the study only")

    def _summary(self, measured: Measured) -> str:
        """Return a line that summarises a step."""
        parts = [f"step {measured.step:,}"]
        if "loss" in self._logged:
            parts.append(f"loss {self._logged['loss']:.4g}")
        for (probe, statistic), label in SHOWN.items():
            row = measured.rows.get((NETWORK, probe), {})
            parts += [f"{label} {row[statistic]:.3g}"] if statistic in row else []
        if self._forecast is not None and math.isfinite(self._logged.get("loss", 0.0)):
            f = self._forecast
            parts.append(f"final {f.target or 'loss'} {f.loss:.4g} ({f.low:.4g} to {f.high:.4g})")
        if hint := self._hint():
            parts.append(hint)
            self._hint = str
        return ", ".join(parts)


def shown_path(directory: Path) -> str:
    """Return a directory as a user would name it: relative to the working directory if it is below it."""
    here = Path.cwd()
    return str(directory.relative_to(here) if directory.is_relative_to(here) else directory)


def echo(text: str) -> None:
    """Write a line on standard error, above any progress bars.

    Rich's bars replace `sys.stderr` while they run; those of tqdm are cleared and drawn again by `tqdm.write`.
    """
    clean = "toposcope: " + "".join(c if c.isprintable() else "?" for c in text)
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if sys.stderr is None:
        return
    # A closed terminal, or one with another character set, must not stop the training.
    with suppress(OSError, ValueError):
        if tqdm is not None:
            tqdm.write(clean, file=sys.stderr)
        else:
            sys.stderr.write(clean + "\n")
            sys.stderr.flush()
