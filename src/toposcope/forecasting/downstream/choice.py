"""Which method a ladder supports: the one that predicts rungs best that are left out."""

from collections.abc import Mapping

import numpy as np

from toposcope.typing import Vector

MIN_GAIN = 0.1
"""Share of the error of the first method by which another must be better to replace it on all tasks."""
MIN_FOLD_SHARE = 0.75
"""Share of the folds of all tasks in which it must be better, too: a few large errors of the first are no reason."""
MIN_FOLDS = 4
"""Folds, of all tasks, below which nothing is chosen by their errors."""
MIN_OWN_GAIN = 0.5
"""Share of the error by which another method must be better on one task, and in each of its folds, to replace the one
of all tasks there."""


def mean_errors(errors: Mapping[str, Vector]) -> dict[str, float]:
    """Return the mean of each method's errors over folds; NaN where it has none."""
    return {name: float(np.nanmean(of)) if np.isfinite(of).any() else np.nan for name, of in errors.items()}


def choose(errors: Mapping[str, Mapping[str, Vector]], first: str) -> dict[str, str]:
    """Return the method of each task.

    With a dozen or two of runs the errors on one task say little, so that one method is chosen for all: the one with
    the least mean over tasks and folds, if it is better than the first by a tenth and in three of four folds. A task
    has another only if that is better in every fold, by half in the mean.

    Parameters
    ----------
    errors : mapping
        Of each task, of each method: the mean absolute error in each fold, shape (f,); NaN where none is judged.
    first : str
        The method that is taken if nothing else is clearly better.
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

    Parameters
    ----------
    errors : mapping
        As in `choose`.
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
