"""Measured runs of the grokking experiment, made up: features that do what a test says."""

from collections.abc import Mapping

import numpy as np

from toposcope.analysis.change_points import ChangePoint
from toposcope_experiments.grokking.design import CONDITIONS, MLP, TREATED, Architecture, GrokkingRun
from toposcope_experiments.grokking.experiment import FOLLOWED, MeasuredRuns
from toposcope_experiments.grokking.features import FEATURES

STEPS = np.arange(0, 420, 20)
GENERALISES = 200
"""Step at which runs with true labels do."""


def made_up(
    rises: Mapping[str, Mapping[str, float]],
    *,
    n_runs: int = 8,
    noise: float = 0.02,
    generalise: Mapping[str, int] | None = None,
    architecture: Architecture = MLP,
    seed: int = 0,
) -> MeasuredRuns:
    """Make up runs.

    Parameters
    ----------
    rises : dict of dict of float
        By feature and condition: how far it rises over training; 0 where nothing is said.
    n_runs : int
        Of each condition.
    noise : float
        Standard deviation of every value.
    generalise : dict of int
        By condition, how many runs do; by default all with true labels and no other.
    architecture : Architecture
    seed : int
    """
    generator = np.random.default_rng(seed)
    generalise = {TREATED.name: n_runs} if generalise is None else generalise
    runs = [GrokkingRun(architecture, condition, i) for condition in CONDITIONS for i in range(n_runs)]
    progress = 1 / (1 + np.exp(-(STEPS - GENERALISES / 2) / 20))[:, None]
    shape = (len(STEPS), len(runs))
    features = {
        name: 1
        + progress * np.array([rises.get(name, {}).get(run.condition.name, 0.0) for run in runs])
        + noise * generator.normal(size=shape)
        for name in FEATURES
    }
    does = np.array([run.number < generalise.get(run.condition.name, 0) for run in runs])
    validation = np.where((STEPS[:, None] >= GENERALISES) & does, 1.0, 0.02)
    memorised = np.broadcast_to(STEPS[:, None] >= 60, shape).astype(float)
    log = {
        "train_loss": 1 - memorised,
        "train_accuracy": memorised,
        "validation_loss": 4 - validation,
        "validation_accuracy": validation,
    }
    changes: dict[tuple[int, str], list[ChangePoint]] = {(i, name): [] for i in range(len(runs)) for name in FOLLOWED}
    return MeasuredRuns(architecture.name, 59, runs, STEPS, log, features, changes)
