"""Every sweep that the rules are tried on: trained here, and read from files of others."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl
import safetensors.torch

from toposcope.engine import Workers, processors
from toposcope.extend import Progress, Steps, ToposcopeError, Vector, silent, write_bytes
from toposcope.family import Corpus, prepare
from toposcope_experiments.small_networks.commands import refuse_other_design, run_all
from toposcope_experiments.sweeps.design import Design, Sweep, sweeps
from toposcope_experiments.sweeps.training import Curves, train_sweep

TASK_RUNS = 50  # of a sweep that is made of the runs of a task of TaskSet
TASKSET, GIVEN = "TaskSet", "given"


class Curve(NamedTuple):
    """What a rule may know of one run, up to where it is."""

    steps: Steps  # of the evaluations, of which the first is before training
    losses: Vector  # infinite where not finite
    last_step: int
    warm_up: int
    decay_left: Vector  # at each evaluation, over the peak; 0 where the schedule is not known


@dataclass(frozen=True, eq=False)
class Population:
    """A sweep, and what it is told apart by."""

    name: str
    group: str  # the kind of sweep or the task: what is left out together
    source: str
    runs: tuple[Curve, ...]


def curves_of(name: str, group: str, source: str, curves: Curves) -> Population:
    """Return a trained sweep as a rule may know it."""
    of = curves.settings
    runs = []
    for i, last in enumerate(of.last_step.tolist()):
        until = curves.steps <= last
        steps, rates = curves.steps[until], of.rates[i, :last]
        left = (rates[np.maximum(steps - 1, 0)] - rates[-1]) / rates.max()
        losses = np.where(np.isfinite(curves.losses[i, until]), curves.losses[i, until], np.inf)
        runs.append(Curve(steps, losses, last, int(of.warm_up[i]), left))
    return Population(name, group, source, tuple(runs))


def trained(
    design: Design, folder: Path, *, workers: int | None = None, progress: Progress = silent
) -> list[Population]:
    """Train every sweep, or go on where it was interrupted."""
    declared = json.loads(msgspec.json.encode(design))
    refuse_other_design(folder / "design.json", declared)
    write_bytes(folder / "design.json", msgspec.json.encode(design))
    prepare(Corpus(source="python-docs"), folder / "corpus.safetensors")
    tasks = [(sweep, folder) for sweep in sweeps(design)]
    with Workers(min(workers or processors(), len(tasks))) as engine:
        found = run_all(engine, _train, tasks, lambda task: task[0].name, progress)
    return [
        curves_of(sweep.name, f"{sweep.network}, {sweep.kind}", sweep.network, curves)
        for (sweep, _), curves in zip(tasks, found, strict=True)
    ]


def _train(task: tuple[Sweep, Path]) -> Curves:
    sweep, folder = task
    text = safetensors.torch.load_file(folder / "corpus.safetensors")["training"].long()
    return train_sweep(sweep, text, folder / "training")


def taskset(path: Path) -> list[Population]:
    """Return the runs of each task as sweeps of 50."""
    try:
        frame = pl.read_parquet(path)
        tasks = {str(task): rows["valid_loss"].to_list() for (task,), rows in frame.sort("run").group_by("task")}
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ToposcopeError(f"{path}: cannot be read as TaskSet's curves ({error})") from error
    found = []
    for task, rows in sorted(tasks.items()):
        losses = np.array([[np.inf if x is None or x != x else x for x in row] for row in rows])
        steps, none = np.arange(losses.shape[1]), np.zeros(losses.shape[1])
        for first in range(0, len(losses) - TASK_RUNS + 1, TASK_RUNS):
            runs = tuple(Curve(steps, row, int(steps[-1]), 0, none) for row in losses[first : first + TASK_RUNS])
            found.append(Population(f"{task}-{first}", task, TASKSET, runs))
    return found


def given(path: Path) -> Population:
    """Return a sweep that was trained elsewhere for this project."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("T", "vs", "va", "lrs", "warm")}
    except (OSError, ValueError, KeyError) as error:
        raise ToposcopeError(f"{path}: cannot be read as a sweep ({error})") from error
    runs = []
    for i, last in enumerate(arrays["T"].tolist()):
        until = arrays["vs"] <= last
        steps, rates = arrays["vs"][until].astype(np.int64), arrays["lrs"][i, :last].astype(np.float64)
        left = (rates[np.maximum(steps - 1, 0)] - rates[-1]) / rates.max()
        losses = arrays["va"][i, until].astype(np.float64)
        losses = np.where(np.isfinite(losses), losses, np.inf)
        runs.append(Curve(steps, losses, int(last), round(float(arrays["warm"][i]) * last), left))
    return Population(path.stem, path.stem, GIVEN, tuple(runs))
