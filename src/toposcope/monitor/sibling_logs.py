"""Logs of the complete runs next to a run in training."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import monotonic

from toposcope.errors import ToposcopeError
from toposcope.logs import Logs, Run, read_logs
from toposcope.logs.formats import study

MAX_SIBLINGS = 32  # most recent sibling folders that are read
MAX_SIBLING_ROWS = 1500  # rows of a sibling's log


class SiblingLogs:
    """Logs of complete runs in sibling folders, cached until the folder changes."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(os.path.abspath(directory))  # noqa: PTH100 - Path.resolve follows links
        self._known: dict[Path, tuple[object, tuple[Run, ...]]] = {}

    def logs(self, max_seconds: float) -> Logs:
        """Return the logs; folders that cannot be read within `max_seconds` are left for the next call."""
        deadline = monotonic() + max_seconds
        found: list[Run] = []
        for folder in self._folders():
            version = _version(folder)
            if folder not in self._known or self._known[folder][0] != version:
                if monotonic() >= deadline:
                    continue
                self._known[folder] = version, _complete_logs(folder)
            found += self._known[folder][1]
        return Logs(tuple(found), ())

    def _folders(self) -> list[Path]:
        """Return the sibling folders, most recent first."""
        try:
            paths = [p for p in self._directory.parent.iterdir() if not p.name.startswith(".") and p.is_dir()]
            dated = sorted(((p.stat().st_mtime, p) for p in paths if p != self._directory), reverse=True)
        except OSError:
            return []  # the forecast then does without siblings
        return [path for _, path in dated[:MAX_SIBLINGS]]


def _version(folder: Path) -> object:
    """Return a fingerprint of a folder that changes when one of its logs does."""
    try:
        with os.scandir(folder) as entries:
            # reading a database modifies these files next to it
            files = [entry for entry in entries if entry.is_file() and not entry.name.endswith(("-shm", "-wal"))]
        return sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in files)
    except OSError:
        return None


def _complete_logs(folder: Path) -> tuple[Run, ...]:
    """Return the logs in a folder of runs that came to their end; none if it has no readable log."""
    try:
        complete = _complete_runs(folder / "study.db") if study.claims(folder) else None
        if complete == set():
            return ()
        logs = read_logs(folder).logs
    except (ToposcopeError, OSError, sqlite3.Error):
        return ()
    if complete is not None:
        # the log of a single run is named after its folder
        logs = tuple(replace(log, finished=True) for log in logs if log.name in complete or len(logs) == 1)
    whole = [log for log in logs if log.is_complete]
    return tuple(replace(log.thinned(MAX_SIBLING_ROWS), name=f"{folder.name}/{log.name}") for log in whole)


def _complete_runs(database: Path) -> set[str]:
    with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=1)) as store:
        return {run for (run,) in store.execute("SELECT run FROM runs WHERE status = 'complete'")}
