"""How far each run lies from the others at equal step, tested by rotations (experiments/docs/outlier-runs.md)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import Indices, Matrix, Vector, derive_seed

MIN_RUNS = 5  # runs that can be compared with each other
MAX_OUTLYING_SHARE = 0.25
"""Of the runs, at least one of them; so many may lie apart without moving what the others are measured by."""
MIN_LASTING = 3  # steps that a lasting departure is seen at
N_ROTATIONS = 999
MIN_DIFFERENCE = 1e-9  # values that differ by a smaller share of the largest are equal
USUAL_SHARE = 0.95  # share of the distances of a run like the others, at one step, that are at most `Outliers.usual`
SEED = 42
MAX_VALUES = 1 << 21  # rotated values held in memory at once


@dataclass(frozen=True, eq=False)
class Outliers:
    """How far runs lie from each other."""

    # shape (f, t, n); from the mean of the core of the runs in its standard deviations, with its sign; NaN where not
    # comparable
    distance: NDArray[np.float64]
    peak: Matrix  # shape (f, n); the largest absolute distance at any step
    # shape (f, n); the mean of the absolute distances from some step to the last, of log(1 + d), by the step that makes
    # it largest
    lasting: Matrix
    since: Indices  # shape (f, n); the place of that step; -1 where nothing lasts for `MIN_LASTING` steps
    # shape (f, n); of peak and lasting distance together, over all runs, features and steps: the share of rotations in
    # which the smaller p-value of the two, of any run and any feature, is as small
    p: Matrix
    band: float  # the absolute distance that no run reaches at any step in a feature, in `level` of the rotations
    usual: float  # the absolute distance of one run at one step in `USUAL_SHARE` of the rotations


class _Pattern(NamedTuple):
    """The cells, feature by step, that are known in the same runs."""

    runs: Indices
    features: Indices
    steps: Indices
    values: Matrix


def core_size(n_runs: int) -> int:
    """Return how many runs the others are measured by."""
    return n_runs - max(1, int(n_runs * MAX_OUTLYING_SHARE))


def find_outliers(values: NDArray[np.float64], level: float, seed: int = SEED) -> Outliers:
    """Measure how far each run lies from the others at each step, and test it by rotating the runs.

    The data, with the mean of the runs taken out, then have the same distribution as any rotation of them in the space
    of runs (Langsrud 2005), the same rotation for all features and steps.
    """
    patterns = list(_patterns(values))
    distance = _in_place(values.shape, patterns)
    peak, lasting, since = _over_steps(np.abs(distance))
    rotated = [_over_features(size) for size in _rotated_distances(values.shape, patterns, seed)]
    if not rotated:
        return Outliers(distance, peak, lasting, since, np.full(peak.shape, np.nan), np.nan, np.nan)
    peaks, lastings, usual = (np.concatenate(parts) for parts in zip(*rotated, strict=True))
    p = _smaller_of_both([(peak, peaks), (lasting, lastings)])
    band = float(np.quantile(peaks, level, method="higher"))
    return Outliers(distance, peak, lasting, since, p, band, float(np.median(usual)))


def run_distances(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `Outliers.distance` without any test."""
    return _in_place(values.shape, list(_patterns(values)))


def distance_range(values: Vector, place: int) -> tuple[float, float]:
    """Return the least and the greatest distance of a run over leaving out each of the others in turn."""
    others = [i for i in range(len(values)) if i != place]
    without = np.array([np.delete(values, i) for i in others])
    places = np.array([place - (i < place) for i in others])
    found = _distances(without)[np.arange(len(others)), places]
    return float(found.min()), float(found.max())


def _patterns(values: NDArray[np.float64]) -> Iterator[_Pattern]:
    """Group the comparable cells by the runs in which they are known."""
    known = np.isfinite(values)
    n_runs = values.shape[2]
    enough = known.sum(axis=2) >= max(MIN_RUNS, core_size(n_runs))
    groups: dict[bytes, list[tuple[int, int]]] = {}
    for f, t in np.argwhere(enough).tolist():
        if _n_distinct(values[f, t, known[f, t]]) >= core_size(int(known[f, t].sum())):
            groups.setdefault(known[f, t].tobytes(), []).append((f, t))
    for key, cells in groups.items():
        runs = np.flatnonzero(np.frombuffer(key, dtype=bool))
        features, steps = np.array(cells).T
        yield _Pattern(runs, features, steps, values[features[:, None], steps[:, None], runs])


def _in_place(shape: tuple[int, ...], patterns: list[_Pattern]) -> NDArray[np.float64]:
    distance = np.full(shape, np.nan)
    for pattern in patterns:
        distance[pattern.features[:, None], pattern.steps[:, None], pattern.runs] = _distances(pattern.values)
    return distance


def _n_distinct(values: Vector) -> int:
    """Count the values that differ by more than rounding."""
    ordered = np.sort(values)
    size = np.maximum(np.abs(ordered[1:]), np.abs(ordered[:-1]))
    return 1 + int((np.diff(ordered) > MIN_DIFFERENCE * size).sum())


def _distances(values: Matrix) -> Matrix:
    from toposcope_experiments.outlier_runs.core_distances import core_distances  # compiled code takes long to import

    return core_distances(values, core_size(values.shape[1]))


def _over_steps(size: NDArray[np.float64]) -> tuple[Matrix, Matrix, Indices]:
    """Return peak, lasting distance and the place since when, of absolute distances of shape (..., t, n)."""
    known = np.isfinite(size)
    peak = np.where(known, size, -np.inf).max(axis=-2, initial=-np.inf)
    total = _from_the_end(np.log1p(np.where(known, size, 0.0)))
    count = _from_the_end(known.astype(np.int64))
    mean = np.where(known & (count >= MIN_LASTING), total / np.maximum(count, 1), -np.inf)
    since = mean.argmax(axis=-2) if mean.shape[-2] else np.zeros(peak.shape, dtype=np.int64)
    lasting = np.expm1(mean.max(axis=-2, initial=-np.inf))
    lasts = lasting > -1
    return np.where(peak >= 0, peak, np.nan), np.where(lasts, lasting, np.nan), np.where(lasts, since, -1)


def _from_the_end(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.flip(np.cumsum(np.flip(values, axis=-2), axis=-2), axis=-2)


def _over_features(size: NDArray[np.float64]) -> tuple[Vector, Vector, Vector]:
    """Return, for each rotation, the largest peak and lasting distance, and the distance that is usual."""
    peak, lasting, _ = _over_steps(size)
    flat = size.reshape(len(size), -1)
    largest = [np.where(np.isfinite(s), s, -np.inf).max(axis=(1, 2), initial=-np.inf) for s in (peak, lasting)]
    return largest[0], largest[1], np.nanquantile(flat, USUAL_SHARE, axis=1)


def _rotated_distances(shape: tuple[int, ...], patterns: list[_Pattern], seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield the absolute distances of rotated runs, shape (rotations, f, t, n), a portion at a time."""
    if not patterns:
        return
    n_runs = shape[2]
    generator = np.random.default_rng(derive_seed(seed, "rotations of runs", n_runs))
    portion = max(1, MAX_VALUES // int(np.prod(shape)))
    for begin in range(0, N_ROTATIONS, portion):
        count = min(portion, N_ROTATIONS - begin)
        drawn = generator.standard_normal((count, n_runs, n_runs))
        size = np.full((count, *shape), np.nan)
        for pattern in patterns:
            rotated = _rotated(pattern.values, drawn[:, pattern.runs[:, None], pattern.runs])
            found = _distances(rotated.reshape(-1, len(pattern.runs))).reshape(rotated.shape)
            size[:, pattern.features[:, None], pattern.steps[:, None], pattern.runs] = np.abs(found)
        yield size


def _rotated(values: Matrix, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate runs at random, each rotation uniform among those that keep the mean of the runs."""
    from scipy.linalg import helmert  # slow to import

    contrasts = helmert(values.shape[1])
    rotation, upper = np.linalg.qr(contrasts @ drawn @ contrasts.T)
    rotation *= np.sign(np.diagonal(upper, axis1=1, axis2=2))[:, None, :]  # uniform (Mezzadri 2007)
    rotated: NDArray[np.float64] = (values @ contrasts.T) @ rotation @ contrasts
    return rotated


def _smaller_of_both(tests: list[tuple[Matrix, Vector]]) -> Matrix:
    """Return p of the smaller of two p-values, each of a statistic among its largest values in rotations."""
    observed, null = [], []
    for statistic, largest in tests:
        ordered = np.sort(largest)
        n = len(ordered)
        as_large = n - np.searchsorted(ordered, np.where(np.isfinite(statistic), statistic, -np.inf))
        observed.append(np.where(np.isfinite(statistic), (1 + as_large) / (1 + n), 1.0))
        null.append((n - np.searchsorted(ordered, largest)) / n)
    smaller, smallest = np.minimum(*observed), np.sort(np.minimum(*null))
    p = (1 + np.searchsorted(smallest, smaller, side="right")) / (1 + len(smallest))
    return np.where(np.isfinite(tests[0][0]), p, np.nan)
