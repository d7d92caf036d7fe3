"""Held-out rungs: what is predicted from what, how wide intervals must be, and which method to choose by it."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.downstream.ladder import Endpoints
from toposcope.forecasting.intervals import quantile
from toposcope.typing import Vector

Mask = NDArray[np.bool_]
Group = TypeVar("Group", bound=Hashable)

MIN_TRAINED = 5  # rungs to predict others from
MIN_SIZES = 2  # different sizes among them
COMPUTE_GAP = 4.0  # rungs of this many times the compute are predicted from those below, and more
SAME = 1.1  # numbers within this ratio are one level
MAX_LEVELS = 3  # largest sizes, or longest trainings, that are left out together
COVERAGE = 0.9
NORMAL = 1.645
"""Half the width of a 90% interval of a normal distribution: no interval is narrower in its standard deviations."""
MIN_CALIBRATED = 8  # predictions of rungs left out that are needed to widen intervals by them
MIN_GAIN = 0.1  # share of the error of the first method by which another must be better to replace it on all tasks
MIN_FOLD_SHARE = 0.75
"""Share of the folds of all tasks in which it must be better, too: a few large errors of the first are no reason."""
MIN_FOLDS = 4  # folds, of all tasks, below which nothing is chosen by their errors
MIN_OWN_GAIN = 0.5
"""Share of the error by which another method must be better on one task, and in each of its folds, to replace the one
of all tasks there."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Rungs that are predicted from others."""

    name: str  # what is left out
    trained: Mask  # shape (n,)
    predicted: Mask  # shape (n,)

    def unseen(self, points: Endpoints) -> frozenset[str]:
        """Return the runs that others are not predicted from."""
        return frozenset(run for run, seen in zip(points.run, self.trained, strict=True) if not seen)


def folds(points: Endpoints) -> tuple[Fold, ...]:
    """Return the ways to leave out what is larger, trained for longer, or both; none interpolates.

    The largest sizes, the longest trainings (in tokens for each parameter, or in tokens where these have fewer levels),
    both at once, and all from some compute on while those of a quarter of it and less stay.
    """
    found: list[Fold] = []
    for fold in _candidates(points):
        enough = fold.trained.sum() >= MIN_TRAINED and len(_levels(points.N[fold.trained])) >= MIN_SIZES
        known = any(
            np.array_equal(fold.trained, f.trained) and np.array_equal(fold.predicted, f.predicted) for f in found
        )
        if enough and fold.predicted.any() and not known:
            found.append(fold)
    return tuple(found)


def _candidates(points: Endpoints) -> Iterator[Fold]:
    sizes = _levels(points.N)
    per_parameter, tokens = points.D / points.N, points.D
    length = tokens if len(_levels(tokens)) < len(_levels(per_parameter)) else per_parameter
    lengths = _levels(length)
    for size in sizes[: -MAX_LEVELS - 1 : -1]:
        yield Fold(f"sizes from {size:.3g} parameters", size / SAME > points.N, size / SAME <= points.N)
    unit = "tokens" if length is tokens else "tokens a parameter"
    for level in lengths[: -MAX_LEVELS - 1 : -1]:
        yield Fold(f"runs from {level:.3g} {unit}", length < level / SAME, length >= level / SAME)
    for size, level in zip(sizes[::-1][:MAX_LEVELS], lengths[::-1][:MAX_LEVELS], strict=False):
        small, large = (size / SAME > points.N) & (length < level / SAME), (size / SAME <= points.N)
        yield Fold(f"{size:.3g} parameters and {level:.3g} {unit}", small, large & (length >= level / SAME))
    compute = points.N * points.D
    for share in (0.35, 0.5, 0.65):
        limit = float(np.quantile(compute, share))
        yield Fold(f"compute from {6 * COMPUTE_GAP * limit:.2g} FLOP", compute <= limit, compute >= COMPUTE_GAP * limit)


def _levels(values: Vector) -> list[float]:
    """Return the levels of positive values, increasing; neighbours within `SAME` are one."""
    ordered = np.unique(values)
    if not len(ordered):
        return []
    begins = np.concatenate([[True], np.diff(np.log(ordered)) > np.log(SAME)])
    return [float(value) for value in ordered[begins]]


class Miss(NamedTuple):
    """A rung left out, and how far its prediction was off."""

    run: str
    fold: frozenset[str]  # runs that were left out with it
    off: float  # in standard deviations of the prediction


def half_width(misses: Sequence[Miss], without: frozenset[str] = frozenset()) -> float:
    """Return how many standard deviations an interval extends to each side.

    That of a normal distribution, or what 90% of the predictions of rungs left out needed, if that is more. Each fold
    counts alike, whatever the number of its rungs.
    """
    known = [miss for miss in misses if without <= miss.fold and miss.run not in without]
    if len(known) < MIN_CALIBRATED:
        return NORMAL
    sizes = {fold: sum(miss.fold == fold for miss in known) for fold in {miss.fold for miss in known}}
    off = np.array([miss.off for miss in known])
    weight = np.array([1 / sizes[miss.fold] for miss in known])
    return max(NORMAL, _quantile(off, weight, COVERAGE))


def interval(score: float, error: float, width: float) -> tuple[float, float]:
    """Return the ends of an interval of a share."""
    return max(score - width * error, 0.0), min(score + width * error, 1.0)


def _quantile(values: Vector, weights: Vector, share: float) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(reached, share)), len(values) - 1)])


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
    best = _better(pooled, first, MIN_GAIN)
    return {task: _clearly_better(of, best) for task, of in errors.items()}


def weights_of(errors: Mapping[str, Mapping[str, Vector]]) -> dict[str, float]:
    """Return how far each method is to be believed beside the best, from 0 to 1: the likelihood of its errors.

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


def _better(errors: Mapping[str, Vector], first: str, gain: float) -> str:
    if first not in errors:
        return first
    means = mean_errors(_comparable(errors, first))
    known = {name: mean for name, mean in means.items() if np.isfinite(mean)}
    if first not in known or len(errors[first][np.isfinite(errors[first])]) < MIN_FOLDS:
        return first
    best = min(known, key=lambda name: (known[name], name))
    judged = np.isfinite(errors[first])
    often = np.mean(errors[best][judged] < errors[first][judged]) >= MIN_FOLD_SHARE
    return best if often and known[best] < (1 - gain) * known[first] else first


def _clearly_better(errors: Mapping[str, Vector], first: str) -> str:
    judged = np.isfinite(errors[first]) if first in errors else np.zeros(0, dtype=bool)
    if judged.sum() < MIN_FOLDS:
        return first
    always = {name: of for name, of in errors.items() if name == first or (of[judged] < errors[first][judged]).all()}
    return _better(always, first, MIN_OWN_GAIN)


def _comparable(errors: Mapping[str, Vector], first: str) -> dict[str, Vector]:
    """Return the errors of methods that were judged wherever the first was."""
    judged = np.isfinite(errors[first])
    return {name: of[judged] for name, of in errors.items() if np.isfinite(of[judged]).all()}


def coverage_by_group(errors: Mapping[Group, Sequence[float]]) -> float:
    """Return the mean share of a group's absolute errors within the 90% quantile of the others'; NaN without others."""
    shares = []
    for name, own in errors.items():
        others = [error for other, row in errors.items() if other != name for error in row]
        if others:
            shares.append(np.mean(np.array(own) <= quantile(np.array(others))))
    return float(np.mean(shares)) if shares else np.nan
