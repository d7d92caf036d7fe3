"""All packs of an intervention, trained or read from disk, and the tables of what came of them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.engine import Workers, processors, report
from toposcope.extend import Matrix, Progress, silent, to_csv, write_bytes
from toposcope.family import Corpus, prepare
from toposcope_experiments.interventions.design import RATES, STEERED, Arm, Design, Pack
from toposcope_experiments.interventions.results import BASE, DESIGN, OWN_DOSES, RESULTS, STATISTIC, finite_mean
from toposcope_experiments.interventions.training import COSINE, IS_PUSHED, LOSS, NORM, SHARE, VALUE, train
from toposcope_experiments.small_networks.commands import refuse_other_design, run_all

PUSHES = "pushes.csv"
TRAINING, CORPUS = "training", "corpus.safetensors"  # folder and file of what was made so far
MAY_GROW = ("seeds", "statistics")  # what may differ from an earlier run in the same folder
DIGITS = 6  # significant ones, in the log of pushes


def run_experiment(design: Design, folder: Path, *, workers: int | None = None, progress: Progress = silent) -> None:
    """Train all runs, or go on where it was interrupted, and write the results, the log of pushes and the design."""
    declared = declaration(design)
    refuse_other_design(folder / DESIGN, declared, may_differ=MAY_GROW)
    corpus = folder / CORPUS
    prepare(Corpus(source=design.corpus), corpus)
    write_bytes(folder / DESIGN, json.dumps(declared, indent=2).encode() + b"\n")
    packs = design.packs()
    tasks = [(pack, corpus, folder / TRAINING) for pack in packs]
    steps = dict.fromkeys((pack.name for pack in packs), 0)

    def advance(name: str, step: int, _: int) -> None:
        steps[name] = step
        progress("train", sum(steps.values()), len(packs) * design.steps)

    progress("train", 0, len(packs) * design.steps)
    with Workers(min(workers or processors(), len(tasks))) as engine:
        logs = run_all(engine, train_pack, tasks, lambda task: task[0].name, advance)
    for name, tables in {RESULTS: map(result_table, packs, logs), PUSHES: map(push_table, packs, logs)}.items():
        write_bytes(folder / name, to_csv(pl.concat(tables)))


def train_pack(task: tuple[Pack, Path, Path]) -> dict[str, Matrix]:
    """Train the runs of a pack."""
    return train(*task, progress=report)


def declaration(design: Design) -> dict[str, Any]:
    """Return the design with all that follows from it, as JSON holds it."""
    options = design.training(0)
    facts = {
        "n_parameters": design.model_size.n_parameters,
        "learning_rate": RATES[design.optimizer],
        "warmup_steps": options.warmup_steps,
        "validation_sequences": options.validation_sequences,
        "measured_every": design.every,
        "pushed_matrices": IS_PUSHED,
    }
    return dict(json.loads(json.dumps(asdict(design) | facts)))


def result_table(pack: Pack, log: dict[str, Matrix]) -> pl.DataFrame:
    """Return a row for each run of a pack: its dose and its losses in nats."""
    design, n_seeds, seeds = pack.design, len(pack.seeds), pack.seeds
    doses = doses_of(log[VALUE], n_seeds)[-1]
    by_arm = dict(zip(design.arms, doses.reshape(-1, n_seeds), strict=True))
    unsteered = np.full(n_seeds, np.nan)
    targets = [by_arm[Arm(STATISTIC, arm.direction)] if arm.kind in STEERED else unsteered for arm in design.arms]
    loss, half = log[LOSS][-1], log[LOSS][design.measured_steps.index(design.steps // 2)]
    columns = {
        "statistic": [pack.statistic] * len(doses),
        "arm": [arm.kind for arm in design.arms for _ in seeds],
        "direction": [arm.direction for arm in design.arms for _ in seeds],
        "seed": seeds * len(design.arms),
        "share": [finite_mean(of_run, 0.0) for of_run in log[NORM][1:].T],
        "dose": doses,
        "target_dose": np.concatenate(targets),
        "loss": loss,
        "loss_half": half,
        "diverged": (~np.isfinite(loss)).astype(int),
        **{column: doses_of(log[name][-1:], n_seeds)[0] for name, column in OWN_DOSES.items()},
    }
    numbers = pl.col(pl.Float64)
    return pl.DataFrame(columns).with_columns(pl.when(numbers.is_finite()).then(numbers))


def push_table(pack: Pack, log: dict[str, Matrix]) -> pl.DataFrame:
    """Return a row for each pushed run and measured step: what the push did since the measurement before."""
    n_seeds, steps = len(pack.seeds), pack.design.measured_steps
    doses = doses_of(log[VALUE], n_seeds)
    runs = [i * n_seeds + j for i, arm in enumerate(pack.design.arms) if arm.kind != BASE for j in range(n_seeds)]
    n_steps = len(steps) - 1
    arms = [pack.design.arms[run // n_seeds] for run in runs]
    columns: dict[str, Any] = {
        "statistic": [pack.statistic] * (len(runs) * n_steps),
        "arm": np.repeat([arm.kind for arm in arms], n_steps),
        "direction": np.repeat([arm.direction for arm in arms], n_steps),
        "seed": np.repeat([pack.seeds[run % n_seeds] for run in runs], n_steps),
        "step": np.tile(steps[1:], len(runs)),
    }
    measured = {VALUE: log[VALUE], "dose": doses, **{name: log[name] for name in (SHARE, NORM, COSINE)}}
    columns |= {name: values[1:, runs].T.ravel() for name, values in measured.items()}
    return pl.DataFrame(columns).with_columns(pl.col(*measured).fill_nan(None).round_sig_figs(DIGITS))


def doses_of(values: Matrix, n_seeds: int) -> Matrix:
    """Return the logarithm of a statistic over that of the base run of the same seed, shape (t, runs)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(values)
        doses: Matrix = logs - np.tile(logs[:, :n_seeds], (1, logs.shape[1] // n_seeds))
    return doses
