"""A queue of saved checkpoints, which the doctor examines as the budget allows."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from toposcope.integrity import Finding
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import Alert
from toposcope.monitor.saved_checkpoints import SavedCheckpoints

DOCTOR = "doctor"
"""Name of the examination in the budget."""
BYTES_PER_SECOND = 3e8
"""Expected speed of reading and hashing."""


class CheckpointQueue:
    """Saved checkpoints, examined in order.

    Parameters
    ----------
    budget : Budget
    """

    def __init__(self, budget: Budget) -> None:
        self._budget, self._series = budget, SavedCheckpoints()
        self._waiting: deque[tuple[Path, int]] = deque()
        self.findings: list[Finding] = []
        """All findings so far."""
        self.n_examined = 0

    def add(self, path: Path, step: int) -> None:
        """Add a checkpoint, a file or a folder."""
        self._waiting.append((path, step))

    def examine(self, *, final: bool = False) -> Iterator[Alert]:
        """Examine checkpoints while the budget lasts, or all if `final`; yield an alert for each new finding."""
        while self._waiting:
            path, step = self._waiting[0]
            name = str(path)
            self._budget.expect(DOCTOR, name, _size(path) / BYTES_PER_SECOND)
            if not final and not self._budget.affords(DOCTOR, [name]):
                return
            self._waiting.popleft()
            if not path.exists():  # deleted since, as by a trainer that keeps the last few
                self._budget.forget(DOCTOR, name)
                continue
            started = time.perf_counter()
            new = self._series.saved(path, step)
            self._budget.charge(DOCTOR, name, time.perf_counter() - started)
            self._budget.forget(DOCTOR, name)
            self.n_examined += 1
            self.findings += new
            self._series.forget_deleted()
            yield from (_alert(finding, step) for finding in new)


def _alert(finding: Finding, step: int) -> Alert:
    since = min(finding.steps, default=step)
    return Alert(f"doctor: {finding.check}", step, since, finding.layer, finding.message)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else ()
    return sum(file.stat().st_size for file in files if file.is_file())
