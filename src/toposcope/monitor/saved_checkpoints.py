"""Examines checkpoints as they are saved: new findings of the doctor, as the budget allows."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.integrity import CheckpointSummary, Finding, diagnose, summarise
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import Alert

DOCTOR = "doctor"  # name of the examination in the budget
BYTES_PER_SECOND = 3e8  # expected speed of reading and hashing
MAX_KEPT = 64  # most recent checkpoints that a new one is compared with


class SavedCheckpoints:
    """The saved checkpoints of a run, examined in order."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._waiting: deque[tuple[Path, int]] = deque()
        self._summaries: dict[int, CheckpointSummary] = {}
        self._reported: dict[tuple[str, str], set[int]] = {}
        self.findings: list[Finding] = []
        """All findings so far."""
        self.n_examined = 0
        self.kept: dict[Path, int] = {}
        """Those that were there when the last one was added, and their steps; what a cool-down is measured on."""

    def add(self, path: Path, step: int) -> None:
        """Add a checkpoint, a file or a folder."""
        self._waiting.append((path, step))
        self.kept = {each: at for each, at in self.kept.items() if each != path and each.exists()}
        self.kept[path] = step
        while len(self.kept) > MAX_KEPT:
            del self.kept[next(iter(self.kept))]

    def to_dict(self) -> dict[str, Any]:
        """Return the folder and the steps of the checkpoints that are kept."""
        folders = [path.parent for path in self.kept]
        folder = folders[-1] if len(set(folders)) == 1 else folders[-1].parent if folders else ""
        return {"folder": str(folder), "steps": sorted(self.kept.values())}

    def before(self, step: int) -> str:
        """Return a sentence on the last checkpoint before a step that still exists and has no fault."""
        if not self.kept:
            return (
                "No checkpoint was reported: call monitor.saved(path) after each save, and alerts name the one to use."
            )
        faulty = {at for finding in self.findings if finding.severity == "fault" for at in finding.steps}
        sound = [(at, path) for path, at in self.kept.items() if at < step and at not in faulty and path.exists()]
        if not sound:
            return "No sound checkpoint from before that is left."
        at, path = max(sound)
        which = (
            "checkpoint before that, not examined yet,"
            if (path, at) in self._waiting
            else "sound checkpoint before that"
        )
        return f"The last {which} is {path.name} (step {at:,})."

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
            new = self.saved(path, step)
            self._budget.charge(DOCTOR, name, time.perf_counter() - started)
            self._budget.forget(DOCTOR, name)
            self.n_examined += 1
            self.findings += new
            for finding in new:
                since = min(finding.steps, default=step)
                yield Alert(f"doctor: {finding.check}", step, since, finding.layer, finding.message)

    def saved(self, path: Path, step: int) -> list[Finding]:
        """Examine a checkpoint, in place of an earlier one of this step; return the new findings."""
        self._summaries[step] = summarise(Checkpoint(path, step), deep=True)
        while len(self._summaries) > MAX_KEPT:
            del self._summaries[min(self._summaries)]
        new = []
        for finding in diagnose(list(self._summaries.values())):
            known, steps = self._reported.setdefault((finding.check, finding.layer), set()), finding.steps or (-1,)
            if not known.issuperset(steps):
                known.update(steps)
                new.append(finding)
        return new


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else ()
    return sum(file.stat().st_size for file in files if file.is_file())
