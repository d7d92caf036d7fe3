"""Nested models of one target at one fraction, learned without the runs that they predict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toposcope.analysis.between_runs.columns import CHAIN, LEVELS, PLAIN, SCHEDULE, Problem
from toposcope.analysis.between_runs.population import CONFIGURATIONS
from toposcope.analysis.between_runs.ridge import Block, RidgeModel, fit_ridge, standardised
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Indices, Matrix

N_FOLDS = 10
MIN_LEARNED = 10  # runs that a model is learned from


@dataclass(frozen=True, eq=False)
class Fold:
    """Models that are learned from some runs, to predict others."""

    learned: Indices  # places of the runs
    held_out: Indices
    limits: tuple[float, float]  # to which targets that are learned from are clipped
    centre: float  # of these targets
    scale: float
    reach: tuple[float, float]  # predictions are clipped to the range of these targets, extended on both sides
    models: dict[str, RidgeModel]  # by the last columns of `CHAIN` that they have

    def standardised(self, targets: Matrix) -> Matrix:
        """Return the targets that are learned from, as models are fitted to them."""
        return (np.clip(targets[self.learned], *self.limits) - self.centre) / self.scale

    def restored(self, predicted: Matrix) -> Matrix:
        """Return predictions in the target's unit."""
        return np.asarray(np.clip(self.centre + self.scale * predicted, *self.reach))


def named_draws(*names: str | int) -> np.random.Generator:
    """Return the random numbers of one choice."""
    return np.random.default_rng(derive_seed(SEED, "nested models", *names))


def fold_places(problem: Problem, grouping: str) -> Indices:
    """Return the fold of each run."""
    names, place = np.unique(problem.groups[grouping], return_inverse=True)
    if grouping != CONFIGURATIONS and len(names) <= N_FOLDS:
        return np.asarray(place)
    order = named_draws("folds", len(names)).permutation(len(names))
    return np.asarray((order % N_FOLDS)[place])


def folds(problem: Problem, grouping: str) -> list[Fold]:
    """Fit the models of `CHAIN` without the runs of each fold; none if there would be too few to learn from."""
    fold = fold_places(problem, grouping)
    names = np.unique(fold)
    if len(names) < 2 or min(int((fold != name).sum()) for name in names) < MIN_LEARNED:
        return []
    return [_fold(problem, np.flatnonzero(fold != name), np.flatnonzero(fold == name), grouping) for name in names]


def _fold(problem: Problem, learned: Indices, held_out: Indices, grouping: str) -> Fold:
    target, limits = problem.fitted()[learned], problem.limits(learned)
    low, high = float(target.min()), float(target.max())
    reach = 0.0 if problem.kind == "event" else high - low
    clipped = np.clip(target, *limits)
    centre, scale = float(clipped.mean()), float(clipped.std()) or 1.0
    groups = list(_inner_groups(problem, learned, grouping))
    single = None if len(groups) == len(learned) else groups
    y = (clipped - centre) / scale
    models = {name: fit_ridge(blocks, y, single) for name, blocks in _chain(problem, learned, held_out)}
    return Fold(learned, held_out, limits, centre, scale, (low - reach, high + reach), models)


def _inner_groups(problem: Problem, learned: Indices, grouping: str) -> Iterator[Indices]:
    """Yield the runs held out together in choosing strengths: as outside, where there are two such groups."""
    groups = problem.groups[grouping][learned]
    if len(np.unique(groups)) < 2:
        groups = problem.groups[CONFIGURATIONS][learned]
    for name in np.unique(groups):
        yield np.flatnonzero(groups == name)


def _chain(problem: Problem, learned: Indices, held_out: Indices) -> Iterator[tuple[str, list[Block]]]:
    """Yield the blocks of the nested models without topology, by the last that is added.

    The schedule enters with squares and products, also with those of the losses, since the final loss has its minimum
    at some learning rate; norms and spectra with squares. Otherwise topology would stand in for what bends.
    """
    blocks = problem.columns.blocks
    found = {name: standardised(blocks[name][learned], blocks[name][held_out]) for name in (LEVELS, *CHAIN)}
    model: list[Block] = []
    for name in CHAIN:
        model = [*model, found[name].scaled()]
        if name == SCHEDULE:
            model.append(found[LEVELS].with_block(found[SCHEDULE]).products().scaled())
        if name == PLAIN:
            model.append(found[PLAIN].squares().scaled())
        yield name, model


def medians(problem: Problem, fitted: Sequence[Fold], y: Matrix) -> Matrix:
    """Predict each run by the median of those learned from; of an event by the mean."""
    found = np.empty(y.shape)
    for fold in fitted:
        found[fold.held_out] = (np.mean if problem.kind == "event" else np.median)(y[fold.learned])
    return found


def predictions(fitted: Sequence[Fold], model: str, tables: Mapping[str, Matrix], targets: Matrix) -> dict[str, Matrix]:
    """Return the held-out predictions of targets by a model, and by that model with each table added, shape (n, b)."""
    found = {name: np.empty(targets.shape) for name in (model, *tables)}
    for fold in fitted:
        ridge = fold.models[model]
        residuals = ridge.residuals(fold.standardised(targets))
        found[model][fold.held_out] = fold.restored(ridge.prediction(residuals))
        for name, table in tables.items():
            block = standardised(table[fold.learned], table[fold.held_out]).scaled()
            found[name][fold.held_out] = fold.restored(ridge.with_block(block, residuals)[1])
    return found
