"""Gradient boosting on the columns of nested models: what bends and interacts needs no terms of its own there."""

import numpy as np

from toposcope.analysis.nested_models.columns import LOSS, PLAIN, SCHEDULE
from toposcope.analysis.nested_models.fitting import ALL_TOPOLOGY, CONTROLS, WITH_PLAIN, fold_places, further_tables
from toposcope.analysis.nested_models.population import CONFIGURATIONS
from toposcope.analysis.nested_models.problems import Problem, winsorised
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix, Vector

BOOSTED_FRACTIONS = (0.1, 0.3, 0.7)
"""Boosting takes a hundred times as long as a ridge, and is fitted at these fractions alone."""
N_FOLDS = 5
MIN_RUNS = 50
MAX_ROUNDS, LEARNING_RATE, MAX_LEAVES, MIN_LEAF_RUNS = 200, 0.1, 6, 8
STOPPING_SHARE, STOPPING_ROUNDS = 0.2, 10
"""Rounds end when a fifth of the runs that are learned from has not been predicted better for ten."""


def is_boosted(problem: Problem) -> bool:
    """Return whether a problem is fitted by boosting: at few fractions, with 50 runs or more."""
    return len(problem.values) >= MIN_RUNS and problem.columns.fraction in BOOSTED_FRACTIONS


def boosted_predictions(problem: Problem) -> dict[str, Vector]:
    """Return the predictions of the models with norms and spectra, all topology and the controls, shape (n,) each.

    Configurations are left out, in five folds.
    """
    blocks, further = problem.columns.blocks, further_tables(problem)
    plain = np.hstack([blocks[LOSS], blocks[SCHEDULE], blocks[PLAIN]])
    tables = {WITH_PLAIN: plain}
    chosen = [
        name for name in further if name in (ALL_TOPOLOGY, *CONTROLS.values()) or len(problem.columns.families) == 1
    ]
    tables |= {name: np.hstack([plain, further[name]]) for name in chosen}
    return {name: _left_out(problem, table) for name, table in tables.items()}


def _left_out(problem: Problem, table: Matrix) -> Vector:
    from sklearn.ensemble import HistGradientBoostingRegressor  # slow to import

    target, fold = problem.fitted(), fold_places(problem, CONFIGURATIONS, N_FOLDS)
    predicted = np.full(len(target), np.nan)
    for name in np.unique(fold):
        learned = fold != name
        model = HistGradientBoostingRegressor(
            learning_rate=LEARNING_RATE,
            max_iter=MAX_ROUNDS,
            max_leaf_nodes=MAX_LEAVES,
            min_samples_leaf=MIN_LEAF_RUNS,
            early_stopping=True,
            validation_fraction=STOPPING_SHARE,
            n_iter_no_change=STOPPING_ROUNDS,
            random_state=derive_seed(42, "nested models", "boosting", int(name)) % (1 << 32),
        )
        known = target[learned] if problem.kind == "event" else winsorised(target[learned])
        predicted[~learned] = model.fit(table[learned], known).predict(table[~learned])
    return predicted
