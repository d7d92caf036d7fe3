"""The best division of a series into straight lines, for many series at once."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from toposcope.typing import Vector

MIN_PIECE_LENGTH = 3
"""A piece has at least this many points: a line fits any two."""


def segment(times: Vector, series: Vector, penalty: float) -> list[list[int]]:
    """Divide each series into lines, at the least sum of squared residuals plus a penalty for each change.

    The minimum is exact (optimal partitioning, Jackson et al. 2005): what PELT (Killick et al. 2012) finds by pruning
    the same recursion. Here the recursion runs for all series together, since a bootstrap needs hundreds.

    Parameters
    ----------
    times : ndarray, shape (n,)
        Increasing.
    series : ndarray, shape (n, m)
        One series in each column.
    penalty : float
        In squared units of the series.

    Returns
    -------
    list of list of int
        For each series the first index of every piece but the first. Pieces have at least 3 points.
    """
    n, m = series.shape
    best = np.full((n + 1, m), np.inf)
    best[0] = 0
    origin = np.zeros((n + 1, m), dtype=np.int64)
    for end, cost in enumerate(_costs(times, series), start=MIN_PIECE_LENGTH):
        total = best[: len(cost)] + cost
        total[1:] += penalty  # a piece that begins the series is no change
        origin[end] = total.argmin(axis=0)
        best[end] = total.min(axis=0)
    return [_walk(origin[:, j]) for j in range(m)]


def segment_into(times: Vector, series: Vector, n_changes: int) -> NDArray[np.int64]:
    """Divide each series into lines with a given number of changes, at the least sum of squared residuals.

    Returns
    -------
    ndarray, shape (n_changes, m)
        First index of every piece but the first.
    """
    n, m = series.shape
    best = np.full((n_changes + 1, n + 1, m), np.inf)
    origin = np.zeros((n_changes + 1, n + 1, m), dtype=np.int64)
    for end, cost in enumerate(_costs(times, series), start=MIN_PIECE_LENGTH):
        best[0, end] = cost[0]
        total = best[:-1, : len(cost)] + cost
        origin[1:, end] = total.argmin(axis=1)
        best[1:, end] = total.min(axis=1)
    changes = np.empty((n_changes, m), dtype=np.int64)
    end_of = np.full(m, n)
    for k in range(n_changes, 0, -1):
        end_of = origin[k, end_of, np.arange(m)]
        changes[k - 1] = end_of
    return changes


def fit_lines(times: Vector, values: Vector, changes: list[int]) -> Vector:
    """Return the fitted lines, shape (n,), between the given changes."""
    pieces = np.split(np.arange(len(values)), changes)
    return np.concatenate([np.polyval(np.polyfit(times[i], values[i], 1), times[i]) for i in pieces])


def _costs(times: Vector, series: Vector) -> Iterator[Vector]:
    """Yield, for each end from 3 on, the squared residuals of the lines from every start, shape (end - 2, m).

    Recursive residuals (Brown, Durbin and Evans 1975): each point adds the square of its own, and nothing is ever
    subtracted from a large sum.
    """
    n, m = series.shape
    count = np.zeros((n, 1))
    middle, spread = np.zeros((n, 1)), np.zeros((n, 1))
    level, slope, cost = np.zeros((n, m)), np.zeros((n, m)), np.zeros((n, m))
    for j in range(n):
        s = slice(0, j + 1)  # the starts whose line now takes in point j
        dt, dy = times[j] - middle[s], series[j] - level[s]
        grown = count[s] + 1
        old = spread[s].copy()
        spread[s] += dt**2 * count[s] / grown
        usable = count[s] >= 2
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = (dy - dt * slope[s]) ** 2 / (1 + 1 / count[s] + dt**2 / old)
            gain = np.where(count[s] > 0, dt * count[s] / grown / spread[s], 0.0)
        cost[s] += np.where(usable, surprise, 0.0)
        slope[s] += gain * (dy - dt * slope[s])
        middle[s] += dt / grown
        level[s] += dy / grown
        count[s] = grown
        if j >= MIN_PIECE_LENGTH - 1:
            yield cost[: j - 1]


def _walk(origin: NDArray[np.int64]) -> list[int]:
    changes: list[int] = []
    end = int(origin[-1])
    while end > 0:
        changes.append(end)
        end = int(origin[end])
    return changes[::-1]
