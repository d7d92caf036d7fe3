"""Thins lines without losing spikes: a row stands for several steps by their mean, minimum and maximum."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_ROWS = 800
"""Rows of one chart over all its runs, at most half of them from one run, so that zooming stays smooth."""
MIN_ROWS = 100
"""Rows of each run, even with many runs."""


class Row(NamedTuple):
    """A quantity at one step, or over several steps, the last of which is `step`."""

    step: int
    value: float
    low: float
    high: float
    n: int = 1


def rows_a_run(n_runs: int) -> int:
    """Return the number of rows to draw for each run."""
    return max(MIN_ROWS, MAX_ROWS // max(2, n_runs))


def single(values: Iterable[tuple[int, float | None]]) -> list[Row]:
    """Return a row for each step with a finite value."""
    return [Row(step, v, v, v) for step, v in values if v is not None and math.isfinite(v)]


def thinned(rows: Sequence[Row], at_most: int) -> list[Row]:
    """Merge neighbouring rows until at most `at_most` remain, keeping their extremes."""
    width = -(-len(rows) // at_most)
    if width <= 1:
        return list(rows)
    return [_merged(rows[i : i + width]) for i in range(0, len(rows), width)]


def columns(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return rows as columns for the page, with the range only if a row stands for several steps."""
    if all(row.n == 1 for row in rows):
        return {"step": [row.step for row in rows], "value": [_short(row.value) for row in rows]}
    return {
        "step": [row.step for row in rows],
        "value": [_short(row.value) for row in rows],
        "low": [_short(row.low) for row in rows],
        "high": [_short(row.high) for row in rows],
    }


def _merged(rows: Sequence[Row]) -> Row:
    n = sum(row.n for row in rows)
    mean = sum(row.value * (row.n / n) for row in rows)
    return Row(rows[-1].step, mean, min(row.low for row in rows), max(row.high for row in rows), n)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
