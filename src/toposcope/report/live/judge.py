"""The health of the runs on the page: of a study as every command judges it, of a log as its reader stored it."""

import math
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

from toposcope.analysis.health.check import DIVERGED, EARLY, FAILED, FINISHED, UNJUDGED, Health
from toposcope.errors import ToposcopeError
from toposcope.report.live import database as db
from toposcope.wording import sentence

if TYPE_CHECKING:
    from toposcope.logs import Run

LOG = "log"  # kind of the runs that nobody monitors
MAX_SHARE = 0.1  # of the time: a study that takes a second to judge is judged every ten seconds at most
SILENT_SECONDS = 60.0  # after which it is said anew how long a run has been silent
ENDED = {"complete": FINISHED, "diverged": DIVERGED, "failed": FAILED, "unreachable": FAILED}


class Judge:
    """Judges the runs of a study whenever it has changed, and when one of them falls silent.

    Those of a log, which has no such directory, are judged by the process that reads it.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._runs: dict[str, Run] = {}
        self._health: dict[str, Health] = {}
        self._refused = ""
        self._version, self._next, self._wake = -1, 0.0, math.inf
        self.n_looks = 0

    def is_due(self, version: int) -> bool:
        """Return whether there is something to judge, at a version of the database."""
        return self._directory is not None and (time.time() > self._wake or self._must_read(version))

    def _must_read(self, version: int) -> bool:
        return version != self._version and time.monotonic() >= self._next

    def look(self, version: int) -> None:
        """Judge all runs if that is due."""
        if self._directory is None or not self.is_due(version):
            return
        from toposcope.analysis.health import health  # with NumPy and Polars, after the server has started
        from toposcope.analysis.health.monitored import silent_at
        from toposcope.logs import read_logs

        began, now = time.monotonic(), time.time()
        if self._must_read(version):
            self._version, self._refused, self._runs = version, "", {}
            try:
                self._runs = {run.name: run for run in read_logs(self._directory).logs}
            except (ToposcopeError, OSError, sqlite3.Error) as error:  # nothing was logged yet, or it cannot be judged
                self._refused = str(error).removeprefix(f"{self._directory}: ")
        self._health = {name: health(run, now) for name, run in self._runs.items()}
        silent = [silent_at(run) for run in self._runs.values()]
        self._wake = min((at if at > now else now + SILENT_SECONDS for at in silent), default=math.inf)
        self._next = time.monotonic() + (time.monotonic() - began) / MAX_SHARE
        self.n_looks += 1

    def health(self, c: sqlite3.Connection, row: db.RunRow) -> Health:
        """Return the health of a run; of one without a row, what its writer says."""
        if row.kind == LOG:
            stored = db.meta(c, f"health {row.run}")
            return Health.from_dict(stored) if stored else Health(EARLY)
        if (found := self._health.get(row.run)) is not None:
            return found
        has_rows = c.execute("SELECT 1 FROM log WHERE run = ? LIMIT 1", (row.run,)).fetchone() is not None
        if has_rows and self._refused:
            return Health(UNJUDGED, sentence(self._refused))
        return Health(ENDED.get(row.status, UNJUDGED if has_rows else EARLY))
