"""The whole experiment: train, measure, compare."""

from collections.abc import Sequence
from pathlib import Path

from toposcope.engine import Workers, processors, report
from toposcope.extend import Progress, silent
from toposcope_experiments.grokking.design import ARCHITECTURES, Architecture, Design
from toposcope_experiments.grokking.measured import MeasuredRuns, measure_runs
from toposcope_experiments.grokking.training import train
from toposcope_experiments.small_networks.workers import run_all

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
