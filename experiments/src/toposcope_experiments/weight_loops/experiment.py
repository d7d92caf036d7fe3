"""The runs, trained and measured: two networks, three tasks, four conditions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toposcope.engine import Workers, processors, report
from toposcope.extend import Progress, Steps, Vector, silent
from toposcope_experiments.grokking.design import ARCHITECTURES, TASKS, Architecture, Design
from toposcope_experiments.grokking.experiment import TRAINING, MeasuredRuns
from toposcope_experiments.grokking.training import train
from toposcope_experiments.small_networks.commands import run_all
from toposcope_experiments.weight_loops.features import MATRICES, matrix_features


@dataclass(frozen=True)
class Population:
    """The runs of one network on one task."""

    design: Design
    architecture: Architecture
    task: str
    folder: Path

    @property
    def name(self) -> str:
        """What the population is called."""
        return f"{self.architecture.name}, {self.task}"


def run_experiment(
    design: Design,
    folder: Path,
    *,
    architectures: Sequence[Architecture] = ARCHITECTURES,
    tasks: Sequence[str] = tuple(TASKS),
    workers: int | None = None,
    progress: Progress = silent,
) -> list[MeasuredRuns]:
    """Train all runs, or go on where it was interrupted, and measure their matrices."""
    populations = [Population(design, each, task, folder / TRAINING) for each in architectures for task in tasks]
    with Workers(min(workers or processors(), len(populations))) as engine:
        run_all(engine, train_population, populations, lambda population: population.name, progress)
        found = []
        for population in populations:
            trained = train(
                design, population.architecture, population.folder, task=population.task, keep=kept(population)
            )
            works = [
                (run.name, trained.steps, {name: values[:, i] for name, values in trained.weights.items()})
                for i, run in enumerate(trained.runs)
            ]
            what = f"measure {population.name}"
            progress(what, 0, len(works))

            def done(n: int, what: str = what, total: int = len(works)) -> None:
                progress(what, n, total)

            rows = run_all(engine, measure_run, works, lambda work: work[0], done=done)
            called = MATRICES[population.architecture.name]
            features = {
                f"{called[matrix]}: {feature}": np.stack([row[matrix][feature] for row in rows], axis=1)
                for matrix in called
                for feature in rows[0][matrix]
            }
            t = trained
            found.append(MeasuredRuns(population.name, design.modulus, t.runs, t.steps, t.log, features, {}))
        return found


def kept(population: Population) -> list[str]:
    """Return the weights of a population that are measured."""
    return list(MATRICES[population.architecture.name])


def train_population(population: Population) -> None:
    """Train the runs of a population; what they end at is read from disk."""
    p = population
    train(p.design, p.architecture, p.folder, report, task=p.task, keep=kept(p))


Work = tuple[str, Steps, dict[str, NDArray[np.float32]]]


def measure_run(work: Work) -> dict[str, dict[str, Vector]]:
    """Return the features of each matrix of a run, shape (t,)."""
    name, steps, weights = work
    result: dict[str, dict[str, Vector]] = {}
    for matrix, values in weights.items():
        rows = [matrix_features(W, f"{name} {matrix} {step}") for W, step in zip(values, steps, strict=True)]
        result[matrix] = {feature: np.array([row[feature] for row in rows]) for feature in rows[0]}
    return result
