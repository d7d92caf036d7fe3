"""Progress in bytes, of work that finishes in any order."""

from dataclasses import dataclass

from toposcope.progress import Progress
from toposcope.study.tasks import BYTES


@dataclass
class Tally:
    """Bytes done of bytes to do, told as they grow."""

    stage: str
    total: int
    progress: Progress
    done: int = 0
    ahead: int = 0

    def add(self, n_bytes: int) -> None:
        """Count finished work; what was told of it while it was under way counts once."""
        self.done += n_bytes
        self.ahead = max(0, self.ahead - n_bytes)
        self._tell()

    def partly(self, what: str, n_bytes: int, _: int) -> None:
        """Count work under way."""
        if what == BYTES:
            self.ahead += n_bytes
            self._tell()

    def _tell(self) -> None:
        if self.total:
            self.progress(self.stage, min(self.total, self.done + self.ahead), self.total)
