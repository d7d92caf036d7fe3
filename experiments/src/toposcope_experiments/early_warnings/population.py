"""The whole population, trained or read from disk: one file of traces for each pack."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toposcope.engine import Workers, one_thread, processors, report
from toposcope.extend import Progress, ToposcopeError, silent, write_bytes
from toposcope.family import Corpus, prepare
from toposcope_experiments.early_warnings.design import Design, Pack
from toposcope_experiments.early_warnings.precursors import PRECURSORS
from toposcope_experiments.early_warnings.traces import TRACES, write_traces
from toposcope_experiments.early_warnings.training import PackTrainer
from toposcope_experiments.small_networks.commands import run_all

DESIGN, COSTS, CORPUS, STATES = "design.json", "costs.json", "corpus.safetensors", "training"
TIMED_STEPS, TIMINGS = 3, 3  # updates before a measurement is timed, and how often; the median counts
Costs = Mapping[str, Mapping[str, float]]
"""CPU seconds of one measurement of one run, by shape and precursor."""


def train_population(design: Design, folder: Path, workers: int | None = None, progress: Progress = silent) -> None:
    """Train all runs, or go on where it was interrupted, and write their traces.

    Values do not depend on the workers. The costs are measured once and kept, so that all files of a folder agree.

    Raises
    ------
    ToposcopeError
        Where the folder holds another population, or a file there is damaged.
    """
    _declare(design, folder)
    corpus = folder / CORPUS
    prepare(Corpus(source=design.corpus), corpus)
    packs = design.packs()
    costs = _costs(packs, corpus, folder)
    tasks = [(pack, corpus, folder, costs[pack.shape.name]) for pack in packs if not _path(folder, pack).exists()]
    total = sum(pack.steps * len(pack.plans) for pack in packs)
    left = {pack.name: pack.steps * len(pack.plans) for pack, *_ in tasks}
    runs = {pack.name: len(pack.plans) for pack in packs}

    def advance(name: str, step: int, steps: int) -> None:
        left[name] = (steps - step) * runs[name]
        progress("train", total - sum(left.values()), total)

    progress("train", total - sum(left.values()), total)
    if tasks:
        with Workers(min(workers or processors(), len(tasks))) as engine:
            run_all(engine, train_pack, tasks, lambda task: task[0].name, advance)


def train_pack(task: tuple[Pack, Path, Path, Mapping[str, float]]) -> None:
    """Train the runs of a pack and write their traces; the state to resume from is then no longer needed."""
    pack, corpus, folder, costs = task
    with one_thread():
        trainer = PackTrainer(pack, corpus, folder / STATES)
        trainer.train(report)
    write_traces(_path(folder, pack), trainer.traces(costs))
    trainer.path.unlink(missing_ok=True)


def measure_costs(pack: Pack, corpus: Path, folder: Path) -> dict[str, float]:
    """Return the CPU seconds of one measurement of each precursor of one run, in a pack of this kind."""
    costs = {}
    with one_thread():
        trainer = PackTrainer(pack, corpus, folder)
        for step in range(1, TIMED_STEPS + 1):
            trainer.update(step)
        for name, precursor in PRECURSORS.items():
            seconds = []
            for _ in range(TIMINGS):
                snapshot = replace(trainer.last)  # without what another precursor has left
                begin = time.process_time()
                precursor.measure(snapshot)
                seconds.append(time.process_time() - begin)
            costs[name] = sorted(seconds)[TIMINGS // 2] / len(pack.plans)
    return costs


def _costs(packs: list[Pack], corpus: Path, folder: Path) -> Costs:
    path = folder / COSTS
    if path.exists():
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ToposcopeError(f"{path}: cannot be read ({error}); remove it to measure again") from error
    largest = {pack.shape.name: pack for pack in sorted(packs, key=lambda pack: len(pack.plans))}
    costs = {name: measure_costs(pack, corpus, folder / STATES) for name, pack in largest.items()}
    write_bytes(path, json.dumps(costs, indent=2).encode() + b"\n")
    return costs


def _path(folder: Path, pack: Pack) -> Path:
    return folder / f"{pack.name}{TRACES}"


def _declare(design: Design, folder: Path) -> None:
    """Write the design and the cadences, unless the folder belongs to others."""
    path = folder / DESIGN
    cadences = {name: precursor.cadence for name, precursor in PRECURSORS.items()}
    declared: dict[str, Any] = json.loads(json.dumps({**asdict(design), "cadences": cadences}, default=str))
    if path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            other = [name for name in declared if before[name] != declared[name]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ToposcopeError(f"{path}: cannot be read ({error}); choose another folder with --out") from error
        if other:
            raise ToposcopeError(
                f"{path}: {other[0]} is {before[other[0]]!r} there and {declared[other[0]]!r} here; choose another "
                "folder with --out"
            )
    write_bytes(path, json.dumps(declared, indent=2).encode() + b"\n")
