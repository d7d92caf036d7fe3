"""The runs of all conditions as they were measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.extend import Indices, Matrix, Steps, Vector
from toposcope_experiments.regularisation.design import CONDITIONS, STEPS_PER_EPOCH, Condition, DigitRun
from toposcope_experiments.small_networks.run_tables import final_values


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
    rows = [{**run, **final_values(names, measured.values, i)} for i, run in enumerate(measured.names)]
    return pl.DataFrame(rows)
