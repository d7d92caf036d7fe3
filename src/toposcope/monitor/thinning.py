"""Thins the log of a very fast loop, so that storing it stays within the budget."""

import math
from collections.abc import Mapping
from functools import lru_cache

from toposcope.logs.columns import identify_columns

LOG_SHARE = 0.25
"""Share of the budget that log rows may take."""
FIRST_ROW_SECONDS = 50e-6
"""Expected cost of a row before any was written."""
SMOOTHING = 0.2
"""Weight of the last write in the moving average of the cost of a row."""
MAX_EVERY = 1024


class Thinning:
    """Keeps the first row of each kind in every block of steps, and all rows with a validation loss.

    Rows are of one kind if they have the same names and agree in whether all values are finite. The length of a block
    is a power of two.

    Parameters
    ----------
    share : float
        Share of the training time that the monitor may take.

    Attributes
    ----------
    every : int
        Length of a block in steps.
    n_dropped : int
        Rows dropped so far.

    Examples
    --------
    >>> from toposcope.monitor.thinning import Thinning
    >>> thinning = Thinning(share=0.01)
    >>> thinning.adapt(step_seconds=0.002, n_rows=200, seconds=200 * 20e-6)
    >>> kept = [step for step in range(1, 17) if thinning.keeps(step, {"loss": 3.0})]
    >>> thinning.every, kept
    (16, [1, 16])
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._row_seconds = FIRST_ROW_SECONDS
        self._block = -1
        self._seen: set[tuple[bool, tuple[str, ...]]] = set()
        self._n_kinds = 1
        self._last: tuple[int, Mapping[str, float]] | None = None
        self.every, self.n_dropped = 1, 0

    def keeps(self, step: int, values: Mapping[str, float]) -> bool:
        """Return whether to keep a row."""
        if self.every == 1:
            return True
        if step // self.every != self._block:
            self._block = step // self.every
            self._n_kinds = max(1, len(self._seen))
            self._seen.clear()
        names = tuple(values)
        kind = all(map(math.isfinite, values.values())), names
        if kind in self._seen and not _has_validation(names):
            self._last = step, values
            self.n_dropped += 1
            return False
        self._seen.add(kind)
        self._last = None
        return True

    def last_dropped(self) -> tuple[int, Mapping[str, float]] | None:
        """Return the last row if it was dropped, so that the end of the run can be stored."""
        last, self._last = self._last, None
        self.n_dropped -= last is not None
        return last

    def adapt(self, step_seconds: float, n_rows: int, seconds: float) -> None:
        """Adapt the block length to the cost of `n_rows` rows that took `seconds` to write."""
        if not n_rows or not step_seconds > 0:
            return
        self._row_seconds += SMOOTHING * (seconds / n_rows - self._row_seconds)
        wanted = self._n_kinds * self._row_seconds / (LOG_SHARE * self._share * step_seconds)
        every = min(MAX_EVERY, 1 << max(0, math.ceil(math.log2(max(wanted, 1.0)))))
        # hysteresis: shorten blocks only if that is clearly affordable
        if every > self.every or 3 * wanted < self.every:
            self.every, self._block = every, -1


@lru_cache(maxsize=256)
def _has_validation(names: tuple[str, ...]) -> bool:
    columns = identify_columns(names)
    return any(target.validation for target in (*columns.losses, *columns.accuracies))
