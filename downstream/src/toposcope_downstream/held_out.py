"""Held-out models: which are predicted from which, how wide intervals must then be, which method is best."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import NORMAL_WIDTH, Fold, Vector

# Scores of tasks: docs/downstream.md; made ladders, and the OLMo ladder without its two targets
MIN_GAIN, MIN_FOLD_SHARE = 0.1, 0.75  # by which, and in how many folds, a method must err less to replace the first
MIN_OWN_GAIN = 0.5  # by which it must err less on one task, and in each of its folds, to replace it there

Mask = NDArray[np.bool_]
LEVEL = 0.9  # of all intervals of scores
MIN_TRAINED, MIN_SIZES = 5, 2  # models to predict others from, and different sizes among them
COMPUTE_GAP = 4.0  # models of this many times the compute are predicted from those below, and more
SAME_LEVEL = 1.1  # numbers within this ratio are one level
MAX_LEVELS = 3  # largest sizes, or longest trainings, that are held out together
MIN_FOLDS = 4  # folds, of all tasks, below which no method is chosen by their errors


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


def mean_errors(errors: Mapping[str, Vector]) -> dict[str, float]:
    """Return the mean of each method's errors over folds; NaN where it has none."""
    return {name: float(np.nanmean(of)) if np.isfinite(of).any() else np.nan for name, of in errors.items()}


def choose(errors: Mapping[str, Mapping[str, Vector]], first: str) -> dict[str, str]:
    """Return the method of each task.

    With a dozen or two of runs the errors on one task say little, so that one method is chosen for all: the one with
    the least mean over tasks and folds, if it is better than the first by a tenth and in three of four folds. A task
    has another only if that is better in every fold, by half in the mean.
    """
    pooled = {
        name: np.concatenate([of[name] for of in errors.values()])
        for name in {name: None for of in errors.values() for name in of}
        if all(name in of for of in errors.values())
    }
    best = _better(pooled, first, MIN_GAIN, MIN_FOLD_SHARE)
    return {task: _better(of, best, MIN_OWN_GAIN, 1.0) for task, of in errors.items()}


def _better(errors: Mapping[str, Vector], first: str, gain: float, fold_share: float) -> str:
    """Return the method of the least mean of those better in so many folds and by so much; else the first."""
    judged = np.isfinite(errors[first]) if first in errors else np.zeros(0, dtype=bool)
    if judged.sum() < MIN_FOLDS:
        return first
    own = errors[first][judged]
    known = {name: of[judged] for name, of in errors.items() if np.isfinite(of[judged]).all()}
    if fold_share == 1:  # whatever is not better everywhere is no candidate
        known = {name: of for name, of in known.items() if name == first or (of < own).all()}
    best = min(known, key=lambda name: (float(known[name].mean()), name))
    often = np.mean(known[best] < own) >= fold_share
    return best if often and known[best].mean() < (1 - gain) * own.mean() else first


def weights_of(errors: Mapping[str, Mapping[str, Vector]]) -> dict[str, float]:
    """Return how far each method is to be believed next to the best, from 0 to 1: the likelihood of its errors.

    Of normal errors of unknown size in k folds it is the inverse of their size to the power k; folds overlap, so that
    half of them count. The size is the geometric mean over tasks, which have different scales.
    """
    found: dict[str, tuple[float, float]] = {}
    for name in {name: None for of in errors.values() for name in of}:
        judged = [of[name][np.isfinite(of[name])] for of in errors.values() if name in of]
        judged = [each for each in judged if len(each)]
        if judged:
            size = float(np.mean([np.log(each.mean()) for each in judged]))
            found[name] = size, float(np.mean([len(each) for each in judged]))
    best = min((size for size, _ in found.values()), default=0.0)
    return {name: float(np.exp(-(size - best) * folds / 2)) for name, (size, folds) in found.items()}
