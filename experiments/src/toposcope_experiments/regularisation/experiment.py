"""The whole experiment: train and measure the runs of every condition."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from toposcope.engine import Workers, processors, report
from toposcope.extend import Matrix, Progress, silent
from toposcope_experiments.regularisation.design import CONDITIONS, Condition, Design
from toposcope_experiments.regularisation.measured import MeasuredRuns
from toposcope_experiments.regularisation.training import train
from toposcope_experiments.small_networks.workers import run_all

TRAINING = "training"  # folder of what was trained so far


def run_experiment(
    design: Design,
    folder: Path,
    *,
    conditions: Sequence[Condition] = CONDITIONS,
    workers: int | None = None,
    progress: Progress = silent,
) -> MeasuredRuns:
    """Train and measure all runs, or go on where it was interrupted."""
    tasks = [(design, condition, folder / TRAINING) for condition in conditions]
    with Workers(min(workers or processors(), len(tasks))) as engine:
        found = run_all(engine, train_condition, tasks, lambda task: task[1].name, progress)
    runs = [run for condition in conditions for run in design.runs(condition)]
    values = {name: np.concatenate([each[name] for each in found], axis=1) for name in found[0]}
    return MeasuredRuns(runs, np.array(design.measured_steps), values)


def train_condition(task: tuple[Design, Condition, Path]) -> dict[str, Matrix]:
    """Train the runs of a condition."""
    return train(*task, progress=report)
