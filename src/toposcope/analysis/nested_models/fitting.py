"""Nested models of one target at one fraction, fitted without the runs that they predict."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from toposcope.analysis.nested_models.columns import LEVELS, LOSS, PLAIN, PROJECTIONS, SCHEDULE, TWIN
from toposcope.analysis.nested_models.population import CONFIGURATIONS
from toposcope.analysis.nested_models.problems import Problem, winsorised
from toposcope.analysis.nested_models.ridge import Block, RidgeModel, fit_ridge, standardised
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector

MEDIAN, WITH_SCHEDULE, WITH_PLAIN = "median", "schedule", "norms and spectra"
ALL_TOPOLOGY = "all topology"
WITH_PROJECTIONS, WITH_TWIN = "random projections", "placebo twin"
CONTROLS = {PROJECTIONS: WITH_PROJECTIONS, TWIN: WITH_TWIN}
"""Models with what topology has to beat, by probe."""
WITHOUT = (LOSS, WITH_SCHEDULE, WITH_PLAIN)
"""The models without topology, each with the columns of the one before it."""
BEFORE = {LOSS: MEDIAN, WITH_SCHEDULE: LOSS, WITH_PLAIN: WITH_SCHEDULE}
"""The model that another one is compared with; all further ones are compared with that of norms and spectra."""
N_FOLDS = 10
MIN_LEARNED = 12
"""Runs to learn from."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Models that are learned from some runs, to predict others.

    Attributes
    ----------
    learned, held_out : ndarray of int
        Places of the runs.
    centre, scale : float
        Of the target of the runs that are learned from.
    low, high : float
        Predictions are kept within this range: that of these targets, extended by as much on both sides.
    models : dict of RidgeModel
        The loss; with the schedule; with norms and spectra.
    """

    learned: Indices
    held_out: Indices
    centre: float
    scale: float
    low: float
    high: float
    models: dict[str, RidgeModel]

    def block(self, table: Matrix) -> Block:
        """Return columns of all runs as a block."""
        return standardised(table[self.learned], table[self.held_out])

    def prediction_with(self, table: Matrix) -> Vector:
        """Return predictions from the model with norms and spectra, and further columns."""
        return self.unscaled(self.models[WITH_PLAIN].prediction_with(self.block(table).scaled()))

    def unscaled(self, predicted: Vector) -> Vector:
        """Return predictions in the target's unit."""
        return np.asarray(np.clip(self.centre + self.scale * predicted, self.low, self.high))


def further_tables(problem: Problem) -> dict[str, Matrix]:
    """Return the columns that are added to the model with norms and spectra, by the name of the model."""
    columns = problem.columns
    tables = dict(columns.families)
    if len(columns.families) > 1:
        tables[ALL_TOPOLOGY] = np.hstack(list(columns.families.values()))
    return tables | {model: columns.blocks[probe] for probe, model in CONTROLS.items() if probe in columns.blocks}


def folds(problem: Problem, left_out: str) -> list[Fold]:
    """Fit the models without the runs of each fold; none if there would be too few to learn from.

    Parameters
    ----------
    left_out : str
        A key of ``problem.groups``. Configurations are gathered into ten folds, and so are other groups if they are
        more; else each is a fold.
    """
    fold = fold_places(problem, left_out)
    names = np.unique(fold)
    if len(names) < 2 or min(int((fold != name).sum()) for name in names) < MIN_LEARNED:
        return []
    return [_fold(problem, np.flatnonzero(fold != name), np.flatnonzero(fold == name), left_out) for name in names]


def fold_places(problem: Problem, left_out: str, n_folds: int = N_FOLDS) -> Indices:
    """Return the fold of each run."""
    names, place = np.unique(problem.groups[left_out], return_inverse=True)
    if left_out != CONFIGURATIONS and len(names) <= n_folds:
        return np.asarray(place)
    order = np.random.default_rng(derive_seed(42, "nested models", "folds", len(names))).permutation(len(names))
    return np.asarray((order % n_folds)[place])


def predictions(problem: Problem, fitted: list[Fold]) -> dict[str, Vector]:
    """Return the predictions of every model for every run, shape (n,) each."""
    further = further_tables(problem)
    found = {name: np.full(len(problem.values), np.nan) for name in (MEDIAN, *BEFORE, *further)}
    target = problem.fitted()
    for fold in fitted:
        found[MEDIAN][fold.held_out] = _constant(problem, target[fold.learned])
        for name, model in fold.models.items():
            found[name][fold.held_out] = fold.unscaled(model.prediction())
        for name, table in further.items():
            found[name][fold.held_out] = fold.prediction_with(table)
    return found


def widths(problem: Problem) -> dict[str, int]:
    """Return how many columns each model adds to the one before it."""
    blocks = problem.columns.blocks
    tables = {LOSS: blocks[LOSS], WITH_SCHEDULE: blocks[SCHEDULE], WITH_PLAIN: blocks[PLAIN], **further_tables(problem)}
    return {MEDIAN: 0, **{name: table.shape[1] for name, table in tables.items()}}


def _constant(problem: Problem, learned: Vector) -> float:
    return float(learned.mean() if problem.kind == "event" else np.median(learned))


def _fold(problem: Problem, learned: Indices, held_out: Indices, left_out: str) -> Fold:
    target = problem.fitted()[learned]
    low, high = float(target.min()), float(target.max())
    if problem.kind != "event":
        target = winsorised(target)
    centre, scale = float(target.mean()), float(target.std()) or 1.0
    reach = 0.0 if problem.kind == "event" else high - low
    groups = list(_inner_groups(problem, learned, left_out))
    y = (target - centre) / scale
    single = None if len(groups) == len(learned) else groups
    models = {name: fit_ridge(blocks, y, single) for name, blocks in _nest(problem, learned, held_out).items()}
    return Fold(learned, held_out, centre, scale, low - reach, high + reach, models)


def _inner_groups(problem: Problem, learned: Indices, left_out: str) -> Iterator[Indices]:
    """Yield the runs that are left out together in choosing strengths: as outside, where there are two such groups."""
    groups = problem.groups[left_out][learned]
    if len(np.unique(groups)) < 2:
        groups = problem.groups[CONFIGURATIONS][learned]
    for name in np.unique(groups):
        yield np.flatnonzero(groups == name)


def _nest(problem: Problem, learned: Indices, held_out: Indices) -> dict[str, list[Block]]:
    """Return the blocks of the nested models without topology.

    The schedule enters with squares and products, also with those of the losses, since the final loss has its minimum
    at some learning rate; norms and spectra with squares. Otherwise topology would stand in for what bends.
    """
    blocks = problem.columns.blocks
    loss, levels, schedule, plain = (
        standardised(blocks[name][learned], blocks[name][held_out]) for name in (LOSS, LEVELS, SCHEDULE, PLAIN)
    )
    with_schedule = [loss, schedule, levels.beside(schedule).products()]
    nest = {LOSS: [loss], WITH_SCHEDULE: with_schedule, WITH_PLAIN: [*with_schedule, plain, plain.squares()]}
    return {name: [block.scaled() for block in of_model] for name, of_model in nest.items()}
