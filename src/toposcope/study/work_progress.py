"""Progress of work that finishes in any order."""

from dataclasses import dataclass

from toposcope.progress import Progress
from toposcope.study.tasks import WORK


@dataclass
class WorkProgress:
    """How much of the work is done, in bytes or milliseconds, reported as it grows.

    Attributes
    ----------
    stage : str
    total : int
    progress : callable
    parallelism : float
        Average number of tasks that run at the same time. Amounts are reported divided by it, so that milliseconds of
        work become milliseconds of waiting.
    """

    stage: str
    total: int
    progress: Progress
    parallelism: float = 1.0
    done: int = 0
    running: int = 0

    def add(self, amount: int) -> None:
        """Count a finished task; what `add_running` has counted of it is not counted again."""
        self.done += amount
        self.running = max(0, self.running - amount)
        self._report()

    def add_running(self, what: str, amount: int, _: int) -> None:
        """Count work of a running task."""
        if what == WORK:
            self.running += amount
            self._report()

    def _report(self) -> None:
        if self.total:
            done = min(self.total, self.done + self.running)
            self.progress(self.stage, round(done / self.parallelism), round(self.total / self.parallelism))
