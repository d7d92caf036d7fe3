"""The first checkpoint at which two runs differ by more than noise."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from toposcope.analysis import tuning
from toposcope.seeds import derive_seed
from toposcope.typing import Vector

MIN_CHECKPOINTS = 10  # common checkpoints of two runs; with fewer, noise cannot be distinguished from a trend
LEVEL = 0.05
"""Probability that any series of a pair of noisy copies is said to differ."""
N_SIMULATED = 2000
MAD_TO_SD = 1.4826
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class FirstDifference:
    """Where two series of one quantity first differ."""

    step: int | None  # the first checkpoint from which the difference is beyond the noise; None if there is none
    # the difference there, in standard deviations of the noise; without such a checkpoint the largest one that lasts
    units: float
    largest: float  # the largest difference that lasts, in these units
    threshold: float  # units that the difference must exceed
    differs_from: int | None  # the first checkpoint at which the values are not equal, whatever the noise
    from_start: bool  # whether `step` is the first common checkpoint


def first_differences(
    steps: NDArray[np.int64], first: Mapping[Name, Vector], second: Mapping[Name, Vector], level: float = LEVEL
) -> dict[Name, FirstDifference]:
    """Find where the series of two runs first differ."""
    known: dict[Name, NDArray[np.bool_]] = {}
    for name in first:
        if name in second:
            finite = np.isfinite(first[name]) & np.isfinite(second[name])
            if finite.sum() >= MIN_CHECKPOINTS:
                known[name] = finite
    return {
        name: _difference(steps[at], first[name][at], second[name][at], level / len(known))
        for name, at in known.items()
    }


def _difference(steps: NDArray[np.int64], a: Vector, b: Vector, level: float) -> FirstDifference:
    limit = threshold(len(steps), level)
    lasting = _lasting(np.stack([a, b]))
    beyond = np.flatnonzero(lasting > limit)
    unequal = np.flatnonzero(a != b)
    at = int(beyond[0]) if len(beyond) else None
    return FirstDifference(
        step=None if at is None else int(steps[at]),
        units=float(lasting.max() if at is None else lasting[at]),
        largest=float(lasting.max()),
        threshold=limit,
        differs_from=int(steps[unequal[0]]) if len(unequal) else None,
        from_start=at == 0,
    )


def noise(series: Vector) -> Vector:
    """Return the standard deviation of the noise of series, shape (..., n), at each checkpoint.

    It is 1.4826 times the median absolute residual from the local trend; where the residuals grow or fall exponentially
    over training, that of the residuals in units of this course, if it is more. A trend that bends within 7 checkpoints
    counts as noise.
    """
    n = series.shape[-1]
    residuals = np.abs(series @ _residual_maker(n).T)
    smallest = 1e-3 * residuals.mean(axis=-1, keepdims=True) + np.finfo(float).tiny
    number = np.arange(n) - (n - 1) / 2
    slope = np.log(np.maximum(residuals, smallest)) @ number / (number**2).sum()
    course = np.exp(slope[..., None] * number)
    return np.asarray(
        MAD_TO_SD
        * np.maximum(
            course * np.median(residuals / course, axis=-1, keepdims=True), np.median(residuals, axis=-1, keepdims=True)
        )
    )


@lru_cache(maxsize=64)
def threshold(n: int, level: float = LEVEL) -> float:
    """Return the units that a lasting difference of two noisy copies of n checkpoints exceeds with probability `level`.

    By simulation of Gaussian noise, the largest over the correlations of neighbours; beyond the top tenth of the
    simulated ones extrapolated as a Pareto tail (Hill 1975), which is heavier than that of Gaussian noise.
    """
    generator = np.random.default_rng(derive_seed(0, "first difference", n))
    share, limits = tuning.SIMULATION_MARGIN * level, []
    for correlation in tuning.NOISE_CORRELATIONS:
        pairs = generator.normal(size=(2, N_SIMULATED, n))
        pairs[..., 1:] *= np.sqrt(1 - correlation**2)
        for i in range(1, n):
            pairs[..., i] += correlation * pairs[..., i - 1]
        largest = np.sort(_lasting(pairs).max(axis=-1))
        start = largest[round((1 - tuning.TAIL_SHARE) * N_SIMULATED)]
        tail_index = float(np.log(largest[largest > start] / start).mean())
        limits.append(float(start * (tuning.TAIL_SHARE / share) ** tail_index))
    return max(limits)


def _lasting(pair: Vector) -> Vector:
    """Return the least difference of each three neighbours on one side, in units of noise."""
    difference = pair[1] - pair[0]
    spread = np.hypot(*noise(pair))
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(difference == 0, 0.0, difference / spread)
    threes = sliding_window_view(units, tuning.N_LASTING, axis=-1)
    return np.asarray(np.maximum(threes.min(axis=-1), -threes.max(axis=-1)).clip(0))


@lru_cache(maxsize=64)
def _residual_maker(n: int) -> Vector:
    """Return the matrix, shape (n, n), from a series to its residuals from the local trend, of variance 1 if white."""
    maker = np.eye(n)
    for i in range(n):
        start = min(max(i - tuning.TREND_WINDOW // 2, 0), n - tuning.TREND_WINDOW)
        at = np.arange(start, start + tuning.TREND_WINDOW)
        design = np.column_stack([np.ones(tuning.TREND_WINDOW), at - i])
        maker[i, at] -= np.linalg.pinv(design)[0]
    return np.asarray(maker / np.linalg.norm(maker, axis=1, keepdims=True))
