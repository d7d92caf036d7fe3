"""Change points of a trajectory with intervals, tested against a smooth trend (docs/methods/phases.md)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.smooth_trend import BREAK_MARGIN, ColouredNoise, Trends, squares_outside, trends
from toposcope.errors import ToposcopeError
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Vector

# Smooth trends and breaks in them: chosen on 13 kinds of smooth curves (docs/methods/phases.md)
MIN_NOISE = 0.005  # as a share of the range: smooth curves are not known to fit better than that
NOISE_ROUNDS = 2  # of estimating the noise about the breaks, and the breaks in that noise
MIN_PIECE_LENGTH = 3  # a piece has at least this many points: a line fits any two


def segment(times: Vector, series: Vector, penalty: float) -> list[list[int]]:
    """Divide each series into lines at the least penalised squares (optimal partitioning, Jackson et al. 2005)."""
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


def optimal_segmentation(times: Vector, series: Vector, n_changes: int) -> NDArray[np.int64]:
    """Divide each series into lines with a given number of changes, at the least sum of squared residuals."""
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
    """Yield, by end, sums of squared recursive residuals (Brown, Durbin & Evans 1975), shape (end - 2, m)."""
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


DRAWS = 200
PER_CHANGE = 3  # parameters of a change in the BIC: its place, and the level and slope of one more line
LEVEL = 0.05
MAX_POINTS = 300  # of a longer trajectory, the means of so many blocks are used: the cost grows with the square


@dataclass(frozen=True)
class ChangePoint:
    """A step at which a trajectory turns or jumps.

    Attributes
    ----------
    step : int
        The first checkpoint of the new piece: a jump lies between the one before and this one.
    low, high : int
        Steps that bound it, 95%.
    p_smooth : float
        Share of smooth trajectories whose largest break gains as much as this one, in [1/201, 1].
    explained : bool
        Whether a smooth trend explains it, ``p_smooth >= 0.05``.
    """

    step: int
    low: int
    high: int
    p_smooth: float
    explained: bool


def change_points(steps: NDArray[np.int64], values: Vector, seed: int) -> list[ChangePoint]:
    """Find where a trajectory turns or jumps, and say which of these a smooth trend explains.

    Straight lines over the step, at least 3 checkpoints each, with or without jumps between them, that minimise the
    squared residuals + 3 s² ln n for each change (the BIC: Yao 1988). Intervals are of a block bootstrap of residuals
    (Künsch 1989). A change is explained if smooth curves with autoregressive noise (a sieve bootstrap: Bühlmann 1997)
    often have a break as large. Definitions, and why: docs/methods/phases.md.

    Of more than 300 checkpoints, the means of 300 blocks of neighbours are divided: a change point is the first
    checkpoint of a block, and its interval is of whole blocks.

    Parameters
    ----------
    steps : ndarray, shape (n,)
        Increasing.
    values : ndarray, shape (n,)
        Finite.
    seed : int

    Returns
    -------
    list of ChangePoint
        In order of the step; empty for fewer than 6 checkpoints or a constant trajectory.

    Raises
    ------
    ToposcopeError
        If a value is not finite, or the steps do not increase.
    """
    breaks = find_breaks(steps, values, seed)
    if breaks is None:
        return []
    first, last, found = breaks.first, breaks.last, breaks.places.tolist()
    low, high = _intervals(breaks.times, breaks.y, found, breaks.noise, derive_seed(seed, "intervals"))
    within = int(len(first) <= last[-1])  # a change within a block appears in it or after it
    return [
        ChangePoint(int(steps[first[c]]), int(steps[begin]), int(steps[end]), share, share >= LEVEL)
        for c, begin, end, share in zip(found, first[low - within], last[high], breaks.p.tolist(), strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Breaks:
    """The change points of a trajectory of n checkpoints, or blocks of them, and the smooth twins that test them."""

    times: Vector  # shape (n,); from 0 to 1
    y: Vector  # shape (n,); the values, in ranges
    first: Indices  # shape (n,); the first and the last checkpoint of each block
    last: Indices
    places: Indices  # shape (c,); the first block of each new line
    p: Vector  # shape (c,); `ChangePoint.p_smooth`
    noise: ColouredNoise
    twin_places: Indices  # shape (200,); the largest break of each twin: a series with the same smooth trend and noise
    twin_p: Vector  # shape (200,); the share of twins whose largest break gains as much


def find_breaks(steps: NDArray[np.int64], values: Vector, seed: int) -> Breaks | None:
    """Find and test the changes of `change_points`, without their intervals; None if there are none."""
    _check(steps, values)
    return _breaks(steps.astype(np.int64).tobytes(), values.astype(np.float64).tobytes(), seed)


@lru_cache(maxsize=1024)
def _breaks(step_bytes: bytes, value_bytes: bytes, seed: int) -> Breaks | None:
    steps, values = np.frombuffer(step_bytes, np.int64), np.frombuffer(value_bytes)
    if len(values) < 2 * MIN_PIECE_LENGTH or not np.ptp(values) > 0:
        return None
    first, last = equal_segments(len(values))
    times: Vector = steps.astype(np.float64)
    if len(first) < len(values):
        size = np.diff(first, append=len(values))
        values = np.add.reduceat(values / np.abs(values).max() / size.repeat(size), first)
        times = np.add.reduceat(steps / size.repeat(size), first)
    times = (times - times[0]) / (times[-1] - times[0])
    y = values / np.abs(values).max()  # so that neither the range nor a square overflows
    if not np.ptp(y) > 0:
        return None
    y = (y - y.mean()) / np.ptp(y)
    sigma = max(noise_level(times, y), MIN_NOISE)
    found = segment(times, y[:, None], PER_CHANGE * sigma**2 * np.log(len(y)))[0]
    if not found:
        return None
    noise, innovations, breaks = _noise(times, y)
    p, twins, gains = _p_smooth(times, y, found, breaks, noise, innovations, derive_seed(seed, "smooth trend"))
    twin_p = (gains >= gains[:, None]).mean(axis=1)
    return Breaks(times, y, first, last, np.array(found), np.array(p), noise, twins, twin_p)


def equal_segments(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last of the checkpoints of each segment; of up to 300, each is one."""
    ends = np.linspace(0, n, min(n, MAX_POINTS) + 1).round().astype(np.int64)
    return ends[:-1], ends[1:] - 1


def _check(steps: NDArray[np.int64], values: Vector) -> None:
    if len(steps) != len(values):
        raise ToposcopeError(f"change points: {len(steps)} steps for {len(values)} values; give one step for each")
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise ToposcopeError(f"change points: {count} of {len(values)} values are not finite; remove them")
    if not (np.diff(steps) > 0).all():
        raise ToposcopeError("change points: the steps do not increase; give each checkpoint once, in order")


def noise_level(times: Vector, y: Vector) -> float:
    """Return the robust standard deviation of pseudo-residuals."""
    before = (times[2:] - times[1:-1]) / (times[2:] - times[:-2])
    left = y[1:-1] - before * y[:-2] - (1 - before) * y[2:]
    return float(np.median(np.abs(left / np.sqrt(1 + before**2 + (1 - before) ** 2))) / 0.6745)


def _noise(times: Vector, y: Vector) -> tuple[ColouredNoise, Vector, list[int]]:
    """Estimate the noise about a smooth trend with the breaks that the BIC asks for."""
    noise = ColouredNoise.white(len(y))
    curves = trends(times, noise)
    family = int(curves.choose(y[:, None])[0])
    breaks: list[int] = []  # cannot be distinguished from correlated noise before that is estimated
    for _ in range(NOISE_ROUNDS):
        basis = curves.with_breaks(family, breaks)
        innovations = _outside(basis, noise.whiten(y[:, None])[:, 0])
        noise = ColouredNoise.estimate(noise.colour(innovations[:, None])[:, 0], _size(basis))
        curves = trends(times, noise)
        family, breaks = curves.find_breaks(noise.whiten(y[:, None])[:, 0])
    basis = curves.with_breaks(family, breaks)
    innovations = _outside(basis, noise.whiten(y[:, None])[:, 0])
    inflation = np.sqrt(len(y) / max(len(y) - _size(basis), 1))
    return noise, (innovations - innovations.mean()) * inflation, breaks


def _outside(basis: Vector, y: Vector) -> Vector:
    """Return what a basis leaves of a series."""
    return np.asarray(y - basis @ (basis.T @ y))


def _size(basis: Vector) -> int:
    return int(basis.any(axis=0).sum())


def _intervals(
    times: Vector, y: Vector, found: list[int], noise: ColouredNoise, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n = len(y)
    lines = fit_lines(times, y, found)
    left = (y - lines) / noise.scale * np.sqrt(n / max(n - 2 * (len(found) + 1), 1))
    length = int(np.ceil(np.sqrt(n)))
    starts = np.random.default_rng(seed).integers(0, n - length + 1, (-(-n // length), DRAWS))
    drawn = (starts[:, None, :] + np.arange(length)[:, None]).reshape(-1, DRAWS)[:n]
    places = optimal_segmentation(times, lines[:, None] + left[drawn] * noise.scale[:, None], len(found))
    low = np.floor(np.percentile(places, 2.5, axis=1)).astype(np.int64)
    return np.minimum(low, found), np.maximum(np.ceil(np.percentile(places, 97.5, axis=1)).astype(np.int64), found)


def _p_smooth(
    times: Vector, y: Vector, found: list[int], breaks: list[int], noise: ColouredNoise, innovations: Vector, seed: int
) -> tuple[list[float], Indices, Vector]:
    """Return p of each change, and of each smooth twin the place and the gain of its largest break."""
    n = len(y)
    curves = trends(times, ColouredNoise.white(n))
    smooth = curves.bases[int(curves.choose(y[:, None])[0])]
    drawn = noise.colour(innovations[np.random.default_rng(seed).integers(0, n, (n, DRAWS))])
    drawn *= max(1.0, MIN_NOISE / max(float(np.sqrt((drawn**2).mean())), np.finfo(float).tiny))
    twins, largest = _largest_gains(curves, (smooth @ (smooth.T @ y))[:, None] + drawn)
    family = curves.choose_with(y, breaks)
    shares = []
    for c in found:
        others = curves.with_breaks(family, [b for b in breaks if abs(b - c) >= BREAK_MARGIN])
        gain = _gains(curves, others, y[:, None])[:, 0]
        # a turn between two checkpoints may be placed at either, by one method and the other
        own = gain[max(c - 1, 0) : c + 2].max()
        shares.append(float((1 + (largest >= own).sum()) / (1 + DRAWS)))
    return shares, twins, largest


def _largest_gains(curves: Trends, series: Vector) -> tuple[Indices, Vector]:
    """Return place and gain of the break in each series that gains most over its own smooth trend, shape (m,)."""
    chosen = curves.choose(series)
    places, largest = np.empty(series.shape[1], np.int64), np.empty(series.shape[1])
    for family in np.unique(chosen):
        own = chosen == family
        gains = _gains(curves, curves.bases[family], series[:, own])
        places[own], largest[own] = gains.argmax(axis=0), gains.max(axis=0)
    return places, largest


def _gains(curves: Trends, basis: Vector, series: Vector) -> Vector:
    """Return gains as shares of what the basis leaves, or of the least noise where that is more."""
    left = np.maximum(squares_outside(basis, series), len(series) * MIN_NOISE**2)
    return curves.gains(basis, series) / left
