"""The runs of all conditions, trained and measured, and whether what is measured goes with the test accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from toposcope.engine import Workers, processors, report
from toposcope.extend import Indices, Matrix, Progress, Steps, Vector, adjusted, silent
from toposcope_experiments.regularisation.across_runs import correlate_across_runs
from toposcope_experiments.regularisation.design import CONDITIONS, STEPS_PER_EPOCH, Condition, Design, DigitRun
from toposcope_experiments.regularisation.features import FEATURES, KINDS
from toposcope_experiments.regularisation.training import TEST_ACCURACY, train
from toposcope_experiments.small_networks.commands import run_all
from toposcope_experiments.small_networks.page_tables import final_values


@dataclass(frozen=True, eq=False)
class MeasuredRuns:
    """The runs of all conditions."""

    runs: Sequence[DigitRun]
    steps: Steps  # shape (t,)
    values: dict[str, Matrix]  # shape (t, runs); losses, accuracies and features, by name

    def places(self, condition: Condition) -> Indices:
        """Return where the runs of a condition are."""
        return np.flatnonzero([run.condition == condition for run in self.runs])

    @property
    def names(self) -> list[dict[str, str | int]]:
        """The columns of tables that name each run."""
        return [{"condition": run.condition.name, "run": run.number} for run in self.runs]

    @property
    def conditions(self) -> list[Condition]:
        """The conditions that have runs."""
        present = {run.condition for run in self.runs}
        return [condition for condition in CONDITIONS if condition in present]

    @property
    def epochs(self) -> Indices:
        """Where measurements after whole epochs are, that of the initial weights left out."""
        return np.flatnonzero((self.steps > 0) & (self.steps % STEPS_PER_EPOCH == 0))

    def final(self, name: str) -> Vector:
        """Return the value of each run at the last step."""
        return np.asarray(self.values[name][-1])


def run_table(measured: MeasuredRuns, names: Sequence[str]) -> pl.DataFrame:
    """Return the values of each run at the last step."""
    return pl.DataFrame([{**run, **final_values(names, measured.values, i)} for i, run in enumerate(measured.names)])


def accuracy_table(measured: MeasuredRuns) -> pl.DataFrame:
    """Correlate every feature with the test accuracy at the last step."""
    accuracy = measured.final(TEST_ACCURACY)
    features = np.array([measured.final(name) for name in FEATURES])
    members = [measured.places(condition) for condition in measured.conditions]
    strata = np.zeros(len(measured.runs), dtype=np.int64)
    for number, places in enumerate(members):
        strata[places] = number
    means = np.stack([features[:, places].mean(axis=1) for places in members], axis=1)
    mean_accuracy = np.array([accuracy[places].mean() for places in members])
    table = {"feature": list(FEATURES), "kind": [KINDS[name] for name in FEATURES]}
    columns: dict[str, Vector] = {}
    between = correlate_across_runs(means, mean_accuracy, np.zeros(len(members), dtype=np.int64))
    for name, (rho, p) in {"conditions": between, "runs": correlate_across_runs(features, accuracy, strata)}.items():
        columns |= {f"rho_{name}": rho, f"p_{name}": p, f"p_{name}_adjusted": adjusted(p)}
    return pl.DataFrame({**table, **columns})


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
