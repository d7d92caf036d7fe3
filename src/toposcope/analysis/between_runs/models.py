"""Nested models of one target at one fraction, fitted without the runs that they predict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toposcope.analysis.between_runs.columns import CHAIN, LEVELS, PLAIN, SCHEDULE, Problem
from toposcope.analysis.between_runs.population import CONFIGURATIONS
from toposcope.analysis.between_runs.ridge import Block, RidgeModel, fit_ridge, standardised
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Indices, Matrix

N_FOLDS = 10
MIN_TRAIN_RUNS = 10  # that a model is fitted to


@dataclass(frozen=True, eq=False)
class Fold:
    """Models that are fitted to some runs, to predict others."""

    train: Indices  # places of the runs
    held_out: Indices
    limits: tuple[float, float]  # to which the targets fitted to are clipped
    centre: float  # of these targets
    scale: float
    prediction_limits: tuple[float, float]  # the range of these targets, extended on both sides
    models: dict[str, RidgeModel]  # by the last columns of `CHAIN` that they have

    def standardised(self, targets: Matrix) -> Matrix:
        """Return the targets as models are fitted to them."""
        return (np.clip(targets[self.train], *self.limits) - self.centre) / self.scale

    def restored(self, predicted: Matrix) -> Matrix:
        """Return predictions in the target's unit."""
        return np.asarray(np.clip(self.centre + self.scale * predicted, *self.prediction_limits))


def named_draws(*names: str | int) -> np.random.Generator:
    """Return the random numbers of one choice."""
    return np.random.default_rng(derive_seed(SEED, "nested models", *names))


def fold_of_runs(problem: Problem, grouping: str) -> Indices:
    """Return the fold of each run."""
    names, place = np.unique(problem.groups[grouping], return_inverse=True)
    if grouping != CONFIGURATIONS and len(names) <= N_FOLDS:
        return np.asarray(place)
    order = named_draws("folds", len(names)).permutation(len(names))
    return np.asarray((order % N_FOLDS)[place])


def folds(problem: Problem, grouping: str) -> list[Fold]:
    """Fit the models of `CHAIN` without the runs of each fold; none if there would be too few to fit to."""
    fold = fold_of_runs(problem, grouping)
    names = np.unique(fold)
    if len(names) < 2 or min(int((fold != name).sum()) for name in names) < MIN_TRAIN_RUNS:
        return []
    return [_fold(problem, np.flatnonzero(fold != name), np.flatnonzero(fold == name), grouping) for name in names]


def _fold(problem: Problem, train: Indices, held_out: Indices, grouping: str) -> Fold:
    target, limits = problem.fitted()[train], problem.limits(train)
    low, high = float(target.min()), float(target.max())
    margin = 0.0 if problem.kind == "event" else high - low
    clipped = np.clip(target, *limits)
    centre, scale = float(clipped.mean()), float(clipped.std()) or 1.0
    groups = list(_inner_groups(problem, train, grouping))
    single = None if len(groups) == len(train) else groups
    y = (clipped - centre) / scale
    models = {name: fit_ridge(blocks, y, single) for name, blocks in _nested_blocks(problem, train, held_out)}
    return Fold(train, held_out, limits, centre, scale, (low - margin, high + margin), models)


def _inner_groups(problem: Problem, train: Indices, grouping: str) -> Iterator[Indices]:
    """Yield the groups held out in choosing strengths: those of the outer folds, where there are two of them."""
    groups = problem.groups[grouping][train]
    if len(np.unique(groups)) < 2:
        groups = problem.groups[CONFIGURATIONS][train]
    for name in np.unique(groups):
        yield np.flatnonzero(groups == name)


def _nested_blocks(problem: Problem, train: Indices, held_out: Indices) -> Iterator[tuple[str, list[Block]]]:
    """Yield the blocks of the nested models without topology, by the last that is added.

    The schedule enters with squares and products, also with those of the losses, since the final loss has its minimum
    at some learning rate; norms and spectra with squares. Otherwise topology would stand in for what bends.
    """
    blocks = problem.columns.blocks
    standard = {name: standardised(blocks[name][train], blocks[name][held_out]) for name in (LEVELS, *CHAIN)}
    model: list[Block] = []
    for name in CHAIN:
        model = [*model, standard[name].scaled()]
        if name == SCHEDULE:
            model.append(standard[LEVELS].with_block(standard[SCHEDULE]).products().scaled())
        if name == PLAIN:
            model.append(standard[PLAIN].squares().scaled())
        yield name, model


def medians(problem: Problem, fitted: Sequence[Fold], y: Matrix) -> Matrix:
    """Predict each run by the median of those fitted to; of an event by the mean."""
    predicted = np.empty(y.shape)
    for fold in fitted:
        predicted[fold.held_out] = (np.mean if problem.kind == "event" else np.median)(y[fold.train])
    return predicted


def predictions(fitted: Sequence[Fold], model: str, tables: Mapping[str, Matrix], targets: Matrix) -> dict[str, Matrix]:
    """Return the held-out predictions of targets by a model, and by that model with each table added, shape (n, b)."""
    predicted = {name: np.empty(targets.shape) for name in (model, *tables)}
    for fold in fitted:
        ridge = fold.models[model]
        residuals = ridge.residuals(fold.standardised(targets))
        predicted[model][fold.held_out] = fold.restored(ridge.prediction(residuals))
        for name, table in tables.items():
            block = standardised(table[fold.train], table[fold.held_out]).scaled()
            predicted[name][fold.held_out] = fold.restored(ridge.with_block(block, residuals)[1])
    return predicted
