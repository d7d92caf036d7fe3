"""Held-out models: which are predicted from which, how wide intervals must then be, how far methods are believed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import NORMAL_WIDTH, Fold, Indices, Matrix, Vector
from toposcope_downstream.ladder import LEAST_ERROR

# Scores of tasks: docs/downstream.md; made ladders, and the OLMo ladder without its two targets
Mask = NDArray[np.bool_]
LEVEL = 0.9  # of all intervals of scores
MIN_TRAINED, MIN_SIZES = 5, 2  # models to predict others from, and different sizes among them
COMPUTE_GAP = 4.0  # models of this many times the compute are predicted from those below, and more
SAME_LEVEL = 1.1  # numbers within this ratio are one level
MAX_LEVELS = 3  # largest sizes, or longest trainings, that are held out together
MIN_FOLDS = 4  # folds, of all tasks, below which methods are not weighed by their errors


def extrapolating_folds(N: Vector, D: Vector) -> tuple[Fold, ...]:
    """Return the ways to hold out what is larger, trained for longer, or both; none interpolates.

    The largest sizes, the longest trainings (in tokens per parameter, or in tokens where these have fewer levels),
    both at once, and all from some compute on while those of a quarter of it and less stay.
    """
    found: dict[tuple[bytes, bytes], Fold] = {}
    for fold in _candidates(N, D):
        if fold.trained.sum() >= MIN_TRAINED and len(_levels(N[fold.trained])) >= MIN_SIZES and fold.predicted.any():
            found.setdefault((fold.trained.tobytes(), fold.predicted.tobytes()), fold)
    return tuple(found.values())


def _candidates(N: Vector, D: Vector) -> Iterator[Fold]:
    sizes = _levels(N)
    by_tokens = len(_levels(D)) < len(_levels(D / N))
    length, unit = (D, "tokens") if by_tokens else (D / N, "tokens per parameter")
    lengths = _levels(length)
    for size in sizes[: -MAX_LEVELS - 1 : -1]:
        yield Fold(f"sizes from {size:.3g} parameters", size / SAME_LEVEL > N, size / SAME_LEVEL <= N)
    for level in lengths[: -MAX_LEVELS - 1 : -1]:
        yield Fold(f"runs from {level:.3g} {unit}", length < level / SAME_LEVEL, length >= level / SAME_LEVEL)
    for size, level in zip(sizes[::-1][:MAX_LEVELS], lengths[::-1][:MAX_LEVELS], strict=False):
        small, large = (size / SAME_LEVEL > N) & (length < level / SAME_LEVEL), (size / SAME_LEVEL <= N)
        yield Fold(f"{size:.3g} parameters and {level:.3g} {unit}", small, large & (length >= level / SAME_LEVEL))
    compute = N * D
    for share in (0.35, 0.5, 0.65):
        limit = float(np.quantile(compute, share))
        yield Fold(f"compute from {6 * COMPUTE_GAP * limit:.2g} FLOP", compute <= limit, compute >= COMPUTE_GAP * limit)


def _levels(values: Vector) -> list[float]:
    """Return the levels of positive values, increasing; neighbours within `SAME_LEVEL` are one."""
    ordered = np.unique(values)
    begins = np.diff(np.log(ordered), prepend=-np.inf) > np.log(SAME_LEVEL)
    return [float(value) for value in ordered[begins]]


def unseen(fold: Fold, runs: Sequence[str]) -> frozenset[str]:
    """Return the runs that others are not predicted from."""
    return frozenset(run for run, seen in zip(runs, fold.trained, strict=True) if not seen)


class Miss(NamedTuple):
    """A held-out run, and how far its prediction was off."""

    run: str
    fold: frozenset[str]  # runs that were held out with it
    off: float  # in standard deviations of the prediction


def half_width(misses: Sequence[Miss], without: frozenset[str] = frozenset()) -> float:
    """Return how many standard deviations an interval extends to each side.

    That of a normal distribution, or what 90% of the held-out predictions needed, if that is more and there are 8. Each
    fold counts alike, whatever the number of its runs.
    """
    known = [miss for miss in misses if without <= miss.fold and miss.run not in without]
    if len(known) < 8:
        return NORMAL_WIDTH
    sizes = {fold: sum(miss.fold == fold for miss in known) for fold in {miss.fold for miss in known}}
    off, weight = np.array([(miss.off, 1 / sizes[miss.fold]) for miss in known]).T
    order = np.argsort(off, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    return max(NORMAL_WIDTH, float(off[order][min(int(np.searchsorted(reached, LEVEL)), len(off) - 1)]))


def interval(score: float, error: float, width: float) -> tuple[float, float]:
    """Return the ends of an interval of a share."""
    return max(score - width * error, 0.0), min(score + width * error, 1.0)


class Evidence(NamedTuple):
    """Held-out runs as each method predicted them; a run counts in each fold that held it out."""

    fold: Indices  # shape (r,); numbers of the folds
    distance: Vector  # shape (r,); from the runs of the fold, as of `TaskFits.distance`
    off: Mapping[str, Vector]  # by method, shape (r,); absolute errors, NaN without a fit


def of_all_tasks(parts: Sequence[Evidence]) -> Evidence:
    """Return the evidence of several tasks as one."""
    names = {name: None for part in parts for name in part.off}
    folds = [part.fold + 1000 * i for i, part in enumerate(parts)]
    off = {name: [part.off.get(name, np.full(len(part.fold), np.nan)) for part in parts] for name in names}
    joined = {name: np.concatenate(of) for name, of in off.items()}
    return Evidence(np.concatenate(folds), np.concatenate([part.distance for part in parts]), joined)


def shares_at(evidence: Evidence, names: Sequence[str], distance: Vector) -> Matrix:
    """Return how far each method is to be believed at some distances from the ladder, rows of shape (m,) that sum to 1.

    A held-out run that all of them predict counts by how near its own distance is to that asked for, or to the largest
    that the ladder has if this is smaller. Shares are likelihoods of normal errors of unknown size in four independent
    folds: the inverse of their size to the fourth power. With fewer folds the first method has the whole.
    """
    off = np.stack([evidence.off[name] for name in names], axis=1)
    judged = np.isfinite(off).all(axis=1)
    if len(np.unique(evidence.fold[judged])) < MIN_FOLDS:
        return np.tile(np.arange(len(names)) == 0, (len(distance), 1)).astype(np.float64)
    known = evidence.distance[judged]
    nearness = np.exp(-np.abs(np.minimum(distance, known.max())[:, None] - known))
    size = np.hypot(nearness @ off[judged] / nearness.sum(axis=1, keepdims=True), LEAST_ERROR)
    believed = (size.min(axis=1, keepdims=True) / size) ** MIN_FOLDS
    return np.asarray(believed / believed.sum(axis=1, keepdims=True))
