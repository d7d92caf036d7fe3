"""Measured runs of the experiment on regularisation, made up: features that do what a test says."""

from collections.abc import Mapping, Sequence

import numpy as np

from toposcope_experiments.regularisation.design import CONDITIONS, EARLY_STEPS, STEPS_PER_EPOCH, Condition, DigitRun
from toposcope_experiments.regularisation.experiment import MeasuredRuns
from toposcope_experiments.regularisation.features import FEATURES
from toposcope_experiments.regularisation.training import LOGGED, TEST_ACCURACY, TRAIN_LOSS, VALIDATION_LOSS

STEPS = np.array([*EARLY_STEPS, *(STEPS_PER_EPOCH * epoch for epoch in range(1, 21))])


def made_up(
    shifts: Mapping[str, Mapping[str, float]],
    *,
    n_runs: int = 8,
    noise: float = 0.02,
    conditions: Sequence[Condition] = CONDITIONS,
    seed: int = 0,
) -> MeasuredRuns:
    """Make up runs whose features rise by 1 over training.

    Parameters
    ----------
    shifts : dict of dict of float
        By quantity and condition: what is added at all steps; 0 where nothing is said.
    n_runs : int
        Of each condition.
    noise : float
        Standard deviation of every value.
    conditions : sequence of Condition
    seed : int
    """
    generator = np.random.default_rng(seed)
    runs = [DigitRun(condition, number) for condition in conditions for number in range(n_runs)]
    shape = (len(STEPS), len(runs))
    progress = (1 - np.exp(-STEPS / 100))[:, None]
    values = {
        name: progress
        + np.array([shifts.get(name, {}).get(run.condition.name, 0.0) for run in runs])
        + noise * generator.normal(size=shape)
        for name in (*LOGGED, *FEATURES)
    }
    values[TEST_ACCURACY] = 0.9 * progress + 0.01 * generator.normal(size=shape)
    for name in (TRAIN_LOSS, VALIDATION_LOSS):
        values[name] = (
            2.3 * np.exp(-np.broadcast_to(STEPS[:, None], shape) / 100) * np.exp(0.01 * generator.normal(size=shape))
        )
    return MeasuredRuns(runs, STEPS, values)
