"""Progress of work that finishes in any order."""

from dataclasses import dataclass

from toposcope.progress import Progress
from toposcope.study.tasks import WORK


@dataclass
class Tally:
    """Work done of work to do, in bytes or in milliseconds, reported as it grows.

    Attributes
    ----------
    stage : str
    total : int
    progress : callable
    parallelism : float
        Among how many the work is shared out, on average, where one task may take longer than all others together: each
        one's part is reported.
    """

    stage: str
    total: int
    progress: Progress
    parallelism: float = 1.0
    done: int = 0
    ahead: int = 0

    def add(self, amount: int) -> None:
        """Count finished work; what was reported of it while it was under way counts once."""
        self.done += amount
        self.ahead = max(0, self.ahead - amount)
        self._report()

    def partly(self, what: str, amount: int, _: int) -> None:
        """Count work under way."""
        if what == WORK:
            self.ahead += amount
            self._report()

    def _report(self) -> None:
        if self.total:
            done = min(self.total, self.done + self.ahead)
            self.progress(self.stage, round(done / self.parallelism), round(self.total / self.parallelism))
