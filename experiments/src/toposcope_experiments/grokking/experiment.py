"""The runs of the experiment, trained and measured: features of every embedding, and changes beyond a smooth trend."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.engine import Engine, Workers, processors, report
from toposcope.extend import ChangePoint, Matrix, Progress, Steps, Vector, change_points, derive_seed, silent
from toposcope_experiments.grokking.design import ARCHITECTURES, CONDITIONS, TREATED, Architecture, Design, GrokkingRun
from toposcope_experiments.grokking.features import FEATURES, FOURIER, TWINS, embedding_features
from toposcope_experiments.grokking.training import LOGGED, Trained, train
from toposcope_experiments.small_networks.commands import run_all
from toposcope_experiments.small_networks.page_tables import final_values, measurement_table

MIN_MEMORISED, MIN_GENERALISED = 0.99, 0.95
"""Accuracy on the pairs trained on, and on the others, from which a run has memorised, or generalised."""
CLAIMED = ("H1 max", "H1 total")  # features that are said to jump when a network generalises
FOLLOWED = (*CLAIMED, *(TWINS[name] for name in CLAIMED), FOURIER)  # features whose change points are sought
CHANGES = {
    **dict.fromkeys(("architecture", "condition"), pl.String),
    "run": pl.Int64,
    "feature": pl.String,
    **dict.fromkeys(("step", "low", "high"), pl.Int64),
    "p_smooth": pl.Float64,
    "beyond_trend": pl.Boolean,
}


@dataclass(frozen=True, eq=False)
class MeasuredRuns:
    """The runs of an architecture as they were measured."""

    architecture: str
    modulus: int
    runs: Sequence[GrokkingRun]
    steps: Steps  # shape (t,)
    log: dict[str, Matrix]  # shape (t, runs); losses and accuracies
    features: dict[str, Matrix]  # shape (t, runs)
    changes: dict[tuple[int, str], list[ChangePoint]]  # by place of the run and feature

    def places(self, condition: str) -> NDArray[np.int64]:
        """Return where the runs of a condition are."""
        return np.flatnonzero([run.condition.name == condition for run in self.runs])

    @property
    def names(self) -> list[dict[str, str | int]]:
        """The columns of tables that name each run."""
        name = self.architecture
        return [{"architecture": name, "condition": run.condition.name, "run": run.number} for run in self.runs]

    @property
    def memorised(self) -> Vector:
        """Step by which each run has memorised its pairs; NaN if it never has."""
        return self._first(self.log["train_accuracy"] >= MIN_MEMORISED)

    @property
    def generalised(self) -> Vector:
        """Step by which each run has generalised; NaN if it never has."""
        return self._first(self.log["validation_accuracy"] >= MIN_GENERALISED)

    def _first(self, reached: NDArray[np.bool_]) -> Vector:
        return np.where(reached.any(axis=0), self.steps[reached.argmax(axis=0)], np.nan)


def measure_runs(trained: Trained, engine: Engine, progress: Progress = silent) -> MeasuredRuns:
    """Measure every embedding of the runs of an architecture."""
    n_runs = len(trained.runs)
    tasks = [(i, run.name, trained.steps, trained.embeddings[:, i]) for i, run in enumerate(trained.runs)]
    what = f"measure {trained.architecture}"
    progress(what, 0, n_runs)
    measured = run_all(engine, measure_run, tasks, lambda task: task[1], done=lambda n: progress(what, n, n_runs))
    features = {name: np.stack([values[name] for values, _ in measured], axis=1) for name in FEATURES}
    changes = {(i, feature): points for i, (_, found) in enumerate(measured) for feature, points in found.items()}
    t = trained
    return MeasuredRuns(t.architecture, t.embeddings.shape[2], t.runs, t.steps, t.log, features, changes)


Task = tuple[int, str, Steps, NDArray[np.float32]]


def measure_run(task: Task) -> tuple[dict[str, Vector], dict[str, list[ChangePoint]]]:
    """Return the features of a run's embeddings, and the change points of those that are followed."""
    _, name, steps, embeddings = task
    rows = [embedding_features(points) for points in embeddings]
    features = {feature: np.array([row[feature] for row in rows]) for feature in FEATURES}
    return features, {feature: _change_points(name, feature, steps, features[feature]) for feature in FOLLOWED}


def _change_points(run: str, feature: str, steps: Steps, values: Vector) -> list[ChangePoint]:
    known = np.isfinite(values)
    return change_points(steps[known], values[known], derive_seed(0, "grokking", run, feature))


def run_table(measured: Sequence[MeasuredRuns]) -> pl.DataFrame:
    """Return when each run memorised and generalised, and how it ended."""
    rows = [
        {**name, "memorised": m.memorised[i], "generalised": m.generalised[i], **final_values(LOGGED, m.log, i)}
        for m in measured
        for i, name in enumerate(m.names)
    ]
    return pl.DataFrame(rows)


def feature_table(measured: Sequence[MeasuredRuns]) -> pl.DataFrame:
    """Return every measurement: a row for each run and step."""
    return pl.concat(measurement_table(m.names, m.steps, m.log | m.features) for m in measured)


def change_table(measured: Sequence[MeasuredRuns]) -> pl.DataFrame:
    """Return every change point: ``beyond_trend`` if no smooth trend explains it."""
    rows = [
        (*name.values(), feature, change.step, change.low, change.high, change.p_smooth, not change.explained)
        for m in measured
        for i, name in enumerate(m.names)
        for feature in FOLLOWED
        for change in m.changes[i, feature]
    ]
    return pl.DataFrame(rows, schema=CHANGES, orient="row")


JUMPS = {
    **dict.fromkeys(("architecture", "feature", "condition"), pl.String),
    **dict.fromkeys(("n_runs", "n_beyond_trend", "first_step", "last_step", "n_at_generalisation"), pl.Int64),
}


def jump_table(measured: Sequence[MeasuredRuns]) -> pl.DataFrame:
    """Count the runs with a change point that no smooth trend explains."""
    rows = [
        (m.architecture, feature, condition.name, *_counts(m, feature, condition.name))
        for m in measured
        for feature in FOLLOWED
        for condition in CONDITIONS
    ]
    return pl.DataFrame(rows, schema=JUMPS, orient="row")


def _counts(measured: MeasuredRuns, feature: str, condition: str) -> tuple[int | None, ...]:
    """Return the numbers of a row of `JUMPS`."""
    places = measured.places(condition)
    beyond = [[c.step for c in measured.changes[int(i), feature] if not c.explained] for i in places]
    window = window_of(measured)
    first, last = window if window else (None, None)
    within = sum(any(window[0] < step <= window[1] for step in steps) for steps in beyond) if window else None
    return len(places), sum(map(bool, beyond)), first, last, within


def window_of(measured: MeasuredRuns) -> tuple[int, int] | None:
    """Return the steps at which the first run with true labels has memorised, and the last has generalised."""
    treated = measured.places(TREATED.name)
    memorised, generalised = measured.memorised[treated], measured.generalised[treated]
    known = np.isfinite(generalised)
    if not known.any():
        return None
    return int(np.nanmin([*memorised[known], *generalised[known]])), int(generalised[known].max())


TRAINING = "training"  # folder of what was trained so far


def run_experiment(
    design: Design,
    folder: Path,
    *,
    architectures: Sequence[Architecture] = ARCHITECTURES,
    workers: int | None = None,
    progress: Progress = silent,
) -> list[MeasuredRuns]:
    """Train all runs, or go on where it was interrupted, and measure them."""
    tasks = [(design, architecture, folder / TRAINING) for architecture in architectures]
    with Workers(min(workers or processors(), len(tasks))) as engine:
        run_all(engine, train_architecture, tasks, lambda task: task[1].name, progress)
        trained = [train(*task) for task in tasks]
        return [measure_runs(each, engine, progress) for each in trained]


def train_architecture(task: tuple[Design, Architecture, Path]) -> None:
    """Train the runs of an architecture; what they end at is read from disk."""
    train(*task, progress=report)
